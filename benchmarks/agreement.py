"""How often bfloat16 through the whole service agrees with transformers: ``python benchmarks/agreement.py``.

Two measures over greedy answers of the demo model:

- next token: behind each beginning of transformers' float32 answer, whether the service goes on as that answer does;
- whole answer: how many tokens are equal before the first that is not, behind which the two follow different texts. For
  comparison also that of transformers' own bfloat16.

The last line is ``agreement N``, the share of next tokens.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from coldplate.v1 import token_pb2, token_pb2_grpc
from coldplate_engine.importing.demo_model import ensure_demo_model
from support import reference
from support.client import request, unary
from support.processes import Stack
from support.reference import PROMPTS, common_prefix

Answers = list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of bfloat16 answers with transformers in float32.")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the prompts (default: all)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (default: 64)")
    args = parser.parse_args()
    prompts = PROMPTS[: args.prompts]
    model = ensure_demo_model(lambda phase, share: None)
    exact = reference.generate(model, prompts, args.tokens, "float32")
    other = reference.generate(model, prompts, args.tokens, "bfloat16")
    with Stack({"demo": model}, engine_args=["dtype=bfloat16", "kv-cache-tokens=16384", "threads=2"]) as stack:
        starts = [_token_ids(stack, prompt) for prompt in prompts]
        whole = [_go_on(stack, start, args.tokens) for start in starts]
        begun = [
            ([*start, *answer[:at]], answer[at])
            for start, answer in zip(starts, exact, strict=True)
            for at in range(args.tokens)
        ]
        with ThreadPoolExecutor(8) as pool:
            agreed = list(pool.map(lambda pair: _go_on(stack, pair[0], 1) == [pair[1]], begun))
    print(f"whole answers, this service in bfloat16: {_equal(whole, exact):.3f} of tokens")
    print(f"whole answers, transformers in bfloat16: {_equal(other, exact):.3f} of tokens")
    print(f"agreement {sum(agreed) / len(agreed):.3f}")


def _token_ids(stack: Stack, prompt: str) -> list[int]:
    stub = token_pb2_grpc.TokenServiceStub(stack.channel)
    return list(stub.Tokenize(token_pb2.TokenizeRequest(text=prompt), timeout=30).token_ids)


def _go_on(stack: Stack, start: list[int], tokens: int) -> list[int]:
    wanted = request(start, max_tokens=tokens, ignore_end_of_text=True, token_ids=True, text=False)
    outcome = unary(stack, wanted, timeout_s=600)
    if not outcome.ok:
        sys.exit(f"{outcome.code.name}: {outcome.message}")
    return outcome.token_ids


def _equal(answers: Answers, expected: Answers) -> float:
    """The share of tokens that are equal before the first of each answer that is not."""
    pairs = zip(answers, expected, strict=True)
    return sum(common_prefix(one, other) for one, other in pairs) / sum(map(len, expected))


if __name__ == "__main__":
    main()
