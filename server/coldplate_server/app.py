"""The server put together: what is built from what, and the order of starting and stopping."""

import asyncio
import contextlib
import errno
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from coldplate.clock import Clock
from coldplate.device_id import DeviceId
from coldplate.limits import Limits
from coldplate.paths import ensure_private_dir
from coldplate.profile import load_profile
from coldplate.transport import server_options
from coldplate.v1 import (
    admin_pb2_grpc,
    control_pb2_grpc,
    device_pb2_grpc,
    generation_pb2_grpc,
    model_pb2_grpc,
    token_pb2_grpc,
)
from coldplate_server.catalog import Catalog
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import Aborted
from coldplate_server.generation import Generator
from coldplate_server.journal import Journal
from coldplate_server.lifecycle import Lifecycle
from coldplate_server.limit_book import LimitBook
from coldplate_server.metrics import Metrics
from coldplate_server.metrics_endpoint import MetricsEndpoint
from coldplate_server.request_queue import RequestQueue
from coldplate_server.rpc.admin import AdminServicer
from coldplate_server.rpc.control import ControlServicer
from coldplate_server.rpc.device import DeviceServicer
from coldplate_server.rpc.generation import GenerationServicer
from coldplate_server.rpc.interceptor import RequestInterceptor
from coldplate_server.rpc.model import ModelServicer
from coldplate_server.rpc.reflection import add_reflection
from coldplate_server.rpc.status_view import StatusView
from coldplate_server.rpc.token import TokenServicer
from coldplate_server.settings import ServerSettings, WorkerSpec
from coldplate_server.text.constraint import ConstraintChecks
from coldplate_server.workers.fleet import Fleet, devices_of_spec
from coldplate_server.workers.link import WorkerLink

log = structlog.get_logger()

_TICK_S = 0.25
_OBSERVE_S = 1.0
_STOP_GRACE_S = 0.5
_TOKENIZING_THREADS = 2
_DEFAULT_PROFILES = {"cpu": "cpu", "npu": "310p-duo"}


class StartRefused(Exception):
    """The server cannot start as it is configured: one line that names what is unusable."""


