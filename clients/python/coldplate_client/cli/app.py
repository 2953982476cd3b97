"""The command line as a whole: which commands there are, and how they end."""

import os
import sys
from typing import Annotated

import typer

from coldplate import __version__
from coldplate_client.cli import admin, board, chat, demo, generate, limit, models, status, up, why
from coldplate_client.cli.console import EXIT_FAILED, CliFailure, err

app = typer.Typer(
    name="coldplate",
    help="Talk to a Coldplate service, watch it, and run one on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("status")(status.status)
app.command("why")(why.why)
app.command("limit")(limit.limit)
app.add_typer(models.app, name="models")
app.add_typer(board.app, name="board")
app.command("up")(up.up)
app.command("drain")(admin.drain)
app.command("resume")(admin.resume)
app.command("abort")(admin.abort)
app.command("demo", hidden=True)(demo.demo)

_EXIT_INTERRUPTED = 130


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coldplate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Talk to a Coldplate service, watch it, and run one on this machine."""


def main() -> None:
    """Run the command line. Exit codes: 0; 1 the service refused or failed; 2 unusable arguments or files."""
    try:
        app()
    except CliFailure as failure:
        err.print(f"coldplate: {failure}", markup=False)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; nothing may be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
