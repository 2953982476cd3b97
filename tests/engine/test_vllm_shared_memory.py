"""Shared memory of vLLM's processes goes with them."""

import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from coldplate_engine.vllm_worker.shared_memory import unname_shared_memory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_segment_loses_its_name_and_nothing_else() -> None:
    segment = SharedMemory(create=True, size=4096)
    path = Path("/dev/shm") / segment.name
    assert path.exists()
    assert path in unname_shared_memory()
    resource_tracker.unregister(f"/{segment.name}", "shared_memory")
    assert not path.exists()
    assert segment.buf is not None
    segment.buf[:3] = b"abc"
    assert bytes(segment.buf[:3]) == b"abc"
    segment.close()