class App:
    """One server. ``run`` returns when it has stopped cleanly; raises StartRefused when it could not start."""

    def __init__(self, settings: ServerSettings, clock: Clock, stop: asyncio.Event) -> None:
        """``stop`` is what ``run`` ends at. Raises StartRefused for unusable settings, ModelFilesError for an unusable
        model folder."""
        self._settings = settings
        self._clock = clock
        try:
            models = settings.models()
            specs = settings.workers(models)
            self._profiles = _profiles(settings.profile)
            devices = [device for spec in specs if spec.device for device in devices_of_spec(spec.device)]
            safe = {device: self._safe_limits(device) for device in devices}
        except ValueError as error:
            raise StartRefused(str(error)) from None
        self.catalog = Catalog(models)
        self.metrics = Metrics()
        self.limits = LimitBook(clock, safe, frozenset(filter(self._governor_required, devices)))
        self.dispatcher = Dispatcher(Journal(), RequestQueue(settings.admission_policy()), clock)
        self._socket_dir = tempfile.TemporaryDirectory(prefix="coldplate-workers-")
        self.fleet = Fleet(specs, settings.command, Path(self._socket_dir.name), self.limits, clock, self)
        self.dispatcher.fleet = self.fleet
        self.view = StatusView(self.fleet, self.limits, self.dispatcher, clock)
        self._stop = stop
        self._nudge = asyncio.Event()  # a worker came or went: health must not wait for the next tick
        self._refused: str | None = None
        self._upkeep: asyncio.Task[None] | None = None

    def worker_changed(self, link: WorkerLink) -> None:
        for device in link.devices:
            if device not in self.limits.devices:
                self.limits.add_device(device, self._safe_limits(device), self._governor_required(device))
        self._check_hope(link.spec)
        self.dispatcher.tick()
        self._nudge.set()

    def step_taken(self, link: WorkerLink, tokens: int) -> None:
        self.metrics.tokens_made(link.spec.model.name, tokens)
        self.metrics.step_taken(link.spec.model.name, link.steps.latest)
        self.dispatcher.pump()

    async def run(self) -> None:
        """Serve until told to stop; then readiness off, no new calls, running streams get the grace."""
        settings = self._settings
        health = health_aio.HealthServicer()
        self.lifecycle = Lifecycle(health, self.catalog, self.fleet, self.dispatcher)
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.callback(self._socket_dir.cleanup)
            tokenizing = cleanup.enter_context(ThreadPoolExecutor(_TOKENIZING_THREADS, "tokenizer"))
            constraints = ConstraintChecks()
            cleanup.push_async_callback(constraints.close)
            await self.lifecycle.refresh()
            public = self._public_server(tokenizing, constraints, health)
            control = self._control_server(health)
            _bind(public, settings.listen)
            _claim_control_socket(settings.control_socket)
            _bind(control, f"unix:{settings.control_socket}")
            cleanup.callback(settings.control_socket.unlink, missing_ok=True)
            metrics = MetricsEndpoint(self.metrics.registry, settings.metrics_listen)
            try:
                metrics.start()
            except OSError as error:
                raise StartRefused(f"--metrics-listen {settings.metrics_listen}: {error.strerror}") from None
            cleanup.callback(metrics.stop)
            await public.start()
            await control.start()
            self.fleet.start()
            cleanup.push_async_callback(self._stop_in_order, public, control)
            await self._serve()
        if self._refused is not None:
            raise StartRefused(self._refused)

    async def _serve(self) -> None:
        log.info("listening", address=self._settings.listen, control=str(self._settings.control_socket))
        self._upkeep = asyncio.create_task(self._keep_up())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait([self._upkeep, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if self._upkeep.done():
            self._upkeep.result()

    async def _keep_up(self) -> None:
        """Queue, limits, health and gauges follow what happens, several times a second, until the very end."""
        said = False
        observe_at = 0.0
        while True:
            self.dispatcher.tick()
            await self.lifecycle.refresh()
            if self._clock.now() >= observe_at:
                self.metrics.observe(self.view.service())
                self.metrics.observe_queue(self.view.load())
                observe_at = self._clock.now() + _OBSERVE_S
            if self.lifecycle.ready.is_set() and not said:
                said = True
                log.info("ready", models=self.catalog.names, workers=len(self.fleet.workers))
            lease_left_s = self.limits.governor().lease_left_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_TICK_S, lease_left_s or _TICK_S)):
                    await self._nudge.wait()
            self._nudge.clear()

    async def _stop_in_order(self, public: grpc.aio.Server, control: grpc.aio.Server) -> None:
        grace_s = 0.0 if self._refused else self._settings.drain_grace_s
        journal = self.dispatcher.journal
        self.dispatcher.draining = True
        self.lifecycle.stopping.set()
        await self.lifecycle.refresh()
        log.info("stopping", running=len(journal), grace_s=grace_s)
        await self.dispatcher.wait_idle(grace_s)
        for record in journal:
            self.dispatcher.abort(
                record,
                Aborted(f"the service stopped after {record.delivered} tokens", delivered_tokens=record.delivered),
            )
        await asyncio.gather(public.stop(_STOP_GRACE_S), control.stop(_STOP_GRACE_S))
        await self.fleet.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        log.info("stopped")

    def _public_server(
        self, tokenizing: ThreadPoolExecutor, constraints: ConstraintChecks, health: health_aio.HealthServicer
    ) -> grpc.aio.Server:
        settings = self._settings
        generator = Generator(
            self.catalog,
            self.dispatcher,
            tokenizing,
            constraints,
            self._clock,
            settings.default_max_tokens,
            settings.max_queue_wait_s,
        )
        server = grpc.aio.server(interceptors=[RequestInterceptor()], options=server_options())
        servicer = GenerationServicer(generator, self.metrics, settings.slow_reader_timeout_s)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        token_pb2_grpc.add_TokenServiceServicer_to_server(TokenServicer(self.catalog.tokenizer, tokenizing), server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(self.catalog, self.fleet), server)
        self._add_device_service(server, health)
        add_reflection(server, [f"coldplate.v1.{name}Service" for name in ("Generation", "Token", "Model", "Device")])
        return server

    def _control_server(self, health: health_aio.HealthServicer) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[RequestInterceptor()], options=server_options())
        admin = AdminServicer(self._settings, self.limits, self.dispatcher, self.fleet, self.lifecycle, self.view)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        control = ControlServicer(self.limits, self.dispatcher, self.view)
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
        self._add_device_service(server, health)
        add_reflection(server, [f"coldplate.v1.{name}Service" for name in ("Admin", "Control", "Device")])
        return server

    def _add_device_service(self, server: grpc.aio.Server, health: health_aio.HealthServicer) -> None:
        device_pb2_grpc.add_DeviceServiceServicer_to_server(DeviceServicer(self.view, self.lifecycle), server)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)

    def _check_hope(self, spec: WorkerSpec) -> None:
        """Stop at start when a model has no worker left that could ever serve it."""
        workers = self.fleet.of_model(spec.model.name)
        if not self.lifecycle.ready.is_set() and all(worker.failure for worker in workers):
            self._refused = f"model {spec.model.name!r} cannot be served: {workers[-1].failure}"
            self._stop.set()

    def _safe_limits(self, device: str) -> Limits:
        kind = DeviceId.parse(device).kind
        return load_profile(self._profiles.get(device) or _DEFAULT_PROFILES[kind]).safe_limits

    def _governor_required(self, device: str) -> bool:
        mode = self._settings.governor
        return mode == "required" or (mode == "auto" and DeviceId.parse(device).kind == "npu")


def _profiles(entries: list[str]) -> dict[str, str]:
    profiles = {}
    for entry in entries:
        device, _, profile = entry.partition("=")
        if not profile:
            raise ValueError(f"profile {entry!r}: expected DEVICE=PROFILE, such as npu:0=310p-duo")
        profiles[str(DeviceId.parse(device))] = profile
        load_profile(profile)
    return profiles


def _bind(server: grpc.aio.Server, address: str) -> None:
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        raise StartRefused(
            f"cannot listen on {address}: it is taken or not this machine's; choose another with --listen"
        ) from None


def _claim_control_socket(path: Path) -> None:
    """Remove a socket nobody answers on. Raises StartRefused when somebody does, or the folder is unusable."""
    try:
        ensure_private_dir(path.parent)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:  # how a file of any other kind answers, too
        if not path.is_socket():
            raise StartRefused(f"--control-socket {path}: there is a file that is no socket") from None
        path.unlink(missing_ok=True)
    except OSError as error:
        why = "the path is too long" if error.errno == errno.EINVAL or "too long" in str(error) else error
        raise StartRefused(f"--control-socket {path}: {why}") from None
    else:
        raise StartRefused(f"--control-socket {path}: another server answers there")
