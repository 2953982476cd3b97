"""What a request needs of an engine beyond plain sampling."""

from coldplate_server.request import GenerationRequest


def needs_of(request: GenerationRequest, prefix: str, *, may_think: bool) -> dict[str, str]:
    """Features that a worker must have, each with the path of the field that asks for it.

    ``may_think``: the model may think first, and a constraint is for the answer behind that.
    """
    sampling, needs = request.sampling, {}
    penalties = {
        "repetition_penalty": sampling.repetition_penalty != 1,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
    }
    if any(penalties.values()):
        needs["penalties"] = "sampling." + next(name for name, asked in penalties.items() if asked)
    if sampling.logit_bias:
        needs["logit_bias"] = "sampling.logit_bias"
    if request.stop.min_tokens:
        needs["min_tokens"] = "stopping.min_tokens"
    if request.logprobs is not None:
        needs["logprobs"] = "reporting.logprobs"
    if request.prompt_logprobs is not None:
        needs["prompt_logprobs"] = "reporting.prompt_logprobs"
    if request.constraint is not None:
        needs["guided"] = request.constraint.kind
        if may_think:
            needs["thinking"] = request.constraint.kind
    if request.reasoning.budget_tokens is not None and may_think:
        needs["thinking"] = "reasoning.budget_tokens"
    return {feature: prefix + field for feature, field in needs.items()}
