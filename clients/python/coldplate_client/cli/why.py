"""``coldplate why``: what binds a device now, since when, and what would clear it."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from coldplate_client.cli.console import JsonOption, ServerOption, out, printable, service
from coldplate_client.why import Why, explain, service_words


def why(
    device: Annotated[str, typer.Argument(help="Only this device.", metavar="[DEVICE]", show_default=False)] = "",
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Tell why the devices are as they are: what binds, since when, the numbers, and what would clear it."""
    with service(server) as client:
        status = client.status(device)
    found, about_all = explain(status), service_words(status)
    if as_json:
        body = {"service": about_all, "devices": [asdict(item) for item in found]}
        sys.stdout.write(json.dumps(body, ensure_ascii=False) + "\n")
        return
    for line in [*about_all, *(line for item in found for line in _lines(item))]:
        out.print(printable(line), markup=False)


def _lines(item: Why) -> list[str]:
    lines = [item.headline]
    lines += [f"  until: {clears}" for clears in item.clears]
    lines += [f"  {number}" for number in item.numbers]
    return [*lines, *(f"  {change}" for change in item.history)]
