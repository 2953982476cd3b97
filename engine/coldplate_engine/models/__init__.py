"""Decoders written for the engine's paged cache, one family a file."""
