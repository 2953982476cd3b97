"""How often bfloat16 through the whole service agrees with transformers: ``python benchmarks/agreement.py``.

Greedy answers of the demo model, against transformers in float32 and in bfloat16. An answer agrees up to its first
different token; behind it the two follow different texts. The last line is ``agreement N``: the share of tokens that
agree with float32.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from coldplate_engine.importing.demo_model import ensure_demo_model
from support import reference
from support.client import request, unary
from support.processes import Stack
from support.reference import PROMPTS, common_prefix


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of bfloat16 answers with transformers.")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the prompts (default: all)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (default: 64)")
    args = parser.parse_args()
    prompts = PROMPTS[: args.prompts]
    model = ensure_demo_model(lambda phase, share: None)
    answers = _ours(model, prompts, args.tokens)
    for dtype in ("bfloat16", "float32"):
        expected = reference.generate(model, prompts, args.tokens, dtype)
        agreed = [common_prefix(one, other) for one, other in zip(answers, expected, strict=True)]
        share = sum(agreed) / (len(prompts) * args.tokens)
        whole = sum(count == args.tokens for count in agreed)
        print(f"transformers {dtype}: {share:.3f} of tokens, {whole} of {len(prompts)} answers whole")
    print(f"agreement {share:.3f}")


def _ours(model: Path, prompts: tuple[str, ...], tokens: int) -> list[list[int]]:
    with Stack({"demo": model}, engine_args=["dtype=bfloat16", "kv-cache-tokens=4096", "threads=2"]) as stack:
        wanted = {"max_tokens": tokens, "ignore_end_of_text": True, "token_ids": True, "text": False}
        outcomes = [unary(stack, request(prompt, **wanted), timeout_s=600) for prompt in prompts]
    for outcome in outcomes:
        if not outcome.ok:
            sys.exit(f"{outcome.code.name}: {outcome.message}")
    return [outcome.token_ids for outcome in outcomes]


if __name__ == "__main__":
    main()
