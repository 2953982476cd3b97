"""Our engine beside its peers on one machine in one run: vLLM, llama.cpp, OpenVINO GenAI and transformers.

Every engine runs the same token ids in a process of its own, with the same number of threads, and is stopped (SIGSTOP)
while another one is measured; rounds are interleaved, so that a machine whose speed drifts is fair to all. Prints a
table of medians with 95 % intervals, what our engine is against each peer, and the limits of the machine measured
beside it; keeps raw figures as JSON and a plot. Exits 1 when a ratio's lower end is below its floor, or a peer that a
floor needs could not be measured.

    python benchmarks/peers.py                      # SmolLM2-135M and random weights of Qwen2.5-0.5B's shape
    python benchmarks/peers.py --models smollm2 --peers vllm --cells decode-1,decode-8 --rounds 3
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peer_environments as environments
import peer_models
import psutil
from machine import describe_machine, machine_limits
from peer_models import BenchModel
from peer_report import Floor, Rates, interval, judge, plot, table

from coldplate_engine.importing.gguf_import import link_gguf
from coldplate_engine.threads import default_threads

DRIVERS = Path(__file__).with_name("peer_drivers")
START_LIMIT_S, CELL_LIMIT_S = 900.0, 1800.0
SHORT, LONG = 16, 1024
SEED = 20_262


@dataclass(frozen=True, slots=True)
class Cell:
    """``streams`` answers of ``new_tokens`` behind prompts of ``prompt`` tokens; 0 streams: one prefill of them."""

    name: str
    streams: int
    prompt: int
    new_tokens: int


CELLS = (
    Cell("decode-1", 1, SHORT, 64),
    Cell("decode-8", 8, SHORT, 48),
    Cell("decode-32", 32, SHORT, 32),
    Cell("prefill", 0, LONG, 1),
    Cell("decode-1-behind-1024", 1, LONG, 48),
    Cell("decode-8-behind-1024", 8, LONG, 32),
    Cell("decode-32-behind-1024", 32, LONG, 16),
)
STREAMS = max(cell.streams for cell in CELLS)
CONTEXT = LONG + 128


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with a way to run it; ``python`` makes its environment when asked."""

    name: str
    peer: str
    driver: str
    python: Callable[[], Path]
    job: Callable[[BenchModel], dict[str, Any]]


def _this_python() -> Path:
    return Path(sys.executable)


def _ours(**engine: object) -> Callable[[BenchModel], dict[str, Any]]:
    def job(model: BenchModel) -> dict[str, Any]:
        in_blocks = engine.get("dtype") == "gguf"
        source = link_gguf(model.gguf, progress=lambda phase, share: None) if in_blocks else model.folder
        settings = {key: value for key, value in engine.items() if value != "gguf"}
        precision = model.gguf_type if in_blocks else str(engine.get("dtype"))
        return {"model": str(source), "dtype": precision, "engine": {"kv_cache_tokens": STREAMS * CONTEXT, **settings}}

    return job


def _checkpoint(dtype: str) -> Callable[[BenchModel], dict[str, Any]]:
    return lambda model: {"model": str(model.folder), "dtype": dtype}


def _gguf(model: BenchModel) -> dict[str, Any]:
    return {"gguf": str(model.gguf), "gguf_type": model.gguf_type}


CONTENDERS = (
    Contender("coldplate bf16", "coldplate", "coldplate", _this_python, _ours(dtype="bfloat16")),
    Contender("coldplate 4-bit", "coldplate", "coldplate", _this_python, _ours(dtype="gguf")),
    Contender("coldplate 4-bit, gRPC", "coldplate", "coldplate_grpc", _this_python, _ours(dtype="gguf")),
    Contender("vLLM bf16", "vllm", "vllm", environments.VLLM.ensure, _checkpoint("bfloat16")),
    Contender("vLLM f32", "vllm", "vllm", environments.VLLM.ensure, _checkpoint("float32")),
    Contender("llama.cpp Q4_1", "llama.cpp", "llama_cpp", environments.LLAMA_CPP.ensure, _gguf),
    Contender("OpenVINO Q4_1", "openvino", "openvino", environments.OPENVINO.ensure, _gguf),
    Contender("transformers bf16", "transformers", "transformers", _this_python, _checkpoint("bfloat16")),
    Contender("transformers f32", "transformers", "transformers", _this_python, _checkpoint("float32")),
)
PEERS = tuple(dict.fromkeys(contender.peer for contender in CONTENDERS))

