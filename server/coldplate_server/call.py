"""The choices of one request read as one stream of events."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from coldplate.clock import Clock
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.events import ChoiceFinished, Completed, Event, Progress, PromptLogprobs, Started
from coldplate_server.journal import StreamRecord
from coldplate_server.reader import Reader
from coldplate_server.result import ChoiceEnd, FinishReason, Timings, Usage
from coldplate_server.text.tokenizer import Tokenizer


class Call:
    """One call's readers, merged: whichever choice has news is read next."""

    def __init__(self, readers: Sequence[Reader], tokenizer: Tokenizer, dispatcher: Dispatcher, clock: Clock) -> None:
        self._readers = readers
        self._records = [reader.record for reader in readers]
        self._open = list(readers)
        self._tokenizer = tokenizer
        self._dispatcher = dispatcher
        self._clock = clock
        self._reasons = dict.fromkeys((reader.index for reader in readers), FinishReason.ABORTED)
        self._prompt_logprobs_sent = 0
        self._changed = asyncio.Event()
        for record in self._records:
            record.wake = self._changed.set

    async def events(self, flush_interval_s: float, progress_interval_s: float) -> AsyncGenerator[Event, None]:
        """Until the last choice has finished; raises the first error of any, when what that one made has been read."""
        started = False
        flush_at = 0.0
        while True:
            self._raise_failure()
            if not started and any(record.begun for record in self._records):
                started = True
                yield self._started()
            if (prompt := self._new_prompt_logprobs()) is not None:
                yield prompt
            now = self._clock.now() if flush_interval_s else 0.0
            unread = [reader for reader in self._open if reader.unread]
            if now >= flush_at or any(reader.record.over for reader in unread):
                flush_at = now + flush_interval_s
                for reader in unread:
                    if (delta := reader.take()) is not None:
                        yield delta
            for reader in [reader for reader in self._open if reader.over]:
                self._open.remove(reader)
                self._dispatcher.withdraw(reader.record)
                if (rest := reader.finish()) is not None:
                    yield rest
                self._reasons[reader.index] = (end := _end_of(reader, self._tokenizer)).reason
                yield ChoiceFinished(reader.index, end)
            if not self._open:
                yield self._completed()
                return
            flushing = any(reader.unread for reader in self._open)
            wait_s = flush_at - now if flushing and flush_interval_s else progress_interval_s
            if not await self._news(wait_s) and not flushing:
                yield self._progress()

    def _raise_failure(self) -> None:
        for reader in self._open:
            if reader.record.error is not None and not reader.unread:
                raise reader.record.error

    async def _news(self, timeout_s: float) -> bool:
        """Wait until a stream has changed; False when none has in time. 0 is no limit."""
        if timeout_s:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return False
        else:
            await self._changed.wait()
        self._changed.clear()
        return True

    def _started(self) -> Started:
        first = self._records[0]
        assert first.sampling.seed is not None
        return Started(
            request_id=first.request_id,
            model=first.model,
            model_revision=self._tokenizer.revision,
            device=first.device or "",
            prompt_tokens=len(first.prompt_ids),
            cached_tokens=first.cached_tokens,
            seed=first.sampling.seed,
            max_tokens=first.max_tokens,
        )

    def _new_prompt_logprobs(self) -> PromptLogprobs | None:
        sent, known = self._prompt_logprobs_sent, self._records[0].prompt_logprobs
        if sent == len(known):
            return None
        self._prompt_logprobs_sent = len(known)
        return PromptLogprobs(1 + sent, known[sent:])

    def _progress(self) -> Progress:
        first = min(self._records, key=lambda record: record.submitted is None)
        if first.submitted is None:
            return Progress("queued", self._dispatcher.queue.position(first), throttled=False)
        phase = "prefill" if all(record.first_token is None for record in self._records) else "decode"
        return Progress(phase, 0, self._dispatcher.fleet.throttled(first.worker))

    def _completed(self) -> Completed:
        first = self._records[0]
        usage = Usage(
            prompt_tokens=len(first.prompt_ids),
            completion_tokens=sum(reader.tokens for reader in self._readers),
            cached_tokens=first.cached_tokens,
            reasoning_tokens=sum(reader.reasoning_tokens for reader in self._readers),
        )
        most = max(reader.tokens for reader in self._readers)
        reasons = tuple(self._reasons.values())
        return Completed(reasons, usage, _timings(self._records, most, self._clock.now()), first.device or "")


def _end_of(reader: Reader, tokenizer: Tokenizer) -> ChoiceEnd:
    record = reader.record
    if reader.end is not None:
        return reader.end
    assert record.end is not None
    match record.end.cause:
        case "stop_token" if record.end.stop_token_id in tokenizer.end_of_text_ids:
            return ChoiceEnd(FinishReason.END_OF_TEXT)
        case "stop_token":
            return ChoiceEnd(FinishReason.STOP_SEQUENCE, stop_token_id=record.end.stop_token_id)
        case "max_tokens" if not record.context_limited:
            return ChoiceEnd(FinishReason.MAX_TOKENS)
        case _:
            return ChoiceEnd(FinishReason.CONTEXT_FULL)


def _timings(records: Sequence[StreamRecord], most_tokens: int, now: float) -> Timings:
    """Of all choices together: from the first hand-over, the first token and to the last token of any.

    ``most_tokens`` are those of the longest choice.
    """
    arrived = records[0].arrived
    submitted = min((record.submitted for record in records if record.submitted is not None), default=now)
    first = min((record.first_token for record in records if record.first_token is not None), default=now)
    last = max((record.last_token for record in records if record.last_token is not None), default=first)
    return Timings(
        queued_s=submitted - arrived,
        prefill_s=first - submitted,
        first_token_s=first - arrived,
        decode_s=last - first,
        per_token_s=(last - first) / (most_tokens - 1) if most_tokens > 1 else 0.0,
        total_s=now - arrived,
        throttled_s=max(0.0, *(record.paced_s for record in records)),
    )
