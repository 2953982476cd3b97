"""Records ticks in a thread of its own: no disk, however slow or full, delays a decision."""

import queue
import threading
from dataclasses import dataclass

import structlog

from coldplate_governor.explain.encoder import TickEncoder
from coldplate_governor.explain.ring import RingFile
from coldplate_governor.explain.tick import Tick

_WAITING_TICKS = 512
_CLOSE_S = 2.0
_HEADROOM_BYTES = 1 << 16  # more than the first lines of a file, with a profile and a state, take

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RecordCounts:
    """Since the start, for metrics."""

    recorded: int = 0
    dropped: int = 0
    bytes: int = 0


class Recorder:
    """``tick`` hands over and returns; what cannot be written is dropped and counted, and said once until it works."""

    def __init__(self, ring: RingFile, epoch: int) -> None:
        self.counts = RecordCounts()
        self.handed = 0
        self._ring = ring
        self._encoder = TickEncoder(epoch)
        self._begun = False
        self._largest = 0
        self._lost = 0  # since the last that was written; only the writer's thread changes it
        self._missed = 0  # since the last that was handed over; only the caller's thread changes it
        self._waiting: queue.Queue[tuple[int, Tick] | None] = queue.Queue(_WAITING_TICKS)
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def tick(self, tick: Tick) -> None:
        self.handed += 1
        try:
            self._waiting.put_nowait((self._missed, tick))
        except queue.Full:
            if not self._missed:
                log.warning("ticks are not recorded", file=str(self._ring.path), reason="the disk does not keep up")
            self._missed += 1
            self.counts.dropped += 1
        else:
            self._missed = 0

    def close(self) -> None:
        """Write what waits; gives up after two seconds, for a disk that hangs must not keep a process alive."""
        try:
            self._waiting.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            missed, tick = item
            self._lost += missed
            try:
                self._record(tick)
            except Exception as error:  # the record is an aid: nothing about it may end the governor
                if self._lost == missed:
                    log.warning("ticks are not recorded", file=str(self._ring.path), reason=str(error))
                self.counts.dropped += 1
                self._lost += 1
        self._ring.close()

    def _record(self, tick: Tick) -> None:
        head = b""
        full = not self._ring.has_room(max(self._largest, _HEADROOM_BYTES))
        if full:
            self._ring.rotate()
        if full or not self._begun:
            head = self._encoder.start(continues=self._begun)
        if self._lost:
            head += self._encoder.gap(self._lost)
        data = head + self._encoder.tick(tick)
        try:
            self._ring.append(data)
        except OSError:
            self._begun = False  # what the encoder believes to be in the file is not
            raise
        self._begun = True
        if self._lost:
            log.info("ticks are recorded again", file=str(self._ring.path), lost=self._lost)
        self._lost = 0
        self._largest = max(self._largest, len(data))
        self.counts.recorded += 1
        self.counts.bytes += len(data)
