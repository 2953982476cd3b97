"""Reading checkpoints: a model directory in the Hugging Face layout."""
