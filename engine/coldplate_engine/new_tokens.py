"""What a step's tokens do to their streams, and what is prepared for the next step."""

from dataclasses import dataclass, field

from coldplate_engine.messages import Finished, TokenLogprob
from coldplate_engine.speculation import Speculator
from coldplate_engine.step_executor import StepResult
from coldplate_engine.stream import Stream


@dataclass(slots=True)
class NewTokens:
    """Output of a step: ``streams[i]`` got ``token_ids[i]``; ``logprobs`` are (index, value) pairs.

    ``ends`` are the streams that ended, ``going`` those that got a token and go on; ``accepted`` guesses came true.
    """

    streams: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    ends: dict[int, tuple[Stream, Finished]] = field(default_factory=dict)
    going: list[Stream] = field(default_factory=list)
    accepted: int = 0


def take_tokens(result: StepResult, max_model_len: int) -> NewTokens:
    """Give the streams their tokens, up to each one's end."""
    new = NewTokens()
    counts: dict[Stream, int] = {}
    for i, (stream, token) in enumerate(result.tokens):
        if stream.id in new.ends:
            continue
        counts[stream] = counts.get(stream, 0) + 1
        is_output, ended = stream.accept(token, max_model_len)
        if is_output:
            if (logprob := result.logprobs.get(i)) is not None:
                new.logprobs.append((len(new.token_ids), logprob))
            new.streams.append(stream.id)
            new.token_ids.append(token)
        if ended is not None:
            new.ends[stream.id] = (stream, ended)
    new.accepted = sum(counts.values()) - len(counts)
    new.going = [stream for stream in counts if stream.id not in new.ends and stream.id not in result.failed]
    return new


def learn(result: StepResult, drafted: dict[Stream, int], speculator: Speculator) -> None:
    """Tell how many of the ``drafted`` guesses came true."""
    counts = dict.fromkeys(drafted, 0)
    for stream, _ in result.tokens:
        if stream in counts:
            counts[stream] += 1
    for stream, count in counts.items():
        speculator.learn(stream, drafted[stream], max(0, count - 1))


def look_ahead(going: list[Stream], speculator: Speculator | None) -> None:
    """Guess what comes next, and begin with the masks for it."""
    for stream in going:
        drafts = [] if speculator is None else speculator.guess(stream, len(going))
        if stream.rules is not None:
            drafts = stream.rules.usable_drafts(drafts) if drafts else drafts
            stream.rules.prepare(drafts)
        stream.drafts = drafts
