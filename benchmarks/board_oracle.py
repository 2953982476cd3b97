"""What perfect knowledge of the board could do at a temperature limit, in virtual time."""

from coldplate_governor.twin.plant import Card, CardModel, FirmwareCliff, step_intensity

_DT_S = 0.1


def oracle_seconds(
    model: CardModel,
    ambient_celsius: float,
    start_celsius: float,
    limit_celsius: float,
    seconds: float,
    busy_share: float,
    streams: int,
) -> float:
    """Seconds of full speed that an oracle gets out of ``seconds``.

    Full speed until the junction is at the limit, then the power that keeps it there. ``busy_share`` of the time the
    chip computes at full speed.
    """
    card = Card(model, ambient_celsius, start_celsius, FirmwareCliff(steps=(), power_off_celsius=1000.0))
    full = busy_share * step_intensity(streams)
    chip, done_s = card.chips[0], 0.0
    for _ in range(round(seconds / _DT_S)):
        share = min(1.0, max(0.0, _holding_load(card, limit_celsius) / full))
        if chip.junction_celsius < limit_celsius - 0.05:
            share = 1.0
        card.step(_DT_S, [full * share] + [0.0] * (model.chips - 1))
        done_s += share * _DT_S
    return done_s


def _holding_load(card: Card, celsius: float) -> float:
    """The load whose power leaves a junction at ``celsius`` where it is."""
    model = card.model
    watts = (celsius - card.sink_celsius) / model.junction_resistance
    watts /= 1 + model.leakage_per_celsius * max(0.0, celsius - model.leakage_from_celsius)
    return (watts - model.idle_watts) / (model.max_watts - model.idle_watts)
