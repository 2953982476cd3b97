"""What makes a submission unusable. The server checks, too; a worker takes nobody's word for it."""

import math

from coldplate_engine.messages import Sampling, Submission, Thinking

MAX_LOGPROBS = 20
_LARGEST_PENALTY = 1e3
_LARGEST_BIAS = 1e4


def why_unusable(submission: Submission, vocabulary_size: int, max_model_len: int) -> str | None:
    """Why this submission can never run on this model, or None."""
    if not submission.prompt_ids:
        return "the prompt has no tokens"
    if submission.max_tokens < 1:
        return f"max_tokens is {submission.max_tokens}: expected at least 1"
    if len(submission.prompt_ids) >= max_model_len:
        return f"the prompt's {len(submission.prompt_ids)} tokens leave no room in a context of {max_model_len}"
    if not 0 <= submission.min_tokens <= submission.max_tokens:
        return f"min_tokens is {submission.min_tokens}: expected 0 to max_tokens, which is {submission.max_tokens}"
    for name, count in (("logprobs", submission.logprobs), ("prompt_logprobs", submission.prompt_logprobs)):
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            return f"{name} is {count}: expected 0 to {MAX_LOGPROBS}"
    return (
        _why_tokens(submission, vocabulary_size)
        or _why_sampling(submission.sampling)
        or _why_thinking(submission.thinking)
    )


def _why_tokens(submission: Submission, vocabulary_size: int) -> str | None:
    known = [submission.prompt_ids, submission.emitted_ids, tuple(token for token, _ in submission.sampling.logit_bias)]
    if (thinking := submission.thinking) is not None:
        known.append((thinking.start_id, thinking.end_id, *thinking.close_ids))
    for ids in known:
        if ids and (min(ids) < 0 or max(ids) >= vocabulary_size):
            outside = next(i for i in ids if not 0 <= i < vocabulary_size)
            return f"token id {outside} is outside the vocabulary of {vocabulary_size}"
    return None


def _why_sampling(sampling: Sampling) -> str | None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}: expected a number of at least 0"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}: expected above 0 and at most 1"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p is {sampling.min_p}: expected 0 to 1"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}: expected at least 0"
    if not 1 / _LARGEST_PENALTY <= sampling.repetition_penalty <= _LARGEST_PENALTY:
        return f"repetition_penalty is {sampling.repetition_penalty}: expected above 0, 1 changes nothing"
    for name, value in (
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ):
        if not -_LARGEST_PENALTY <= value <= _LARGEST_PENALTY:
            return f"{name} is {value}: expected a number around 0, 0 changes nothing"
    for token, value in sampling.logit_bias:
        if not -_LARGEST_BIAS <= value <= _LARGEST_BIAS:
            return f"logit_bias of token {token} is {value}: expected -{_LARGEST_BIAS:g} to {_LARGEST_BIAS:g}"
    return None


def _why_thinking(thinking: Thinking | None) -> str | None:
    if thinking is None:
        return None
    if (thinking.budget_tokens is not None or thinking.close_ids) and thinking.end_id not in thinking.close_ids:
        return f"close_token_ids {list(thinking.close_ids)} do not hold end_token_id {thinking.end_id}"
    if thinking.budget_tokens is not None and thinking.budget_tokens < 0:
        return f"thinking.budget_tokens is {thinking.budget_tokens}: expected at least 0"
    return None
