"""A stream as the message that hands it to a worker."""

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.v1 import generation_pb2
from coldplate_server.journal import StreamRecord
from coldplate_server.request import Constraint
from coldplate_server.text.reasoning import Thinking


def submit_message(record: StreamRecord, worker: str, features: frozenset[str], deadline_ms: int) -> pb.Submit:
    """For a worker with these features, which are all that the stream needs; ``deadline_ms`` 0 is none."""
    sampling, sibling = record.sampling, record.sibling_of
    message = pb.Submit(
        stream=record.number,
        request_id=record.request_id,
        prompt_token_ids=record.prompt_ids,
        emitted_token_ids=record.emitted,
        sampling=pb.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias,
        ),
        max_tokens=record.max_tokens,
        stop_token_ids=sorted(record.stop_token_ids),
        priority=record.priority,
        deadline_ms=deadline_ms,
        sibling_of=sibling.number if sibling is not None and sibling.worker == worker else 0,
        min_tokens=min(record.min_tokens, record.max_tokens),
        logprobs=record.logprobs_wanted,
        prompt_logprobs=record.prompt_logprobs_wanted,
        cache_salt=record.cache_salt,
    )
    if record.constraint is not None:
        message.constraint.CopyFrom(_constraint(record.constraint))
    if record.thinking is not None and "thinking" in features:
        message.thinking.CopyFrom(_thinking(record.thinking))
    return message


def _constraint(constraint: Constraint) -> pb.Constraint:
    match constraint.kind:
        case "choices":
            return pb.Constraint(choices=generation_pb2.Choices(texts=constraint.texts))
        case "json_schema":
            return pb.Constraint(json_schema=constraint.texts[0])
        case "regex":
            return pb.Constraint(regex=constraint.texts[0])
        case _:
            return pb.Constraint(grammar=constraint.texts[0])


def _thinking(thinking: Thinking) -> pb.Thinking:
    return pb.Thinking(
        start_token_id=thinking.marks.start_id,
        end_token_id=thinking.marks.end_id,
        open=thinking.open,
        budget_tokens=thinking.budget_tokens,
        close_token_ids=thinking.marks.close_ids,
    )
