"""Load on one chip: streams that decode together, prompts that are prefilled between, and how long steps take.

    step time     ts(b, k) = t0 + b t1 + k tp          b streams decode, k prompt tokens are prefilled
    tokens        b per step
    power share   (0.8 (t0 + b t1) + 1.0 k tp) / ts    while it computes: decode is bound by memory, prefill is not
    busy share    min(duty, demand)

The batch is a real number: streams end at the rate tokens are decoded and are replaced as fast as prefill allows.
"""

import math
from dataclasses import dataclass

from coldplate_governor.twin.plant import DECODE_INTENSITY

PREFILL_BUDGET_TOKENS = 2048  # of a step that nobody limits: the default of max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class LoadModel:
    """A model on a chip at its rated clock, and what clients ask of it; seconds and tokens. The numbers are estimates
    for a 7B model in 8 bits on one 310P: about 20 tokens/s for one stream, 220 for sixteen."""

    step_s: float = 0.05
    per_stream_s: float = 0.0014
    per_prompt_token_s: float = 0.0006
    prompt_tokens: int = 256
    output_tokens: int = 256
    max_streams: int = 16
    max_waiting: int = 64

    @property
    def streams_per_s(self) -> float:
        """Streams that begin and end each second with a full batch, at full duty and the rated clock."""
        per_step = self.max_streams / self.output_tokens
        decode_s = self.step_s + self.max_streams * self.per_stream_s
        return per_step / (decode_s + per_step * self.prompt_tokens * self.per_prompt_token_s)


class Engine:
    """The engine of one chip in virtual time. ``waiting`` streams are queued; infinity is a load that never ends."""

    def __init__(self, model: LoadModel, waiting: float = math.inf) -> None:
        self._model = model
        self.running = 0.0
        self.waiting = waiting
        self.refused = 0.0
        self.busy_share = 0.0
        self.intensity = DECODE_INTENSITY
        self.step_s = model.step_s
        self.tokens = 0.0
        self.steps = 0.0
        self.prompt_tokens = 0.0

    def arrive(self, streams: float) -> None:
        """Streams come; those for which the queue has no place are refused."""
        self.waiting += streams
        if self.waiting > self._model.max_waiting and not math.isinf(self.waiting):
            self.refused += self.waiting - self._model.max_waiting
            self.waiting = float(self._model.max_waiting)

    def live(
        self, seconds: float, duty: float, clock: float, demand: float, prefill_tokens: int, max_batch: int, admit: bool
    ) -> float:
        """Let ``seconds`` pass; returns the load the chip carried, 0 to 1 of its span at the rated clock.

        ``demand`` is the share of the time there is work at all. Sets ``tokens``, ``steps`` and ``prompt_tokens`` of
        these seconds, ``busy_share``, the ``intensity`` of its power while it computes, and ``step_s``, the time of one
        step at this clock without pauses.
        """
        model = self._model
        places = min(max_batch, model.max_streams) - self.running if admit else 0.0
        running = self.running
        decode_s = model.step_s + running * model.per_stream_s
        wanted = min(places, self.waiting) if places > 0 else 0.0
        busy = min(duty, demand)
        if running < 0.01 and wanted <= 0:
            self.running = self.tokens = self.steps = self.prompt_tokens = self.busy_share = 0.0
            return 0.0
        # Streams that end in these seconds free places; steps are as long as their share of prefill makes them.
        ending = running / model.output_tokens
        budget = float(prefill_tokens)
        steps = busy * clock * seconds / decode_s
        for _ in range(2):
            refill = min(wanted + ending * steps, self.waiting) if admit and places >= 0 else 0.0
            chunk = min(budget, refill * model.prompt_tokens / steps) if steps > 0 else 0.0
            step_s = decode_s + chunk * model.per_prompt_token_s
            steps = busy * clock * seconds / step_s
        started = steps * chunk / model.prompt_tokens
        self.waiting -= min(started, self.waiting) if not math.isinf(self.waiting) else 0.0
        self.running = max(0.0, running + started - steps * ending)
        self.steps, self.tokens, self.prompt_tokens = steps, steps * running, steps * chunk
        self.busy_share, self.step_s = busy, step_s / clock
        self.intensity = (DECODE_INTENSITY * decode_s + chunk * model.per_prompt_token_s) / step_s
        return busy * self.intensity
