"""From reply messages to the client's own values, and from a stream's events to an answer."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from coldplate.durations import to_seconds
from coldplate.v1 import generation_pb2
from coldplate_client.types import (
    Answer,
    Choice,
    ChoiceFinished,
    Completed,
    Delta,
    Event,
    FinishReason,
    Migrated,
    Phase,
    Progress,
    PromptLogprobs,
    ResumeLevel,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)


def read_event(message: generation_pb2.StreamGenerateResponse) -> Event | None:
    """The event in ``message``; None for one that this client does not know, which a newer service may send."""
    match message.WhichOneof("event"):
        case "delta":
            return _delta(message.delta)
        case "started":
            return _started(message.started)
        case "progress":
            return _progress(message.progress)
        case "migrated":
            return _migrated(message.migrated)
        case "choice_finished":
            return _choice_finished(message.choice_finished)
        case "prompt_logprobs":
            prompt = message.prompt_logprobs
            return PromptLogprobs(prompt.first_token_index, _logprobs(prompt.logprobs))
        case "completed":
            return Completed(usage=_usage(message.completed.usage), timings=_timings(message.completed.timings))
    return None


def read_answer(message: generation_pb2.GenerateResponse) -> Answer:
    """A unary reply."""
    return Answer(
        choices=tuple(map(_choice, message.choices)) or (Choice(),),
        usage=_usage(message.usage),
        timings=_timings(message.timings),
        device=message.device,
        seed=message.seed,
        request_id=message.request_id,
        model=message.model,
        model_revision=message.model_revision,
        migrated=_migrated(message.migrated) if message.HasField("migrated") else None,
        prompt_logprobs=_logprobs(message.prompt_logprobs),
    )


@dataclass(slots=True)
class _Pieces:
    """Of one choice, as far as they have come."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: ChoiceFinished | None = None

    def joined(self, index: int, complete: bool) -> Choice:
        finished = self.finished
        return Choice(
            index=index,
            text="".join(self.texts),
            reasoning_text="".join(self.thoughts),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=finished.reason if finished and complete else None,
            stop_sequence=finished.stop_sequence if finished else None,
            stop_token_id=finished.stop_token_id if finished else None,
        )


class Assembly:
    """Joins the events of one stream into an ``Answer``."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._pieces = {0: _Pieces()}
        self._prompt_logprobs: list[TokenLogprob] = []
        self._migrated: Migrated | None = None
        self._completed: Completed | None = None

    @property
    def complete(self) -> bool:
        return self._completed is not None

    def add(self, event: Event) -> None:
        match event:
            case Delta():
                pieces = self._of(event.choice_index)
                pieces.texts.append(event.text)
                pieces.thoughts.append(event.reasoning_text)
                pieces.token_ids.extend(event.token_ids)
                pieces.logprobs.extend(event.logprobs)
            case PromptLogprobs():
                self._prompt_logprobs.extend(event.logprobs)
            case Started():
                self._started = event
            case Migrated():
                self._migrated = event
            case ChoiceFinished():
                self._of(event.choice_index).finished = event
            case Completed():
                self._completed = event

    def _of(self, choice_index: int) -> _Pieces:
        return self._pieces.setdefault(choice_index, _Pieces())

    def answer(self) -> Answer:
        """What has arrived so far; whole only when ``complete``."""
        started, completed = self._started, self._completed
        device = self._migrated.to_device if self._migrated else started.device if started else ""
        return Answer(
            choices=tuple(pieces.joined(index, self.complete) for index, pieces in sorted(self._pieces.items())),
            usage=completed.usage if completed else Usage(),
            timings=completed.timings if completed else Timings(),
            device=device,
            seed=started.seed if started else 0,
            request_id=started.request_id if started else "",
            model=started.model if started else "",
            model_revision=started.model_revision if started else "",
            migrated=self._migrated,
            prompt_logprobs=tuple(self._prompt_logprobs),
        )


def _choice(message: generation_pb2.Choice) -> Choice:
    return Choice(
        index=message.index,
        text=message.text,
        reasoning_text=message.reasoning_text,
        token_ids=tuple(message.token_ids),
        logprobs=_logprobs(message.logprobs),
        finish_reason=_finish_reason(message.finish_reason),
        stop_sequence=message.stop_sequence if message.HasField("stop_sequence") else None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
    )


def _logprobs(messages: Iterable[generation_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            message.token_id,
            message.logprob,
            tuple((other.token_id, other.logprob) for other in message.alternatives),
        )
        for message in messages
    )


def _delta(message: generation_pb2.Delta) -> Delta:
    return Delta(
        text=message.text,
        token_ids=tuple(message.token_ids),
        choice_index=message.choice_index,
        first_token_index=message.first_token_index,
        token_count=message.token_count,
        reasoning_text=message.reasoning_text,
        logprobs=_logprobs(message.logprobs),
    )


def _started(message: generation_pb2.Started) -> Started:
    return Started(
        request_id=message.request_id,
        model=message.model,
        model_revision=message.model_revision,
        device=message.device,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        seed=message.seed,
        max_tokens=message.max_tokens,
    )


def _progress(message: generation_pb2.Progress) -> Progress:
    name = _enum_name(generation_pb2.Phase, message.phase, "PHASE_")
    return Progress(
        phase=Phase[name] if name in Phase.__members__ else None,
        queue_position=message.queue_position,
        throttled=message.throttled,
    )


def _migrated(message: generation_pb2.Migrated) -> Migrated:
    name = _enum_name(generation_pb2.ResumeLevel, message.level, "RESUME_LEVEL_")
    return Migrated(
        from_device=message.from_device,
        to_device=message.to_device,
        level=ResumeLevel[name] if name in ResumeLevel.__members__ else None,
        at_token_index=message.at_token_index,
    )


def _choice_finished(message: generation_pb2.ChoiceFinished) -> ChoiceFinished:
    return ChoiceFinished(
        choice_index=message.choice_index,
        reason=_finish_reason(message.reason),
        stop_sequence=message.stop_sequence if message.HasField("stop_sequence") else None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
    )


def _finish_reason(value: int) -> FinishReason | None:
    name = _enum_name(generation_pb2.FinishReason, value, "FINISH_REASON_")
    return FinishReason[name] if name in FinishReason.__members__ else None


def _enum_name(enum: Any, value: int, prefix: str) -> str:
    """The name of ``value`` without its prefix; empty for a number that this client does not know."""
    return str(enum.Name(value)).removeprefix(prefix) if value in enum.values() else ""


def _usage(message: generation_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        reasoning_tokens=message.reasoning_tokens,
    )


def _timings(message: generation_pb2.Timings) -> Timings:
    return Timings(
        queued_s=to_seconds(message.queued),
        prefill_s=to_seconds(message.prefill),
        first_token_s=to_seconds(message.first_token),
        decode_s=to_seconds(message.decode),
        per_token_s=to_seconds(message.per_token),
        total_s=to_seconds(message.total),
        throttled_s=to_seconds(message.throttled),
    )
