"""Building the kernels: once, whatever goes wrong."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coldplate_engine.kernels import build as building
from coldplate_engine.kernels import library
from coldplate_engine.kernels.build import BuildError, build

SOURCE = 'extern "C" int coldplate_lanes() { return 42; }\n'


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One small source in place of the kernels, and a cache of the test's own."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "tiny.cpp").write_text(SOURCE)
    monkeypatch.setattr(building, "SOURCES", sources)
    monkeypatch.setattr(library, "_found", [])
    monkeypatch.setattr(library, "_PROTOTYPES", {"coldplate_lanes": library._PROTOTYPES["coldplate_lanes"]})
    monkeypatch.setenv("COLDPLATE_KERNEL_CACHE", str(tmp_path / "cache"))
    return sources


def test_built_once_and_reported(tiny: Path) -> None:
    seen: list[float] = []
    path = build(progress=seen.append)
    assert seen == [0.0, 0.5, 1.0]
    assert build(progress=seen.append) == path
    assert len(seen) == 3
    assert library.open_library(path).coldplate_lanes() == 42


def test_another_source_or_flag_is_another_library(tiny: Path) -> None:
    first = build()
    flagged = build(extra_flags=("-DOTHER",))
    (tiny / "tiny.cpp").write_text(SOURCE.replace("42", "43"))
    assert len({first, flagged, build()}) == 3


def test_no_compiler(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with capture_logs() as logs:
        assert library.load_library() is None
        assert library.load_library() is None
    assert [entry["reason"] for entry in logs] == ["no C++ compiler (g++ or clang++)"]
    with pytest.raises(BuildError, match="no C"):
        library.load_library("on")


def test_a_compiler_that_is_named_but_absent(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-c++ -flag")
    with pytest.raises(BuildError, match="no-such-c"):
        build()


def test_a_source_that_does_not_compile(tiny: Path) -> None:
    (tiny / "tiny.cpp").write_text("int main( {")
    with pytest.raises(BuildError, match=r"tiny\.cpp:1:\d+: error"):
        build()
    assert library.load_library() is None


def test_off_builds_nothing(tiny: Path, tmp_path: Path) -> None:
    assert library.load_library("off") is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", [b"", b"\x7fELF cut short"])
def test_a_broken_cached_library_is_built_anew(tiny: Path, content: bytes) -> None:
    path = build()
    path.write_bytes(content)
    found = library.load_library()
    assert found is not None
    assert found.coldplate_lanes() == 42


def test_a_cache_that_cannot_be_written(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, fallback = tmp_path / "a_file", tmp_path / "elsewhere"
    blocked.write_text("not a folder")
    monkeypatch.setenv("COLDPLATE_KERNEL_CACHE", str(blocked))
    monkeypatch.setattr(building, "_temporary_cache", lambda: fallback)
    path = build()
    assert path.parent == fallback
    assert stat.S_IMODE(fallback.stat().st_mode) == 0o700


def test_a_cache_of_another_user_is_not_trusted(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_temporary_cache", lambda: tmp_path / "mine")
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(BuildError, match="cannot be written"):
        build()


def test_two_processes_at_once_build_once(tiny: Path, tmp_path: Path) -> None:
    counter = tmp_path / "compiler"
    counter.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo >> {tmp_path}/compiled;; esac\nexec g++ "$@"\n')
    counter.chmod(0o755)
    program = (
        "import pathlib, sys; from coldplate_engine.kernels import build as b;"
        "b.SOURCES = pathlib.Path(sys.argv[1]); print(b.build())"
    )
    environment = {**os.environ, "CXX": str(counter)}
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tiny)], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert said[0] == said[1] != ""
    assert (tmp_path / "compiled").read_text().count("\n") == 1


def test_the_module_builds_for_an_image(tiny: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coldplate_engine.kernels.build"],
        env={**os.environ, "CXX": "no-such-c++"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "kernels: no C++ compiler: no-such-c++ is not there"


def test_sources_are_in_the_package() -> None:
    """hatchling ships every file under the package's folder; these are the ones the build reads."""
    assert {"linear.h", "threads.cpp", "api.cpp"} <= {path.name for path in building.SOURCES.iterdir()}
    assert building.SOURCES.is_relative_to(Path(building.__file__).parent)
