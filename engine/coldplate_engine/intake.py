"""From a submission to a stream that waits for its turn, or the reason why it cannot."""

from collections.abc import Callable, Sequence
from typing import Protocol

from coldplate_engine.guided.guide import ConstraintError, Guide
from coldplate_engine.messages import Constraint, EngineError, Finished, GuideReady, StopCause, Submission
from coldplate_engine.scheduler import Scheduler
from coldplate_engine.stream import Stream
from coldplate_engine.submission_check import why_unusable


class BuildsGuides(Protocol):
    """Compiles constraints; ``done`` is called once, from any thread."""

    def build(
        self, constraint: Constraint, answer_ids: Sequence[int], done: Callable[[Guide | ConstraintError], None]
    ) -> None: ...


class Intake:
    """Streams go to the scheduler at once; one with a constraint is not ``ready`` until its guide is."""

    def __init__(
        self,
        scheduler: Scheduler,
        vocabulary_size: int,
        end_of_text: frozenset[int],
        constraints: BuildsGuides | None,
        announce: Callable[[GuideReady], None],
    ) -> None:
        self._scheduler = scheduler
        self._vocabulary_size = vocabulary_size
        self._end_of_text = end_of_text
        self._constraints = constraints
        self._announce = announce
        self._compiling: dict[int, Stream] = {}

    def take(self, submission: Submission, now: float) -> Finished | None:
        """Returns the end of a stream that cannot run or has nothing left to do."""
        max_model_len = self._scheduler.max_model_len
        if (reason := why_unusable(submission, self._vocabulary_size, max_model_len)) is not None:
            return _failed(submission, EngineError.UNSATISFIABLE, reason)
        if submission.constraint is not None and self._constraints is None:
            return _failed(submission, EngineError.UNSATISFIABLE, "this worker takes no constraints")
        stream = Stream.start(submission, max_model_len, now, self._end_of_text)
        if (ended := self._scheduler.add(stream)) is not None:
            return ended
        if submission.constraint is not None and self._constraints is not None and stream.rules is not None:
            self._compiling[stream.id] = stream
            self._constraints.build(
                submission.constraint,
                stream.rules.answer_ids,
                lambda guide: self._announce(GuideReady(submission, guide)),
            )
        return None

    def guide_ready(self, ready: GuideReady) -> Finished | None:
        """Let the stream run, if it is still there; returns its end when the constraint cannot be used."""
        stream = self._compiling.get(ready.submission.stream)
        if stream is None or stream.submission is not ready.submission:
            return None
        del self._compiling[stream.id]
        if not self._scheduler.has(stream.id) or stream.rules is None:
            return None
        if isinstance(ready.guide, ConstraintError):
            return _failed(stream.submission, EngineError.BAD_CONSTRAINT, str(ready.guide))
        stream.rules.guide = ready.guide
        stream.ready = True
        if stream.rules.answering and ready.guide.complete and stream.rules.answer_ids:
            return stream.rules.end_of_grammar()
        stream.rules.prepare(())
        return None

    def forget(self) -> None:
        """All streams are gone."""
        self._compiling.clear()


def _failed(submission: Submission, error: EngineError, text: str) -> Finished:
    return Finished(submission.stream, StopCause.ERROR, error=error, error_text=text)
