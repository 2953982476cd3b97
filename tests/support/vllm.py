"""vLLM's own environment for tests: the one that ``VLLM_VENV`` names, or ``.venv-vllm``, made when it is not there."""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.processes import SLOW_DEVICE

ROOT = Path(__file__).parents[2]
START_S = 600.0  # three processes import vLLM one after the other, on few cores beside other tests
_MAKING_S = 3600.0

# For fixtures and tests that run with either worker. vLLM's has time to start.
WORKERS = ["native", pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.timeout(2 * START_S)])]


@cache
def _found() -> tuple[Path | None, str]:
    venv = Path(os.environ.get("VLLM_VENV") or ROOT / ".venv-vllm")
    python = venv / "bin" / "python"
    if python.exists() and ("VLLM_VENV" in os.environ or list(venv.glob(".ready-*"))):
        return python, ""
    made = subprocess.run(
        ["make", "-C", str(ROOT), "vllm-venv"], capture_output=True, text=True, timeout=_MAKING_S, check=False
    )
    if made.returncode == 0 and python.exists():
        return python, ""
    return None, next(reversed((made.stdout + made.stderr).split("\n\n")[-1].splitlines()), "make failed")


def vllm_python() -> Path:
    """The interpreter beside vLLM; skips the test, with the reason, where there can be none."""
    python, reason = _found()
    if python is None:
        pytest.skip(f"no environment with vLLM (make vllm-venv): {reason}")
    return python


def stack_options(
    kind: str, *, device: str = "cpu", engine_args: Sequence[str] = (), server_args: Sequence[str] = ()
) -> dict[str, Any]:
    """Arguments of ``Stack`` for one worker of a kind; ``device`` and ``engine_args`` mean the same to both."""
    if kind == "native":
        return {"workers": [device], "engine_args": list(engine_args), "server_args": list(server_args)}
    return {
        "workers": [f"vllm:{device}"],
        "engine_args": list(engine_args),
        "server_args": [f"vllm-python={vllm_python()}", "vllm-arg=--enforce-eager", *server_args],
        "start_timeout_s": START_S,
    }


def slow_steps(kind: str, engine_args: Sequence[str], server_args: Sequence[str] = ()) -> dict[str, Any]:
    """``stack_options`` with steps of at least 20 ms."""
    return stack_options(kind, device=SLOW_DEVICE, engine_args=["test-faults", *engine_args], server_args=server_args)
