"""Settings of the server process."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from coldplate.paths import control_socket
from coldplate.settings import ProcessSettings
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.request import Priority

_WORKER_FLAGS = (
    " --model {model} --served-model-name {name} --device {device} --listen {listen} --cpu-workers {workers}"
)
DEFAULT_WORKER_COMMAND = f"{shlex.quote(sys.executable)} -m coldplate_engine.main" + _WORKER_FLAGS
_DEVICE_PREFIXES = ("fault:", "sim:", "vllm:", "attach=")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's public name and the folder it is read from."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to have: spawned on ``device``, or attached at ``address``; exactly one of the two is set."""

    name: str
    model: ServedModel
    device: str | None = None
    address: str | None = None
    engine: Literal["native", "vllm"] = "native"


class ServerSettings(ProcessSettings):
    """Serve models over gRPC."""

    model: list[str] = Field(
        default_factory=list,
        description="Folder of a model, as NAME=DIR or DIR; its name is then the folder's. Repeatable.",
    )
    worker: list[str] = Field(
        default_factory=list,
        description="Worker to have, as [MODEL@]DEVICE to start one, [MODEL@]vllm:DEVICE to start one with vLLM (a "
        "group of chips as vllm:npu:0-3), or [MODEL@]attach=ADDRESS to connect to one. Repeatable. Default: one on the "
        "CPU for each model.",
    )
    listen: str = Field("127.0.0.1:50051", description="Address of the public service.")
    control_socket: Path = Field(
        default_factory=control_socket, description="Unix socket for operators and the governor."
    )
    metrics_listen: str = Field("127.0.0.1:9464", description="Address of the Prometheus endpoint; empty for none.")
    governor: Literal["auto", "optional", "required"] = Field(
        "auto",
        description="Whether devices run unlimited before a governor was ever seen (optional) or under safe limits "
        "(required). auto: required for NPUs.",
    )
    profile: list[str] = Field(
        default_factory=list,
        description="Device profile that holds the safe limits, as DEVICE=PROFILE. Repeatable. "
        "Default: cpu for the CPU, 310p-duo for an NPU.",
    )
    worker_command: str = Field(
        DEFAULT_WORKER_COMMAND,
        description="How a worker is started; {model}, {name}, {device}, {listen} and {workers} (how many are started) "
        "are filled in.",
    )
    engine_arg: list[str] = Field(
        default_factory=list, description="Flag added to the worker command, as --engine-arg=--FLAG=VALUE. Repeatable."
    )
    vllm_python: Path = Field(
        Path(sys.executable), description="Python of the environment that holds vLLM, for vllm: workers."
    )
    vllm_arg: list[str] = Field(
        default_factory=list,
        description="Flag added to the command of vllm: workers, as --vllm-arg=--FLAG=VALUE. Repeatable.",
    )
    max_queued_requests: int = Field(256, ge=0, description="Requests that may wait; one more is refused.")
    max_queue_wait_s: float = Field(60, gt=0, le=86_400, description="Longest wait in the queue.")
    queue_wait_target_high_s: float = Field(
        2, gt=0, le=86_400, description="Queue wait that admission steers for, priority high; refused from twice that."
    )
    queue_wait_target_normal_s: float = Field(10, gt=0, le=86_400, description="The same, priority normal.")
    queue_wait_target_low_s: float = Field(30, gt=0, le=86_400, description="The same, priority low.")
    queue_floor_requests: int = Field(
        1, ge=0, description="Requests of a class and model that may wait however long it takes."
    )
    queue_probe_tokens: int = Field(
        512, ge=1, description="By how much the limit of a class grows in a second while its wait is below target."
    )
    tenant_prompt_weight: float = Field(
        1, ge=0, le=1000, description="What a prompt token counts when tenants are set against each other."
    )
    tenant_answer_weight: float = Field(2, gt=0, le=1000, description="The same, a token of an answer.")
    max_absent_tenants: int = Field(
        1024, ge=0, description="Tenants without a request whose counters are kept, for each class and model."
    )
    default_max_tokens: int = Field(256, ge=1, description="max_tokens of a request that does not say.")
    drain_grace_s: float = Field(30, ge=0, le=3600, description="How long open streams may go on after SIGTERM.")
    slow_reader_timeout_s: float = Field(
        60, gt=0, le=3600, description="A caller that accepts nothing for so long loses its stream."
    )

    @field_validator("listen")
    @classmethod
    def _listen_has_port(cls, value: str) -> str:
        return check_host_port(value)

    @field_validator("metrics_listen")
    @classmethod
    def _metrics_has_port(cls, value: str) -> str:
        return check_host_port(value) if value else value

    @field_validator("worker_command")
    @classmethod
    def _command_takes_its_blanks(cls, value: str) -> str:
        try:
            worker_command(value, ServedModel("m", Path("d")), "cpu", "unix:s", 1)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"unusable: {error}; {{model}}, {{name}}, {{device}}, {{listen}} and {{workers}} are known"
            ) from None
        return value

    def admission_policy(self) -> AdmissionPolicy:
        return AdmissionPolicy(
            max_waiting=self.max_queued_requests,
            wait_target_s={
                Priority.HIGH: self.queue_wait_target_high_s,
                Priority.NORMAL: self.queue_wait_target_normal_s,
                Priority.LOW: self.queue_wait_target_low_s,
            },
            floor_requests=self.queue_floor_requests,
            probe_tokens=self.queue_probe_tokens,
            prompt_weight=self.tenant_prompt_weight,
            answer_weight=self.tenant_answer_weight,
            max_absent_tenants=self.max_absent_tenants,
        )

    def models(self) -> list[ServedModel]:
        """Raises ValueError naming a folder that is not there or a name given twice."""
        found: dict[str, ServedModel] = {}
        for entry in self.model:
            name, _, folder = entry.rpartition("=")
            path = Path(folder).expanduser()
            if not path.is_dir():
                raise ValueError(f"model {entry!r}: there is no folder {folder!r}")
            name = name or path.resolve().name
            if name in found:
                raise ValueError(f"model {entry!r}: the name {name!r} is given twice; use NAME=DIR")
            found[name] = ServedModel(name, path)
        if not found:
            raise ValueError("no model: give at least one --model [NAME=]DIR")
        return list(found.values())

    def workers(self, models: list[ServedModel]) -> list[WorkerSpec]:
        """Raises ValueError for a worker of an unknown model, or of no clear one."""
        by_name = {model.name: model for model in models}
        entries = self.worker or [f"{model.name}@cpu" for model in models]
        specs = []
        for number, entry in enumerate(entries):
            name, at, target = entry.partition("@")
            if not at or name.startswith(_DEVICE_PREFIXES):  # a fault plan holds signs of its own
                name, at, target = "", "", entry
            if at and name not in by_name:
                raise ValueError(f"worker {entry!r}: no model is called {name!r}; there are {', '.join(by_name)}")
            if not at and len(models) > 1:
                raise ValueError(f"worker {entry!r}: say of which model, as MODEL@{target}")
            model = by_name[name] if at else models[0]
            if target.startswith("attach="):
                specs.append(WorkerSpec(f"worker-{number}", model, address=target.removeprefix("attach=")))
                continue
            engine: Literal["native", "vllm"] = "vllm" if target.startswith("vllm:") else "native"
            device = target.removeprefix("vllm:")
            if not device:
                raise ValueError(f"worker {entry!r}: no device is given")
            specs.append(WorkerSpec(f"worker-{number}", model, device=device, engine=engine))
        return specs

    def command(self, spec: WorkerSpec, listen: str, workers: int) -> list[str]:
        """The argument list that starts a worker on ``spec.device``; ``workers`` is how many are started."""
        assert spec.device is not None
        if spec.engine == "vllm":
            template = f"{shlex.quote(str(self.vllm_python))} -m coldplate_engine.main --engine vllm" + _WORKER_FLAGS
            own = self.vllm_arg
        else:
            template, own = self.worker_command, []
        return [*worker_command(template, spec.model, spec.device, listen, workers), *self.engine_arg, *own]


def check_host_port(value: str) -> str:
    """Return ``value`` when it reads HOST:PORT, else raise ValueError."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("expected HOST:PORT, such as 127.0.0.1:50051")
    return value


def worker_command(template: str, model: ServedModel, device: str, listen: str, workers: int) -> list[str]:
    """The argument list that starts a worker."""
    blanks = {"model": str(model.folder), "name": model.name, "device": device, "listen": listen, "workers": workers}
    return [part.format(**blanks) for part in shlex.split(template)]
