"""``fake_dcmi.c``, built with the machine's compiler."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from support.processes import new_folder


@cache
def fake_dcmi(*without: str) -> Path:
    """Path of the built library, without the given groups of functions. Skips the test where nothing can build it."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on this machine to build the stand-in libdcmi with")
    library = new_folder() / "libdcmi.so"
    source = Path(__file__).with_name("fake_dcmi.c")
    flags = [f"-DWITHOUT_{name}" for name in without]
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *flags, "-o", str(library), str(source)], check=True)
    return library
