"""How fast a lane empties, and that a slower engine shows before its streams end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.admission.drain import DrainRate
from coldplate_server.request import Priority

LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


class Engine:
    """Starts a stream of ``tokens`` every ``every_s``, and makes ``rate`` tokens a second."""

    def __init__(self) -> None:
        self.drain = DrainRate()
        self.now = 0.0
        self._made = 0.0

    def run(self, seconds: float, *, every_s: float, tokens: int, rate: float, blocked: bool = True) -> None:
        until, start = self.now + seconds, self.now + every_s
        while self.now < until - 1e-9:
            self.now += 0.25
            self._made += 0.25 * rate
            self.drain.rate.made = round(self._made)
            self.drain.rate.tick(self.now, full=blocked)
            self.drain.advance(self.now, blocked=blocked)
            while start <= self.now + 1e-9:
                self.drain.started(tokens)
                start += every_s


def test_little_is_no_estimate() -> None:
    engine = Engine()
    assert engine.drain.per_s is None
    engine.run(1.0, every_s=0.5, tokens=300, rate=100)
    assert engine.drain.per_s is None


@pytest.mark.parametrize(("every_s", "tokens"), [(0.25, 100), (0.5, 700), (10.0, 300)])
def test_a_steady_engine_is_measured(every_s: float, tokens: int) -> None:
    engine = Engine()
    engine.run(30 * every_s, every_s=every_s, tokens=tokens, rate=100)
    assert engine.drain.per_s == pytest.approx(tokens / every_s, rel=0.15)


def test_time_without_a_waiting_stream_does_not_count() -> None:
    engine = Engine()
    engine.run(10, every_s=0.5, tokens=100, rate=100)
    engine.run(1000, every_s=1e9, tokens=1, rate=20, blocked=False)
    engine.run(5, every_s=0.5, tokens=100, rate=100)
    assert engine.drain.per_s == pytest.approx(200, rel=0.5)


def test_a_slower_engine_shows_before_its_streams_end() -> None:
    engine = Engine()
    engine.run(60, every_s=2.0, tokens=300, rate=1000)
    before = engine.drain.per_s
    engine.run(10, every_s=1e9, tokens=1, rate=250)
    after = engine.drain.per_s
    assert before is not None
    assert after is not None
    assert after < 0.5 * before


def test_a_queue_that_stands_still_is_not_taken_for_a_fast_one() -> None:
    engine = Engine()
    engine.run(30, every_s=0.5, tokens=100, rate=100)
    engine.run(300, every_s=1e9, tokens=1, rate=0)
    after = engine.drain.per_s
    assert after is not None
    assert after < 10


def test_a_class_has_what_those_above_do_not_take() -> None:
    drain = DrainRate()
    for second in range(1, 41):
        drain.advance(float(second), blocked=True)
        drain.started(100)
        drain.let_in(50, HIGH, float(second))
    drain.waiting[HIGH] = 100
    assert drain.wait_s(100, HIGH) == pytest.approx(1, rel=0.1)
    assert drain.wait_s(100, NORMAL) == pytest.approx((100 + 100) / 50, rel=0.25)
    assert drain.wait_s(100, LOW) == drain.wait_s(100, NORMAL)


def test_a_class_that_had_nothing_left_recovers_when_those_above_come_no_more() -> None:
    drain = DrainRate()
    for second in range(1, 61):
        drain.advance(float(second), blocked=True)
        drain.started(100)
        drain.let_in(100, HIGH, float(second))
    full = drain.wait_s(100, LOW)
    for second in range(61, 71):
        drain.advance(float(second), blocked=True)
        drain.started(100)
    recovered = drain.wait_s(100, LOW)
    assert full == pytest.approx(10, rel=0.1), "a tenth is left at least"
    assert recovered == pytest.approx(1, rel=0.3)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5000), st.booleans(), st.sampled_from(Priority)), max_size=200)
)
def test_no_wait_is_negative_and_a_higher_class_never_waits_longer(
    starts: list[tuple[float, int, bool, Priority]],
) -> None:
    drain, now = DrainRate(), 0.0
    for dt, tokens, blocked, priority in starts:
        now += dt
        drain.rate.made += tokens
        drain.rate.tick(now, full=blocked)
        drain.advance(now, blocked=blocked)
        drain.waiting[priority] = tokens
        drain.let_in(tokens, priority, now)
        drain.started(tokens)
        waits = [wait for kind in (HIGH, NORMAL, LOW) if (wait := drain.wait_s(100, kind)) is not None]
        assert all(wait >= 0 for wait in waits)
        assert waits == sorted(waits)
