"""Whether and how a checkpoint's tokenizer serves constraints."""

import time
from pathlib import Path

import structlog

from coldplate_engine.guided.compiler import ConstraintCompiler

log = structlog.get_logger()


def load_constraints(model: Path, end_of_text: frozenset[int]) -> ConstraintCompiler | None:
    """None, with a line in the log, where the folder has no tokenizer.json that llguidance understands.

    Its library panics at a token of thousands of letters, and a panic is no ``Exception``: such a model is served, too.
    """
    path = model / "tokenizer.json"
    start = time.perf_counter()
    try:
        compiler = ConstraintCompiler(path.read_text(encoding="utf-8"), end_of_text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        log.warning("no constrained answers: the tokenizer cannot be used", file=str(path), reason=str(error)[:300])
        return None
    log.debug("constraints ready", seconds=round(time.perf_counter() - start, 2))
    return compiler
