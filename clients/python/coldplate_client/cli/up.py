"""``coldplate up``: a whole Coldplate on this machine."""

import importlib.util
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from coldplate.paths import control_socket, runtime_dir
from coldplate.transport import DEFAULT_ADDRESS
from coldplate_client.cli.board import default_board_address
from coldplate_client.cli.console import EXIT_FAILED, EXIT_USAGE, CliFailure, out
from coldplate_client.cli.models import demo_model_folder, gguf_folder, needs_extra
from coldplate_client.up import Stack, StackFailed, StackPlan


def up(
    model: Annotated[str, typer.Option(help="Folder of a model, as [NAME=]DIR, or 'demo'.")] = "demo",
    board: Annotated[str | None, typer.Option(help="Simulate a board, such as 310p.", metavar="CHIP")] = None,
    chips: Annotated[int, typer.Option(help="Chips of that board.", min=1, max=16)] = 1,
    modelled: Annotated[
        str | None,
        typer.Option(
            help="Scripted tokens at the chips' pace instead of a model's: 'own' for the size of --model, or a name "
            "such as qwen3-8b-w8a8.",
            metavar="SIZE",
        ),
    ] = None,
    worker: Annotated[list[str] | None, typer.Option(help="Worker to have, such as cpu. Repeatable.")] = None,
    listen: Annotated[str, typer.Option(help="Address of the service.")] = DEFAULT_ADDRESS,
    metrics_listen: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1:9464",
    governor: Annotated[bool, typer.Option(help="Whether to run the governor.")] = True,
) -> None:
    """Run server, workers, governor and, with --board, a simulated board, until Ctrl-C."""
    require_parts()
    if board is None and (modelled is not None or chips != 1):
        raise CliFailure("--chips and --modelled are of a simulated board: add --board 310p", EXIT_USAGE)
    name, folder = model_folder(model)
    plan = StackPlan(
        model_folder=folder,
        model_name=name,
        run_dir=new_run_dir(),
        control_socket=control_socket(),
        board=board,
        board_chips=chips,
        modelled="" if modelled == "own" else modelled,
        board_socket=Path(default_board_address().removeprefix("unix:")),
        workers=tuple(worker or ()),
        listen=listen,
        metrics_listen=metrics_listen,
        governor=governor,
    )
    out.print(f"logs: {plan.run_dir}", markup=False)
    stack = Stack(plan, report=lambda line: out.print(line, markup=False))
    interrupt_once()
    try:
        with stack:
            out.print(f"serving at {listen}; Ctrl-C stops it", markup=False)
            try:
                stack.wait()
            except KeyboardInterrupt:
                out.print(f"stopping; open streams may go on for {plan.drain_grace_s:g} s")
    except StackFailed as failure:
        raise CliFailure(str(failure), EXIT_USAGE if failure.unusable else EXIT_FAILED) from None
    except KeyboardInterrupt:
        pass
    out.print("stopped")


def require_parts() -> None:
    """Raises CliFailure naming the extra to install when a part of the service is missing."""
    for extra, modules in {
        "server": ("coldplate_server", "tokenizers", "psutil"),
        "governor": ("coldplate_governor", "pydantic_settings"),
        "engine": ("coldplate_engine", "torch", "safetensors"),
    }.items():
        for module in modules:
            if importlib.util.find_spec(module) is None:
                raise needs_extra(extra, module)


def model_folder(model: str) -> tuple[str, Path]:
    """Name (may be empty) and folder; ``demo`` and the folder of a GGUF file are made first where needed."""
    if model == "demo":
        return "", demo_model_folder()
    name, _, folder = model.rpartition("=")
    path = Path(folder).expanduser()
    if path.is_file():
        return name or path.stem, gguf_folder(path)
    if not path.is_dir():
        raise CliFailure(f"--model {model!r}: there is no folder {folder!r}", EXIT_USAGE)
    return name, path.absolute()


def new_run_dir() -> Path:
    """A folder for the logs and sockets of one run; a short name, because a socket's path has at most 108 bytes."""
    return runtime_dir() / f"up-{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"


def interrupt_once() -> None:
    """Let the first Ctrl-C or SIGTERM raise KeyboardInterrupt; further ones do not disturb the stopping it begins."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
