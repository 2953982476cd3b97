"""``coldplate chat``: a conversation."""

import contextlib
import sys
from typing import Annotated

import typer

from coldplate_client.cli.console import EXIT_USAGE, CliFailure, ServerOption, describe, err, out, service
from coldplate_client.cli.generate import (
    MaxTokensOption,
    ModelOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TimeoutOption,
    write_stream,
)
from coldplate_client.client import Client
from coldplate_client.errors import ColdplateError
from coldplate_client.requests import GenerateOptions
from coldplate_client.text import check_text
from coldplate_client.types import Answer, Message


def chat(
    once: Annotated[str | None, typer.Option(help="Say this, print the answer, and end.", metavar="TEXT")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions to the model.", metavar="TEXT")] = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    thinking: Annotated[bool | None, typer.Option(help="Whether a thinking model thinks.")] = None,
    thinking_budget: Annotated[int | None, typer.Option(help="Most tokens of thinking.", metavar="TOKENS")] = None,
    model: ModelOption = "",
    timeout_s: TimeoutOption = None,
    server: ServerOption = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer; /quit or Ctrl-D ends."""
    options = GenerateOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop or (),
        reasoning=thinking,
        reasoning_budget_tokens=thinking_budget,
        model=model,
        timeout_s=timeout_s,
    )
    history = [Message("system", system)] if system is not None else []
    with service(server) as client:
        if once is not None:
            with client.stream([*history, Message("user", once)], **options) as answer:
                write_stream(answer)
            return
        _converse(client, history, options)


def _say(client: Client, messages: list[Message], options: GenerateOptions) -> Answer:
    """Stream the answer to the terminal; an interrupt stops it and keeps what came."""
    with client.stream(messages, **options) as stream, contextlib.suppress(KeyboardInterrupt):
        write_stream(stream)
    return stream.partial


def _converse(client: Client, history: list[Message], options: GenerateOptions) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - makes input() recall and edit lines
    out.print("Ctrl-C stops an answer; /quit or Ctrl-D ends.", style="dim")
    while (line := _read_line()) is not None:
        if not line.strip():
            continue
        try:
            turn = Message("user", check_text("message", line))
            answer = _say(client, [*history, turn], options)
        except ColdplateError as error:
            # The conversation goes on: the next try may succeed.
            err.print(describe(error, client.target), markup=False)
        except ValueError as error:
            err.print(str(error), markup=False)
        else:
            history += [turn, Message("assistant", answer.text)]


def _read_line() -> str | None:
    """One line; None when the conversation is over."""
    while True:
        try:
            line = input("> ")
        except EOFError:
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        except UnicodeDecodeError:
            raise CliFailure("standard input is not UTF-8", EXIT_USAGE) from None
        return None if line.strip() == "/quit" else line
