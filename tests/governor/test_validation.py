"""Which readings are believed, and how those of several sensors become one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_governor.sensors.base import QUANTITIES, WORDS
from coldplate_governor.sensors.device import DeviceSensors
from coldplate_governor.sensors.validate import SAME_SAMPLE_S, QuantityTrack, implausible

GIB = 2**30
TEMPERATURE = QUANTITIES["temperature_celsius"]


@pytest.mark.parametrize("value", [0, -1, 127, 128, 255, 0xFFFF, 0.0, -128, 345, 644245923, float("nan"), float("inf")])
def test_a_value_that_stands_for_no_temperature_is_refused(value: float) -> None:
    assert implausible(TEMPERATURE, value)


@given(st.none() | st.booleans() | st.text() | st.integers() | st.floats() | st.lists(st.integers()))
def test_no_raw_value_breaks_a_track(raw: object) -> None:
    track = QuantityTrack("s", "temperature_celsius")
    reading = track.accept(raw, 1.0)
    assert reading.valid == (reading.value is not None)
    assert not reading.valid or 1 <= (reading.value or 0) <= 125


def warm(celsius: float = 50.0, at_s: float = 0.0) -> QuantityTrack:
    """A track that believes ``celsius`` since ``at_s``."""
    track = QuantityTrack("s", "temperature_celsius")
    track.accept(celsius, at_s - 1)
    assert track.accept(celsius, at_s).valid
    return track


def test_the_first_reading_and_the_first_after_none_need_a_second_opinion() -> None:
    track = QuantityTrack("s", "temperature_celsius")
    first = track.accept(85.0, 0.0)
    assert first.problem == "85 degC is the first reading after none: a second one must agree"
    assert not track.accept(30.0, 1.0).valid, "the 85 was a sensor's word for not ready"
    assert track.accept(31.0, 2.0).valid
    assert not track.accept(31.0, 20.0).valid, "it was lost meanwhile"
    assert track.accept(32.0, 21.0).valid
    assert QuantityTrack("s", "utilization_percent").accept(100.0, 0.0).valid, "only a temperature needs one"


def test_another_sensor_is_a_second_opinion() -> None:
    sensors = DeviceSensors()
    sensors.take("a", {"temperature_celsius": 60.0}, 0.0)
    assert sensors.fuse(0.0).values == {}
    sensors.take("a", {"temperature_celsius": 60.0}, 1.0)
    sensors.take("b", {"temperature_celsius": 62.0}, 1.0)
    assert sensors.fuse(1.0).values == {"temperature_celsius": 62.0}
    sensors.take("c", {"temperature_celsius": 85.0}, 1.0)
    assert "c.temperature_celsius" in sensors.fuse(1.0).doubted


def test_a_measurement_handed_on_twice_is_no_second_opinion() -> None:
    track = QuantityTrack("s", "temperature_celsius")
    assert not track.accept(85.0, 10.0).valid
    assert not track.accept(85.0, 10.01).valid
    assert not track.accept(85.0, 9.0).valid, "nor one from before it"
    assert track.accept(85.0, 11.0).valid


def test_a_jump_is_doubted_until_a_second_sample_agrees() -> None:
    track = warm(50.0)
    assert track.accept(90.0, 1.0).problem == "jumped from 50 to 90 degC"
    assert track.accept(50.5, 2.0).valid
    assert not track.accept(90.0, 3.0).valid
    assert track.accept(91.0, 4.0).valid
    assert track.accept(90.0, 5.0).valid


def test_a_real_rise_is_never_held_up() -> None:
    track = warm(85.0)
    for second in range(1, 20):
        assert track.accept(85.0 + 2.5 * second if second < 16 else 124.0, float(second)).valid


def test_a_fall_no_chip_can_make_is_believed_only_after_a_while() -> None:
    track = warm(80.0)
    readings = [track.accept(65.0 + second % 2, float(second)) for second in range(1, 40)]
    assert readings[0].problem == "fell from 80 to 66 degC"
    assert readings[5].problem == "fell from 80 to 65 degC: to be believed it must stay there for 30 s"
    assert [reading.valid for reading in readings] == [False] * 30 + [True] * 9
    track = warm(80.0)
    assert [track.accept(65.0, float(second), others=[66.0]).valid for second in (1, 2)] == [True, True]
    track = warm(80.0)
    assert [track.accept(80.0 - 3 * second, float(second)).valid for second in range(1, 15)] == [True] * 14


def test_after_a_long_silence_nothing_is_held_against_a_reading() -> None:
    track = warm(80.0)
    assert [track.accept(30.0, second).valid for second in (400.0, 401.0)] == [False, True]


def test_one_bad_among_good_changes_nothing() -> None:
    track = warm(60.0)
    for second in range(1, 30):
        bad = [-128, 128, 255, 0, 345, 82505, 644245923, 4294967295, 2.0**63][second // 3 % 9]
        reading = track.accept(60.0 + second % 2 if second % 3 else bad, float(second))
        assert reading.valid == bool(second % 3)
        assert track.standing(float(second)) == "fresh"


@pytest.mark.parametrize("value", [-1, 100.5, 4294967295, 2**63 - 16, 512])
def test_utilisation_outside_its_range_is_invalid_and_not_clamped(value: float) -> None:
    assert not QuantityTrack("s", "utilization_percent").accept(value, 0.0).valid


RAW = st.integers(-300, 300) | st.sampled_from([0, 127, 255, 65535])


@given(st.lists(st.tuples(st.floats(0, 5), RAW), max_size=60))
def test_whatever_comes_only_a_plausible_value_is_believed(steps: list[tuple[float, int]]) -> None:
    track, now = QuantityTrack("s", "temperature_celsius"), 0.0
    for wait_s, value in steps:
        now += wait_s
        reading = track.accept(value, now)
        believed = track.fresh_value(now)
        assert believed is None or (1 <= believed <= 125 and believed not in TEMPERATURE.sentinels)
        assert not reading.valid or reading.value == value or wait_s < SAME_SAMPLE_S


def frozen_run(watts: list[float], celsius: list[float], quantity: str = "power_watts") -> list[bool]:
    """Whether the temperature counts after each second of the two runs."""
    sensors = DeviceSensors()
    counts = []
    for second, (power, temperature) in enumerate(zip(watts, celsius, strict=True)):
        sensors.take("s", {"temperature_celsius": temperature, quantity: power}, float(second))
        counts.append("temperature_celsius" not in {key.split(".")[1] for key in sensors.problems()})
    return counts


def test_a_sensor_frozen_while_the_power_moves_is_not_believed() -> None:
    load = [20.0] * 20 + [60.0] * 60
    counts = frozen_run(load, [61.0] * 80)
    assert all(counts[1:60])
    assert not any(counts[60:])
    assert not any(frozen_run(load, [61.0] * 80, "card_power_watts")[60:]), "a card's power will do"
    assert all(frozen_run([40.0] * 80, [61.0] * 80)[1:]), "steady power, steady temperature"
    assert all(frozen_run(load, [61.0 + second // 30 for second in range(80)])[1:])
    spikes = [60.0 if second % 30 == 0 else 50.0 for second in range(80)]
    assert all(frozen_run(spikes, [61.0] * 80)[1:]), "a spike is over before a junction has moved by a degree"


def test_a_frozen_sensor_counts_again_when_it_moves() -> None:
    counts = frozen_run([20.0] * 20 + [60.0] * 63, [61.0] * 80 + [70.0, 71.0, 72.0])
    assert counts[79:] == [False, False, True, True]


def test_the_power_of_another_sensor_is_no_change_of_power() -> None:
    sensors = DeviceSensors()
    for second in range(100):
        power = {"power_watts": 20.0} if second < 40 else {"card_power_watts": 60.0}
        sensors.take("s", {"temperature_celsius": 61.0, **power}, float(second))
        assert second == 0 or not sensors.problems()


def test_missing_power_does_not_disable_the_temperature() -> None:
    sensors = DeviceSensors()
    for second in range(100):
        sensors.take("s", {"temperature_celsius": 61.0, "power_watts": 0.0}, float(second))
    fused = sensors.fuse(99.0)
    assert fused.values == {"temperature_celsius": 61.0}
    assert "stands for no reading" in fused.doubted["s.power_watts"]


def test_absent_is_not_lost() -> None:
    track = QuantityTrack("s", "temperature_celsius")
    track.accept(0, 0.0)
    assert track.standing(100.0) == "absent"
    track = warm(40.0, 100.0)
    assert [track.standing(t) for t in (100.0, 104.9, 105.1)] == ["fresh", "fresh", "lost"]


def test_what_is_read_once_stays() -> None:
    sensors = DeviceSensors()
    sensors.take("dcmi", {"firmware_limit_celsius": 95.0, "reset_celsius": 115.0}, 0.0)
    sensors.take("other", {"firmware_limit_celsius": 90.0}, 0.0)
    fused = sensors.fuse(1e6)
    assert fused.values == {"firmware_limit_celsius": 90.0, "reset_celsius": 115.0}, "the tighter counts"
    assert fused.lost == ()


def both(sensors: DeviceSensors, readings: dict[str, float | str], at_s: float, source: str = "a") -> None:
    """Two samples, so that what needs a second opinion has it."""
    sensors.take(source, readings, at_s - 1)
    sensors.take(source, readings, at_s)


def test_fusion_takes_the_hottest_and_the_smallest_memory() -> None:
    sensors = DeviceSensors()
    both(sensors, {"temperature_celsius": 50, "memory_total_bytes": 24 * GIB, "memory_used_bytes": 2 * GIB}, 1.0)
    both(
        sensors,
        {"temperature_celsius": 61, "memory_total_bytes": GIB, "memory_used_bytes": GIB // 2, "x": 1},
        1.5,
        "b",
    )
    fused = sensors.fuse(2.0)
    assert fused.values == {"temperature_celsius": 61, "memory_total_bytes": GIB, "memory_used_bytes": GIB // 2}
    assert (fused.sources, fused.lost, fused.age_s) == (("a", "b"), (), 0.5)
    assert fused.ages["memory_used_bytes"] == 0.5


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_sensors_does_not_matter(order: list[str]) -> None:
    told: dict[str, dict[str, float | str]] = {
        "a": {"temperature_celsius": 61.0, "frequency_mhz": 900.0, "health": "ok"},
        "b": {"temperature_celsius": 63.0, "frequency_mhz": 1000.0, "health": "alarm", "error_codes": "80E20207"},
        "c": {"temperature_celsius": 62.0, "memory_temperature_celsius": 70.0, "throttle_cause": "thermal"},
        "d": {"memory_total_bytes": 8.0, "memory_used_bytes": 4.0, "error_codes": "80DE0207"},
    }
    sensors = DeviceSensors()
    for second in (1.0, 2.0):
        for source in order:
            sensors.take(source, told[source], second)
    fused = sensors.fuse(2.0)
    assert fused.values["temperature_celsius"] == 70.0
    assert fused.values["frequency_mhz"] == 1000.0
    assert fused.words == {"health": "alarm", "error_codes": "80DE0207 80E20207", "throttle_cause": "thermal"}
    assert fused.error_codes == ("80DE0207", "80E20207")


def test_board_and_memory_add_to_the_chips_temperature_and_never_stand_in_for_it() -> None:
    sensors = DeviceSensors()
    both(sensors, {"board_temperature_celsius": 45.0, "memory_temperature_celsius": 88.0}, 1.0)
    assert sensors.fuse(1.0).last_temperature_celsius is None
    both(sensors, {"temperature_celsius": 70.0}, 2.0)
    assert sensors.fuse(2.0).last_temperature_celsius == 88.0
    late = sensors.fuse(8.0)
    assert (late.last_temperature_celsius, late.temperature_age_s) == (70.0, 6.0)
    assert "temperature_celsius" not in late.values
    assert late.lost == ("a.temperature_celsius",)


def test_the_newest_counts_where_two_tell_the_same() -> None:
    sensors = DeviceSensors()
    sensors.take("pages", {"frequency_mhz": 1080.0, "throttle_cause": "none"}, 0.0)
    sensors.take("calls", {"frequency_mhz": 540.0, "throttle_cause": "thermal"}, 3.0)
    fused = sensors.fuse(3.5)
    assert (fused.values["frequency_mhz"], fused.words["throttle_cause"]) == (540.0, "thermal")
    assert sensors.fuse(9.0).words == {}


@pytest.mark.parametrize("word", [3, None, "x" * 2000, "bell\a", "sick", ["ok"]])
def test_a_word_that_is_none_is_left_out(word: object) -> None:
    sensors = DeviceSensors()
    sensors.take("a", {"health": word}, 0.0)
    assert sensors.fuse(0.0).words == {}


def test_a_temperature_far_from_the_model_is_suspect_after_a_while() -> None:
    sensors = DeviceSensors()
    suspects = []
    for second in range(60):
        sensors.take("a", {"temperature_celsius": 40.0 + second % 2}, float(second))
        sensors.expect(72.0 if second < 40 else 45.0, float(second))
        suspects.append(sensors.fuse(float(second)).suspect)
    assert suspects[15] is None
    assert suspects[30] == "40.0 °C for 29 s where the model expects 72.0"
    assert suspects[45] is None
    sensors.expect(None, 60.0)
    sensors.expect(float("nan"), 61.0)
    assert sensors.fuse(61.0).values["temperature_celsius"] == 41.0, "suspect or not, it counts"


def test_one_bad_field_does_not_take_the_others_and_a_stopped_one_is_lost() -> None:
    sensors = DeviceSensors()
    both(sensors, {"temperature_celsius": 50.0, "utilization_percent": 10.0}, 0.0)
    for second in range(1, 8):
        sensors.take("a", {"temperature_celsius": 0.0, "utilization_percent": 20.0}, float(second))
    fused = sensors.fuse(7.0)
    assert fused.values == {"utilization_percent": 20.0}
    assert fused.lost == ("a.temperature_celsius",)
    assert (fused.last_temperature_celsius, fused.temperature_age_s) == (50.0, 7.0)
    assert "stands for no reading" in fused.doubted["a.temperature_celsius"]


@given(
    st.dictionaries(
        st.sampled_from([*QUANTITIES, *WORDS, "x"]),
        st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.lists(st.none()),
    )
)
def test_no_sample_breaks_a_device(readings: dict[str, object]) -> None:
    sensors = DeviceSensors()
    for second in range(3):
        sensors.take("a", readings, float(second))
    fused = sensors.fuse(2.0)
    assert all(QUANTITIES[name].low <= value <= QUANTITIES[name].high for name, value in fused.values.items())


def test_a_sensor_that_cannot_work_here_is_named() -> None:
    sensors = DeviceSensors()
    sensors.note("npu-smi", unusable=True)
    assert sensors.fuse(0.0).unusable == ("npu-smi",)
    sensors.note("npu-smi", unusable=False)
    assert sensors.fuse(0.0).unusable == ()
