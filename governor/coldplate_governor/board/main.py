"""``coldplate-board``: a simulated board in real time. ``coldplate-board npu-smi ...`` is its stand-in tool."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Literal

import structlog
from pydantic import Field, field_validator

from coldplate.clock import MonotonicClock
from coldplate.logs import configure_logs
from coldplate.parent import end_with_supervisor
from coldplate.settings import ProcessSettings, fail, load_settings
from coldplate_governor.board import npu_smi
from coldplate_governor.board.board import Board
from coldplate_governor.board.client import unix_path
from coldplate_governor.board.service import AddressTakenError, BoardService

PROGRAM = "coldplate-board"
log = structlog.get_logger(__name__)


class BoardSettings(ProcessSettings):
    """A simulated Ascend board: workers post steps to it, sensors read it, and `coldplate board` pokes it."""

    chip: Literal["310p", "310b", "310b1", "910b", "a3"] = Field("310p", description="The chip to simulate.")
    count: int = Field(1, ge=1, le=16, description="Chips; each two of a 310p share a card and its heatsink.")
    listen: str = Field(description="Where to listen: unix:/path.")
    start_temperature_celsius: float | None = Field(
        None, ge=-20, le=120, description="Start warm, so that nothing has to wait for it. [default: ambient]"
    )
    ambient_celsius: float = Field(35.0, ge=-20, le=70, description="Air at the cards.")
    speed: float = Field(
        1.0, gt=0, le=100, description="Board seconds in a second. A governor's clock does not run faster with it."
    )
    npu_smi_dir: Path | None = Field(
        None, description="Folder to put a stand-in npu-smi into, which shows this board for as long as it runs."
    )

    @field_validator("listen")
    @classmethod
    def _is_unix(cls, value: str) -> str:
        unix_path(value)
        return value


def main(argv: list[str] | None = None) -> None:
    args = sys.argv[1:] if argv is None else argv
    if args[:1] == ["npu-smi"]:
        sys.exit(npu_smi.main(args[1:]))
    end_with_supervisor()
    settings = load_settings(BoardSettings, PROGRAM, args)
    configure_logs("board", settings.log_level, settings.log_format)
    board = Board(settings.count, settings.ambient_celsius, settings.start_temperature_celsius, settings.chip)
    tool = None
    try:
        if settings.npu_smi_dir is not None:
            tool = npu_smi.write_tool(settings.npu_smi_dir, settings.listen)
        asyncio.run(_serve(settings, board))
    except AddressTakenError as error:
        fail(PROGRAM, f"listen: {error}")
    except npu_smi.ToolNotWritten as error:
        fail(PROGRAM, f"npu-smi-dir: {error}")
    finally:
        if tool is not None:
            tool.unlink(missing_ok=True)


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
