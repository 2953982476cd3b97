"""The field report's scenario: what the twin says against what was reported, and the governed run with its verdicts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from coldplate_governor.bench import field_fit, field_run
from coldplate_governor.bench.field_fit import FAILED_AT_8, FAN_ROW, FAN_SINK_SHARE, HALVED_SHARE, ROWS, FieldModel
from coldplate_governor.bench.field_run import GOVERNED_CELSIUS, FieldOutcome
from coldplate_governor.bench.table import Row, Verdict

TOLERANCE = 0.15
FAN_P99_S = FAN_ROW.p99_s
_AS_REPORTED = "4 streams, fan to 72 °C"
_FAN_SHARES = (0.3, 0.35, 0.45, 0.5)


@dataclass(slots=True)
class FieldResults:
    """The fitted model, the runs by name, and the verdicts."""

    model: FieldModel
    runs: dict[str, FieldOutcome] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_field_report(seed: int, progress: Callable[[float, str], None]) -> FieldResults:
    """Fit, predict the fan row, run governed and oracle, and judge."""
    progress(0.0, "fitting the field report")
    results = FieldResults(field_fit.fit())
    model, runs = results.model, results.runs
    jobs: list[tuple[str, Callable[[], FieldOutcome]]] = [
        (f"{n} streams", partial(field_run.reported, model, n)) for n in (1, 2, 4, 8)
    ]
    jobs.append(("4 streams, fan", partial(field_run.reported, model, 4, FAN_SINK_SHARE)))
    jobs += [(f"4 streams, fan {share:g}", partial(field_run.reported, model, 4, share)) for share in _FAN_SHARES]
    strength = model.fan_for(FAN_ROW.streams, FAN_ROW.celsius)
    jobs.append((_AS_REPORTED, partial(field_run.reported, model, FAN_ROW.streams, strength)))
    for n in (4, 8):
        jobs.append((f"{n} streams, governed", partial(field_run.governed, model, n, seed)))
        jobs.append((f"{n} streams, oracle", partial(field_run.oracle, model, n, seed)))
    for index, (name, job) in enumerate(jobs):
        progress(index / len(jobs), f"field report: {name}")
        runs[name] = job()
    results.rows = _reproduced(runs) + _predicted(runs) + _governed(results)
    results.notes = _notes(results)
    return results


def _reproduced(runs: dict[str, FieldOutcome]) -> list[Row]:
    rows: list[Row] = []
    for told in ROWS:
        run, name = runs[f"{told.streams} streams"], "1 stream" if told.streams == 1 else f"{told.streams} streams"
        assert told.tokens_per_s is not None
        rows += [
            _near("fitted", f"{name}: tokens/s", told.tokens_per_s, run.tokens_per_s),
            _near("fitted", f"{name}: P99, s", told.p99_s, run.p99_s),
            _near("fitted", f"{name}: °C", told.celsius, run.celsius),
        ]
    failed = 100 * runs["8 streams"].failed_share
    rows.append(_near("fitted", "8 streams: requests that fail, %", 100 * FAILED_AT_8, failed))
    return rows


def _predicted(runs: dict[str, FieldOutcome]) -> list[Row]:
    fan, one, four = runs["4 streams, fan"], runs["1 streams"], runs["4 streams"]
    small = max(runs[f"{n} streams"].failed_share for n in (1, 2, 4))
    return [
        _near("predicted", "4 streams, fan to 72 °C: P99, s", FAN_ROW.p99_s, runs[_AS_REPORTED].p99_s),
        _near("predicted", "4 streams, assumed fan: P99, s", FAN_ROW.p99_s, fan.p99_s),
        _near("predicted", "4 streams, assumed fan: °C", FAN_ROW.celsius, fan.celsius),
        _near("predicted", "clock at 4 streams to that at 1 (reported: halved)", HALVED_SHARE, four.clock / one.clock),
        _row("predicted", "1, 2 and 4 streams: requests that fail", "0", f"{100 * small:.1f} %", small == 0),
    ]


def _governed(results: FieldResults) -> list[Row]:
    runs, model = results.runs, results.model
    four, eight = runs["4 streams, governed"], runs["8 streams, governed"]
    # Little's law: with four requests always open their mean latency is 4 n / X, and P99 is no less than the mean.
    needed, possible = 4 * model.request_tokens / FAN_P99_S, runs["4 streams, oracle"].tokens_per_s
    halvings, failed = four.halvings + eight.halvings, 100 * eight.failed_share
    answered = f"{eight.refused} beside {eight.finished} answered"
    latency = f"{four.p99_s:.1f} s; the heat allows {possible:.1f} tokens/s, {FAN_P99_S} s needs {needed:.1f}"
    kept = four.p99_s <= FAN_P99_S or possible < needed
    rows = [
        _row("governed", "8 streams: admitted requests that fail", "0", f"{failed:.0f} %", failed == 0),
        _row("governed", "8 streams: refusals", "counted", answered, True),
        _row("governed", "clock halvings, 4 and 8 streams", "0", f"{halvings}", halvings == 0),
        _row("governed", "4 streams: P99, or proof that the heat forbids it", f"≤ {FAN_P99_S} s", latency, kept),
    ]
    for name in ("4 streams", "8 streams"):
        run, best = runs[f"{name}, governed"], runs[f"{name}, oracle"]
        share, over = run.tokens_per_s / best.tokens_per_s, run.peak_celsius - GOVERNED_CELSIUS
        limit = f"{GOVERNED_CELSIUS:g} °C"
        rows += [
            _row("governed", f"{name}: tokens/s to the oracle's at {limit}", "≥ 0.95", f"{share:.3f}", share >= 0.95),
            _row("governed", f"{name}: peak above {limit}", "≤ 3 °C", f"{over:.1f} °C", over <= 3),
        ]
    return rows


def _notes(results: FieldResults) -> list[str]:
    model, runs = results.model, results.runs
    fans = [(share, runs[f"4 streams, fan {share:g}"]) for share in _FAN_SHARES]
    other_fans = ", ".join(f"{share:g}: {run.celsius:.0f} °C and {run.p99_s:.1f} s" for share, run in fans)
    hot, four = runs["4 streams"], runs["4 streams, governed"]
    speed, slope = model.full_tokens_per_s * model.clock(82), 100 * (1 - model.clock(83) / model.clock(82))
    fitted = (
        f"Fitted without the fan row, 6 parameters for 10 numbers: a request has {model.request_tokens:.1f} tokens; "
        f"a stream runs at {speed:.2f} tokens/s at 82 °C and {slope:.1f} % slower for each °C more; "
        f"{model.idle_celsius:.1f} °C at no tokens and {model.celsius_per_token_per_s:.2f} °C more for each token/s; "
        f"memory for {model.memory_requests:.2f} requests."
    )
    assumed = (
        "Assumed: air 30 °C, edge-module resistances and capacities, and a slope that goes on below 78 °C. How strong "
        "the fan was no other row tells: the assumed one cuts heatsink to air to "
        f"{FAN_SINK_SHARE:g}, and was chosen knowing the row; with others: {other_fans}."
    )
    implied = (
        "One halving at 86 °C cannot explain the fan row: without it 38.9 s would be 19.5 s, and one stream at 78 °C "
        "already took 21.6 s. So the clock must fall with temperature before 86 °C; the numbers tell no more."
    )
    price = (
        f"Governed, four streams make {four.tokens_per_s:.1f} tokens/s at {four.celsius:.1f} °C; ungoverned "
        f"{hot.tokens_per_s:.1f} at {hot.celsius:.1f} °C, where the report's clock is halved. Fewer tokens are the "
        "price of the lower temperature, not a gain."
    )
    return [fitted, assumed, implied, price]


def _near(kind: str, what: str, reported: float, found: float) -> Row:
    off = found / reported - 1
    return _row(kind, what, f"{reported:g} ± 15 %", f"{found:.2f} ({100 * off:+.1f} %)", abs(off) <= TOLERANCE)


def _row(kind: str, what: str, demanded: str, found: str, passes: bool) -> Row:
    verdict: Verdict = "pass" if passes else "FAIL"
    return Row(kind, what, demanded, found, "", verdict)
