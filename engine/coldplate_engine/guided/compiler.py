"""Compiles constraints beside the step loop, within a time limit."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import structlog
from llguidance import LLMatcher, LLTokenizer

from coldplate_engine.guided.grammar import grammar_of, parser_limits
from coldplate_engine.guided.guide import ConstraintError, Guide, reason
from coldplate_engine.messages import Constraint

log = structlog.get_logger()

Done = Callable[[Guide | ConstraintError], None]

TIME_LIMIT_S = 2.0
_THREADS = 2
_MOST_STUCK = 8
_KEPT = 64


@dataclass(slots=True)
class _Job:
    constraint: Constraint
    answer_ids: Sequence[int]
    done: Done
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _told: bool = False

    def tell(self, result: Guide | ConstraintError) -> bool:
        """Report the result unless one has been; returns whether it was the first."""
        with self._lock:
            first, self._told = not self._told, True
        if first:
            self.done(result)
        return first


class ConstraintCompiler:
    """Turns constraints into guides for one tokenizer.

    A compilation cannot be stopped: one that takes longer than the limit is answered with an error and its thread
    is replaced. With too many such threads nothing new is taken. All threads end with the process.
    """

    def __init__(
        self,
        tokenizer_json: str,
        end_of_text: frozenset[int],
        *,
        time_limit_s: float = TIME_LIMIT_S,
        threads: int = _THREADS,
        masks: Executor | None = None,
    ) -> None:
        """Raises ValueError when llguidance cannot use the tokenizer. Takes about a second for a large one.

        ``masks`` computes what may come next; without one there is a pool for it.
        """
        ends = sorted(end_of_text)
        self._tokenizer = LLTokenizer(tokenizer_json, eos_token=ends or None)
        self.end_ids = frozenset(ends or self._tokenizer.eos_tokens)
        self._time_limit_s = time_limit_s
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._stuck = 0
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._masks = masks or ThreadPoolExecutor(_THREADS, thread_name_prefix="masks")
        for _ in range(threads):
            self._add_thread()

    def build(self, constraint: Constraint, answer_ids: Sequence[int], done: Done) -> None:
        """Make a guide that stands behind ``answer_ids``; ``done`` is called once, in another thread."""
        self._jobs.put(_Job(constraint, answer_ids, done))

    def compile(self, constraint: Constraint, answer_ids: Sequence[int]) -> Guide | ConstraintError:
        """As ``build``, here and now, without a limit."""
        try:
            matcher = self._matcher(constraint)
            if answer_ids and not matcher.consume_tokens(list(answer_ids)):
                return ConstraintError(f"the tokens so far do not follow the constraint: {reason(matcher)}")
            return Guide(matcher, self.end_ids, self._masks)
        except ConstraintError as error:
            return error
        except BaseException as error:  # a panic in the library is one stream's failure
            log.exception("constraint failed", kind=constraint.kind)
            return ConstraintError(f"the constraint cannot be compiled: {type(error).__name__}")

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="constraints", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with self._lock:
                if self._stuck >= _MOST_STUCK:
                    job.tell(ConstraintError("too many constraints that take too long: try again later"))
                    continue
            timer = threading.Timer(self._time_limit_s, self._give_up, [job])
            timer.daemon = True
            timer.start()
            result = self.compile(job.constraint, job.answer_ids)
            timer.cancel()
            if not job.tell(result):
                with self._lock:
                    self._stuck -= 1
                return

    def _give_up(self, job: _Job) -> None:
        limit = f"the constraint takes more than {self._time_limit_s:g} s to compile: simplify it"
        with self._lock:
            if not job.tell(ConstraintError(limit)):
                return
            self._stuck += 1
        log.warning("constraint given up", kind=job.constraint.kind, stuck=self._stuck)
        self._add_thread()

    def _matcher(self, constraint: Constraint) -> LLMatcher:
        with self._lock:
            if (known := self._compiled.get(constraint)) is not None:
                self._compiled.move_to_end(constraint)
                return known.deep_copy()
        matcher = LLMatcher(self._tokenizer, grammar_of(constraint), log_level=0, limits=parser_limits())
        if not matcher.is_error():
            mask = matcher.compute_bitmask()  # some that match nothing are only found out here
        if matcher.is_error():
            raise ConstraintError(f"the constraint cannot be used: {reason(matcher)}")
        if not any(mask):
            raise ConstraintError("no text matches the constraint")
        with self._lock:
            self._compiled[constraint] = matcher
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()
