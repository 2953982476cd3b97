"""Why a device is as it is, in plain words: what binds now, since when, what the numbers are, what would clear it."""

from dataclasses import dataclass, field

from coldplate.durations import to_seconds
from coldplate.limits_proto import limits_from_proto
from coldplate.v1 import device_pb2
from coldplate.words import celsius_words, limit_words, seconds_words

_OPERATOR = device_pb2.LIMIT_SOURCE_OPERATOR
_GOVERNOR = device_pb2.LIMIT_SOURCE_GOVERNOR
_SAFE = device_pb2.LIMIT_SOURCE_SAFE
_WORKER = device_pb2.LIMIT_SOURCE_WORKER
_PLAIN_MODES = frozenset({"NOMINAL", "THROTTLED"})
_STATES = {
    device_pb2.DEVICE_STATE_LOADING: ("is not ready yet", "its worker has loaded the model"),
    device_pb2.DEVICE_STATE_DRAINING: ("takes no new requests", "`coldplate resume`"),
    device_pb2.DEVICE_STATE_LOST: ("is lost", "its worker is up again; the server starts it again by itself"),
    device_pb2.DEVICE_STATE_FAILED: ("has failed", "what the reason names is put right, and the server started again"),
}


@dataclass(frozen=True, slots=True)
class Why:
    """One device. ``headline`` says it all in a sentence; ``binding`` is a word such as thermal, hand, worker, none."""

    device: str
    binding: str
    headline: str
    since_s: float | None = None
    numbers: list[str] = field(default_factory=list)
    clears: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


def explain(status: device_pb2.ServiceStatus) -> list[Why]:
    """One entry for each device of ``status``."""
    return [_device(status.governor, device) for device in status.devices]


def service_words(status: device_pb2.ServiceStatus) -> list[str]:
    """What holds for every device: the queue, a drain, the governor."""
    said = []
    if status.queued:
        said.append(f"{status.queued} requests wait in the queue")
    if status.draining:
        said.append("the service drains: it takes no new requests until `coldplate resume`")
    governor = status.governor
    if governor.state == device_pb2.GOVERNOR_STATE_UNGOVERNED:
        said.append("no governor has been seen, and none is required: nobody watches temperature and memory")
    elif governor.state == device_pb2.GOVERNOR_STATE_LOST:
        said.append(f"no governor since {seconds_words(to_seconds(governor.since_change))}")
    return said


def _device(governor: device_pb2.GovernorStatus, device: device_pb2.DeviceStatus) -> Why:
    name = device.device + (" (simulated)" if device.simulated else "")
    if device.state in _STATES:
        what, ends = _STATES[device.state]
        lasts = to_seconds(device.since_change)
        headline = f"{name} {what} since {seconds_words(lasts)}: {device.detail or 'no reason is told'}"
        return Why(device.device, "device", headline, lasts, clears=[ends])
    source = _main_source(device)
    if source is None:
        return _unbound(governor, device, name)
    binding, since, reason, clears = _of_source(source, governor, device)
    when = f" since {seconds_words(since)}" if since is not None else ""
    others = {item.source for item in _honoured(device)} - {source}
    clears += [f"then {_source_words(other)} still holds" for other in sorted(others)]
    return Why(
        *(device.device, binding, f"{name} {_held(device, source)}{when}: {reason}", since),
        numbers=_numbers(governor, device),
        clears=clears,
        history=_history(governor, device),
    )


def _unbound(governor: device_pb2.GovernorStatus, device: device_pb2.DeviceStatus, name: str) -> Why:
    governed = governor.state == device_pb2.GOVERNOR_STATE_GOVERNED
    temperature = f", {_celsius(device.readings)}" if governed and _celsius(device.readings) else ""
    since = to_seconds(device.since_change)
    return Why(
        device.device,
        "none",
        f"{name} runs at full speed since {seconds_words(since)}: nothing binds{temperature}",
        since,
        numbers=_numbers(governor, device),
        history=_history(governor, device),
    )


def _main_source(device: device_pb2.DeviceStatus) -> "device_pb2.LimitSource | None":
    """Whose limit matters most: who closes the device, else who sets the pace, else whoever sets anything."""
    sources = {item.limit: item.source for item in _honoured(device)}
    if not sources:
        return None
    if device.limits.HasField("admit") and not device.limits.admit and "admit" in sources:
        return sources["admit"]
    return sources.get("duty", next(iter(sources.values())))


def _honoured(device: device_pb2.DeviceStatus) -> list[device_pb2.LimitBinding]:
    """The limits that change anything: a worker need not honour every one."""
    return [item for item in device.bindings if not device.levers or item.limit in device.levers]


def _of_source(
    source: "device_pb2.LimitSource", governor: device_pb2.GovernorStatus, device: device_pb2.DeviceStatus
) -> tuple[str, float | None, str, list[str]]:
    """What binds, since when, why, and what would clear it."""
    if source == _OPERATOR:
        ages = [to_seconds(item.age) for item in device.bindings if item.source == source and item.HasField("age")]
        release = f"`coldplate limit --release --device {device.device}`, or without --device if set on every device"
        return "hand", max(ages, default=None), "an operator has set it by hand", [release]
    if source == _SAFE:
        since = to_seconds(governor.since_change)
        seen = _celsius(device.readings)
        last = f"; it last saw {seen}" if seen else ""
        lost = f"no governor holds the lease, so the safe limits of the device's profile hold{last}"
        return "no governor", since, lost, ["`coldplate-governor` runs again and reaches the control socket"]
    if source == _WORKER:
        return "worker", None, "its worker has run short of memory", ["the worker has room again; it asks by itself"]
    said = device.explanation
    if not said.binding:
        reasons = "; ".join(item.text for item in device.reasons) or "the governor gives no reason"
        return "governor", None, reasons, []
    since = to_seconds(said.binding_for)
    if device.governor_mode not in _PLAIN_MODES:
        since = min(since, to_seconds(said.mode_for))
    return said.binding, since, _reason(device), list(said.clears)


