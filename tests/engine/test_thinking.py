"""Where a thinking stream stands, what closes it, and that a resumed one goes on as if it had never stopped."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.messages import Thinking
from coldplate_engine.thinking import Phase, ThinkingState

START, END, A, B, C = 1, 2, 11, 12, 13
CLOSE = (A, END, B, C)


def say(state: ThinkingState, wishes: list[int], count: int) -> list[int]:
    """The next tokens of a model that would say ``wishes`` (then token 5 for ever)."""
    said: list[int] = []
    for at in range(count):
        wish = wishes[at] if at < len(wishes) else 5
        forced = state.forced()
        token = wish if forced is None else forced
        state.advance(token)
        said.append(token)
    return said


def test_the_budget_closes_the_thinking_and_the_answer_follows() -> None:
    state = ThinkingState(Thinking(START, END, open=True, budget_tokens=3, close_ids=CLOSE), (), always_closed=False)
    assert say(state, [7, 8, 9, 7, 7, 7, 7, 6], 9) == [7, 8, 9, *CLOSE, 6, 5]
    assert state.phase is Phase.ANSWER


def test_a_budget_of_nothing_closes_at_once() -> None:
    opened = ThinkingState(Thinking(START, END, open=True, budget_tokens=0, close_ids=(END,)), (), always_closed=False)
    assert say(opened, [7, 8], 2) == [END, 8]
    unopened = ThinkingState(Thinking(START, END, budget_tokens=0, close_ids=(END,)), (), always_closed=False)
    assert say(unopened, [START, 7, 8], 3) == [START, END, 8]


def test_an_end_of_its_own_is_left_alone_and_a_budget_has_no_say_in_the_answer() -> None:
    state = ThinkingState(Thinking(START, END, open=True, budget_tokens=3, close_ids=CLOSE), (), always_closed=False)
    assert say(state, [7, END, 8, 9, START, 9, 9], 7) == [7, END, 8, 9, START, 9, 9]


def test_an_end_of_its_own_is_completed_where_a_grammar_follows() -> None:
    state = ThinkingState(Thinking(START, END, open=True, close_ids=CLOSE), (), always_closed=True)
    assert say(state, [7, END, 8, 9, 9], 5) == [7, END, B, C, 9]


def test_no_start_no_thinking() -> None:
    state = ThinkingState(Thinking(START, END, budget_tokens=1, close_ids=CLOSE), (), always_closed=False)
    assert say(state, [7, START, 8, 8], 4) == [7, START, 8, 8]
    assert state.phase is Phase.ANSWER


def test_a_cap_set_on_the_way_closes_and_a_lifted_one_does_not_stop_the_closing() -> None:
    state = ThinkingState(Thinking(START, END, open=True, close_ids=CLOSE), (), always_closed=False)
    assert say(state, [7, 8, 9], 3) == [7, 8, 9]
    state.cap = 2
    assert say(state, [], 1) == [A]
    state.cap = None
    assert say(state, [], 4) == [END, B, C, 5]


def test_tokens_ahead_are_forced_from_where_the_budget_ends() -> None:
    state = ThinkingState(Thinking(START, END, open=True, budget_tokens=3, close_ids=CLOSE), (), always_closed=False)
    say(state, [7], 1)
    assert [state.forced(ahead) for ahead in range(7)] == [None, None, *CLOSE, None]
    say(state, [7, 7, 7], 3)
    assert [state.forced(ahead) for ahead in range(4)] == [END, B, C, None]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([START, END, 7, 8]), max_size=8),
    st.one_of(st.none(), st.integers(0, 6)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([CLOSE, (A, END), (END,), (A, B, END, C)]),
    st.integers(0, 14),
)
def test_a_resumed_stream_says_the_same(
    wishes: list[int], budget: int | None, opened: bool, always_closed: bool, close: tuple[int, ...], cut: int
) -> None:
    thinking = Thinking(START, END, opened, budget, close)
    whole = ThinkingState(thinking, (), always_closed)
    said = say(whole, wishes, 14)
    resumed = ThinkingState(thinking, said[:cut], always_closed)
    assert say(resumed, wishes[cut:], 14 - cut) == said[cut:]
    assert resumed.phase is whole.phase


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([7, 8]), min_size=1, max_size=6), st.integers(1, 12))
def test_a_closing_begun_by_a_cap_is_gone_on_with_after_a_resume(thoughts: list[int], cut: int) -> None:
    thinking = Thinking(START, END, open=True, close_ids=(A, B, END, C))
    whole = ThinkingState(thinking, (), always_closed=False)
    said = say(whole, thoughts, len(thoughts))
    whole.cap = len(thoughts)
    said += say(whole, [], 6)
    resumed = ThinkingState(thinking, said[:cut], always_closed=False)
    resumed.cap = len(thoughts)
    rest = [*thoughts[cut:]]
    assert say(resumed, rest, len(said) - cut) == said[cut:]
