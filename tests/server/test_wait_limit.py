"""The limit on what may wait: down while waits are long, up while it is used and they are short, gone when calm."""

import pytest

from coldplate_server.admission.wait_limit import CALM_S, CUT, WINDOW_STARTS, WaitLimit

TARGET_S = 2.0
PROBE = 100


class Played:
    """A limit over windows of one second in which ``tokens`` wait."""

    def __init__(self) -> None:
        self.limit = WaitLimit(TARGET_S, PROBE)
        self.now = 0.0
        self.limit.tick(0.0, 0, None, blocked=False)

    def second(
        self, tokens: int, waits: list[float] | None = None, expected: float | None = None, blocked: bool = True
    ) -> float | None:
        for wait in waits or ():
            self.limit.started(wait, self.now - wait)
        self.now += 1.0
        self.limit.tick(self.now, tokens, expected, blocked=blocked)
        return self.limit.tokens


def test_no_limit_is_needed_while_waits_are_short() -> None:
    played = Played()
    assert [played.second(10_000, [0.5, 1.9]) for _ in range(20)] == [None] * 20


def test_a_constant_wait_of_five_seconds_shrinks_the_limit_and_goes_on_shrinking_it() -> None:
    played = Played()
    found = [played.second(10_000, [5.0]) for _ in range(60)]
    limits = [limit for limit in found if limit is not None]
    assert limits[0] == pytest.approx(CUT * 10_000)
    assert limits[-1] < 0.5 * limits[0]
    assert limits == sorted(limits, reverse=True)


def test_it_is_cut_at_most_once_in_a_window() -> None:
    limit = WaitLimit(TARGET_S, PROBE)
    limit.tick(0.0, 1000, 9.0, blocked=True)
    for at in (0.25, 0.5, 0.75):
        limit.tick(at, 1000, 9.0, blocked=True)
        assert limit.tokens is None
    limit.tick(1.0, 1000, 9.0, blocked=True)
    assert limit.tokens == pytest.approx(900)
    limit.tick(1.25, 1000, 9.0, blocked=True)
    assert limit.tokens == pytest.approx(900)


def test_many_starts_end_a_window_early() -> None:
    limit = WaitLimit(TARGET_S, PROBE)
    limit.tick(0.0, 1000, None, blocked=True)
    for _ in range(WINDOW_STARTS):
        limit.started(3.0, 0.0)
    limit.tick(0.1, 1000, None, blocked=True)
    assert limit.tokens == pytest.approx(900)


def test_waits_from_before_a_cut_neither_cut_again_nor_let_it_grow() -> None:
    played = Played()
    first = played.second(1000, [5.0])
    assert [played.second(900, [4.0]), played.second(900, [1.9])] == [first, first]
    assert played.second(900, [0.5]) == pytest.approx(first + PROBE if first else 0)


@pytest.mark.parametrize(("used", "grows"), [(0.49, False), (0.51, True)])
def test_it_grows_by_the_probe_only_while_half_of_it_is_used(used: float, grows: bool) -> None:
    played = Played()
    cut = played.second(1000, expected=5.0)
    assert cut is not None
    played.second(0, expected=0.1)  # the window that the cut opened had 1000 in it
    before = played.limit.tokens
    assert before is not None
    after = played.second(round(before * used), expected=0.1)
    assert after == pytest.approx(before + PROBE if grows else before)


def test_load_never_raises_the_target_and_the_probe_is_no_floor() -> None:
    """A baseline measured under load would make a long wait look normal: after ten minutes the limit still falls."""
    played = Played()
    limits = [played.second(100_000, expected=6.0) for _ in range(600)]
    assert limits[-1] is not None
    assert limits[-1] < PROBE
    assert played.second(100_000, expected=TARGET_S) < limits[-1]  # type: ignore[operator]


def test_it_is_gone_when_nothing_has_waited_for_a_while() -> None:
    played = Played()
    played.second(1000, expected=5.0)
    seconds = [played.second(0, blocked=False) for _ in range(round(CALM_S) + 1)]
    assert seconds[0] is not None
    assert seconds[-1] is None
