"""The process that compiles constraints for the server, one after another, and says what is wrong with each.

A process of its own because the compiler can neither be interrupted nor be kept from ending the process it runs in:
``{"type": "integer", "multipleOf": 999983}`` compiles for minutes, and a ``minItems`` of 10^9 ends in an allocation
that fails. Here both end this process alone.
"""

import json
import math
import resource
import signal
import sys
import time
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from coldplate.parent import end_with_parent

READY = b"ready\n"
_END = 256
_MEMORY_BYTES = 256 * 2**20
_CPU_S = 2
_MAX_PROBLEM_CHARACTERS = 300
_LIMITS = LLParserLimits(max_grammar_size=20_000, verbose_errors=False)


class _Bytes:
    """A vocabulary of bytes and an end: what a constraint allows is the same as with any other."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Checker:
    def __init__(self) -> None:
        self._vocabulary = LLTokenizer(TokenizerWrapper(_Bytes()))

    def problem_of(self, kind: str, texts: list[str]) -> str | None:
        """What is wrong with a constraint, in a line; None when something can match it."""
        if kind == "json_schema":
            try:
                grammar = LLMatcher.grammar_from_json_schema(texts[0])
                json.loads(texts[0])
            except (ValueError, RecursionError) as error:
                return _line(f"is not JSON: {error}")
        elif kind == "regex":
            grammar = LLMatcher.grammar_from_regex(texts[0])
        elif kind == "choices":
            grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in texts))
        else:
            grammar = LLMatcher.grammar_from_lark(texts[0])
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some contradictions show here only
        return _line(matcher.get_error()) if matcher.is_error() else None


def _line(error: str) -> str:
    text = " ".join(error.split())
    if text.startswith("NoExtension"):
        return "nothing can match it"
    if text.startswith("panic"):
        return "is more than the grammar compiler can take"
    return text if len(text) <= _MAX_PROBLEM_CHARACTERS else text[:_MAX_PROBLEM_CHARACTERS] + "…"


def main() -> None:
    """Read constraints from standard input, one JSON line each, and answer each with one."""
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    checker = Checker()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + _CPU_S, resource.RLIM_INFINITY))
        problem = checker.problem_of(**json.loads(line))
        sys.stdout.buffer.write(json.dumps(problem).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
