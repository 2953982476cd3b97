"""Log-probabilities out of a worker's step messages."""

from collections.abc import Iterable, Mapping

from coldplate.internal.v1 import engine_pb2
from coldplate.v1 import generation_pb2
from coldplate_server.result import TokenLogprob


def by_index(step: engine_pb2.Step) -> Mapping[int, generation_pb2.TokenLogprob]:
    """Those of the step's new tokens, by where the token stands in it."""
    return {entry.index: entry.logprob for entry in step.logprobs} if step.logprobs else {}


def of_token(token_id: int, message: generation_pb2.TokenLogprob | None) -> TokenLogprob:
    """A token without an entry was forced: nothing else could have come. Raises ValueError for another token's."""
    if message is None:
        return TokenLogprob(token_id, 0.0)
    if message.token_id != token_id:
        raise ValueError(f"the log-probability of token {message.token_id} beside token {token_id}")
    return _read(message)


def of_prompt(messages: Iterable[generation_pb2.TokenLogprob]) -> list[TokenLogprob]:
    return [_read(message) for message in messages]


def _read(message: generation_pb2.TokenLogprob) -> TokenLogprob:
    alternatives = tuple((other.token_id, other.logprob) for other in message.alternatives)
    return TokenLogprob(message.token_id, message.logprob, alternatives)
