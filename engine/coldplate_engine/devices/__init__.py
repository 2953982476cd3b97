"""Devices a model can run on."""
