"""Which heavy packages each part may pull in."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pydantic", "tokenizers", "numpy", "structlog")
EVERY_MODULE = """
import importlib, pkgutil, sys
root = importlib.import_module({package!r})
for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*(name for name in {heavy!r} if name in sys.modules))
"""


def pulled_in(code: str) -> set[str]:
    """The heavy packages loaded by a fresh interpreter that runs ``code``, which prints them."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def every_module_of(package: str) -> set[str]:
    return pulled_in(EVERY_MODULE.format(package=package, heavy=HEAVY))


@pytest.mark.parametrize("package", ["coldplate_client", "coldplate.v1", "coldplate.internal"])
def test_the_base_install_is_light(package: str) -> None:
    loaded = pulled_in(f"import sys, {package}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))")
    assert loaded == set()


def test_the_command_line_starts_light() -> None:
    loaded = pulled_in(f"import sys, coldplate_client.cli\nprint(*(name for name in {HEAVY!r} if name in sys.modules))")
    assert loaded == set()


@pytest.mark.parametrize("package", ["coldplate_server", "coldplate_governor"])
def test_no_module_of_server_or_governor_needs_torch(package: str) -> None:
    assert not every_module_of(package) & {"torch", "transformers"}
