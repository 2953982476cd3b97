"""Text in and out: tokenizer, chat template, incremental detokenising and stop sequences. No torch, no gRPC."""
