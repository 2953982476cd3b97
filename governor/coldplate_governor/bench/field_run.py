"""Runs of the field report's board: as reported, with the fan, and governed at 82 degC, on the same load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from coldplate.profile import load_profile
from coldplate_governor.bench.field_clients import Admitted, Waves
from coldplate_governor.bench.field_fit import AIR_CELSIUS, HALVED_CELSIUS, FieldModel
from coldplate_governor.bench.governed import Governed
from coldplate_governor.bench.metrics import percentile
from coldplate_governor.twin.control import Command, Controller, Sight
from coldplate_governor.twin.plant import Card, FirmwareCliff
from coldplate_governor.twin.sensor import SensorModel, TemperatureSensor

GOVERNED_CELSIUS = 82.0
_SECONDS, _FROM_S = 7200, 3600  # figures are of the second hour, when the board has settled
_STEP_S = 0.25
_NO_CLIFF = FirmwareCliff(steps=(), power_off_celsius=1000.0)


@dataclass(frozen=True, slots=True)
class FieldOutcome:
    """One run: figures of its second hour, events of both. ``failed_share`` is of requests that were let in."""

    streams: int
    tokens_per_s: float
    p99_s: float
    celsius: float
    peak_celsius: float
    clock: float
    halvings: int
    failed_share: float
    refused: int
    finished: int


class Nobody:
    """No governor."""

    def __init__(self) -> None:
        self._commands = [Command()]

    def tick(self, now_s: float, sights: Sequence[Sight]) -> Sequence[Command]:
        return self._commands


class HoldsLimit:
    """The oracle for this board: the duty that brings the true junction to the limit within the second."""

    def __init__(self, card: Card, limit: float, load: "_Load") -> None:
        self._card, self._limit, self._load = card, limit, load
        self._commands = [Command()]

    def tick(self, now_s: float, sights: Sequence[Sight]) -> Sequence[Command]:
        model, junction = self._card.model, self._card.chips[0].junction_celsius
        heat = (self._limit - self._card.sink_celsius) / model.junction_resistance
        heat += model.junction_capacity * (self._limit - junction)
        full = (model.max_watts - model.idle_watts) * self._load.share * self._load.clock
        self._commands[0].duty = min(1.0, max(1e-3, (heat - model.idle_watts) / full)) if full > 0 else 1.0
        return self._commands


@dataclass(slots=True)
class _Load:
    """What the oracle may know of the present second: share of the card's full load, and the clock."""

    share: float = 0.0
    clock: float = 1.0


def reported(model: FieldModel, streams: int, sink_share: float = 1.0) -> FieldOutcome:
    """The report's own run: nobody governs, all clients at once. ``sink_share`` below 1 is a fan."""
    clients = Waves(model, streams, f"field report {streams}")
    return _run(model, streams, clients, Nobody(), Card(model.card(streams, sink_share), AIR_CELSIUS, cliff=_NO_CLIFF))


def governed(model: FieldModel, streams: int, seed: int = 0) -> FieldOutcome:
    """Our law at 82 degC on the same board, with a server that admits what it has memory for."""
    profile = load_profile("310b")
    profile = replace(profile, temperature=replace(profile.temperature, target_celsius=GOVERNED_CELSIUS))
    card = Card(model.card(streams), AIR_CELSIUS, cliff=_NO_CLIFF)
    return _run(model, streams, _admitted(model, streams, card, seed), Governed(profile, 1), card)


def oracle(model: FieldModel, streams: int, seed: int = 0) -> FieldOutcome:
    """Perfect knowledge at the same limit, on the same load and admission."""
    card, load = Card(model.card(streams), AIR_CELSIUS, cliff=_NO_CLIFF), _Load()
    clients = _admitted(model, streams, card, seed)
    return _run(model, streams, clients, HoldsLimit(card, GOVERNED_CELSIUS, load), card, load)


def _admitted(model: FieldModel, streams: int, card: Card, seed: int) -> Admitted:
    def pace() -> float:
        return model.full_tokens_per_s * card.chips[0].clock

    return Admitted(model, streams, f"field report governed {seed}", pace)


def _run(
    model: FieldModel,
    streams: int,
    clients: Waves | Admitted,
    controller: Controller,
    card: Card,
    load: _Load | None = None,
) -> FieldOutcome:
    chip, sight = card.chips[0], Sight()
    sensor = TemperatureSensor(SensorModel(), Random(f"field report sensor {streams}"))
    tokens = clocks = heat = 0.0
    peak, halvings, was_hot = 0.0, 0, False
    for second in range(_SECONDS):
        now = float(second)
        clients.send(now)
        chip.work_level = model.clock(chip.junction_celsius)
        share = len(clients.running) / streams
        if load is not None:
            load.share, load.clock = share, chip.work_level
        sight.at_s, sight.temperature_celsius = now, sensor.read(now, chip.junction_celsius)
        sight.running, sight.waiting = len(clients.running), getattr(clients, "waiting", 0)
        command = controller.tick(now, [sight])[0]
        duty = command.duty if command.admit or clients.running else 0.0
        speed = model.full_tokens_per_s * chip.work_level * duty
        for request in list(clients.running):
            request.tokens += speed
            if request.tokens >= model.request_tokens:
                clients.finish(request, now + 1 - (request.tokens - model.request_tokens) / speed)
        card.step(1.0, [share * duty], _STEP_S)
        sight.decode_tokens_per_s = share * streams * speed
        sight.busy_share, sight.utilization_percent = duty * (share > 0), 100 * duty * (share > 0)
        sight.card_watts = card.watts
        hot = round(chip.junction_celsius) >= HALVED_CELSIUS
        halvings += hot and not was_hot
        was_hot, peak = hot, max(peak, chip.junction_celsius)
        if second >= _FROM_S:
            tokens += share * streams * speed
            clocks += chip.work_level
            heat += chip.junction_celsius
    seconds, tally = _SECONDS - _FROM_S, clients.tally
    late = sorted(latency for ended, latency in tally.done if ended >= _FROM_S)
    begun = len(tally.done) + tally.failed
    return FieldOutcome(
        streams=streams,
        tokens_per_s=tokens / seconds,
        p99_s=percentile(late, 99) if late else math.inf,
        celsius=heat / seconds,
        peak_celsius=peak,
        clock=clocks / seconds,
        halvings=halvings,
        failed_share=tally.failed / begun if begun else 0.0,
        refused=tally.refused,
        finished=len(tally.done),
    )
