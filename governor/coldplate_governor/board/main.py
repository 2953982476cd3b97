"""``coldplate-board``: a simulated board in real time."""

import asyncio
import signal
from typing import Literal

import structlog
from pydantic import Field, field_validator

from coldplate.clock import MonotonicClock
from coldplate.logs import configure_logs
from coldplate.parent import end_with_supervisor
from coldplate.settings import ProcessSettings, fail, load_settings
from coldplate_governor.board.board import Board
from coldplate_governor.board.client import unix_path
from coldplate_governor.board.service import AddressTakenError, BoardService

PROGRAM = "coldplate-board"
log = structlog.get_logger(__name__)


class BoardSettings(ProcessSettings):
    """A simulated Ascend 310P board: workers post steps to it, sensors read it, and `coldplate board` pokes it."""

    chip: Literal["310p"] = Field("310p", description="The chip to simulate.")
    count: int = Field(1, ge=1, le=16, description="Chips; each two share a card and its heatsink.")
    listen: str = Field(description="Where to listen: unix:/path.")
    start_temperature_celsius: float | None = Field(
        None, ge=-20, le=120, description="Start warm, so that nothing has to wait for it. [default: ambient]"
    )
    ambient_celsius: float = Field(35.0, ge=-20, le=70, description="Air at the cards.")
    speed: float = Field(1.0, gt=0, le=100, description="Board seconds in a second.")

    @field_validator("listen")
    @classmethod
    def _is_unix(cls, value: str) -> str:
        unix_path(value)
        return value


def main(argv: list[str] | None = None) -> None:
    end_with_supervisor()
    settings = load_settings(BoardSettings, PROGRAM, argv)
    configure_logs("board", settings.log_level, settings.log_format)
    board = Board(settings.count, settings.ambient_celsius, settings.start_temperature_celsius)
    try:
        asyncio.run(_serve(settings, board))
    except AddressTakenError as error:
        fail(PROGRAM, f"listen: {error}")


async def _serve(settings: BoardSettings, board: Board) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = BoardService(board, MonotonicClock(), settings.speed)
    await service.serve(
        unix_path(settings.listen),
        stop,
        ready=lambda: log.info("ready", listen=settings.listen, chips=settings.count, simulated=True),
    )


if __name__ == "__main__":
    main()