FLOORS = tuple(
    Floor(ours, peer, cell, ratio)
    for ours, peer, ratios in (
        ("coldplate bf16", "vllm", (1.3, 1.3, 1.3, 1.2)),
        ("coldplate 4-bit", "llama.cpp", (1.1, 2.0, 2.5, 2.0)),
    )
    for cell, ratio in zip(("decode-1", "decode-8", "decode-32", "prefill"), ratios, strict=True)
)


class Failed(Exception):
    """A contender could not be started or died; the text says why."""


class Running:
    """A contender's process: asked by lines, stopped while others run."""

    def __init__(self, contender: Contender, model: BenchModel, threads: int, log: Path) -> None:
        self.contender = contender
        self._log = log
        job = {"streams": STREAMS, "context": CONTEXT, "threads": threads, "dtype": "", **contender.job(model)}
        started = time.perf_counter()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(contender.python()), str(DRIVERS / f"{contender.driver}_driver.py"), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            )
        self._peak = 0
        try:
            self.facts = self._read(START_LIMIT_S)
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - started

    def ask(self, **request: object) -> dict[str, Any]:
        """Raises Failed."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return self._read(CELL_LIMIT_S)
        except BrokenPipeError:
            raise Failed(self._why()) from None
        finally:
            self.pause()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def peak_bytes(self) -> int:
        """The most resident memory of all its processes so far, each at its own peak."""
        total = 0
        for process in self._family():
            with contextlib.suppress(OSError, psutil.Error):
                status = Path(f"/proc/{process.pid}/status").read_text()
                total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
        self._peak = max(self._peak, total)
        return self._peak

    def close(self) -> None:
        """End it and everything it has started, by id."""
        family = self._family()
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _read(self, limit_s: float) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], limit_s)
        if not ready:
            self._process.kill()
            raise Failed(f"no answer within {limit_s:g} s")
        line = output.readline()
        if not line:
            raise Failed(self._why())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _why(self) -> str:
        self._process.wait(30)
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"ended with code {self._process.returncode}: {lines[-1][:300] if lines else 'no word'}"


def prompts_of(cell: Cell, model: BenchModel, salt: int) -> list[list[int]]:
    """Different prompts, the same for every contender; ``salt`` makes others of them."""
    generator = random.Random(f"{SEED} {cell.name} {salt}")
    return [[generator.randrange(model.prompt_ids) for _ in range(cell.prompt)] for _ in range(max(1, cell.streams))]


def measure(running: Running, cell: Cell, model: BenchModel, round_number: int) -> float:
    """tokens/s of one cell. Long prompts of a decode cell are the same in each round, so that caches hold them."""
    if cell.streams == 0:
        prompt = prompts_of(cell, model, round_number)[0]
        return cell.prompt / float(running.ask(op="prefill", prompt=prompt)["seconds"])
    prompts = prompts_of(cell, model, 0 if cell.prompt == LONG else round_number)
    answer = running.ask(op="decode", prompts=prompts, new_tokens=cell.new_tokens)
    return float(answer["tokens"]) / float(answer["seconds"])


class Run:
    """One model, all contenders: started in turn, measured in turn."""

    def __init__(self, model: BenchModel, threads: int, out: Path) -> None:
        self.model = model
        self.rates: Rates = {}
        self.missing: dict[str, str] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.start_s: dict[str, list[float]] = {}
        self.peak_bytes: dict[str, int] = {}
        self._threads, self._out = threads, out
        self._running: dict[str, Running] = {}

    def go(self, contenders: Sequence[Contender], cells: Sequence[Cell], rounds: int, starts: int) -> None:
        try:
            for number in range(starts):
                for contender in contenders:
                    self._start(contender, keep=number == starts - 1)
            for number in range(rounds + 1):  # the first round warms up and fills the caches
                for cell in cells:
                    for name in list(self._running):
                        self._measure(name, cell, number)
        finally:
            for running in self._running.values():
                running.close()

    def _start(self, contender: Contender, keep: bool) -> None:
        if contender.name in self.missing:
            return
        say(f"{self.model.name}: starting {contender.name}")
        log = self._out / f"{self.model.name}-{contender.name.replace(' ', '-').replace(',', '')}.log"
        try:
            running = Running(contender, self.model, self._threads, log)
        except (Failed, subprocess.CalledProcessError, OSError) as error:
            self.missing[contender.name] = str(error)
            say(f"{contender.name} is missing: {error}")
            return
        self.facts[contender.name] = running.facts
        self.start_s.setdefault(contender.name, []).append(running.start_s)
        if keep:
            running.pause()
            self._running[contender.name] = running
        else:
            running.close()

    def _measure(self, name: str, cell: Cell, number: int) -> None:
        try:
            rate = measure(self._running[name], cell, self.model, number)
            self.peak_bytes[name] = self._running[name].peak_bytes()
        except Failed as error:
            self.missing[name] = f"{cell.name}: {error}"
            say(f"{name} is out: {self.missing[name]}")
            self._running.pop(name).close()
            return
        say(f"{self.model.name}: round {number}, {cell.name}, {name}: {rate:.1f} tokens/s")
        if number:
            self.rates.setdefault(name, {}).setdefault(cell.name, []).append(rate)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def report(run: Run, cells: Sequence[Cell], limits: dict[str, float], out: Path) -> bool:
    """Print and keep one model's results; whether every floor was met."""
    names = [cell.name for cell in cells]
    print(f"\n## {run.model.name}\n\n{table(run.rates, names)}\n")
    for name, facts in run.facts.items():
        starts = run.start_s[name]
        peak = run.peak_bytes.get(name, 0) / (1 << 20)
        print(
            f"- {name}: version {facts.get('version')}, {facts.get('precision')}; start "
            f"{interval(starts)} s; peak memory {peak:.0f} MiB"
        )
    for name, reason in run.missing.items():
        print(f"- {name}: MISSING: {reason}")
    print(
        f"\nLimits measured beside: read {limits['read_gb_s']:.1f} GB/s, float32 {limits['f32_gflop_s']:.0f} GFLOP/s\n"
    )
    peer_of = {contender.name: contender.peer for contender in CONTENDERS}
    floors = [floor for floor in FLOORS if floor.cell in names]
    verdicts = judge(run.rates, floors, peer_of)
    for verdict in verdicts:
        print(verdict)
    unjudged = [floor for floor in floors if floor not in {verdict.floor for verdict in verdicts}]
    for floor in unjudged:
        print(f"NONE {floor.cell}: {floor.ours} against {floor.peer} was not measured")
    (out / f"{run.model.name}.json").write_text(
        json.dumps(
            {
                "model": run.model.name,
                "rates": run.rates,
                "facts": run.facts,
                "start_s": run.start_s,
                "peak_bytes": run.peak_bytes,
                "missing": run.missing,
                "limits": limits,
                "verdicts": [asdict(verdict) for verdict in verdicts],
            },
            indent=1,
        )
    )
    plot(out / f"{run.model.name}.png", run.model.name, run.rates, names)
    return all(verdict.met for verdict in verdicts) and not unjudged


