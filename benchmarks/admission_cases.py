"""What admission promises, measured on the server's own code in virtual time; ``benchmarks/admission.py`` prints it."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from admission_world import Ask, Engine, Load, World

from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.request import Priority

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
POLICY = AdmissionPolicy()
MIXED = Load({("a", HIGH): 0.1, ("a", NORMAL): 0.25, ("b", NORMAL): 0.25, ("a", LOW): 0.2, ("b", LOW): 0.2})
_WARM_S, _OVERLOAD_S, _AFTER_S = 30.0, 120.0, 60.0


@dataclass(frozen=True)
class Setup:
    """An engine, the policy before it, and ``scale``: how much longer than usual everything is played.

    Not ``judged`` where an engine cannot keep such targets for want of slots or cache: its figures are only shown.
    """

    engine: Engine
    policy: AdmissionPolicy = POLICY
    scale: float = 1.0
    judged: bool = True

    def span(self, start_s: float, end_s: float) -> tuple[float, float]:
        return start_s * self.scale, end_s * self.scale

    def world(self, attempts: int = 1) -> World:
        """With a longest wait of a minute on an engine of the usual speed."""
        return World(self.engine, self.policy, attempts=attempts, max_wait_s=60.0 * self.scale)


# On the slow one a slot comes free every nine seconds: its targets are what that allows.
SETUPS = {
    "16 slots": Setup(Engine()),
    "64 slots, fast": Setup(
        Engine(slots=64, kv_tokens=262_144, step_s=0.015, stream_s=0.0004, prefill_tokens_per_s=20_000)
    ),
    "16 slots, short of cache": Setup(Engine(kv_tokens=4096), judged=False),
    "4 slots, slow": Setup(
        Engine(slots=4, step_s=0.15, stream_s=0.02, prefill_tokens_per_s=300),
        replace(POLICY, wait_target_s={HIGH: 40.0, NORMAL: 100.0, LOW: 300.0}),
        scale=10.0,
        judged=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number against its bound; ``at_most`` tells which way it is good."""

    name: str
    value: float
    bound: float
    at_most: bool = True
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def overload(setup: Setup, seed: int, times: float = 2.0) -> list[Figure]:
    """Row 14: two minutes at ``times`` the capacity, from their very begin."""
    full, rate = _capacity(setup, seed)
    warm, over = setup.span(0, _WARM_S), setup.span(_WARM_S, _WARM_S + _OVERLOAD_S)
    world = setup.world()
    world.run(MIXED.arrivals({warm: 0.7 * rate}, seed), warm[1])
    before = world.link.tokens
    world.run(MIXED.arrivals({over: times * rate}, seed + 1), over[1])
    made = world.link.tokens - before
    world.run(iter(()), over[1] + 120 * setup.scale)
    during = [ask for ask in world.asks if ask.first_s >= over[0]]
    high = [ask for ask in during if ask.priority == HIGH]
    in_time = sum((wait := ask.wait_s) is not None and wait <= setup.policy.wait_target_s[HIGH] for ask in high)
    refused = [ask for ask in during if ask.refusals]
    at_once = sum(not _refused_late(ask) for ask in refused)
    return [
        *_waits(setup, during),
        Figure("goodput, share of capacity", made / (full * (over[1] - over[0])), 0.95, at_most=False),
        Figure("high: started within target", in_time / len(high), 0.99, at_most=False),
        Figure("refused at once, share of refused", at_once / max(1, len(refused)), 0.8, at_most=False),
    ]


