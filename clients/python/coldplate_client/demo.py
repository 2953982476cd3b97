"""The demo: a real model answers over gRPC while the governor keeps a simulated board cool, and a hand sets a limit."""

import itertools
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from rich.live import Live

from coldplate.limits import Limits
from coldplate_client.admin import AdminClient
from coldplate_client.cli.console import CliFailure, failures, out, printable
from coldplate_client.cli.models import demo_model_folder
from coldplate_client.cli.status_table import limits_text, status_lines, status_view
from coldplate_client.cli.up import interrupt_once, require_parts
from coldplate_client.client import Client
from coldplate_client.demo_heat import show_heat
from coldplate_client.demo_load import Load
from coldplate_client.types import Delta, Message, Started
from coldplate_client.up import Stack, StackFailed, StackPlan

_QUESTION = "Why does a computer get slower when it gets hot? Answer in three sentences."
_BACKGROUND_STREAMS = 4
_START_CELSIUS, _AMBIENT_CELSIUS = 84.0, 40.0  # as after an hour of work in a warm cabinet


def run_demo() -> None:
    """Run it; raises CliFailure when a step does not do what it should."""
    require_parts()
    _heading("The model")
    folder = demo_model_folder()
    out.print(f"{folder.name}, from {folder}", markup=False)
    run_dir = Path(tempfile.mkdtemp(prefix="coldplate-"))
    plan = StackPlan(
        model_folder=folder,
        run_dir=run_dir,
        control_socket=run_dir / "control.sock",
        board="310p",
        board_start_celsius=_START_CELSIUS,
        board_ambient_celsius=_AMBIENT_CELSIUS,
        listen=f"127.0.0.1:{_free_port()}",
        metrics_listen=f"127.0.0.1:{_free_port()}",
    )
    _heading("Starting server, two workers, governor and a simulated 310P board")
    stack = Stack(plan, report=lambda line: out.print(f"  {line}", markup=False))
    interrupt_once()
    try:
        with stack, Client(plan.listen) as client, AdminClient(f"unix:{plan.control_socket}") as admin:
            with failures(plan.listen):
                _show(stack, client, admin)
            _heading("Stopping")
            left = stack.stop()
    except StackFailed as failure:
        raise CliFailure(f"{failure}") from None
    except (KeyboardInterrupt, BrokenPipeError):
        shutil.rmtree(run_dir)
        raise
    if left:
        raise CliFailure(f"processes were left and had to be killed: {'; '.join(left)}; logs: {run_dir}")
    shutil.rmtree(run_dir)
    out.print("Nothing is left running.")


def _show(stack: Stack, client: Client, admin: AdminClient) -> None:
    out.print(f"serving at {stack.plan.listen}", markup=False)
    _heading("A chat answer, streamed over gRPC")
    _chat(client)
    _heading("Load rises on the simulated board npu:0")
    show_heat(stack, client)
    _heading("A limit set by hand: coldplate limit --max-batch 1 --duty 0.3")
    with Load(client) as load:
        load.keep(_BACKGROUND_STREAMS)
        for status in admin.set_limits(Limits(max_batch=1, duty=0.3)):
            out.print(f"{status.device}: {limits_text(status)}", markup=False)
        _watch(stack, client, seconds=4)
        _heading("Released: coldplate limit --release")
        for status in admin.release_limits():
            out.print(f"{status.device}: {limits_text(status)}", markup=False)
            if "(operator)" in limits_text(status):
                raise CliFailure(f"{status.device} is still limited by hand")
        _watch(stack, client, seconds=3)


def _chat(client: Client) -> None:
    out.print(f"> {_QUESTION}", markup=False)
    with client.stream([Message("user", _QUESTION)], max_tokens=80, temperature=0.0) as stream:
        device = ""
        for event in stream:
            if isinstance(event, Started):
                device = event.device
            elif isinstance(event, Delta):
                sys.stdout.write(printable(event.text))
                sys.stdout.flush()
    answer = stream.partial
    timings, tokens = answer.timings, answer.usage.completion_tokens
    rate = (tokens - 1) / timings.decode_s if timings.decode_s > 0 else 0.0
    out.print(
        f"\n[{tokens} tokens on {answer.device or device}: first after {1000 * timings.first_token_s:.0f} ms, "
        f"then {rate:.0f} tokens/s; paced for {1000 * timings.throttled_s:.0f} ms]",
        markup=False,
        style="dim",
    )


def _watch(stack: Stack, client: Client, seconds: float) -> None:
    """Show the status for a while: one live table on a terminal, lines elsewhere."""
    end = time.monotonic() + seconds
    with client.watch_status(min_interval_s=0.5 if out.is_terminal else 1.5) as updates:
        shown = itertools.takewhile(lambda _: time.monotonic() < end and not stack.failure, updates)
        if out.is_terminal:
            with Live(console=out, auto_refresh=False) as live:
                for status in shown:
                    live.update(status_view(status, out.width), refresh=True)
        else:
            for status in shown:
                sys.stdout.write("\n".join(status_lines(status)) + "\n")
                sys.stdout.flush()
    if stack.failure:
        raise stack.failure


def _heading(text: str) -> None:
    out.print(f"\n== {text}", style="bold", markup=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
