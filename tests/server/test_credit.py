"""Credit never promises what the worker has not got, whatever is on its way."""

from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.workers.credit import Credit


def test_a_submit_on_its_way_counts_until_the_worker_has_seen_it() -> None:
    credit = Credit(block_size=16, free_slots=2, free_kv_tokens=64)
    credit.spend(17)
    assert (credit.free_slots, credit.free_kv_tokens) == (1, 32)
    credit.update(submits_seen=0, free_slots=2, free_kv_tokens=64)
    assert (credit.free_slots, credit.free_kv_tokens) == (1, 32)
    credit.update(submits_seen=1, free_slots=1, free_kv_tokens=32)
    assert (credit.free_slots, credit.free_kv_tokens) == (1, 32)
    assert credit.covers(32)
    assert not credit.covers(33)


def test_without_a_slot_nothing_is_covered_however_small() -> None:
    assert not Credit(16, 0, 1024).covers(1)


@given(st.lists(st.tuples(st.sampled_from(["submit", "see", "end"]), st.integers(1, 100)), max_size=80))
def test_the_server_never_submits_more_than_the_worker_can_hold(actions: list[tuple[str, int]]) -> None:
    slots, pool = 4, 256
    credit = Credit(16, slots, pool)
    on_the_way: list[int] = []
    held: list[int] = []
    seen = 0
    for action, size in actions:
        if action == "submit" and credit.covers(size):
            credit.spend(size)
            on_the_way.append(credit.needed(size))
        elif action == "see" and on_the_way:
            held.append(on_the_way.pop(0))
            seen += 1
        elif action == "end" and held:
            held.pop(size % len(held))
        if action != "submit":
            credit.update(seen, slots - len(held), pool - sum(held))
        assert len(held) + len(on_the_way) <= slots
        assert sum(held) + sum(on_the_way) <= pool
        assert credit.free_slots <= slots - len(held) - len(on_the_way)
