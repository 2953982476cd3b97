"""``coldplate status``: the devices, what the governor sees of them and does to them."""

import json
import sys
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.live import Live

from coldplate.v1 import device_pb2
from coldplate_client.cli.console import EXIT_USAGE, CliFailure, JsonOption, ServerOption, out, service
from coldplate_client.cli.status_table import status_lines, status_view


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it as it changes, until Ctrl-C.")] = False,
    interval_s: Annotated[float | None, typer.Option(help="Shortest time between two updates.")] = None,
    device: Annotated[str, typer.Option(help="Only this device.", metavar="DEVICE")] = "",
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Show the devices: state, temperature, load, the limits in force and who set them."""
    if interval_s is not None and not watch:
        raise CliFailure("--interval-s goes with --watch", EXIT_USAGE)
    with service(server) as client:
        if not watch:
            _print(client.status(device), as_json)
            return
        with client.watch_status(device, min_interval_s=interval_s) as updates:
            if as_json or not out.is_terminal:
                for update in updates:
                    _print(update, as_json)
            else:
                with Live(console=out, auto_refresh=False) as live:
                    for update in updates:
                        live.update(status_view(update, out.width), refresh=True)


def _print(status: device_pb2.ServiceStatus, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(MessageToDict(status, preserving_proto_field_name=True)) + "\n")
        sys.stdout.flush()
    elif out.is_terminal:
        out.print(status_view(status, out.width))
    else:
        sys.stdout.write("\n".join(status_lines(status)) + "\n")
        sys.stdout.flush()
