"""``coldplate limit``: limits set by hand."""

from typing import Annotated

import typer

from coldplate.limits import Limits
from coldplate_client.cli.console import EXIT_USAGE, CliFailure, ControlOption, admin, out
from coldplate_client.cli.status_table import limits_text, void_limits


def limit(
    device: Annotated[str, typer.Option(help="Only this device.", metavar="DEVICE")] = "",
    max_batch: Annotated[int | None, typer.Option(help="Streams that may run at once.")] = None,
    duty: Annotated[float | None, typer.Option(help="Share of time the device may compute, above 0 to 1.")] = None,
    max_prefill_tokens: Annotated[int | None, typer.Option(help="Prompt tokens per step; 0 pauses prefill.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens a new request may make.")] = None,
    max_reasoning_tokens: Annotated[int | None, typer.Option(help="Tokens a new request may think.")] = None,
    max_context_tokens: Annotated[int | None, typer.Option(help="Prompt and answer of a new request.")] = None,
    min_priority: Annotated[int | None, typer.Option(help="Lowest class served: 1 low, 2 normal, 3 high.")] = None,
    admit: Annotated[bool | None, typer.Option(help="Whether the device takes new requests.")] = None,
    cpu_share: Annotated[float | None, typer.Option(help="Share of a CPU worker's threads, above 0 to 1.")] = None,
    release: Annotated[bool, typer.Option("--release", help="Take back what was set by hand.")] = False,
    control: ControlOption = None,
) -> None:
    """Set limits by hand. They replace those set before, hold until released, and only tighten."""
    try:
        limits = Limits(
            duty=duty,
            max_batch=max_batch,
            max_prefill_tokens=max_prefill_tokens,
            max_new_tokens=max_new_tokens,
            max_reasoning_tokens=max_reasoning_tokens,
            max_context_tokens=max_context_tokens,
            min_priority=min_priority,
            admit=admit,
            cpu_share=cpu_share,
        )
    except ValueError as error:
        raise CliFailure(str(error), EXIT_USAGE) from None
    if release == bool(limits):
        raise CliFailure("give at least one limit, or --release alone", EXIT_USAGE)
    with admin(control) as client:
        for status in client.set_limits(limits, device):
            out.print(f"{status.device}: {limits_text(status)}", markup=False)
            for text in void_limits(status):
                out.print(f"{status.device}: {text}", markup=False)
            if release and device and "(operator)" in limits_text(status):
                out.print("what was set on every device still holds; `coldplate limit --release` takes it back")
