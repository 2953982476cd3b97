"""``coldplate-engine``: one engine worker."""

import asyncio
import contextlib
import logging
import os
import sys

import psutil

from coldplate.logs import configure_logs
from coldplate.settings import EXIT_BAD_SETTINGS, load_settings
from coldplate.stderr import write_stderr
from coldplate_engine.runner import ModelError
from coldplate_engine.settings import EngineSettings
from coldplate_engine.threads import let_waiting_threads_sleep

PROGRAM = "coldplate-engine"


def main() -> None:
    """Run until told to end.

    Exit codes: 0 asked to, 2 unusable model or setting, 3 the device must be replaced, 4 no server.
    """
    let_waiting_threads_sleep()
    settings = load(sys.argv[1:])
    configure_logs(PROGRAM, settings.log_level, settings.log_format)
    try:
        code = asyncio.run(_serve(settings))
    except (ModelError, OSError) as error:
        write_stderr(f"{PROGRAM}: {' '.join(str(error).split())}\n".encode(errors="backslashreplace"))
        code = EXIT_BAD_SETTINGS
    # The engine's thread may be inside a hung device call or a load: neither can be joined.
    logging.shutdown()
    _end_children()
    os._exit(code)


def load(argv: list[str]) -> EngineSettings:
    """Settings from a command line; with ``--engine vllm`` the flags we do not know are vLLM's."""
    ours, others = split_flags(argv)
    if not others:
        return load_settings(EngineSettings, PROGRAM, argv)
    settings = load_settings(EngineSettings, PROGRAM, ours)
    if settings.engine != "vllm":
        return load_settings(EngineSettings, PROGRAM, argv)  # which names what it does not know
    settings.vllm_args += others
    return settings


def split_flags(argv: list[str]) -> tuple[list[str], list[str]]:
    """Flags of ours, and the others, each with the values behind it."""
    known = {f"--{name.replace('_', '-')}" for name in EngineSettings.model_fields} | {"--config", "--help", "-h"}
    known |= {flag.replace("--", "--no-", 1) for flag in known}
    ours: list[str] = []
    others: list[str] = []
    target = ours
    for word in argv:
        if word.startswith("-"):
            target = ours if word.partition("=")[0] in known else others
        target.append(word)
    return ours, others


def _end_children() -> None:
    """Processes of ours must not outlive us: vLLM's would."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


async def _serve(settings: EngineSettings) -> int:
    from coldplate_engine.worker import Worker

    return await Worker(settings).serve()


if __name__ == "__main__":
    main()
