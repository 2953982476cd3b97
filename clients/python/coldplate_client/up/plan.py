"""What a stack is to consist of, and the commands that start its parts."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from coldplate.device_id import MODELLED, DeviceId, name_in_spec
from coldplate.profile import profile_names
from coldplate.transport import DEFAULT_ADDRESS


@dataclass(frozen=True, slots=True)
class StackPlan:
    """``run_dir`` holds the logs and the sockets. ``board`` is a chip for the simulated board, or None.

    ``workers`` as for ``coldplate-server --worker``; none means one on the CPU and, with a board, one on each of its
    ``board_chips``. ``modelled`` not None: those are modelled, as a model of that name or, if empty, of their own size,
    and no worker on the CPU is beside them, because its text would be another.
    """

    model_folder: Path
    run_dir: Path
    control_socket: Path
    model_name: str = ""
    board: str | None = None
    board_chips: int = 1
    modelled: str | None = None
    board_socket: Path | None = None
    board_start_celsius: float | None = None
    board_ambient_celsius: float | None = None
    workers: tuple[str, ...] = ()
    listen: str = DEFAULT_ADDRESS
    metrics_listen: str = "127.0.0.1:9464"
    governor: bool = True
    drain_grace_s: float = 5.0
    engine_args: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def board_address(self) -> str:
        return f"unix:{self.board_socket or self.run_dir / 'board.sock'}"

    @property
    def worker_specs(self) -> tuple[str, ...]:
        if self.workers:
            return self.workers
        if not self.board:
            return ("cpu",)
        modelled = "" if self.modelled is None else f",{MODELLED}" + (f"={self.modelled}" if self.modelled else "")
        chips = tuple(f"sim:{self.board_address}#npu:{chip}{modelled}" for chip in range(self.board_chips))
        return chips if modelled else ("cpu", *chips)

    def devices(self) -> list[str]:
        """The devices that the workers started here serve, in order."""
        names = [name_in_spec(spec.rpartition("@")[2]) for spec in self.worker_specs]
        return [name for name in dict.fromkeys(names) if _is_device(name)]

    def board_command(self) -> list[str]:
        command = [
            *_program("coldplate_governor.board.main"),
            "--chip",
            self.board or "",
            "--count",
            str(self.board_chips),
            "--listen",
            self.board_address,
        ]
        if self.board_start_celsius is not None:
            command += ["--start-temperature-celsius", str(self.board_start_celsius)]
        if self.board_ambient_celsius is not None:
            command += ["--ambient-celsius", str(self.board_ambient_celsius)]
        return command

    def server_command(self) -> list[str]:
        model = f"{self.model_name}={self.model_folder}" if self.model_name else str(self.model_folder)
        return [
            *_program("coldplate_server.main"),
            *("--model", model, "--listen", self.listen, "--metrics-listen", self.metrics_listen),
            *("--control-socket", str(self.control_socket), "--drain-grace-s", str(self.drain_grace_s)),
            *("--governor", "auto" if self.governor else "optional"),
            *(f"--worker={spec}" for spec in self.worker_specs),
            *(f"--profile={device}={profile}" for device, profile in self.board_profiles().items()),
            *(f"--engine-arg={argument}" for argument in self.engine_args),
        ]

    def board_profiles(self) -> dict[str, str]:
        """The device profile of each chip of the board that a worker here serves."""
        if not self.board:
            return {}
        from coldplate_governor.board.kinds import profiles_of

        profiles = {f"npu:{chip}": name for chip, name in enumerate(profiles_of(self.board, self.board_chips))}
        return {device: profiles[device] for device in self.devices() if profiles.get(device) in profile_names()}

    def governor_command(self) -> list[str]:
        profiles = self.board_profiles()
        named = [f"{device}={profiles[device]}" if device in profiles else device for device in self.devices()]
        return [
            *_program("coldplate_governor.main"),
            *("--control", f"unix:{self.control_socket}"),
            *(f"--device={device}" for device in named),
            *("--record", str(self.run_dir / "governor.jsonl")),
            *(("--board", self.board_address) if self.board else ()),
        ]


def _program(module: str) -> list[str]:
    return [sys.executable, "-m", module]


def _is_device(name: str) -> bool:
    try:
        DeviceId.parse(name)
    except ValueError:
        return False
    return True
