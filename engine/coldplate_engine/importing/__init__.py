"""Turning model files of other programs into Hugging Face safetensors directories. Needs no torch."""
