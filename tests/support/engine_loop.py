"""An engine loop over the fake runner, driven by a scripted inbox and a held clock."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coldplate.clock import ManualClock
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.intake import BuildsGuides
from coldplate_engine.loop import EngineLoop
from coldplate_engine.messages import Command, Connect, Finished, Shutdown, StepOutput, Submission, TokenLogprob
from coldplate_engine.offload import HostBlocks, HostCache
from coldplate_engine.scheduler import Scheduler
from coldplate_engine.speculation import Speculator
from coldplate_engine.step_executor import StepExecutor
from coldplate_engine.step_sampler import StepSampler
from support.fake_runner import FakeDevice, FakeRunner


def submission(stream: int, prompt: Iterable[int] = (1, 2, 3), max_tokens: int = 4, **options: object) -> Submission:
    return Submission(stream, tuple(prompt), max_tokens, **options)  # type: ignore[arg-type]


_LONGEST_PAUSE = 50  # polls without a command before a script counts as over


@dataclass
class ScriptedInbox:
    """Hands out ``script(polls so far)`` at each poll; waiting moves the clock.

    A loop that would wait for ever gets the next commands of the script, and is shut down when none come.
    """

    clock: ManualClock
    script: Callable[[int], list[Command]]
    polls: int = 0
    waits: list[float] = field(default_factory=list)
    own: list[Command] = field(default_factory=list)

    def put(self, command: Command) -> None:
        self.own.append(command)

    def take(self, timeout_s: float | None) -> list[Command]:
        if self.own:
            commands, self.own = self.own, []
            return commands
        for _ in range(1 if timeout_s is not None else _LONGEST_PAUSE):
            commands = self.script(self.polls)
            self.polls += 1
            if commands:
                return commands
        if timeout_s is None:
            return [Shutdown(now=True)]
        if timeout_s:
            self.waits.append(timeout_s)
            self.clock.advance(timeout_s)
        return []


class LoopRig:
    """``run`` plays commands by poll number and returns the exit code; what came out is in the fields."""

    def __init__(
        self,
        *,
        runner: FakeRunner | None = None,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 64,
        step_s: float = 0.0,
        prefix_caching: bool = True,
        host_blocks: int = 0,
        end_of_text: frozenset[int] = frozenset(),
        constraints: BuildsGuides | None = None,
        speculator: Speculator | None = None,
        max_rows: int | None = None,
    ) -> None:
        self.end_of_text, self.constraints, self.speculator = end_of_text, constraints, speculator
        self.clock = ManualClock()
        self.runner = runner or FakeRunner()
        self.runner.allocate_kv(num_blocks, block_size)
        self.device = FakeDevice(self.runner, self.clock, step_s)
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(
            self.pool,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            prefix_caching=prefix_caching,
            host=HostCache(host_blocks) if host_blocks else None,
        )
        host = HostBlocks(self.runner, host_blocks, block_size, pinned=False) if host_blocks else None
        self.sampler = StepSampler()
        self.executor = StepExecutor(self.device, self.runner, self.sampler, max_num_batched_tokens, host, max_rows)
        self.outputs: list[StepOutput] = []
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}

    def run(self, *script: list[Command]) -> int:
        return self.run_with(lambda poll: script[poll] if poll < len(script) else [])

    def run_with(self, script: Callable[[int], list[Command]]) -> int:
        first: list[Command] = [Connect(self._emit)]
        self.inbox = ScriptedInbox(self.clock, lambda poll: (first if poll == 0 else []) + script(poll))
        loop = EngineLoop(
            self.scheduler,
            self.executor,
            self.device,
            self.runner.facts.vocabulary_size,
            self.inbox,
            self.clock,
            sampler=self.sampler,
            end_of_text=self.end_of_text,
            constraints=self.constraints,
            speculator=self.speculator,
        )
        return loop.run()

    def logprobs_of(self, stream: int) -> list[TokenLogprob]:
        """Of the stream's new tokens, in order."""
        return [item for o in self.outputs for index, item in o.logprobs if o.streams[index] == stream]

    def _emit(self, output: StepOutput) -> None:
        self.outputs.append(output)
        for stream, token in zip(output.streams, output.token_ids, strict=True):
            self.tokens.setdefault(stream, []).append(token)
        for item in output.finished:
            assert item.stream not in self.finished, "finished twice"
            self.finished[item.stream] = item
