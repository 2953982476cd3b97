"""``coldplate-engine``: one engine worker."""

import asyncio
import logging
import os

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
    settings = load_settings(EngineSettings, PROGRAM)
    configure_logs(PROGRAM, settings.log_level, settings.log_format)
    try:
        code = asyncio.run(_serve(settings))
    except (ModelError, OSError) as error:
        write_stderr(f"{PROGRAM}: {' '.join(str(error).split())}\n".encode(errors="backslashreplace"))
        code = EXIT_BAD_SETTINGS
    # The engine's thread may be inside a hung device call or a load: neither can be joined.
    logging.shutdown()
    os._exit(code)


async def _serve(settings: EngineSettings) -> int:
    from coldplate_engine.worker import Worker

    return await Worker(settings).serve()


if __name__ == "__main__":
    main()
