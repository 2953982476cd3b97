"""The journal keeps one live stream an id, and lets go of just the one that is meant."""

import pytest

from coldplate_server.errors import Aborted, DuplicateRequestId, EngineLost
from coldplate_server.journal import EngineEnd, Journal, StreamRecord
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams
from coldplate_server.result import TokenLogprob


def record(journal: Journal, request_id: str = "x") -> StreamRecord:
    return StreamRecord(
        number=journal.next_number(),
        request_id=request_id,
        model="m",
        prompt_ids=[1, 2],
        sampling=SamplingParams(seed=0),
        max_tokens=5,
        context_limited=False,
        stop_token_ids=frozenset(),
        priority=Priority.NORMAL,
        fallback=FallbackPolicy.SAME_MODEL,
        arrived=0.0,
        emitted=[7],
        resumed=1,
    )


def test_an_id_is_free_again_once_its_stream_has_ended() -> None:
    journal = Journal()
    first = record(journal)
    journal.open([first])
    with pytest.raises(DuplicateRequestId):
        journal.open([record(journal)])
    journal.close(first)
    second = record(journal)
    journal.open([second])
    assert second.number > first.number
    journal.close(first)
    assert journal.get("x") == [second]
    assert len(journal) == 1


def test_the_streams_of_a_request_share_its_id_until_the_last_has_ended() -> None:
    journal = Journal()
    streams = [record(journal) for _ in range(3)]
    journal.open(streams)
    assert (len(journal), list(journal), journal.request_ids) == (3, streams, ["x"])
    for stream in streams:
        with pytest.raises(DuplicateRequestId):
            journal.check_free("x")
        journal.close(stream)
    journal.check_free("x")
    assert not journal.request_ids


def test_log_probabilities_of_a_prompt_are_kept_once_and_in_order() -> None:
    stream = record(Journal())
    first, second, third = (TokenLogprob(token, -1.0) for token in range(3))
    stream.add_prompt_logprobs(1, [first, second])
    stream.add_prompt_logprobs(1, [first, second, third])
    assert stream.prompt_logprobs == [first, second, third]
    with pytest.raises(ValueError, match="position 5"):
        stream.add_prompt_logprobs(5, [first])


def test_tokens_of_an_earlier_call_are_kept_and_not_counted_as_delivered() -> None:
    stream = record(Journal())
    stream.append(8, now=2.0)
    stream.append(9, now=3.0)
    assert stream.emitted == [7, 8, 9]
    assert stream.delivered == 2
    assert (stream.first_token, stream.last_token) == (2.0, 3.0)
    assert stream.kv_tokens == 7


def test_the_first_end_of_a_stream_stands() -> None:
    ended, failed = record(Journal()), record(Journal())
    ended.finish(EngineEnd("max_tokens"))
    ended.fail(Aborted("late"))
    assert ended.error is None
    failed.fail(EngineLost("first"))
    failed.fail(Aborted("second"))
    failed.finish(EngineEnd("max_tokens"))
    assert isinstance(failed.error, EngineLost)
    assert failed.end is None
