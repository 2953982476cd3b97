"""Whether a tokenised request fits the model and its engines: arithmetic before any work."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NoReturn

from coldplate_server.errors import ContextCapped, InvalidRequest, Violation
from coldplate_server.request import GenerationRequest

_CAPPED_RETRY_S = 5.0
MAX_LOGPROBS_PER_CALL = 1_000_000  # about 12 bytes each in a reply, which has 16 MiB


@dataclass(frozen=True, slots=True)
class Room:
    """What there is, in tokens: the context of prompt and answer, an engine's whole cache, the vocabulary.

    ``context_now`` is what limits leave of the context.
    """

    context: int
    cache: int | None
    vocabulary: int
    context_now: int | None = None


def fit_max_tokens(request: GenerationRequest, prompt_ids: list[int], room: Room, default: int, prefix: str) -> int:
    """max_tokens lowered to what the context has left.

    Raises InvalidRequest with the numbers when the prompt is empty, too long, or holds ids the model does not have;
    ``prefix`` goes before its field paths. Raises ContextCapped for what only a limit makes too long.
    """
    if not prompt_ids:
        _refuse(f"{prefix}input", "the prompt is empty: it has no tokens")
    left = room.context - len(prompt_ids)
    if left < 1:
        _refuse(
            f"{prefix}input",
            f"the prompt has {len(prompt_ids)} tokens; the context holds {room.context}, answer included",
        )
    wanted = request.max_tokens or default
    if request.stop.min_tokens > wanted:
        text = f"is {request.stop.min_tokens}, above max_tokens, which is {wanted} where it is not set"
        _refuse(f"{prefix}stopping.min_tokens", text)
    max_tokens = min(wanted, left)
    done = len(request.resume_ids)
    if done > max_tokens:
        _refuse(f"{prefix}resume.emitted_token_ids", f"{done} of at most {max_tokens} tokens exist")
    if room.context_now is not None:
        max_tokens = min(max_tokens, _left_by_limits(len(prompt_ids), done, max_tokens, room.context_now))
    _check_ids(request, prompt_ids, room.vocabulary, prefix)
    _check_logprobs(request, len(prompt_ids), max_tokens, prefix)
    needed = len(prompt_ids) + max_tokens
    if room.cache is not None and needed > room.cache:
        _refuse(
            f"{prefix}input",
            f"prompt ({len(prompt_ids)}) and max_tokens ({max_tokens}) need a cache of {needed} tokens; "
            f"the engine has {room.cache}",
        )
    return max_tokens


def check_resumable(request: GenerationRequest, stop_token_ids: AbstractSet[int], prefix: str) -> None:
    """Raises InvalidRequest for emitted tokens one of which ends an answer: an answer never holds such a token."""
    index = next((i for i, token in enumerate(request.resume_ids) if token in stop_token_ids), None)
    if index is not None:
        token = request.resume_ids[index]
        _refuse(
            f"{prefix}resume.emitted_token_ids[{index}]", f"token id {token} ends the answer: nothing comes after it"
        )


def _left_by_limits(prompt: int, done: int, max_tokens: int, context: int) -> int:
    """What limits leave for the answer. A resumed one that has come to its end needs nothing more."""
    left = context - prompt
    if left <= done < max_tokens:
        exist = f" and {done} tokens of the answer" if done else ""
        raise ContextCapped(
            f"the prompt has {prompt} tokens{exist}; a limit, max_context_tokens, allows {context} for now, answer "
            "included; send less or try again later",
            retry_after_s=_CAPPED_RETRY_S,
            limit="max_context_tokens",
            max_context_tokens=context,
            prompt_tokens=prompt,
        )
    return max(left, done)


def _check_logprobs(request: GenerationRequest, prompt_tokens: int, max_tokens: int, prefix: str) -> None:
    for field, alternatives, tokens in (
        ("logprobs", request.logprobs, request.n * max_tokens),
        ("prompt_logprobs", request.prompt_logprobs, prompt_tokens),
    ):
        count = 0 if alternatives is None else tokens * (1 + alternatives)
        if count > MAX_LOGPROBS_PER_CALL:
            text = f"is {alternatives} beside each of up to {tokens} tokens, {count} log-probabilities"
            _refuse(f"{prefix}reporting.{field}", f"{text}; one call reports at most {MAX_LOGPROBS_PER_CALL}")


def _check_ids(request: GenerationRequest, prompt_ids: list[int], vocabulary: int, prefix: str) -> None:
    for field, ids in (
        ("input", prompt_ids),
        ("resume.emitted_token_ids", request.resume_ids),
        ("stopping.stop_token_ids", request.stop.token_ids),
        ("sampling.logit_bias", request.sampling.logit_bias),
    ):
        bad = next((token for token in ids if not 0 <= token < vocabulary), None)
        if bad is not None:
            _refuse(f"{prefix}{field}", f"token id {bad} is outside the vocabulary of {vocabulary}")


def _refuse(field: str, text: str) -> NoReturn:
    raise InvalidRequest([Violation(field, text)])
