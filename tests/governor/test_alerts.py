"""Alerts on control error, firmware events, lost sensors and refusals, never on how warm a device is.

From mmontes11/k8s-infrastructure#115: an alert at 85 °C fired every day, since a busy card sits at 87 to 88 °C.
"""

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coldplate.limits import Limits
from coldplate.profile import load_profile
from coldplate_governor.control_link import Directive
from coldplate_governor.explain.recorder import RecordCounts
from coldplate_governor.explain.scribe import Scribe
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Cause, Decision, Inputs, LawState, Terms
from coldplate_governor.loop import GovernorSnapshot
from coldplate_governor.metrics import GovernorCollector
from coldplate_governor.sensors.device import DeviceReadings
from coldplate_server.metrics import Metrics

ALERTS = Path(__file__).parents[2] / "deploy/prometheus/alerts.yml"
EXPRESSIONS = re.findall(
    r"^        expr: (?:>-\n)?(.*?)(?=^        (?:for|annotations):)", ALERTS.read_text(), re.MULTILINE | re.DOTALL
)
HOT = Decision(
    Limits(duty=0.6),
    "THROTTLED",
    (Cause("FIRMWARE_THROTTLES", "the firmware runs the chip at 500 of 1080 MHz"),),
    0.6,
    binding="firmware",
    terms=Terms(target=85.0, filtered=88.5, error=-3.5, p=-0.21, i=0.8, raw=0.59, slewed=0.6, applied=0.6),
)
READINGS = DeviceReadings(
    values={"temperature_celsius": 88.0}, lost=("board.power_watts",), age_s=0.5, doubted={"a.b": "0 stands for none"}
)


def scraped() -> dict[tuple[str, tuple[str, ...]], float]:
    """Samples of a governor with one hot device, by name and label values."""
    inputs, scribe = {"npu:0": Inputs(temperature_celsius=88.5)}, Scribe()
    profile = load_profile("310p-duo")
    for decision in (replace(HOT, causes=()), HOT):
        tick = Tick("npu:0", profile, 10.0, LawState(), inputs, LawState(), {"npu:0": decision})
        accounts = scribe.note(tick)
    snapshot = GovernorSnapshot(
        directives=(Directive("npu:0", HOT, READINGS, accounts["npu:0"]),), period_s=1.0, record=RecordCounts(7, 2, 900)
    )
    registry = CollectorRegistry()
    registry.register(GovernorCollector(snapshot))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def test_the_governor_tells_what_matters() -> None:
    found = scraped()
    assert found["coldplate_governor_control_error_celsius", ("npu:0",)] == 3.5
    assert found["coldplate_governor_firmware_events_total", ("npu:0",)] == 1
    assert found["coldplate_governor_readings_lost", ("npu:0",)] == 1
    assert found["coldplate_governor_readings_doubted", ("npu:0",)] == 1
    assert found["coldplate_governor_record_dropped_total", ()] == 2
    assert found["coldplate_governor_changes_total", ("npu:0",)] == 2
    assert found["coldplate_governor_term", ("npu:0", "raw")] == 0.59
    assert ("coldplate_governor_term", ("npu:0", "d")) not in found, "what plays no part is absent"
    binding = {labels[0]: value for (name, labels), value in found.items() if name == "coldplate_governor_binding"}
    assert {name for name, value in binding.items() if value == 1} == {"firmware"}
    modes = {labels[1]: value for (name, labels), value in found.items() if name == "coldplate_governor_mode"}
    assert len(modes) == 7
    assert [name for name, value in modes.items() if value] == ["THROTTLED"]


def test_every_alert_is_about_a_metric_that_exists() -> None:
    known = {name for name, _ in scraped()}
    server = Metrics()
    server.request_ended("m", "refused")
    known |= {sample.name for family in server.registry.collect() for sample in family.samples}
    assert len(EXPRESSIONS) >= 9
    for expression in EXPRESSIONS:
        named = set(re.findall(r"coldplate_\w+", expression))
        assert named, expression
        assert named <= known, named - known


def test_no_alert_is_about_how_warm_a_device_is() -> None:
    for expression in EXPRESSIONS:
        assert not re.search(r"(?<!control_error)_celsius|npu_chip_info_temperature|power", expression), expression
    text = "\n".join(EXPRESSIONS)
    for wanted in ("control_error", "firmware_events", "readings_lost", "refused"):
        assert wanted in text