def recovery(setup: Setup, seed: int, attempts: int = 1) -> list[Figure]:
    """Row 15: the load falls from twice the capacity to 0.7 of it. Recovered is when from then on nobody who comes is
    refused or waits longer than the target of its class.

    With ``attempts`` callers come back when they were told to. What they bring is more than the engine can do for
    another minute or two: the lowest class gives way to it and is not looked at then.
    """
    _, rate = _capacity(setup, seed)
    warm, over = setup.span(0, _WARM_S), setup.span(_WARM_S, _WARM_S + _OVERLOAD_S)
    after = setup.span(_WARM_S + _OVERLOAD_S, _WARM_S + _OVERLOAD_S + _AFTER_S)
    world = setup.world(attempts)
    rates = {warm: 0.7 * rate, over: 2 * rate, after: 0.7 * rate}
    world.run(MIXED.arrivals(rates, seed), after[1] + 120 * setup.scale)
    target = setup.policy.wait_target_s
    came = [ask for ask in world.asks if after[0] <= ask.first_s < after[1]]
    held = [ask for ask in came if attempts == 1 or ask.priority > LOW]
    bad = [ask.first_s for ask in held if ask.refusals or (ask.wait_s or 0.0) > target[ask.priority]]
    name = "recovered after" if attempts == 1 else "high and normal recovered after"
    return [Figure(name, max(bad, default=after[0]) - after[0], 10.0 * setup.scale, unit="s")]


def throttled(setup: Setup, seed: int) -> list[Figure]:
    """A device that runs at 0.4 of its speed for a minute, under 0.8 of what it can do at full speed."""
    _, rate = _capacity(setup, seed)
    load, slow = setup.span(0, 180), setup.span(60, 120)
    world = setup.world()
    world.run(MIXED.arrivals({load: 0.8 * rate}, seed), 240 * setup.scale, {slow[0]: 0.4, slow[1]: 1.0})
    bad = [ask.first_s for ask in world.asks if ask.first_s >= slow[1] and ask.refusals]
    back = max(bad, default=slow[1]) - slow[1]
    return [
        *_waits(setup, world.asks),
        Figure("last refusal after full speed is back", back, 10.0 * setup.scale, unit="s"),
    ]


def not_overloaded(setup: Setup, seed: int) -> list[Figure]:
    """Ten minutes at 0.7 of the capacity, against the same without any rule."""
    _, rate = _capacity(setup, seed)
    worlds = setup.world(), replace(setup, policy=_endless(setup.policy)).world()
    for world in worlds:
        world.run(MIXED.arrivals({setup.span(0, 600): 0.7 * rate}, seed), 720 * setup.scale)
    refused = sum(bool(ask.refusals) for ask in worlds[0].asks)
    share = worlds[0].link.tokens / worlds[1].link.tokens
    return [
        Figure("requests refused", refused, 0),
        Figure("tokens made, share of a queue without rules", share, 0.999, at_most=False),
    ]


def fairness(setup: Setup, seed: int) -> list[Figure]:
    """Row 17: three tenants that always have twenty requests waiting, of very different lengths.

    The service gap is how far one gets ahead of another over any span of time in which both wait. The bound of VTC is
    ``max(prompt weight * longest prompt, answer weight * most tokens of answers in flight)``.
    """
    kinds = {"long answers": (50, 400), "long prompts": (1500, 40), "short": (40, 30)}
    engine, policy = replace(setup.engine, kv_tokens=1_000_000), _endless(setup.policy)
    world = World(engine, policy)
    rng, ledger = random.Random(seed), _Ledger(policy)
    had: dict[str, list[float]] = {name: [] for name in kinds}

    def fill(world: World) -> None:
        waiting = dict.fromkeys(kinds, 0)
        for record in world.dispatcher.queue:
            waiting[record.tenant] += 1
        for name, (prompt, answer) in kinds.items():
            for _ in range(20 - waiting[name]):
                ask = Ask(
                    world.clock.now(), name, NORMAL, rng.randint(1, prompt), rng.randint(1, answer), max_tokens=answer
                )
                world.ask(ask)
                ledger.open.append(ask)
        for name, total in ledger.totals(list(kinds)).items():
            had[name].append(total)

    world.after_step = fill
    fill(world)
    world.run(iter(()), 200 * setup.scale)
    bound = max(
        policy.prompt_weight * max(prompt for prompt, _ in kinds.values()),
        policy.answer_weight * engine.slots * max(answer for _, answer in kinds.values()),
    )
    names, worst = list(kinds), 0.0
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            ahead = [mine - its for mine, its in zip(had[name], had[other], strict=True)]
            worst = max(worst, max(ahead) - min(ahead))
    everything = sum(had[name][-1] for name in names)
    smallest = min(had[name][-1] / everything for name in names)
    return [
        Figure("service gap of backlogged tenants, in bounds of VTC", worst / bound, 2.0),
        Figure("smallest share of three", smallest, 0.31, at_most=False),
    ]


