"""Records of changes: when there is one, what it says, and what an operator reads of it."""

from dataclasses import replace

import pytest

from coldplate.limits import Limits
from coldplate.profile import load_profile
from coldplate.words import celsius_words, limit_words, seconds_words, share_words
from coldplate_governor.explain.change import Change, change_of, key, missing, worth_a_line
from coldplate_governor.explain.check import ReplayCheck
from coldplate_governor.explain.clears import clears
from coldplate_governor.explain.message import to_message
from coldplate_governor.explain.scribe import Scribe
from coldplate_governor.explain.tick import Tick
from coldplate_governor.explain.trail import KEPT_CHANGES, Trail
from coldplate_governor.law import Cause, Decision, Inputs, LawState, Terms
from governor.law_run import law_run

PROFILE = load_profile("310p-duo")
TERMS = Terms(85.0, 86.1, -1.1, -0.066, 0.69, -0.006, None, 0.618, 0.62, 0.62, 86.3, 0.02, 180.0)
FREE = Decision(Limits(), "NOMINAL", (), 1.0, terms=replace(TERMS, applied=1.0))
HOT = Decision(
    limits=Limits(duty=0.62, max_prefill_tokens=1269),
    mode="THROTTLED",
    causes=(Cause("TEMPERATURE_ABOVE_TARGET", "86.1 °C against a target of 85 °C"),),
    duty=0.62,
    binding="thermal",
    terms=TERMS,
    rungs=("duty", "prefill"),
    dwell_left_s=10.0,
    rule="THERMAL_BINDS",
)
SEEN = Inputs(temperature_celsius=86.1, temperature_age_s=0.4, power_watts=31.0)


def tick(decision: Decision, now_s: float = 100.0, inputs: Inputs = SEEN) -> Tick:
    ages = {"npu:0": {"temperature_celsius": 0.4, "power_watts": 0.4}}
    return Tick("npu:0", PROFILE, now_s, LawState(), {"npu:0": inputs}, LawState(), {"npu:0": decision}, ages)


def change(decision: Decision = HOT, previous: Decision | None = FREE) -> Change:
    found = change_of("npu:0", tick(decision), previous)
    assert found is not None
    return found


def test_a_change_says_everything() -> None:
    found = change()
    assert (found.mode_from, found.mode_to) == ("NOMINAL", "THROTTLED")
    assert (found.binding_from, found.binding_to, found.rule) == ("none", "thermal", "THERMAL_BINDS")
    assert [(step.name, step.old, step.new) for step in found.limits] == [
        ("duty", None, 0.62),
        ("max_prefill_tokens", None, 1269),
    ]
    assert (found.terms, found.inputs, found.dwell_left_s) == (TERMS, SEEN, 10.0)
    assert found.text == (
        "NOMINAL → THROTTLED, duty none → 62 %, max_prefill_tokens none → 1269, bound by thermal: "
        "86.1 °C against a target of 85 °C"
    )
    assert missing(found) == ()


def test_numbers_that_move_are_no_change_and_everything_else_is_one() -> None:
    words = (Cause("TEMPERATURE_ABOVE_TARGET", "86.2 °C against a target of 85 °C"),)
    assert change_of("npu:0", tick(replace(HOT, terms=Terms(), dwell_left_s=3.0, causes=words)), HOT) is None
    others = (
        replace(HOT, limits=Limits(duty=0.61)),
        replace(HOT, mode="CRITICAL"),
        replace(HOT, binding="memory"),
        replace(HOT, rungs=("duty",)),
        replace(HOT, rule="ANOTHER"),
        replace(HOT, clock_share=0.5),
        replace(HOT, causes=()),
    )
    for other in others:
        assert key(other) != key(HOT)
        assert change_of("npu:0", tick(other), HOT) is not None
    assert change(HOT, None).first


