"""``coldplate-server``: the process."""

import asyncio
import signal
from collections.abc import Callable

from coldplate.clock import MonotonicClock
from coldplate.logs import configure_logs
from coldplate.parent import end_with_supervisor
from coldplate.settings import fail, load_settings
from coldplate_server.app import App, StartRefused
from coldplate_server.settings import ServerSettings
from coldplate_server.text.tokenizer import ModelFilesError

PROGRAM = "coldplate-server"


def main() -> None:
    """Serve until SIGTERM or SIGINT. Exit code 0 after a clean stop, 2 when it cannot start as configured."""
    end_with_supervisor()
    settings = load_settings(ServerSettings, PROGRAM)
    configure_logs("server", settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_run(settings))
        except (StartRefused, ModelFilesError) as error:
            fail(PROGRAM, str(error))


async def _run(settings: ServerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):  # before anything is made that has to be cleaned up
        loop.add_signal_handler(stop_signal, stop.set)
    await App(settings, MonotonicClock(), stop).run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
