"""The ``coldplate`` command."""

from coldplate_client.cli.app import main

__all__ = ["main"]
