"""The queue: bounded, by class, first come first served, and fair to large requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.errors import QueueFull
from coldplate_server.journal import StreamRecord
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams
from coldplate_server.request_queue import RequestQueue


def record(number: int, priority: Priority = Priority.NORMAL, model: str = "m") -> StreamRecord:
    return StreamRecord(
        number=number,
        request_id=f"r{number}",
        model=model,
        prompt_ids=[1],
        sampling=SamplingParams(seed=0),
        max_tokens=1,
        context_limited=False,
        stop_token_ids=frozenset(),
        priority=priority,
        fallback=FallbackPolicy.SAME_MODEL,
        arrived=0.0,
    )


def drain(queue: RequestQueue) -> list[int]:
    order = []
    for head in queue.heads():
        queue.remove(head)
        order.append(head.number)
    return order


def test_higher_classes_start_first_and_each_class_in_order() -> None:
    queue = RequestQueue(10)
    for number, priority in enumerate((Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.HIGH)):
        queue.push(record(number, priority), 1.0)
    assert drain(queue) == [2, 4, 1, 3, 0]
    assert len(queue) == 0


def test_a_head_that_cannot_start_holds_its_own_lane_only() -> None:
    queue = RequestQueue(10)
    queue.push(record(1), 1.0)
    queue.push(record(2), 1.0)
    queue.push(record(3, model="other"), 1.0)
    assert [head.number for head in queue.heads()] == [1, 3]


def test_one_more_than_the_limit_is_refused_with_a_retry_hint() -> None:
    queue = RequestQueue(2)
    queue.push(record(1), 1.0)
    queue.push(record(2), 1.0)
    with pytest.raises(QueueFull, match="2 requests wait already") as refused:
        queue.push(record(3), 2.5)
    assert refused.value.retry_after_s == 2.5
    assert len(queue) == 2


@given(st.lists(st.tuples(st.sampled_from(list(Priority)), st.booleans()), max_size=40))
def test_positions_tell_the_order_in_which_streams_start(entries: list[tuple[Priority, bool]]) -> None:
    queue = RequestQueue(100)
    records = [record(number, priority) for number, (priority, _) in enumerate(entries)]
    for item in records:
        queue.push(item, 1.0)
    kept = [item for item, (_, leaves) in zip(records, entries, strict=True) if not leaves]
    for item, (_, leaves) in zip(records, entries, strict=True):
        if leaves:
            assert queue.remove(item)
            assert not queue.remove(item)
    positions = {item.number: queue.position(item) for item in kept}
    assert len(queue) == len(kept)
    assert drain(queue) == sorted(positions, key=positions.__getitem__)
    assert sorted(positions.values()) == list(range(len(kept)))
