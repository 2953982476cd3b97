"""``coldplate generate``: one answer to one prompt."""

import dataclasses
import json
import sys
from typing import Annotated

import typer

from coldplate_client.cli.console import EXIT_USAGE, CliFailure, JsonOption, ServerOption, out, printable, service
from coldplate_client.client import Stream
from coldplate_client.requests import GenerateOptions
from coldplate_client.types import Answer

ModelOption = Annotated[str, typer.Option(help="Model to ask; needed where several are served.")]
MaxTokensOption = Annotated[int | None, typer.Option(help="Most tokens to make.")]
TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy.")]
SeedOption = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
StopOption = Annotated[list[str] | None, typer.Option(help="End the answer before this text. Repeatable.")]
TimeoutOption = Annotated[float | None, typer.Option(help="Give up after so many seconds.", metavar="SECONDS")]


def generate(
    text: Annotated[str | None, typer.Argument(help="The prompt; standard input when left out or '-'.")] = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    model: ModelOption = "",
    timeout_s: TimeoutOption = None,
    stream: Annotated[bool, typer.Option(help="Print the answer as it is made.")] = True,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Continue a text."""
    options = GenerateOptions(
        max_tokens=max_tokens, temperature=temperature, seed=seed, stop=stop or (), model=model, timeout_s=timeout_s
    )
    prompt = text if text not in {None, "-"} else read_standard_input()
    with service(server) as client:
        if as_json or not stream:
            answer = client.generate(prompt, **options)
            sys.stdout.write((answer_json(answer) if as_json else shown(answer.text)) + "\n")
            return
        with client.stream(prompt, **options) as pieces:
            write_stream(pieces)


def write_stream(stream: Stream) -> None:
    """Write the text as it comes and end its line; nothing at all when the call fails before any text."""
    end = ""
    try:
        for piece in stream.texts():
            end = "\n"
            sys.stdout.write(shown(piece))
            sys.stdout.flush()
        end = "\n"
    except KeyboardInterrupt:
        end = " [stopped]\n" if out.is_terminal else "\n"
        raise
    finally:
        sys.stdout.write(end)
        sys.stdout.flush()


def read_standard_input() -> str:
    """All of standard input. Raises CliFailure when it is a terminal or no UTF-8."""
    if sys.stdin.isatty():
        raise CliFailure("no text: give it as an argument, or on standard input", EXIT_USAGE)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CliFailure(
            f"standard input is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}", EXIT_USAGE
        ) from None


def answer_json(answer: Answer) -> str:
    return json.dumps(dataclasses.asdict(answer), ensure_ascii=False)


def shown(text: str) -> str:
    """``text`` as it is for a file or a pipe, and without control characters for a terminal."""
    return printable(text) if out.is_terminal else text
