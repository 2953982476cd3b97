"""What the commands share: where to print, how to connect, and how a failure becomes one line and an exit code."""

import contextlib
import unicodedata
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from coldplate_client.admin import AdminClient
from coldplate_client.client import Client
from coldplate_client.errors import ColdplateError, DeadlineExceeded, Unavailable

EXIT_FAILED = 1
EXIT_USAGE = 2

out = Console(highlight=False, soft_wrap=True)
if not out.is_terminal:
    out.width = 1000  # a table in a file or a pipe is never cut
err = Console(stderr=True, highlight=False, soft_wrap=True)

ServerOption = Annotated[
    str | None, typer.Option("--server", envvar="COLDPLATE_SERVER", help="Address of the service.", metavar="ADDRESS")
]
ControlOption = Annotated[
    str | None,
    typer.Option("--control", envvar="COLDPLATE_CONTROL_SOCKET", help="The server's control socket.", metavar="PATH"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class CliFailure(Exception):
    """The command ends with ``exit_code`` and one line on standard error."""

    def __init__(self, line: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(line)
        self.exit_code = exit_code


@contextlib.contextmanager
def service(server: str | None) -> Iterator[Client]:
    """A client for the length of a command. What fails inside becomes a ``CliFailure``."""
    with Client(server, retries=False) as client, failures(client.target):
        yield client


@contextlib.contextmanager
def admin(control: str | None) -> Iterator[AdminClient]:
    """As ``service``, on the control socket; ``control`` is a path, with or without ``unix:``."""
    target = control if not control or ":" in control else f"unix:{control}"
    with AdminClient(target) as client, failures(client.target):
        yield client


@contextlib.contextmanager
def failures(target: str) -> Iterator[None]:
    try:
        yield
    except ColdplateError as error:
        raise CliFailure(describe(error, target)) from error
    except (ValueError, TypeError) as error:
        raise CliFailure(str(error), EXIT_USAGE) from error


def describe(error: ColdplateError, target: str) -> str:
    """One line for a person: what failed, and what to do about it."""
    if error.reason:
        line = error.message
    elif isinstance(error, Unavailable):
        line = _unreachable(error.message, target)
    elif isinstance(error, DeadlineExceeded):
        begun = error.partial is not None and bool(error.partial.token_ids)
        line = "the time ran out before the answer was whole" if begun else f"{target} did not answer in time"
    else:
        line = error.message
    line = " ".join(line.split())
    if error.retry_after_s is not None:
        line += f" (try again in {error.retry_after_s:.3g} s)"
    return line


def printable(text: str) -> str:
    """``text`` without control characters, which could steer the terminal; line breaks and tabs stay."""
    return "".join(char if char in "\n\t" or unicodedata.category(char) != "Cc" else "\ufffd" for char in text)


def _unreachable(message: str, target: str) -> str:
    """Which of the likely causes it is, from the words of the channel's last error."""
    words = message.lower()
    if target.startswith("unix:"):
        path = target.removeprefix("unix:")
        if "no such file" in words:
            return (
                f"there is no socket {path}: start the service with `coldplate up`, or name its socket with --control"
            )
        if "connection refused" in words:
            return f"nobody serves the socket {path} any more: start the service again with `coldplate up`"
        if "permission denied" in words:
            return f"the socket {path} belongs to another user"
    if "connection refused" in words:
        return f"nothing listens at {target}: start the service with `coldplate up`, or name another with --server"
    if "://" in target:
        return f"{target} is no address of a service: expected HOST:PORT, such as 127.0.0.1:50051"
    if any(hint in words for hint in ("dns", "name resolution", "domain name", "name or service")):
        return f"the host in {target} is not known"
    if any(hint in words for hint in ("timed out", "timeout", "no route", "unreachable")):
        return f"{target} cannot be reached: is the host up, and the port open to this machine?"
    if any(hint in words for hint in ("handshake", "ssl", "http1", "http/1", "settings frame", "wrong_version")):
        return f"what listens at {target} is no gRPC service without TLS"
    return f"{target}: {message}"
