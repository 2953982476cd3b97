"""From vLLM's outputs and its schedulers' states to the engine's messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from coldplate_engine.messages import (
    Admitted,
    EngineError,
    Finished,
    PromptLogprobs,
    StepStats,
    StopCause,
    Submission,
    TokenLogprob,
)
from coldplate_engine.vllm_worker.board import CoreState
from coldplate_engine.vllm_worker.governed import NON_FINITE


@dataclass(slots=True)
class LiveStream:
    """A stream that vLLM has. ``generated`` counts the emitted tokens, too; ``charge`` is the blocks it starts with."""

    submission: Submission
    charge: int
    generated: int
    admitted: bool = False

    @classmethod
    def start(cls, submission: Submission, block_size: int) -> "LiveStream":
        emitted = len(submission.emitted_ids)
        tokens = len(submission.prompt_ids) + emitted + 1
        return cls(submission, -(-tokens // block_size), emitted)


@dataclass(slots=True)
class News:
    """What has not been told yet."""

    streams: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    cached_tokens: int = 0

    def take(self, stream: LiveStream, output: Any) -> Finished | None:
        """Take in one ``RequestOutput`` of deltas; returns the end if it brings it, which is then among the news."""
        number = stream.submission.stream
        if not stream.admitted:
            stream.admitted = True
            cached = output.num_cached_tokens or 0
            self.cached_tokens += cached
            self.admitted.append(Admitted(number, cached))
        if output.prompt_logprobs and stream.submission.prompt_logprobs is not None:
            self.prompt_logprobs.append(_prompt_logprobs(stream.submission, output.prompt_logprobs))
        completion = output.outputs[0]
        tokens = list(completion.token_ids)
        finished = _end(stream, completion, len(tokens)) if completion.finish_reason else None
        if finished is not None and finished.cause is StopCause.STOP_TOKEN:
            tokens.pop()
        for at, token in enumerate(tokens):
            if completion.logprobs and stream.submission.logprobs is not None:
                value = _logprob(token, completion.logprobs[at], stream.submission.logprobs)
                self.logprobs.append((len(self.token_ids), value))
            self.streams.append(number)
            self.token_ids.append(token)
        stream.generated += len(tokens)
        if finished is not None:
            self.finished.append(finished)
        return finished


def _end(stream: LiveStream, completion: Any, new: int) -> Finished:
    number = stream.submission.stream
    match completion.finish_reason:
        case "stop":
            return Finished(number, StopCause.STOP_TOKEN, stop_token_id=int(completion.stop_reason))
        case "length":
            whole = stream.generated + new >= stream.submission.max_tokens
            return Finished(number, StopCause.MAX_TOKENS if whole else StopCause.CONTEXT_FULL)
        case "abort":
            return Finished(number, StopCause.CANCELLED)
        case _ if completion.stop_reason == NON_FINITE:
            text = "the logits held NaN"
            return Finished(number, StopCause.ERROR, error=EngineError.NON_FINITE_LOGITS, error_text=text)
        case reason if stream.submission.constraint is not None:
            text = "vLLM cannot follow this constraint"
            return Finished(number, StopCause.ERROR, error=EngineError.BAD_CONSTRAINT, error_text=f"{text} ({reason})")
        case reason:
            return Finished(
                number, StopCause.ERROR, error=EngineError.DEVICE, error_text=f"vLLM ended the request: {reason}"
            )


def _logprob(token: int, ranked: Mapping[int, Any], alternatives: int) -> TokenLogprob:
    """``ranked`` is vLLM's, which holds the chosen token beside the likeliest."""
    best = sorted(ranked.items(), key=lambda item: -item[1].logprob)[:alternatives]
    return TokenLogprob(token, ranked[token].logprob, tuple((other, value.logprob) for other, value in best))


def _prompt_logprobs(submission: Submission, ranked: Sequence[Mapping[int, Any] | None]) -> PromptLogprobs:
    assert submission.prompt_logprobs is not None
    values = [
        _logprob(token, position, submission.prompt_logprobs)
        for token, position in zip(submission.prompt_ids, ranked, strict=True)
        if position is not None
    ]
    return PromptLogprobs(submission.stream, len(submission.prompt_ids) - len(values), values)


def sum_states(states: Iterable[CoreState]) -> CoreState:
    """Of a data-parallel group: counts add up; times are of the slowest; limits are in force where all have them."""
    states = list(states)
    merged: dict[str, Any] = {}
    for item in fields(CoreState):
        values = [getattr(state, item.name) for state in states]
        merged[item.name] = (
            min(values) if item.name == "limits_seq" else max(values) if item.name.endswith("_s") else sum(values)
        )
    return CoreState(**merged)


def stats_between(before: CoreState, now: CoreState, cached_tokens: int) -> StepStats:
    """What the steps from one state to the next cost, and how things stand after them."""

    def since(name: str) -> Any:
        return max(0, getattr(now, name) - getattr(before, name))

    seconds = {
        "schedule": since("schedule_s"),
        "device": since("device_s"),
        "host_prep": since("update_s"),
        "paced": since("paced_s"),
        "idle": since("idle_s"),
    }
    return StepStats(
        running=now.running,
        waiting=now.waiting,
        prefill_tokens=since("prefill_tokens"),
        decode_tokens=since("decode_tokens"),
        kv_blocks_used=now.blocks_used,
        kv_blocks_total=now.blocks_total,
        preempted=since("preempted"),
        draft_tokens=since("draft_tokens"),
        accepted_tokens=since("accepted_tokens"),
        cached_tokens=cached_tokens,
        seconds=seconds if now.steps > before.steps else {},
    )
