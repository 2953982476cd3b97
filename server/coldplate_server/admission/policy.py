"""What admission is told to hold: one value for the whole server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coldplate_server.journal import StreamRecord
from coldplate_server.request import Priority

LATE = 2.0  # times the target: longer than that nobody is let wait


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """``wait_target_s`` is the queue wait that admission steers for in each class; nobody is let wait twice as long.

    ``floor_requests`` of a class may always wait, whatever it costs them: where one engine slot comes free in a minute,
    a target of seconds would leave it idle until somebody asks again. ``probe_tokens`` is by how much a limit grows
    while its class keeps its target. A tenant is charged ``prompt_weight`` for each prompt token computed and
    ``answer_weight`` for each token made (1 and 2: Sheng et al., Fairness in Serving Large Language Models, 2024).
    ``max_absent_tenants`` without a stream are remembered in each lane.
    """

    max_waiting: int = 256
    wait_target_s: Mapping[Priority, float] = field(
        default_factory=lambda: {Priority.HIGH: 2.0, Priority.NORMAL: 10.0, Priority.LOW: 30.0}
    )
    floor_requests: int = 1
    probe_tokens: int = 512
    prompt_weight: float = 1.0
    answer_weight: float = 2.0
    max_absent_tenants: int = 1024

    def prompt_cost(self, record: StreamRecord) -> float:
        """What is charged when a stream starts: its prompt, and what it has of an earlier call."""
        return self.prompt_weight * (len(record.prompt_ids) + len(record.emitted))
