"""From a submission to vLLM's sampling parameters, one by one: what vLLM cannot do is refused, never dropped."""

import json
from typing import Any

from coldplate_engine.messages import Constraint, EngineError, Submission

FEATURES = ("penalties", "logit_bias", "min_tokens", "logprobs", "prompt_logprobs")
GUIDED = "guided"
_LEAST_TEMPERATURE = 0.01  # vLLM raises anything between it and 0 to it
_SEED_BITS = 63


class Unmappable(Exception):
    """What of a submission vLLM cannot do."""

    def __init__(self, text: str, error: EngineError = EngineError.UNSATISFIABLE) -> None:
        super().__init__(text)
        self.error = error


def sampling_arguments(submission: Submission, features: frozenset[str]) -> dict[str, Any]:
    """Keyword arguments of ``vllm.SamplingParams``; the constraint comes as those of ``StructuredOutputsParams``.

    Raises Unmappable.
    """
    sampling, emitted = submission.sampling, len(submission.emitted_ids)
    _check(submission, features)
    arguments: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed % 2**_SEED_BITS,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": dict(sampling.logit_bias) or None,
        "max_tokens": submission.max_tokens - emitted,
        "min_tokens": max(0, submission.min_tokens - emitted),
        "stop_token_ids": sorted(submission.stop_ids),
        "ignore_eos": True,  # the server names every token that ends an answer
        "logprobs": submission.logprobs,
        "prompt_logprobs": submission.prompt_logprobs,
        "detokenize": False,
    }
    if submission.constraint is not None:
        arguments["structured_outputs"] = constraint_arguments(submission.constraint)
    return arguments


def constraint_arguments(constraint: Constraint) -> dict[str, Any]:
    """Keyword arguments of ``vllm.sampling_params.StructuredOutputsParams``. Raises Unmappable."""
    match constraint.kind:
        case "json_schema":
            try:
                json.loads(constraint.text)
            except ValueError as error:
                raise Unmappable(f"json_schema: {error}", EngineError.BAD_CONSTRAINT) from None
            return {"json": constraint.text}
        case "regex":
            return {"regex": constraint.text}
        case "choices":
            return {"choice": list(constraint.choices)}
        case "grammar":
            return {"grammar": constraint.text}


def _check(submission: Submission, features: frozenset[str]) -> None:
    sampling, emitted = submission.sampling, len(submission.emitted_ids)
    if 0 < sampling.temperature < _LEAST_TEMPERATURE:
        raise Unmappable(f"temperature {sampling.temperature:g}: vLLM has 0 (greedy) or at least {_LEAST_TEMPERATURE}")
    if submission.constraint is not None and GUIDED not in features:
        raise Unmappable("a constraint: this worker was started without vLLM's structured output")
    if submission.thinking is not None and submission.thinking.budget_tokens is not None:
        raise Unmappable("a thinking budget: this worker has none")
    # For vLLM, tokens that exist are part of the prompt.
    if emitted and (sampling.presence_penalty or sampling.frequency_penalty):
        raise Unmappable("presence_penalty and frequency_penalty cannot go on behind tokens that exist already")
    if emitted and submission.constraint is not None:
        raise Unmappable("a constraint cannot go on behind tokens that exist already")
    if emitted and submission.prompt_logprobs is not None:
        raise Unmappable("prompt_logprobs cannot be told apart behind tokens that exist already")


def vllm_params(arguments: dict[str, Any]) -> Any:
    """vLLM's own object, giving deltas. Raises ValueError for what vLLM refuses."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    rest = dict(arguments)
    if (constraint := rest.pop("structured_outputs", None)) is not None:
        rest["structured_outputs"] = StructuredOutputsParams(**constraint)
    return SamplingParams(**rest, output_kind=RequestOutputKind.DELTA)
