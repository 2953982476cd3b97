"""Tenants are charged as their tokens are served, not for what they ask."""

from dataclasses import dataclass

from coldplate_server.admission.lane import Lane, Waiting
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.journal import StreamRecord


@dataclass(slots=True)
class _Running:
    record: StreamRecord
    lane: Lane
    tokens: int
    counted: int
    prompt_settled: bool = False


class Accounts:
    """The streams that engines have."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._running: dict[int, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, lane: Lane, item: Waiting) -> None:
        """A stream went to an engine. Its prompt counts at once, so that the next slot goes by the new counters."""
        record = item.record
        lane.share.charge(record.tenant, self._policy.prompt_cost(record))
        lane.share.stop_waiting(record.tenant)
        lane.running_tokens += item.tokens
        self._running[record.number] = _Running(record, lane, item.tokens, len(record.emitted))

    def settle(self) -> None:
        """Charge what was made since the last time; let go of streams that are over."""
        for running in list(self._running.values()):
            if running.record.over:
                self.end(running.record)
            else:
                self._settle(running)

    def end(self, record: StreamRecord) -> None:
        """A stream is over or given up. Harmless for one that never started."""
        running = self._running.pop(record.number, None)
        if running is not None:
            self._settle(running)
            running.lane.running_tokens -= running.tokens
            running.lane.answered(record.delivered)
            running.lane.share.leave(record.tenant)

    def _settle(self, running: _Running) -> None:
        record, share = running.record, running.lane.share
        made = len(record.emitted) - running.counted
        if made > 0:
            share.charge(record.tenant, self._policy.answer_weight * made)
            running.lane.drain.rate.made += made
            running.counted += made
        if record.admitted and not running.prompt_settled:
            running.prompt_settled = True
            if record.cached_tokens:
                share.charge(record.tenant, -self._policy.prompt_weight * record.cached_tokens)