@pytest.mark.parametrize(
    ("damaged", "lacks"),
    [
        (replace(change(), rule=""), "rule"),
        (replace(change(), mode_from=""), "mode_from"),
        (replace(change(), causes=()), "causes"),
        (replace(change(), ages={"temperature_celsius": 0.1}), "ages.power_watts"),
        (replace(change(), terms=replace(TERMS, raw=None)), "terms.raw"),
        (replace(change(), terms=replace(TERMS, predicted_celsius=None)), "terms.predicted_celsius"),
    ],
)
def test_an_incomplete_record_is_noticed(damaged: Change, lacks: str) -> None:
    assert missing(damaged) == (lacks,)


def test_what_is_not_there_need_not_be_told() -> None:
    falling = replace(TERMS, rise_per_s=-0.1, seconds_to_limit=None)
    assert missing(replace(change(), terms=falling)) == ()
    blind = replace(change(), terms=Terms(), inputs=Inputs(), ages={})
    assert missing(blind) == ()


def test_the_log_has_what_a_person_wants_to_read() -> None:
    assert worth_a_line(None, FREE)
    assert not worth_a_line(HOT, replace(HOT, duty=0.6, limits=Limits(duty=0.6)))
    assert worth_a_line(HOT, replace(HOT, duty=0.5, limits=Limits(duty=0.5)))
    assert worth_a_line(HOT, replace(HOT, mode="CRITICAL"))
    assert worth_a_line(replace(HOT, duty=0.99), replace(HOT, duty=1.0))


def test_since_when_and_the_last_changes() -> None:
    trail = Trail("npu:0")
    trail.follow(tick(FREE, 100.0))
    trail.follow(tick(HOT, 160.0))
    change, account = trail.follow(tick(replace(HOT, duty=0.5, limits=Limits(duty=0.5)), 220.0))
    assert change is not None
    assert (account.binding_since_s, account.mode_since_s, account.at_s) == (160.0, 160.0, 220.0)
    assert [item.mode_to for item in account.changes] == ["THROTTLED", "NOMINAL"], "the pace alone is no story"
    for second in range(40):
        _, account = trail.follow(tick((HOT, FREE)[second % 2], 300.0 + second))
    assert len(account.changes) == KEPT_CHANGES
    assert account.changes[0].at_s == 339.0
    assert account.changes_made == 43


def test_firmware_events_are_counted_when_they_begin() -> None:
    trail = Trail("npu:0")
    throttled = replace(HOT, causes=(Cause("FIRMWARE_THROTTLES", "the firmware runs the chip at 500 of 1080 MHz"),))
    for decision in (FREE, throttled, throttled, HOT, throttled):
        _, account = trail.follow(tick(decision))
    assert account.firmware_events == 2


def test_the_message_has_every_number() -> None:
    trail = Trail("npu:0")
    trail.follow(tick(FREE, 100.0))
    _, account = trail.follow(tick(HOT, 160.0))
    message = to_message(account)
    assert (message.binding, message.rule, list(message.rungs)) == ("thermal", "THERMAL_BINDS", ["duty", "prefill"])
    assert message.terms.target_celsius == 85.0
    assert message.terms.rise_celsius_per_s == 0.02
    assert not message.terms.HasField("feed_forward")
    assert message.dwell_left.seconds == 10
    assert message.changes[0].age.seconds == 0
    assert message.changes[1].age.seconds == 60
    assert [(step.limit, step.HasField("old"), step.new) for step in message.changes[0].limits] == [
        ("duty", False, 0.62),
        ("max_prefill_tokens", False, 1269),
    ]
    assert message.ByteSize() < 4096


