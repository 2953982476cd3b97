"""Build the kernels once and keep the library: ``python -m coldplate_engine.kernels.build``.

The file's name is the hash of all that shapes it (sources, flags, compiler, processor), so a library is never stale and
machines may share a home.
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from coldplate.paths import ensure_private_dir, kernel_cache

SOURCES = Path(__file__).parent / "csrc"
# No -ffast-math: a NaN must stay one, and rows must round alike whatever is computed beside them.
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi")
_NATIVE = {"x86_64": "-march=native", "AMD64": "-march=native", "aarch64": "-mcpu=native", "arm64": "-mcpu=native"}
_COMPILERS = ("g++", "c++", "clang++")
_CPU_INFO = Path("/proc/cpuinfo")
_TIMEOUT_S = 300.0


class BuildError(Exception):
    """The kernels cannot be built here: one line."""


def build(
    *,
    cache: Path | None = None,
    extra_flags: Sequence[str] = (),
    progress: Callable[[float], None] = lambda _share: None,
) -> Path:
    """The library's path, built first when it is not in ``cache``. Raises BuildError.

    ``cache`` None is the kernel cache, or a temporary folder of this user where that cannot be written.
    """
    compiler = find_compiler()
    flags = [*FLAGS, *filter(None, [_NATIVE.get(platform.machine())]), *extra_flags]
    sources = sorted(SOURCES.glob("*.cpp"))
    name = f"{_key(compiler, flags)}.so"
    for folder in [cache] if cache else [kernel_cache(), _temporary_cache()]:
        target = folder / name
        try:
            ensure_private_dir(folder)  # never load code that another user may have put there
            if target.is_file():
                return target
            with _locked(target.with_suffix(".lock")):
                if not target.is_file():  # another process may have built it while this one waited
                    _compile(compiler, flags, sources, target, progress)
                return target
        except OSError as error:
            unwritable = BuildError(f"{folder} cannot be written: {error}")
    raise unwritable


def find_compiler() -> list[str]:
    """The command of ``$CXX``, or the first of g++, c++ and clang++. Raises BuildError."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise BuildError(f"no C++ compiler: {named[0]} is not there" if named else "no C++ compiler (g++ or clang++)")


def _key(compiler: list[str], flags: list[str]) -> str:
    digest = hashlib.sha256()
    for part in (*compiler, *flags, _run([*compiler, "--version"]), platform.machine(), _cpu_flags()):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _cpu_flags() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    named = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].split(":")[0].strip() in named}))


def _compile(
    compiler: list[str], flags: list[str], sources: list[Path], target: Path, progress: Callable[[float], None]
) -> None:
    """All sources beside each other, then one link. The library appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]
        done = 0
        progress(0.0)

        def compile_one(pair: tuple[Path, Path]) -> None:
            nonlocal done
            source, to = pair
            _run([*compiler, *flags, "-c", str(source), "-o", str(to)])
            done += 1
            progress(done / (len(sources) + 1))

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, zip(sources, objects, strict=True)))
        library = Path(scratch) / target.name
        _run([*compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
        library.replace(target)
    progress(1.0)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0].strip() if lines else f'exit code {done.returncode}'}")
    return done.stdout


def _temporary_cache() -> Path:
    return Path(tempfile.gettempdir()) / f"coldplate-kernels-{os.getuid()}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Build, or say why not and exit with 1."""
    try:
        print(build())
    except BuildError as error:
        sys.exit(f"kernels: {error}")


if __name__ == "__main__":
    main()
