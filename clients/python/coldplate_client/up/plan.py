"""What a stack is to consist of, and the commands that start its parts."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from coldplate.device_id import DeviceId
from coldplate.transport import DEFAULT_ADDRESS


@dataclass(frozen=True, slots=True)
class StackPlan:
    """``run_dir`` holds the logs and the sockets. ``board`` is a chip for the simulated board, or None.

    ``workers`` as for ``coldplate-server --worker``; none means one on the CPU and, with a board, one on its chip 0.
    """

    model_folder: Path
    run_dir: Path
    control_socket: Path
    model_name: str = ""
    board: str | None = None
    board_socket: Path | None = None
    board_start_celsius: float | None = None
    workers: tuple[str, ...] = ()
    listen: str = DEFAULT_ADDRESS
    metrics_listen: str = "127.0.0.1:9464"
    governor: bool = True
    drain_grace_s: float = 5.0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def board_address(self) -> str:
        return f"unix:{self.board_socket or self.run_dir / 'board.sock'}"

    @property
    def worker_specs(self) -> tuple[str, ...]:
        if self.workers:
            return self.workers
        return ("cpu", f"sim:{self.board_address}#npu:0") if self.board else ("cpu",)

    def devices(self) -> list[str]:
        """The devices that the workers started here serve, in order."""
        names = [spec.rpartition("@")[2].rpartition("#")[2].rpartition(",")[2] for spec in self.worker_specs]
        return [name for name in dict.fromkeys(names) if _is_device(name)]

    def board_command(self) -> list[str]:
        command = [
            *_program("coldplate_governor.board.main"),
            "--chip",
            self.board or "",
            "--listen",
            self.board_address,
        ]
        if self.board_start_celsius is not None:
            command += ["--start-temperature-celsius", str(self.board_start_celsius)]
        return command

    def server_command(self) -> list[str]:
        model = f"{self.model_name}={self.model_folder}" if self.model_name else str(self.model_folder)
        return [
            *_program("coldplate_server.main"),
            *("--model", model, "--listen", self.listen, "--metrics-listen", self.metrics_listen),
            *("--control-socket", str(self.control_socket), "--drain-grace-s", str(self.drain_grace_s)),
            *("--governor", "auto" if self.governor else "optional"),
            *(f"--worker={spec}" for spec in self.worker_specs),
        ]

    def governor_command(self) -> list[str]:
        return [
            *_program("coldplate_governor.main"),
            *("--control", f"unix:{self.control_socket}"),
            *(f"--device={device}" for device in self.devices()),
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