def _choose(given: str, known: Sequence[str], what: str) -> list[str]:
    chosen = given.split(",") if given else list(known)
    for name in chosen:
        if name not in known:
            raise SystemExit(f"{what} {name!r} is not known; there are {', '.join(known)}")
    return chosen


def main() -> None:
    models: dict[str, Callable[[], BenchModel]] = {
        "smollm2": peer_models.smollm2,
        "qwen2.5-0.5b": lambda: peer_models.random_qwen("Qwen2.5-0.5B", peer_models.QWEN_0_5B),
        "qwen2.5-1.5b": lambda: peer_models.random_qwen("Qwen2.5-1.5B", peer_models.QWEN_1_5B),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2,qwen2.5-0.5b", help=f"of {', '.join(models)}")
    parser.add_argument("--large", action="store_true", help="random weights of Qwen2.5-1.5B's shape as well")
    parser.add_argument("--peers", default="", help=f"of {', '.join(PEERS)}; default: all")
    parser.add_argument("--contenders", default="", help="by their full names, in place of --peers")
    parser.add_argument("--cells", default="", help=f"of {', '.join(cell.name for cell in CELLS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="how often each engine is started, for its start time")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for JSON, plots and logs")
    args = parser.parse_args()
    chosen_models = _choose(args.models, list(models), "model") + (["qwen2.5-1.5b"] if args.large else [])
    peers = _choose(args.peers, PEERS, "peer")
    names = _choose(args.contenders, [c.name for c in CONTENDERS], "contender")
    contenders = [c for c in CONTENDERS if c.name in names and (args.contenders or c.peer in (*peers, "coldplate"))]
    cell_names = _choose(args.cells, [cell.name for cell in CELLS], "cell")
    cells = [cell for cell in CELLS if cell.name in cell_names]
    if args.rounds < 1 or args.starts < 1:
        parser.error("--rounds and --starts must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing it started stays behind
    out = args.out / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True)
    machine = describe_machine(args.threads)
    (out / "machine.json").write_text(json.dumps(machine, indent=1))
    print("Machine: " + ", ".join(f"{key} {value}" for key, value in machine.items()))
    met = True
    for name in dict.fromkeys(chosen_models):
        run = Run(models[name](), args.threads, out)
        limits = machine_limits(args.threads)
        run.go(contenders, cells, args.rounds, args.starts)
        met = report(run, cells, limits, out) and met
    print(f"\nRaw figures and plots: {out}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
