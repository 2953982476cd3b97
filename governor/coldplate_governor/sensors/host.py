"""``psutil``: processor use and memory of the machine."""

import psutil

from coldplate_governor.sensors.base import SensorError


class PsutilSensor:
    """Processor use since the last reading, so the first reading has none; memory used is what is not available."""

    name = "psutil"

    def __init__(self) -> None:
        self._primed = False

    def read(self) -> dict[str, float]:
        try:
            busy = psutil.cpu_percent(interval=None)
            memory = psutil.virtual_memory()
        except (OSError, RuntimeError, psutil.Error) as error:
            raise SensorError(f"psutil: {error}") from error
        readings = {
            "memory_total_bytes": float(memory.total),
            "memory_used_bytes": float(memory.total - memory.available),
        }
        if self._primed:
            readings["utilization_percent"] = busy
        self._primed = True
        return readings
