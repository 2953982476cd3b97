"""What importing the client pulls in."""

import subprocess
import sys

import pytest

# Extras that the base installation does not have.
_ABSENT = (
    *("torch", "transformers", "numpy", "pydantic", "pydantic_settings", "structlog", "psutil", "tokenizers"),
    *("jinja2", "prometheus_client", "grpc_health", "grpc_reflection", "grpc_status", "safetensors", "gguf"),
)


@pytest.mark.parametrize(
    "modules", ["coldplate_client", "coldplate_client.cli, coldplate_client.cli.app, coldplate_client.demo"]
)
def test_the_client_imports_without_any_extra(modules: str) -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({_ABSENT!r}))"
    subprocess.run([sys.executable, "-c", f"{block}; import {modules}"], check=True)
