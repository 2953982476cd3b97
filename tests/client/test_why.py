"""``coldplate why``: what an operator reads in each of the situations a device can be in."""

import json
import subprocess

import pytest

from client.fake_server import FakeServer, canned_status
from coldplate.durations import to_duration
from coldplate.v1 import device_pb2 as pb
from coldplate_client.why import Why, explain, service_words
from support.processes import run

GOVERNED = pb.GovernorStatus(state=pb.GOVERNOR_STATE_GOVERNED, name="governor", lease_left=to_duration(4))
TERMS = pb.ControlTerms(
    target_celsius=85,
    filtered_celsius=86.1,
    error_celsius=-1.1,
    p=-0.066,
    i=0.69,
    d=-0.006,
    raw=0.618,
    slewed=0.62,
    applied=0.62,
    rise_celsius_per_s=0.02,
    seconds_to_limit=195,
)


def device(
    binding: str = "", *, source: int = pb.LIMIT_SOURCE_GOVERNOR, reason: str = "", **fields: object
) -> pb.DeviceStatus:
    """A throttled npu:0 that ``binding`` binds since three minutes."""
    status = pb.DeviceStatus(
        device="npu:0",
        state=pb.DEVICE_STATE_THROTTLED,
        governor_mode="THROTTLED",
        since_change=to_duration(200),
        limits=pb.DeviceLimits(duty=0.62),
        bindings=[pb.LimitBinding(limit="duty", source=source)],  # type: ignore[arg-type]
        reasons=[pb.Reason(code="SOME", text=reason)] if reason else [],
    )
    if binding:
        status.explanation.CopyFrom(
            pb.Explanation(
                binding=binding,
                binding_for=to_duration(180),
                mode_for=to_duration(180),
                terms=TERMS,
                rungs=["duty", "prefill"],
                rule="THERMAL_BINDS",
                clears=["the temperature falls by 1.1 °C to 85 °C"],
                changes=[pb.GovernorChange(age=to_duration(180), text="NOMINAL → THROTTLED, duty none → 62 %")],
            )
        )
    for name, value in fields.items():
        field = getattr(status, name)
        if hasattr(field, "CopyFrom"):
            field.CopyFrom(value)
        else:
            setattr(status, name, value)
    return status


def why(status: pb.DeviceStatus, governor: pb.GovernorStatus = GOVERNED) -> Why:
    (found,) = explain(pb.ServiceStatus(devices=[status], governor=governor))
    return found


def test_heat() -> None:
    found = why(device("thermal", reason="86.1 °C against a target of 85, trend +0.02 °C/s: duty 0.62"))
    assert found.headline == "npu:0 is throttled to 62 % since 3 min: 86.1 °C against a target of 85 °C"
    assert (found.binding, found.since_s) == ("thermal", 180)
    assert found.clears == ["the temperature falls by 1.1 °C to 85 °C"]
    assert found.numbers == [
        "limits: duty 62 % by the governor",
        "temperature 86.1 °C, target 85 °C, +0.02 °C/s, the firmware throttles in 3 min if it goes on so",
        "controller: P -0.066 I +0.690 D -0.006 = 0.618 of full speed, 0.620 within bounds, 0.620 applied",
        "ladder: duty, prefill",
        "mode THROTTLED since 3 min, rule THERMAL_BINDS",
    ]
    assert found.history == ["3 min ago: NOMINAL → THROTTLED, duty none → 62 %"]


def test_a_guard_that_fired_is_told_in_its_own_words() -> None:
    limits = pb.DeviceLimits(duty=0.25, max_prefill_tokens=0, admit=False)
    closed = device(
        "thermal",
        reason="93.0 °C heads for 96.1, critical is 95",
        governor_mode="CRITICAL",
        limits=limits,
        state=pb.DEVICE_STATE_CLOSED,
    )
    closed.bindings.add(limit="admit", source=pb.LIMIT_SOURCE_GOVERNOR)
    closed.explanation.mode_for.CopyFrom(to_duration(8))
    assert why(closed).headline == ("npu:0 is closed to new requests since 8 s: 93.0 °C heads for 96.1, critical is 95")


def test_memory() -> None:
    readings = pb.Readings(memory_used_bytes=22 * 2**30, memory_total_bytes=24 * 2**30, age=to_duration(0.4))
    status = device("memory", reason="memory 93% used, limit 92%: batch at most 6", limits=pb.DeviceLimits(max_batch=6))
    status.bindings[0].limit = "max_batch"
    status.readings.CopyFrom(readings)
    found = why(status)
    assert found.headline == (
        "npu:0 is limited to 6 streams at once since 3 min: memory 93% used, limit 92%: batch at most 6"
    )
    assert "memory 92% of 24.0 GiB used" in found.numbers
    assert "newest reading 0.4 s old" in found.numbers


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        ("firmware", "the firmware runs the chip at 500 of 1080 MHz"),
        ("sensor", "no temperature for 17 s: the worst is assumed"),
        ("queue", "requests wait 12 s in the queue"),
        ("power", "80 W of 72 W"),
    ],
)
def test_other_constraints_of_the_governor(binding: str, reason: str) -> None:
    found = why(device(binding, reason=reason))
    assert found.headline == f"npu:0 is throttled to 62 % since 3 min: {reason}"
    assert found.binding == binding


def test_heat_is_not_all_when_the_sensor_is_lost_too() -> None:
    status = device("thermal", reason="no temperature for 7 s: duty at most 0.5")
    status.reasons.add(code="TEMPERATURE_NEAR_TARGET", text="84.0 °C against a target of 85")
    assert why(status).headline.endswith(": no temperature for 7 s: duty at most 0.5; 84.0 °C against a target of 85")


