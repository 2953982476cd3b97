"""``coldplate board``: read and poke the simulated board."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from coldplate.paths import runtime_dir
from coldplate_client.cli.console import EXIT_USAGE, CliFailure, out

if TYPE_CHECKING:
    from coldplate_governor.board.client import BoardClient

app = typer.Typer(help="The simulated board: read its sensors, heat it, break it.", no_args_is_help=True)

BoardOption = Annotated[
    str | None,
    typer.Option("--board", envvar="COLDPLATE_BOARD", help="The board's address.", metavar="unix:/PATH"),
]
ChipOption = Annotated[int | None, typer.Option(help="Number of the chip; every chip when left out.")]
SecondsOption = Annotated[float | None, typer.Option(help="For how long; for good when left out.")]


def default_board_address() -> str:
    """Where `coldplate up --board` puts it."""
    return f"unix:{runtime_dir() / 'board.sock'}"


@app.command()
def describe(board: BoardOption = None) -> None:
    """Chips, cards, and what can be done to them with `poke`."""
    with _board(board) as client:
        out.print(json.dumps(client.describe(), indent=2), markup=False)


@app.command()
def read(chip: Annotated[int, typer.Option(help="Number of the chip.")] = 0, board: BoardOption = None) -> None:
    """A chip's sensors. Every number is simulated."""
    with _board(board) as client:
        for name, value in client.read(chip).items():
            out.print(f"{name}: {value}", markup=False)


@app.command()
def heat(celsius: Annotated[float, typer.Argument()], chip: ChipOption = None, board: BoardOption = None) -> None:
    """Bring chips to a temperature at once."""
    _poke(board, "heat", chip, celsius=celsius)


@app.command()
def ambient(celsius: Annotated[float, typer.Argument()], chip: ChipOption = None, board: BoardOption = None) -> None:
    """Set the temperature of the air."""
    _poke(board, "ambient", chip, celsius=celsius)


@app.command()
def fan(
    share: Annotated[float, typer.Argument(help="Of the usual air flow.")],
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Give the heatsinks less or more air."""
    _poke(board, "fan", chip, share=share)


@app.command()
def contact(
    factor: Annotated[float, typer.Argument(help="How many times worse heat gets to the heatsink.")],
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Loosen the chips from their heatsink."""
    _poke(board, "contact", chip, factor=factor)


@app.command()
def oom(
    steps: Annotated[int, typer.Argument(help="How many.")] = 1, chip: ChipOption = None, board: BoardOption = None
) -> None:
    """Let the next steps run out of memory."""
    _poke(board, "oom", chip, steps=steps)


@app.command()
def memory(
    mib: Annotated[int | None, typer.Argument(help="MiB left for the worker; all of it when left out.")] = None,
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Take memory away, as another process would."""
    _poke(board, "memory", chip, bytes=None if mib is None else mib << 20)


@app.command()
def lose(chip: ChipOption = None, board: BoardOption = None) -> None:
    """Lose chips: steps and sensors fail until they are restored."""
    _poke(board, "lose", chip)


@app.command()
def lie(
    celsius: Annotated[float, typer.Argument()],
    seconds: SecondsOption = None,
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Let the temperature sensor say something else."""
    _poke(board, "lie", chip, celsius=celsius, seconds=seconds)


@app.command()
def freeze(seconds: SecondsOption = None, chip: ChipOption = None, board: BoardOption = None) -> None:
    """Let the sensors go on saying what they say now."""
    _poke(board, "freeze", chip, seconds=seconds)


@app.command()
def hang(
    seconds: Annotated[float, typer.Argument()] = 60.0, chip: ChipOption = None, board: BoardOption = None
) -> None:
    """Let the sensors, and npu-smi with them, not answer."""
    _poke(board, "hang", chip, seconds=seconds)


@app.command()
def alarm(
    code: Annotated[str, typer.Argument(help="An event id, such as 0x80E01801.")],
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Raise an event."""
    _poke(board, "alarm", chip, code=_number(f"code={code}")[1])


@app.command()
def cap(
    share: Annotated[float, typer.Argument(help="Of the rated clock.")],
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Hold the clock down, as a power cap from outside does."""
    _poke(board, "cap", chip, share=share)


@app.command()
def restore(chip: ChipOption = None, board: BoardOption = None) -> None:
    """End every fault put into the chips."""
    _poke(board, "restore", chip)


@app.command()
def level(
    number: Annotated[int, typer.Argument(help="As for npu-smi set -t nve-level.")],
    chip: Annotated[int, typer.Option(help="Number of the chip.")] = 0,
    board: BoardOption = None,
) -> None:
    """Set a 310B's work level."""
    with _board(board) as client:
        client.set_level(chip, number)


@app.command()
def poke(
    what: Annotated[str, typer.Argument(help="One of the pokes that `describe` lists.")],
    values: Annotated[list[str] | None, typer.Argument(help="Its values.", metavar="NAME=NUMBER")] = None,
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Do anything that `describe` lists to chips."""
    _poke(board, what, chip, **dict(_number(item) for item in values or ()))


def _poke(board: str | None, what: str, chip: int | None, **values: float | None) -> None:
    with _board(board) as client:
        client.poke(what, chip, **values)


def _number(item: str) -> tuple[str, float]:
    name, equals, text = item.partition("=")
    if equals:
        with suppress(ValueError):
            return name, int(text, 0)
        with suppress(ValueError):
            return name, float(text)
    raise CliFailure(f"{item!r}: expected NAME=NUMBER, such as celsius=90", EXIT_USAGE)


@contextmanager
def _board(address: str | None) -> Iterator["BoardClient"]:
    try:
        from coldplate_governor.board.client import BoardClient, BoardRefused, BoardUnreachable
    except ImportError:
        raise CliFailure("the simulated board is part of coldplate[governor]", EXIT_USAGE) from None
    try:
        with BoardClient(address or default_board_address()) as client:
            yield client
    except BoardUnreachable as error:
        raise CliFailure(f"{error}; start one with `coldplate up --board 310p`") from None
    except BoardRefused as error:
        raise CliFailure(str(error)) from None
    except ValueError as error:
        raise CliFailure(str(error), EXIT_USAGE) from None