def _reason(device: device_pb2.DeviceStatus) -> str:
    """The governor's reason as one clause; heat has a form of its own."""
    terms = device.explanation.terms
    plain = device.governor_mode in _PLAIN_MODES and len(device.reasons) <= 1
    heat = device.explanation.binding == "thermal" and plain
    if heat and terms.HasField("filtered_celsius") and terms.HasField("target_celsius"):
        return f"{terms.filtered_celsius:.1f} °C against a target of {celsius_words(terms.target_celsius)}"
    return "; ".join(item.text for item in device.reasons) or f"{device.explanation.binding} binds"


def _held(device: device_pb2.DeviceStatus, source: "device_pb2.LimitSource") -> str:
    """What is done to it, by its most telling limit of ``source``."""
    limits = {
        item.limit: getattr(device.limits, item.limit)
        for item in _honoured(device)
        if item.source == source and device.limits.HasField(item.limit)
    }
    if limits.get("admit") is False:
        return "is closed to new requests"
    if "duty" in limits:
        return f"is throttled to {limit_words('duty', limits['duty'])}"
    if "max_batch" in limits:
        return f"is limited to {limits['max_batch']} streams at once"
    return "is limited (" + ", ".join(f"{name} {limit_words(name, value)}" for name, value in limits.items()) + ")"


def _numbers(governor: device_pb2.GovernorStatus, device: device_pb2.DeviceStatus) -> list[str]:
    said = []
    if (limits := limits_from_proto(device.limits)) and device.bindings:
        sources = {item.limit: _source_words(item.source) for item in device.bindings}
        parts = [
            f"{name} {limit_words(name, value)} by {sources.get(name, 'whom is not told')}"
            for name, value in limits.set_fields().items()
        ]
        said.append(f"limits: {', '.join(parts)}")
    if governor.state != device_pb2.GOVERNOR_STATE_GOVERNED or not device.HasField("explanation"):
        return said
    terms = device.explanation.terms
    if terms.HasField("filtered_celsius"):
        said.append(_heat(terms))
    if terms.HasField("raw"):
        said.append(_sum(terms))
    said += _readings(device.readings)
    if device.explanation.rungs:
        said.append(f"ladder: {', '.join(device.explanation.rungs)}")
    mode = f"mode {device.governor_mode} since {seconds_words(to_seconds(device.explanation.mode_for))}"
    said.append(f"{mode}, rule {device.explanation.rule}" if device.explanation.rule else mode)
    return said


def _heat(terms: device_pb2.ControlTerms) -> str:
    parts = [f"temperature {terms.filtered_celsius:.1f} °C"]
    if terms.HasField("target_celsius"):
        parts.append(f"target {celsius_words(terms.target_celsius)}")
    if terms.HasField("rise_celsius_per_s"):
        parts.append(f"{terms.rise_celsius_per_s:+.2f} °C/s")
    if terms.HasField("seconds_to_limit") and terms.seconds_to_limit > 0:
        parts.append(f"the firmware throttles in {seconds_words(terms.seconds_to_limit)} if it goes on so")
    return ", ".join(parts)


def _sum(terms: device_pb2.ControlTerms) -> str:
    shares = [
        f"{label} {getattr(terms, name):+.3f}"
        for label, name in (("P", "p"), ("I", "i"), ("D", "d"), ("feed-forward", "feed_forward"))
        if terms.HasField(name) and (name != "feed_forward" or terms.feed_forward)
    ]
    said = f"controller: {' '.join(shares)} = {terms.raw:.3f} of full speed"
    if terms.HasField("slewed"):
        said += f", {terms.slewed:.3f} within bounds"
    return said + (f", {terms.applied:.3f} applied" if terms.HasField("applied") else "")


def _readings(readings: device_pb2.Readings) -> list[str]:
    said = []
    if readings.HasField("memory_used_bytes") and readings.memory_total_bytes:
        share = readings.memory_used_bytes / readings.memory_total_bytes
        said.append(f"memory {share:.0%} of {readings.memory_total_bytes / 2**30:.1f} GiB used")
    if readings.HasField("power_watts"):
        said.append(f"power {readings.power_watts:.0f} W")
    if readings.HasField("frequency_mhz") and readings.HasField("rated_frequency_mhz"):
        said.append(f"clock {readings.frequency_mhz:.0f} of {readings.rated_frequency_mhz:.0f} MHz")
    if readings.lost:
        said.append(f"sensors lost: {', '.join(readings.lost)}")
    if readings.HasField("age"):
        said.append(f"newest reading {to_seconds(readings.age):.1f} s old")
    return said


def _history(governor: device_pb2.GovernorStatus, device: device_pb2.DeviceStatus) -> list[str]:
    if governor.state != device_pb2.GOVERNOR_STATE_GOVERNED:
        return []
    return [f"{seconds_words(to_seconds(item.age))} ago: {item.text}" for item in device.explanation.changes]


def _source_words(source: "device_pb2.LimitSource") -> str:
    known = {_OPERATOR: "hand", _GOVERNOR: "the governor", _SAFE: "the safe limits", _WORKER: "the worker"}
    return known.get(source, "another")


def _celsius(readings: device_pb2.Readings) -> str:
    return f"{readings.temperature_celsius:.1f} °C" if readings.HasField("temperature_celsius") else ""