def test_a_lost_sensor_is_named() -> None:
    status = device("sensor", reason="no temperature for 17 s")
    status.readings.lost.append("board.temperature_celsius")
    assert "sensors lost: board.temperature_celsius" in why(status).numbers


def test_limits_by_hand() -> None:
    status = device(source=pb.LIMIT_SOURCE_OPERATOR)
    status.bindings[0].age.CopyFrom(to_duration(300))
    status.limits.max_batch = 4
    status.bindings.add(limit="max_batch", source=pb.LIMIT_SOURCE_GOVERNOR)
    found = why(status)
    assert found.headline == "npu:0 is throttled to 62 % since 5 min: an operator has set it by hand"
    assert found.binding == "hand"
    assert "coldplate limit --release --device npu:0" in found.clears[0]
    assert found.clears[-1] == "then the governor still holds"


def test_a_lost_governor_gives_its_last_word_for_what_it_is() -> None:
    lost = pb.GovernorStatus(state=pb.GOVERNOR_STATE_LOST, since_change=to_duration(40))
    status = device("thermal", source=pb.LIMIT_SOURCE_SAFE, readings=pb.Readings(temperature_celsius=81.4))
    found = why(status, lost)
    assert found.headline == (
        "npu:0 is throttled to 62 % since 40 s: no governor holds the lease, so the safe limits of the device's profile"
        " hold; it last saw 81.4 °C"
    )
    assert found.clears == ["`coldplate-governor` runs again and reaches the control socket"]
    assert found.numbers == ["limits: duty 62 % by the safe limits"]
    assert found.history == []
    assert service_words(pb.ServiceStatus(governor=lost)) == ["no governor since 40 s"]


def test_a_workers_own_memory_cap() -> None:
    status = device(source=pb.LIMIT_SOURCE_WORKER, limits=pb.DeviceLimits(max_batch=3))
    status.bindings[0].limit = "max_batch"
    assert why(status).headline == "npu:0 is limited to 3 streams at once: its worker has run short of memory"


def test_a_limit_that_the_device_does_not_honour_is_not_why() -> None:
    status = device(source=pb.LIMIT_SOURCE_OPERATOR, limits=pb.DeviceLimits(cpu_share=0.5), simulated=True)
    status.bindings[0].limit = "cpu_share"
    status.levers.append("duty")
    status.state = pb.DEVICE_STATE_SERVING
    assert why(status).headline == "npu:0 (simulated) runs at full speed since 3 min: nothing binds"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (pb.DEVICE_STATE_LOST, "npu:0 is lost since 3 min: the worker ended (-9)"),
        (pb.DEVICE_STATE_FAILED, "npu:0 has failed since 3 min: the worker ended (-9)"),
        (pb.DEVICE_STATE_LOADING, "npu:0 is not ready yet since 3 min: the worker ended (-9)"),
        (pb.DEVICE_STATE_DRAINING, "npu:0 takes no new requests since 3 min: the worker ended (-9)"),
    ],
)
def test_a_device_that_does_not_serve(state: int, words: str) -> None:
    found = why(device("thermal", state=state, detail="the worker ended (-9)"))
    assert (found.headline, found.binding) == (words, "device")
    assert found.clears


def test_full_speed() -> None:
    status = pb.DeviceStatus(
        device="cpu",
        state=pb.DEVICE_STATE_SERVING,
        since_change=to_duration(7500),
        readings=pb.Readings(temperature_celsius=55.2),
    )
    assert why(status).headline == "cpu runs at full speed since 2 h 5 min: nothing binds, 55.2 °C"


def test_an_older_governor_still_gives_its_reasons() -> None:
    assert why(device(reason="hot")).headline == "npu:0 is throttled to 62 %: hot"


def test_the_queue_and_a_drain_are_the_services() -> None:
    status = pb.ServiceStatus(queued=3, draining=True, governor=pb.GovernorStatus(state=pb.GOVERNOR_STATE_UNGOVERNED))
    said = service_words(status)
    assert said[0] == "3 requests wait in the queue"
    assert "coldplate resume" in said[1]
    assert "nobody watches" in said[2]


def cli(server: FakeServer, *args: str) -> subprocess.CompletedProcess[str]:
    return run("coldplate", "why", *args, "--server", server.target)


def test_the_command_prints_it_for_people_and_as_json(server: FakeServer) -> None:
    server.status = canned_status()
    server.status.devices[0].CopyFrom(device("thermal", reason="hot"))
    server.status.devices[0].reasons[0].text = "\x1b[31mhot"
    shown = cli(server)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0] == "2 requests wait in the queue"
    assert lines[1].startswith("npu:0 is throttled to 62 % since 3 min: 86.1 °C")
    assert lines[2] == "  until: the temperature falls by 1.1 °C to 85 °C"
    assert lines[-1].startswith("cpu runs at full speed")
    assert "\x1b" not in shown.stdout
    body = json.loads(cli(server, "--json").stdout)
    assert body["service"] == ["2 requests wait in the queue"]
    assert [item["device"] for item in body["devices"]] == ["npu:0", "cpu"]
    assert body["devices"][0]["binding"] == "thermal"
    assert body["devices"][0]["since_s"] == 180.0


def test_one_device_alone_may_be_asked_for(server: FakeServer) -> None:
    assert cli(server, "npu:0").returncode == 0
    assert server.seen.devices == ["npu:0"]


def test_without_a_service_it_says_what_to_do() -> None:
    done = run("coldplate", "why", "--server", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing listens at 127.0.0.1:1" in done.stderr
