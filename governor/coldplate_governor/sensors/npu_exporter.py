"""``npu-exporter``: one chip from the metrics page of MindCluster's npu-exporter, or of anything with its names.

The exporter says -1, or leaves a metric out, where its own query failed. Its samples may carry the time of its last
query: when that does not move, neither does what we hand on.
"""

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from coldplate.clock import Clock, MonotonicClock
from coldplate_governor.sensors.base import AGE, QUANTITIES, Readings, SensorError, SensorUnusable

_MAX_PAGE_BYTES = 8 << 20
_MEGABYTE = 2**20
_SLOW_S = 3.0
_PREFIX = "npu_chip_info_"
_SAMPLE = re.compile(
    r"npu_chip_info_(?P<name>\w+)\s*\{(?P<labels>[^}]*)\}\s+(?P<value>[-+]?[0-9][0-9.eE+-]*)(?:\s+(?P<stamp>-?\d+))?\s*"
)
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_CARD_POWER_CHIPS = ("310P",)  # their "power" is the whole board's

# npu-exporter's name, the quantity, and what a value is multiplied by
_NUMBERS = (
    ("temperature", "temperature_celsius", 1.0),
    ("hbm_temperature", "memory_temperature_celsius", 1.0),
    ("utilization", "utilization_percent", 1.0),
    ("aicore_current_freq", "frequency_mhz", 1.0),
    ("hbm_bandwidth_utilization", "memory_bandwidth_percent", 1.0),
)
_MEMORIES = (("hbm_used_memory", "hbm_total_memory"), ("used_memory", "total_memory"))
_ERROR_CODES = ("error_code", *(f"error_code_{number}" for number in range(1, 10)))


class NpuExporterSensor:
    """Scrapes ``url`` (the whole address, such as http://127.0.0.1:8082/metrics) for the chip with the id ``index``."""

    name = "npu-exporter"

    def __init__(self, index: int, url: str, timeout_s: float = 2.0, clock: Clock | None = None) -> None:
        self._id = str(index)
        self._url = url
        self._timeout_s = timeout_s
        self._clock = clock or MonotonicClock()
        # The exporter is in this cluster: a proxy for the web has no business with it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._stamp: tuple[int, float] | None = None
        self._every_s = 0.0

    def read(self) -> Readings:
        chips: dict[str, dict[str, float]] = {}
        models: dict[str, str] = {}
        stamps: dict[str, int] = {}
        for name, labels, value, stamp in samples(self._page()):
            chip = labels.get("id")
            if chip is None:
                continue
            chips.setdefault(chip, {}).setdefault(name, value)
            models.setdefault(chip, labels.get("model_name", ""))
            if stamp is not None:
                stamps[chip] = max(stamp, stamps.get(chip, stamp))
        if not chips:
            raise SensorError(f"npu-exporter: {self._url} has no {_PREFIX}… metrics: is it an npu-exporter?")
        if self._id not in chips:
            raise SensorError(f"npu-exporter: there is no device {self._id}; it shows {', '.join(sorted(chips)[:16])}")
        found = _readings(chips[self._id], models[self._id])
        found[AGE] = self._age_s(stamps.get(self._id))
        if self._every_s > _SLOW_S:
            raise SensorError(
                f"npu-exporter: measures every {self._every_s:.0f} s, too seldom to steer by: "
                "start it with -updateTime=1",
                found,
            )
        return found

    def _page(self) -> str:
        try:
            with self._opener.open(self._url, timeout=self._timeout_s) as answer:
                return str(answer.read(_MAX_PAGE_BYTES).decode(errors="replace"))
        except urllib.error.HTTPError as error:
            error.close()
            raise SensorError(f"npu-exporter: {self._url} answers {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise SensorUnusable(f"npu-exporter: nobody listens at {self._url}") from error
            raise SensorError(f"npu-exporter: {self._url}: {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SensorError(f"npu-exporter: {self._url}: {error or type(error).__name__}") from error

    def _age_s(self, stamp: int | None) -> float:
        """How long ago the exporter's time stamp was first seen, in seconds; its clock need not be ours."""
        now = self._clock.now()
        if stamp is None:
            return 0.0
        if self._stamp is None:
            self._stamp = (stamp, now)
        age_s = now - self._stamp[1]
        if stamp == self._stamp[0]:
            self._every_s = max(self._every_s, age_s)
            return age_s
        self._every_s, self._stamp = age_s, (stamp, now)
        return 0.0


def check_url(url: str) -> None:
    """Raises ValueError unless ``url`` is one that can be scraped."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected http://HOST:PORT/metrics, got {url[:80]!r}")


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float, int | None]]:
    """Name without prefix, labels, value and time stamp of each sample; a line that is damaged is left out."""
    for line in page.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        stamp = int(found["stamp"]) if found["stamp"] else None
        yield found["name"], dict(_LABEL.findall(found["labels"])), value, stamp


def _readings(metrics: dict[str, float], model: str) -> dict[str, float | str]:
    """Readings of one chip; what the exporter could not ask for (-1) is left out."""
    known = {name: value for name, value in metrics.items() if value >= 0}
    found: dict[str, float | str] = {
        quantity: known[name] * scale
        for name, quantity, scale in _NUMBERS
        if name in known and (known[name] or QUANTITIES[quantity].unit == "%")
    }
    if known.get("power"):
        card = any(chip in model for chip in _CARD_POWER_CHIPS)
        found["card_power_watts" if card else "power_watts"] = known["power"]
    for used, total in _MEMORIES:
        if known.get(total):
            found["memory_total_bytes"] = known[total] * _MEGABYTE
            if used in known and known[used] <= known[total]:
                found["memory_used_bytes"] = known[used] * _MEGABYTE
            break
    if "health_status" in known:
        found["health"] = "ok" if known["health_status"] else "alarm"
    codes = [int(known[name]) for name in _ERROR_CODES if name in known]
    if codes:
        found["error_codes"] = " ".join(f"{code:08X}" for code in dict.fromkeys(codes) if 0 < code < 2**32)
    return found
