"""The queue: by class, fair between tenants, first come first served for one of them, and fair to large requests."""

from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.journal import StreamRecord
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams
from coldplate_server.request_queue import RequestQueue

POLICY = AdmissionPolicy()


def record(
    number: int, priority: Priority = Priority.NORMAL, model: str = "m", tenant: str = "t", max_tokens: int = 1
) -> StreamRecord:
    return StreamRecord(
        number=number,
        request_id=f"r{number}",
        model=model,
        prompt_ids=[1],
        sampling=SamplingParams(seed=0),
        max_tokens=max_tokens,
        context_limited=False,
        stop_token_ids=frozenset(),
        priority=priority,
        fallback=FallbackPolicy.SAME_MODEL,
        arrived=0.0,
        tenant=tenant,
    )


def take(queue: RequestQueue, item: StreamRecord) -> None:
    """Start a stream and serve all it may ask for."""
    lane = queue.lane(item)
    waiting = lane.pop(item)
    assert waiting is not None
    lane.share.charge(item.tenant, waiting.cost)
    lane.share.stop_waiting(item.tenant)


def drain(queue: RequestQueue) -> list[int]:
    order = []
    for head in queue.heads():
        take(queue, head)
        order.append(head.number)
    return order


def filled(*records: StreamRecord) -> RequestQueue:
    queue = RequestQueue(POLICY)
    for item in records:
        queue.push(item, 0.0)
    return queue


def test_higher_classes_start_first_and_each_class_in_order() -> None:
    kinds = (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.HIGH)
    queue = filled(*(record(number, priority) for number, priority in enumerate(kinds)))
    assert drain(queue) == [2, 4, 1, 3, 0]
    assert len(queue) == 0


def test_a_head_that_cannot_start_holds_its_own_lane_only() -> None:
    queue = filled(record(1), record(2), record(3, model="other"))
    assert [head.number for head in queue.heads()] == [1, 3]
    assert [lane.blocked for lane in queue.lanes] == [True, True]


def test_what_waits_for_more_than_room_blocks_nothing() -> None:
    queue = filled(record(1), record(2))
    assert list(queue.heads(lambda item: False)) == []
    assert not queue.lane(record(1)).blocked
    assert next(queue.heads(lambda item: item.number != 1)).number == 2


def test_tenants_take_turns_however_many_requests_one_sends() -> None:
    many = [record(number, tenant="many") for number in range(6)]
    queue = filled(*many, record(6, tenant="few"), record(7, tenant="few"))
    assert drain(queue) == [0, 6, 1, 7, 2, 3, 4, 5]


def test_turns_go_by_tokens_and_not_by_requests() -> None:
    large = [record(number, tenant="large", max_tokens=100) for number in range(2)]
    small = [record(number, tenant="small", max_tokens=10) for number in range(2, 14)]
    order = drain(filled(*large, *small))
    between = order.index(1) - order.index(0) - 1
    assert between == 10, "201 against 21 each: ten small ones, or they would be ahead"


def test_classes_have_counters_of_their_own() -> None:
    queue = filled(record(0, Priority.HIGH, tenant="a", max_tokens=1000))
    drain(queue)
    for item in (record(1, tenant="a"), record(2, tenant="b")):
        queue.push(item, 0.0)
    assert drain(queue) == [1, 2]


@given(st.lists(st.tuples(st.sampled_from(list(Priority)), st.sampled_from("abc"), st.booleans()), max_size=40))
def test_positions_tell_the_order_in_which_streams_start(entries: list[tuple[Priority, str, bool]]) -> None:
    records = [record(number, priority, tenant=name) for number, (priority, name, _) in enumerate(entries)]
    queue = filled(*records)
    kept = []
    for item, (_, _, leaves) in zip(records, entries, strict=True):
        if leaves:
            assert queue.pop(item) is not None
            assert queue.pop(item) is None
            queue.lane(item).share.stop_waiting(item.tenant)
        else:
            kept.append(item)
    positions = {item.number: queue.position(item) for item in kept}
    assert len(queue) == len(kept)
    assert drain(queue) == sorted(positions, key=positions.__getitem__)
    assert sorted(positions.values()) == list(range(len(kept)))
