"""Log set-up shared by every process: structlog on standard error, for a console or as JSON lines."""

import logging
import sys
from typing import Literal

import structlog

from coldplate.stderr import write_stderr

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class _StderrHandler(logging.Handler):
    """A log that nobody reads must not stop the process that writes it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_stderr(self.format(record).encode(errors="backslashreplace") + b"\n")
        except Exception:
            self.handleError(record)


def configure_logs(process: str, level: LogLevel = "info", fmt: LogFormat = "console") -> None:
    """Send structlog and the standard library's log to standard error.

    ``process`` names this process on every line. Context variables bound through ``structlog.contextvars``, such as the
    request id, appear on every line logged while they are bound.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Tracebacks without local variables: those hold prompts and answers, and rendering them is slow.
    renderer: list[structlog.typing.Processor] = (
        [
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if fmt == "json"
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.contextvars.bind_contextvars(process=process)
