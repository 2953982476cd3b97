"""The worker's gRPC face: one control stream, bridged to the engine's thread."""

import asyncio
import contextlib
import contextvars
import signal
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from coldplate.internal.v1 import engine_pb2_grpc
from coldplate_engine.convert import command_from_proto, hello_to_proto, loading_to_proto, step_to_proto
from coldplate_engine.inbox import CommandQueue
from coldplate_engine.messages import Connect, Disconnect, Shutdown, StepOutput
from coldplate_engine.runner import ModelError
from coldplate_engine.settings import EngineSettings
from coldplate_engine.worker_facts import WorkerFacts

if TYPE_CHECKING:
    from coldplate_engine.engine import Engine
    from coldplate_engine.vllm_worker.engine import VllmEngine

log = structlog.get_logger()

EXIT_OK = 0
EXIT_CRASHED = 3
EXIT_ORPHANED = 4
_TAKE_OVER_S = 1.0
_PROGRESS_STEP = 0.01


class Connection:
    """Outputs on their way to one server: put in by the engine's thread, taken by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outputs: deque[StepOutput] = deque()
        self._ready = asyncio.Event()
        self._closed = False
        self.ended = asyncio.Event()

    def emit(self, output: StepOutput) -> None:
        """Called in the engine's thread."""
        self._outputs.append(output)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._ready.set)

    def close(self) -> None:
        """No more outputs: ``next`` gives None once all have been taken."""
        self._closed = True
        self._ready.set()

    async def next(self) -> StepOutput | None:
        while not self._outputs:
            if self._closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        return self._outputs.popleft()


class Worker(engine_pb2_grpc.EngineServiceServicer):
    """Serves one model to one server at a time; ``serve`` returns the exit code of the process."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._engine_class = _engine_class(settings)
        self._inbox = CommandQueue()
        self._connection: Connection | None = None
        self._facts: WorkerFacts | None = None
        self._phase = ("start", 0.0)
        self._loading_moved = asyncio.Event()
        self._stopping = False
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()

    async def serve(self) -> int:
        """Listen at once, load in a thread, run. Raises ModelError, and OSError when the socket cannot be had."""
        _clear_socket(self._settings.listen)
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)
        try:
            server.add_insecure_port(self._settings.listen)
        except RuntimeError:
            raise OSError(f"--listen {self._settings.listen}: cannot listen there") from None
        await server.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        self._wait_for_server()
        log.info(
            "worker started", model=self._settings.name, device=self._settings.device, listen=self._settings.listen
        )
        # With this context the engine's log lines name the process, too.
        run = partial(contextvars.copy_context().run, self._run_engine)
        threading.Thread(target=run, name="engine", daemon=True).start()
        try:
            code = await self._exit
        finally:
            if self._connection is not None:
                self._connection.close()
            await server.stop(1.0)
        log.info("worker ends", exit_code=code)
        return code

    async def Run(self, requests: object, context: Any) -> None:  # noqa: N802 (the contract's name)
        """Loading events, hello, then a message per step until either side ends."""
        connection = await self._take_over(context)
        reader = asyncio.create_task(self._read(context))
        try:
            await self._report_loading(context)
            assert self._facts is not None
            await context.write(hello_to_proto(self._facts))
            reader.add_done_callback(lambda _: connection.close())
            while (output := await connection.next()) is not None:
                await context.write(step_to_proto(output))
        finally:
            reader.cancel()
            self._connection = None
            self._inbox.put(Disconnect())
            connection.ended.set()
            self._wait_for_server()
            log.info("server disconnected")

    async def _take_over(self, context: Any) -> Connection:
        """Become the one connection; a predecessor that is just dying is waited for, a live one wins."""
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connection.ended.wait(), _TAKE_OVER_S)
        if self._connection is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another server holds this worker")
        self._connection = connection = Connection(self._loop)
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
        self._inbox.put(Connect(connection.emit))
        log.info("server connected")
        return connection

    async def _report_loading(self, context: Any) -> None:
        sent: tuple[str, float] | None = None
        while self._facts is None:
            phase, progress = self._phase
            if sent is None or phase != sent[0] or progress - sent[1] >= _PROGRESS_STEP:
                sent = (phase, progress)
                await context.write(loading_to_proto(phase, progress))
            self._loading_moved.clear()
            if self._facts is None:
                await self._loading_moved.wait()

    async def _read(self, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            try:
                command = command_from_proto(request)
            except ValueError as error:
                log.error("command ignored", reason=str(error))
                continue
            if command is None:
                log.error("command ignored", reason="this version does not know it")
                continue
            if isinstance(command, Shutdown):
                self._shut_down(command.now)
            else:
                self._inbox.put(command)

    def _run_engine(self) -> None:
        """The engine's thread."""
        try:
            code = self._engine_class(self._settings, self._inbox, self._on_progress, self._on_ready).run()
        except ModelError as error:
            self._call(self._fail, error)
        except BaseException as error:  # nothing may leave the process up without its engine
            log.exception("engine failed", error=type(error).__name__)
            self._call(self._end, EXIT_CRASHED)
        else:
            self._call(self._end, code)

    def _on_progress(self, phase: str, share: float) -> None:
        self._phase = (phase, share)
        self._call(self._loading_moved.set)

    def _on_ready(self, facts: WorkerFacts) -> None:
        self._facts = facts
        self._call(self._loading_moved.set)

    def _call(self, function: object, *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the process ends
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]

    def _end(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    def _fail(self, error: ModelError) -> None:
        if not self._exit.done():
            self._exit.set_exception(error)

    def _on_signal(self) -> None:
        """The first asks for a graceful end, a second for an end at once."""
        self._shut_down(now=self._stopping or self._connection is None)

    def _shut_down(self, now: bool) -> None:
        self._stopping = True
        if self._facts is None:
            self._end(EXIT_OK)
        self._inbox.put(Shutdown(now))
        if now:  # the engine's thread may hang in its device
            self._loop.call_later(self._engine_class.LAST_WORDS_S, self._end, EXIT_OK)

    def _wait_for_server(self) -> None:
        self._orphan_timer = self._loop.call_later(self._settings.orphan_timeout_s, self._orphaned)

    def _orphaned(self) -> None:
        log.error("no server: worker ends", waited_s=self._settings.orphan_timeout_s)
        self._end(EXIT_ORPHANED)


def _engine_class(settings: EngineSettings) -> "type[Engine | VllmEngine]":
    """Of what ``--engine`` names; the other one's needs may not be installed."""
    if settings.engine == "vllm":
        from coldplate_engine.vllm_worker.engine import VllmEngine

        return VllmEngine
    from coldplate_engine.engine import Engine

    return Engine


def _clear_socket(listen: str) -> None:
    """Remove the socket file a dead worker left behind; raises OSError when its folder is missing."""
    path = Path(listen.removeprefix("unix:").removeprefix("//"))
    if not path.parent.is_dir():
        raise OSError(f"--listen {listen}: the folder {path.parent} does not exist")
    if path.is_socket():
        path.unlink()