def small_caller(setup: Setup, seed: int) -> list[Figure]:
    """A caller that asks for a tenth of the capacity, beside one that asks for 1.9 of it."""
    load = Load({("flood", NORMAL): 0.95, ("small", NORMAL): 0.05})
    _, rate = _capacity(setup, seed)
    world = setup.world()
    world.run(load.arrivals({setup.span(0, 120): 2 * rate}, seed), 240 * setup.scale)
    small = [ask for ask in world.asks if ask.tenant == "small"]
    served = sum(ask.done_s is not None for ask in small)
    return [Figure("requests of the small caller served", served / len(small), 0.99, at_most=False)]


CASES: dict[str, Callable[[Setup, int], list[Figure]]] = {
    "twice the capacity": overload,
    "three times the capacity": lambda setup, seed: overload(setup, seed, 3.0),
    "after an overload": recovery,
    "after an overload, with retries": lambda setup, seed: recovery(setup, seed, attempts=4),
    "throttled": throttled,
    "not overloaded": not_overloaded,
    "fairness": fairness,
    "a small caller beside a flood": small_caller,
}


class _Ledger:
    """Weighted tokens each tenant has had, from what engines really made: nothing of the counters under test."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.open: list[Ask] = []
        self._policy = policy
        self._closed: dict[str, float] = {}

    def totals(self, tenants: Sequence[str]) -> dict[str, float]:
        totals = {tenant: self._closed.get(tenant, 0.0) for tenant in tenants}
        still = []
        for ask in self.open:
            record = ask.record
            assert record is not None
            if record.submitted is None:
                still.append(ask)
                continue
            cost = self._policy.prompt_weight * len(record.prompt_ids) + self._policy.answer_weight * record.delivered
            totals[ask.tenant] += cost
            if record.over:
                self._closed[ask.tenant] = self._closed.get(ask.tenant, 0.0) + cost
            else:
                still.append(ask)
        self.open = still
        return totals


@cache
def _measured(engine: Engine, seed: int) -> float:
    """Tokens per second of answers that the engine makes when there is always more to do."""
    world = World(engine, _endless(POLICY))
    step_s = engine.step_s + engine.slots * engine.stream_s
    turn_s = MIXED.answer * step_s  # in which every slot is taken once
    world.run(MIXED.arrivals({(0, 30 * turn_s): 2 * engine.slots / turn_s}, seed), 5 * turn_s)
    before, start = world.link.tokens, world.clock.now()
    world.run(MIXED.arrivals({(5 * turn_s, 30 * turn_s): 2 * engine.slots / turn_s}, seed), 30 * turn_s)
    return (world.link.tokens - before) / (world.clock.now() - start)


def _capacity(setup: Setup, seed: int) -> tuple[float, float]:
    """Tokens and requests per second."""
    full = _measured(setup.engine, seed)
    return full, full / MIXED.answer


def _endless(policy: AdmissionPolicy) -> AdmissionPolicy:
    return replace(policy, max_waiting=1_000_000, wait_target_s=dict.fromkeys(Priority, 1e9))


def _waits(setup: Setup, asks: Sequence[Ask]) -> list[Figure]:
    figures = []
    for kind, target_s in setup.policy.wait_target_s.items():
        waits = [wait for ask in asks if ask.priority == kind and (wait := ask.wait_s) is not None]
        name = f"{kind.name.lower()}: p99 queue wait of admitted, in targets"
        figures.append(Figure(name, _quantile(waits, 0.99) / target_s, 2.0))
    return figures


def _refused_late(ask: Ask) -> bool:
    return any(answered > asked for asked, answered, _ in ask.refusals)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))] if ordered else 0.0
