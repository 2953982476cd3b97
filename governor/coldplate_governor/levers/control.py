"""Frequency levers as the loop sees them: a wish each second, a lever that is there or not, and nothing to wait for.

A lever is there once its process has proven it. One that fails twice in a row, by a setting that does not take effect
or by hanging, is dropped for good and said so once; the ladder goes on without it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from coldplate.clock import Clock
from coldplate_governor.levers.base import Level, nearest
from coldplate_governor.levers.process import LeverHandle
from coldplate_governor.levers.saved import leftovers

PROOF_S = 60.0  # how long proving a lever may take: several runs of a slow tool
ANSWER_S = 30.0
_RETRY_S = 2.0
_SAY_AGAIN_S = 60.0  # another program may have set the clock meanwhile
_DROP_AFTER = 2
_UNKILLABLE_S = 5.0

log = structlog.get_logger(__name__)


class FrequencyControl:
    """The frequency lever of one device."""

    def __init__(
        self,
        device: str,
        lever: str,
        state: Path,
        clock: Clock,
        restore_only: bool = False,
        make_handle: Callable[[str, str, Path, bool], LeverHandle] = LeverHandle,
    ) -> None:
        self.device = device
        self.lever = lever
        self.dropped: str | None = None
        self.in_force: float | None = None
        self.levels: tuple[Level, ...] = ()
        self._state = state
        self._clock = clock
        self._restore_only = restore_only
        self._make_handle = make_handle
        self._handle: LeverHandle | None = None
        self._ready = False
        self._wish: Level | None = None
        self._set: Level | None = None  # what the process has confirmed; None is as it was before
        self._unsure = False  # after a failure nobody knows what is set
        self._asked: tuple[int, Level | None, float] | None = None  # number, what, since when
        self._since_s = 0.0
        self._killed_s: float | None = None
        self._end_reason: str | None = None
        self._next_s = float("-inf")
        self._failures = 0
        self._numbers = 0

    @property
    def available(self) -> bool:
        """Whether the clock can be set now."""
        return self._ready and self.dropped is None

    def supervise(self) -> None:
        """Take what the process has said, and start, kill or bury it as is due. Never blocks."""
        now = self._clock.now()
        if self._handle is None:
            if self.dropped is None and now >= self._next_s:
                self._start(now)
            return
        for message in self._handle.take():
            self._hear(message, now)
        if self._handle.ended() is not None:
            self._bury(self._handle, now)
        else:
            self._watch(self._handle, now)

    def want(self, share: float | None) -> None:
        """The wanted share of the rated clock, None for no wish. Asked for when it means another level than now."""
        if not self.available:
            return
        now = self._clock.now()
        if share is None or not 0 < share < self.levels[0].share:
            self._wish = None
        else:
            chosen = nearest(self.levels, share, self._wish or self.levels[0])
            self._wish = None if chosen == self.levels[0] else chosen
        again = self._set is not None and now - self._since_s >= _SAY_AGAIN_S
        due = again or self._unsure or self._wish != self._set
        if due and self._asked is None and now >= self._next_s:
            self._ask(now)

    def end(self) -> None:
        """Have the clock put back; ``finish`` waits for it."""
        if self._handle is not None:
            self._handle.end()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the process, at most ``timeout_s``; then it is killed, and the next start puts back."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if not handle.wait(timeout_s):
            handle.kill()
            handle.wait(0.5)
            log.error("the clock could not be put back in time: the next start does", device=self.device)
        for message in handle.take():
            self._hear(message, self._clock.now())

    def _start(self, now: float) -> None:
        handle = self._make_handle(self.device, self.lever, self._state, self._restore_only)
        try:
            handle.start()
        except OSError as error:
            self._failed(now, f"cannot be started: {error}")
            return
        self._handle, self._since_s, self._killed_s, self._end_reason = handle, now, None, None

    def _ask(self, now: float) -> None:
        assert self._handle is not None
        self._numbers += 1
        self._asked = (self._numbers, self._wish, now)
        self._handle.send(self._numbers, self._wish.share if self._wish else None)  # one that is gone is buried next

    def _hear(self, message: dict[str, Any], now: float) -> None:
        problem = message.get("problem")
        match message.get("event"):
            case "ready":
                self.levels = tuple(Level(float(share), str(name)) for share, name in message["levels"])
                self.in_force = float(message["in_force"])
                self._ready, self._set = True, None
                slowest = self.levels[-1].name
                log.info("frequency lever ready", device=self.device, lever=self.lever, slowest=slowest)
            case "unusable":
                self._end_reason = str(problem)  # it ends by itself now
            case "restored" if problem is not None:
                log.error("the clock is not put back", device=self.device, lever=self.lever, reason=problem)
            case "restored" if self._restore_only:
                log.info("clock put back that an earlier governor had set", device=self.device, lever=self.lever)
            case "set" if self._asked is not None and message.get("id") == self._asked[0]:
                wanted, self._asked = self._asked[1], None
                if problem is not None:
                    self._unsure = True
                    self._failed(now, str(problem))
                    return
                self._failures, self._unsure = 0, False
                if wanted != self._set:
                    log.info("clock", device=self.device, to=message.get("level"), share=message.get("in_force"))
                self._set, self._since_s, self.in_force = wanted, now, float(message["in_force"])

    def _watch(self, handle: LeverHandle, now: float) -> None:
        if self._killed_s is not None:
            if now - self._killed_s > _UNKILLABLE_S and self.dropped is None:
                self._drop(f"its process {handle.pid} cannot be killed")
            return
        waits_since = self._asked[2] if self._asked else None if self._ready else self._since_s
        patience = ANSWER_S if self._asked else PROOF_S
        if waits_since is not None and now - waits_since > patience:
            handle.kill()
            self._killed_s, self._end_reason = now, "its process hung and was killed"

    def _bury(self, handle: LeverHandle, now: float) -> None:
        handle.end()
        self._handle = None
        self._ready, self._unsure, self._asked, self._set = False, False, None, None
        if self._restore_only:
            self.dropped = "nothing more to do"
            if self._end_reason is not None:
                log.error("the clock is not put back", device=self.device, lever=self.lever, reason=self._end_reason)
        elif self.dropped is None:
            self._failed(now, self._end_reason or "its process ended")

    def _failed(self, now: float, reason: str) -> None:
        self._failures += 1
        self._next_s = now + _RETRY_S
        if self._failures >= _DROP_AFTER:
            self._drop(reason)
        else:
            log.info("frequency lever failed, trying once more", device=self.device, lever=self.lever, reason=reason)

    def _drop(self, reason: str) -> None:
        if self.dropped is not None:
            return
        self.dropped, self._ready, self.in_force, self._asked = reason, False, None, None
        log.warning(
            "frequency lever dropped: the clock is left alone", device=self.device, lever=self.lever, reason=reason
        )
        self.end()


def end_all(controls: Sequence[FrequencyControl], clock: Clock, timeout_s: float) -> None:
    """Have every clock put back, all at once; waits at most ``timeout_s`` for all together."""
    for control in controls:
        control.end()
    give_up_s = clock.now() + timeout_s
    for control in controls:
        control.finish(give_up_s - clock.now())


def restorations(folder: Path, levers: Sequence[tuple[str, str]], clock: Clock) -> list[FrequencyControl]:
    """For what an earlier governor left set and none of ``levers`` (device and spec) will put back by itself."""
    taken = {device for device, _ in levers}
    return [
        FrequencyControl(saved.device, saved.lever, folder, clock, restore_only=True)
        for saved in leftovers(folder)
        if saved.device not in taken
    ]
