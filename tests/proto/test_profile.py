"""Device profiles: what ships is sound, and what is wrong is named."""

from pathlib import Path

import pytest

from coldplate.profile import DeviceProfile, ProfileError, load_profile, parse_profile, profile_names

SHIPPED = Path(__file__).parents[2] / "proto" / "coldplate" / "profiles"


def test_the_profiles_of_the_first_devices_ship() -> None:
    assert {"cpu", "310p-duo", "310p-pro", "310b", "910b"} <= set(profile_names())


@pytest.mark.parametrize("name", profile_names())
def test_a_shipped_profile_is_sound(name: str) -> None:
    profile = load_profile(name)
    heat = profile.temperature
    assert heat.target_celsius < heat.firmware_cliff_celsius
    assert heat.target_celsius < heat.critical_celsius
    assert profile.safe_limits.duty is not None
    assert profile.safe_limits.admit is not False, "safe limits must keep serving"
    assert profile.safe_limits.max_prefill_tokens != 0, "safe limits must keep serving"
    assert all(len(source) > 10 for source in profile.sources.values())
    assert "temperature.firmware_cliff_celsius" in profile.sources


@pytest.mark.parametrize("name", profile_names())
def test_the_gains_keep_the_published_rules(name: str) -> None:
    gains = load_profile(name).gains
    assert gains.kp <= 0.15, "above, a sensor of 1 degC makes the duty chatter"
    assert gains.kp * gains.filter < gains.slew_up_per_s, "a step of the sensor stays below what the slew lets through"
    assert gains.slew_down_per_s > gains.slew_up_per_s


def test_what_a_field_report_measured_is_in_the_profile_of_its_board() -> None:
    heat = load_profile("310b").temperature
    assert (heat.target_celsius, heat.firmware_cliff_celsius) == (82, 86)
    assert heat.critical_celsius > heat.firmware_cliff_celsius, "the cliff and the critical temperature are two facts"


def test_a_profile_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((SHIPPED / "cpu.toml").read_text().replace("value = 85.0", "value = 70"))
    profile = load_profile(str(path))
    assert (profile.name, profile.temperature.target_celsius) == ("mine", 70.0)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('kind = "cpu"', 'kind = "gpu"', "kind is 'gpu'"),
        ("value = 85.0", "value = nan", "temperature.target_celsius.value is nan"),
        ("value = 85.0", "value = true", "temperature.target_celsius.value is True"),
        ("value = 85.0", "value = -274.0", "temperature.target_celsius is -274.0: expected 20 to 125"),
        ("value = 85.0", "value = 96.0", "expected below temperature.firmware_cliff_celsius, which is 95"),
        ("kp = {", "kq = {", "gains.kq is unknown"),
        ("kp = { value = 0.075", "kp = { value = 0.3", "gains.kp is 0.3: expected 0.001 to 0.15"),
        ("chips_per_heatsink = { value = 1", "chips_per_heatsink = { value = 0", "is 0: expected 1 to 64"),
        ("critical_duty = { value = 0.1", "critical_duty = { value = 0.5", "expected below levers.min_duty"),
        ("slew_up_per_s = { value = 0.03", "slew_up_per_s = { value = 0.5", "expected below gains.slew_down_per_s"),
        ("duty = { value = 0.6", "duty = { value = 0.2", "safe_limits.duty is 0.2: expected at least levers.min_duty"),
        ("[gains]", "[gain]", "unknown table 'gain'"),
        ("duty = { value = 0.6", "duty = { value = 1.6", "safe_limits.duty is 1.6"),
        ("max_batch = { value = 16", "max_batch = { value = 1.5", "max_batch is 1.5: expected a whole number"),
        ('source = "a quarter of ti_s, the usual ratio for back-calculation"', 'source = " "', "gains.tt_s.source"),
        ("[levers]", "[levers", "not TOML"),
    ],
)  # fmt: skip
def test_an_error_names_file_key_and_value(old: str, new: str, expected: str) -> None:
    text = (SHIPPED / "cpu.toml").read_text()
    assert old in text
    with pytest.raises(ProfileError) as caught:
        parse_profile(text.replace(old, new, 1), "cpu", "cpu.toml")
    assert "cpu.toml" in str(caught.value)
    assert expected in str(caught.value)


def test_a_missing_number_is_named() -> None:
    text = "\n".join(line for line in (SHIPPED / "cpu.toml").read_text().splitlines() if not line.startswith("ti_s"))
    with pytest.raises(ProfileError, match=r"cpu.toml: gains.ti_s is missing"):
        parse_profile(text, "cpu", "cpu.toml")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ProfileError, match=r"'310p': expected 310b, 310p-duo, 310p-pro, 910b, cpu, or"):
        load_profile("310p")


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.toml"):
        load_profile(str(tmp_path / "none.toml"))


def test_a_profile_cannot_be_changed() -> None:
    profile: DeviceProfile = load_profile("cpu")
    with pytest.raises(AttributeError):
        profile.name = "other"  # type: ignore[misc]