@pytest.mark.parametrize(
    ("decision", "inputs", "expected"),
    [
        (HOT, SEEN, "the temperature falls by 1.1 °C to 85 °C; the duty then rises by at most 3 % each second"),
        (replace(HOT, terms=replace(TERMS, filtered=84.5)), SEEN, "less load, more air or cooler air"),
        (
            replace(HOT, binding="memory"),
            Inputs(memory_used_bytes=93.0, memory_total_bytes=100.0),
            "less than 85% of memory is used; it is 93%",
        ),
        (
            replace(HOT, binding="power"),
            Inputs(power_watts=80.0, power_limit_watts=72.0),
            "the power falls from 80 W below its limit of 72 W",
        ),
        (
            replace(HOT, binding="firmware"),
            Inputs(frequency_mhz=500.0, rated_frequency_mhz=1080.0, throttle_cause="thermal"),
            "the firmware gives the chip its clock back (it names thermal): it runs at 500 of 1080 MHz",
        ),
        (replace(HOT, binding="sensor"), Inputs(), "none has so far"),
        (replace(HOT, binding="sensor"), Inputs(temperature_age_s=40.0), "the last was 40 s ago"),
        (replace(HOT, binding="operator"), SEEN, "coldplate limit --release"),
        (replace(HOT, binding="queue"), SEEN, "wait less long"),
        (replace(HOT, binding="device"), SEEN, "a worker serves the device again"),
        (replace(HOT, binding="device", mode="FALLBACK"), SEEN, "it is below 85 °C for 15 s"),
        (replace(HOT, mode="CRITICAL"), SEEN, "it is below 80 °C for 15 s; it then takes work again step by step"),
        (replace(HOT, mode="RECOVERING"), SEEN, "its recovery goes well"),
        (replace(HOT, mode="DRAINING", binding="operator"), SEEN, "coldplate resume"),
        (replace(HOT, mode="SAFE", rule="TAKEOVER"), SEEN, "it has come down"),
        (HOT, SEEN, "not before 10 s have passed: THROTTLED lasts so long"),
    ],
)
def test_it_is_said_what_would_clear_it(decision: Decision, inputs: Inputs, expected: str) -> None:
    assert any(expected in sentence for sentence in clears(PROFILE, decision, inputs))


def test_the_smaller_share_of_a_heatsink_is_told_as_one() -> None:
    little = replace(HOT, duty=0.3, terms=replace(TERMS, filtered=81.0))
    (said, *_) = clears(PROFILE, little, SEEN, ("npu:1",))
    assert said == (
        "it has more to do, or npu:1 on the same heatsink less: the heat they may make is split by their load"
    )
    assert "less load, more air" in clears(PROFILE, little, SEEN)[0]


def test_nothing_is_to_be_cleared_when_nothing_binds() -> None:
    assert clears(PROFILE, replace(FREE, dwell_left_s=5.0), SEEN) == ()


def test_every_change_of_the_law_has_a_complete_record() -> None:
    check, scribe = ReplayCheck(PROFILE), Scribe()
    changes = 0
    for item in law_run(900):
        check.tick(item.now_s, item.before, item.inputs, item.after, item.decisions, item.ages)
        changes = sum(account.changes_made for account in scribe.note(item).values())
    report = check.report()
    assert report.problem is None
    assert (report.replayed_share, report.complete_share) == (1.0, 1.0)
    assert report.ticks == 900
    assert report.changes == changes > 50


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119.4, "119 s"), (180, "3 min"), (7199, "1 h 59 min"), (7500, "2 h 5 min"), (352_800, "4 d 2 h")],
)
def test_seconds_as_words(seconds: float, words: str) -> None:
    assert seconds_words(seconds) == words


def test_a_small_step_is_seen() -> None:
    assert share_words(0.724, 0.719) == "72.4 % → 71.9 %"
    assert share_words(0.72, 0.47) == "72 % → 47 %"
    assert celsius_words(71.0017) == "71 °C"
    assert celsius_words(71.46) == "71.5 °C"


def test_limits_as_words() -> None:
    assert [limit_words(*item) for item in (("duty", 0.62), ("admit", False), ("max_batch", 8), ("duty", None))] == [
        *("62 %", "no", "8", "none")
    ]
