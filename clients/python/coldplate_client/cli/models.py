"""``coldplate models``: what is served, and how model folders come to be."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from coldplate.v1 import model_pb2
from coldplate_client.cli.console import EXIT_USAGE, CliFailure, ServerOption, err, out, service

app = typer.Typer(help="Models: list those served, import a GGUF file, get the demo model.", no_args_is_help=True)


@app.command("list")
def list_models(server: ServerOption = None) -> None:
    """List the models served."""
    with service(server) as client:
        models = client.models()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "state", "architecture", "parameters", "context", "workers", "memory"):
        table.add_column(heading, overflow="fold")
    for model in models:
        state = model_pb2.ModelState.Name(model.state).removeprefix("MODEL_STATE_")
        workers = ", ".join(_worker(replica) for replica in model.replicas)
        memory = ", ".join(_memory(replica) for replica in model.replicas)
        detail = f"{state}: {model.state_detail}" if model.state_detail else state
        parameters = f"{model.parameter_count / 1e6:.0f} M"
        table.add_row(
            model.name, detail, model.architecture, parameters, str(model.max_context_tokens), workers, memory
        )
    out.print(table)
    for model in models:
        for replica in model.replicas:
            if replica.features or replica.engine_settings:
                settings = ", ".join(f"{name} {value}" for name, value in sorted(replica.engine_settings.items()))
                features = ", ".join(replica.features) or "plain sampling only"
                out.print(f"{replica.worker}: {features}" + (f"; {settings}" if settings else ""), style="dim")


def _worker(replica: model_pb2.ModelReplica) -> str:
    parts = [part for part in (replica.dtype, replica.quantization) if part]
    return f"{replica.worker} ({', '.join(parts)})" if parts else replica.worker


def _memory(replica: model_pb2.ModelReplica) -> str:
    if not replica.weight_bytes:
        return "-"
    return f"{replica.weight_bytes / 2**20:.0f} + {replica.kv_cache_bytes / 2**20:.0f} MiB"


@app.command("import")
def import_model(
    file: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="FILE.gguf")],
    target: Annotated[Path | None, typer.Option("--out", help="Folder to make. Default: in the model cache.")] = None,
) -> None:
    """Turn a GGUF file into a model folder that `coldplate up --model` takes."""
    with _importing() as report:
        from coldplate_engine.importing.gguf_import import import_gguf

        folder = import_gguf(file, target, progress=report)
    out.print(str(folder), markup=False)


@app.command("demo")
def demo_model() -> None:
    """Make the demo model, SmolLM2-135M-Instruct, unless it is there; prints its folder."""
    out.print(str(demo_model_folder()), markup=False)


def gguf_folder(file: Path) -> Path:
    """A folder that serves a GGUF file with its own bits. Raises CliFailure."""
    with _importing() as report:
        from coldplate_engine.importing.gguf_import import link_gguf

        return link_gguf(file, progress=report)


def demo_model_folder() -> Path:
    """The demo model's folder, with a progress bar where it has to be made. Raises CliFailure."""
    with _importing() as report:
        from coldplate_engine.importing.demo_model import ensure_demo_model

        return ensure_demo_model(progress=report)


@contextmanager
def _importing() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, and failures as one line."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        try:
            from coldplate_engine.importing.errors import ImportFailed
        except ImportError:
            raise needs_extra("engine") from None
        try:
            yield lambda phase, share: bar.update(task, description=phase, completed=share)
        except ImportFailed as error:
            raise CliFailure(str(error), EXIT_USAGE) from None
        except ModuleNotFoundError as error:
            raise needs_extra("engine", error.name) from None


def needs_extra(extra: str, missing: str | None = None) -> CliFailure:
    what = f" ({missing} is missing)" if missing else ""
    return CliFailure(f"this needs more than the client{what}: pip install 'coldplate[{extra}]'", EXIT_USAGE)
