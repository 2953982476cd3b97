"""``coldplate drain``, ``resume`` and ``abort``."""

from typing import Annotated

import typer

from coldplate_client.cli.console import EXIT_FAILED, EXIT_USAGE, CliFailure, ControlOption, admin, out


def drain(
    wait_s: Annotated[float, typer.Option(help="Wait so long for running requests.", metavar="SECONDS")] = 0.0,
    control: ControlOption = None,
) -> None:
    """Stop taking requests; those that run go on."""
    with admin(control) as client:
        running = client.drain(wait_s)
    out.print(f"draining, {running} still running")


def resume(control: ControlOption = None) -> None:
    """Take requests again after a drain."""
    with admin(control) as client:
        client.resume()
    out.print("taking requests")


def abort(
    request_ids: Annotated[list[str] | None, typer.Argument(help="Requests to end.")] = None,
    all_requests: Annotated[bool, typer.Option("--all", help="End every request.")] = False,
    control: ControlOption = None,
) -> None:
    """End running requests."""
    if bool(request_ids) == all_requests:
        raise CliFailure("name requests, or give --all alone", EXIT_USAGE)
    with admin(control) as client:
        aborted, unknown = client.abort(request_ids or (), all_requests=all_requests)
    out.print(f"ended {len(aborted)}{': ' if aborted else ''}{', '.join(aborted)}", markup=False)
    if unknown:
        raise CliFailure(f"not running: {', '.join(unknown)}", EXIT_FAILED)
