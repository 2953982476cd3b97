"""Decoder-only architectures without a decoder of their own: transformers' modules on the engine's paged cache."""
