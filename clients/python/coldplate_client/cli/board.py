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
    with _board(board) as client:
        client.poke("heat", chip, celsius=celsius)


@app.command()
def poke(
    what: Annotated[str, typer.Argument(help="One of the pokes that `describe` lists.")],
    values: Annotated[list[str] | None, typer.Argument(help="Its values.", metavar="NAME=NUMBER")] = None,
    chip: ChipOption = None,
    board: BoardOption = None,
) -> None:
    """Do something to chips: lose one, let a sensor lie, take memory away."""
    numbers = dict(_number(item) for item in values or ())
    with _board(board) as client:
        client.poke(what, chip, **numbers)


def _number(item: str) -> tuple[str, float]:
    name, equals, value = item.partition("=")
    if equals:
        with suppress(ValueError):
            return name, int(value) if value.isdigit() else float(value)
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
