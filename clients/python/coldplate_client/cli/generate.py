"""``coldplate generate``: one answer to one prompt."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from coldplate_client.cli.console import EXIT_USAGE, CliFailure, JsonOption, ServerOption, out, printable, service
from coldplate_client.client import Stream
from coldplate_client.requests import GenerateOptions
from coldplate_client.types import Answer, Choice, Delta

ModelOption = Annotated[str, typer.Option(help="Model to ask; needed where several are served.")]
MaxTokensOption = Annotated[int | None, typer.Option(help="Most tokens to make.")]
TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy.")]
SeedOption = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
StopOption = Annotated[list[str] | None, typer.Option(help="End the answer before this text. Repeatable.")]
SchemaOption = Annotated[
    Path | None, typer.Option("--json-schema", help="The answer is JSON of this schema.", metavar="FILE")
]
TimeoutOption = Annotated[float | None, typer.Option(help="Give up after so many seconds.", metavar="SECONDS")]


def generate(
    text: Annotated[str | None, typer.Argument(help="The prompt; standard input when left out or '-'.")] = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    n: Annotated[
        int | None, typer.Option("--n", help="Answers to make; several are printed when all are there.")
    ] = None,
    min_tokens: Annotated[int, typer.Option(help="No end of text before so many.")] = 0,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 makes repeating less likely.")] = None,
    presence_penalty: Annotated[float, typer.Option(help="Taken off tokens that are there already.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same for each time they are there.")] = 0.0,
    logprobs: Annotated[
        int | None, typer.Option(help="Print each token's log-probability and so many alternatives.")
    ] = None,
    json_schema: SchemaOption = None,
    regex: Annotated[str | None, typer.Option(help="The whole answer matches this.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="The answer is one of these. Repeatable.")] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="The answer follows this grammar, in Lark syntax.", metavar="FILE")
    ] = None,
    model: ModelOption = "",
    timeout_s: TimeoutOption = None,
    stream: Annotated[bool, typer.Option(help="Print the answer as it is made.")] = True,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Continue a text."""
    options = GenerateOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop or (),
        n=n,
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logprobs=logprobs,
        json_schema=read_option("--json-schema", json_schema),
        regex=regex,
        choices=choice or None,
        grammar=read_option("--grammar", grammar),
        model=model,
        timeout_s=timeout_s,
    )
    prompt = text if text not in {None, "-"} else read_standard_input()
    with service(server) as client:
        if as_json or not stream or (n or 1) > 1 or logprobs is not None:
            answer = client.generate(prompt, **options)
            sys.stdout.write((answer_json(answer) if as_json else answer_text(answer)) + "\n")
            return
        with client.stream(prompt, **options) as pieces:
            write_stream(pieces)


def write_stream(stream: Stream) -> None:
    """Write the text as it comes and end its line; nothing at all when the call fails before any text.

    What the model thinks goes before it, dimmed, on a terminal only.
    """
    end, thinking = "", False
    try:
        for event in stream:
            if not isinstance(event, Delta):
                continue
            if event.reasoning_text and out.is_terminal:
                thinking = True
                out.print(shown(event.reasoning_text), style="dim", end="", markup=False)
            if event.text:
                end = "\n"
                sys.stdout.write(("\n\n" if thinking else "") + shown(event.text))
                thinking = False
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


def read_option(name: str, path: Path | None) -> str | None:
    """The text of a file given by an option. Raises CliFailure when it cannot be read."""
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except OSError as error:
        raise CliFailure(f"{name} {path}: {error.strerror or error}", EXIT_USAGE) from None
    except UnicodeDecodeError as error:
        raise CliFailure(f"{name} {path}: not UTF-8 text (byte {error.start})", EXIT_USAGE) from None


def answer_json(answer: Answer) -> str:
    """One object; where there is one choice, its values stand in it, else they are in ``choices``."""
    values = dataclasses.asdict(answer)
    if len(answer.choices) == 1:
        del values["choices"]
        values = dataclasses.asdict(answer.choices[0]) | values
        del values["index"]
    return json.dumps(values, ensure_ascii=False)


def answer_text(answer: Answer) -> str:
    """The text of each choice, under a number where there are several, and its log-probabilities line by line."""
    several = len(answer.choices) > 1
    return "\n".join(
        (f"[{choice.index}]\n" if several else "") + "\n".join([shown(choice.text), *_logprob_lines(choice)])
        for choice in answer.choices
    )


def _logprob_lines(choice: Choice) -> list[str]:
    return [
        f"  token {item.token_id}: {item.logprob:.4f}"
        + "".join(f", {token_id}: {logprob:.4f}" for token_id, logprob in item.alternatives)
        for item in choice.logprobs
    ]


def shown(text: str) -> str:
    """``text`` as it is for a file or a pipe, and without control characters for a terminal."""
    return printable(text) if out.is_terminal else text
