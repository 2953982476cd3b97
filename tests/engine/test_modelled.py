"""Modelled chips: tokens that follow from the tokens before them, and steps as long as the chip's."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.modelled import ModelledDevice, ModelledRunner
from coldplate_engine.devices.registry import open_device
from coldplate_engine.devices.script import Script
from coldplate_engine.devices.step_model import ChipSpeed, ModelSize, known_size, size_of
from coldplate_engine.messages import Command, Sampling, StopCause
from coldplate_engine.runner import ModelError, ModelFacts
from coldplate_engine.sampler import SampleRow, sample
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.config import ModelConfig
from coldplate_governor.board.board import Board
from support import modelled
from support.engine_loop import LoopRig, submission
from support.fake_runner import FakeRunner

VOCABULARY = 64
WORDS = list(range(10, 50))
SPEED = ChipSpeed(204e9, 70e12, 140e12)
SMALL = ModelSize(10_000_000, 64)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)


def runner(size: ModelSize = SMALL, slept: list[float] | None = None) -> ModelledRunner:
    facts = ModelFacts("Modelled", "modelled", 0, VOCABULARY, 256, "float16", "", frozenset(), 1000)
    sleeps: list[float] = [] if slept is None else slept
    return ModelledRunner(facts, size, SPEED, Script(WORDS), sleeps.append)


def rig(**options: Any) -> LoopRig:
    return LoopRig(runner=cast("FakeRunner", runner()), **options)


@given(prompts, st.integers(0, 20), st.integers(0, 20))
def test_an_answer_goes_on_from_its_own_tokens(prompt: list[int], first: int, more: int) -> None:
    script = Script(WORDS)
    whole = script.answer(prompt, first + more)
    assert whole == script.answer(prompt, first) + script.answer([*prompt, *whole[:first]], more)
    assert set(whole) <= set(WORDS)


@given(prompts, st.data())
def test_an_answer_depends_on_every_token_of_the_prompt(prompt: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(prompt) - 1))
    other = [*prompt[:at], (prompt[at] + 1) % VOCABULARY, *prompt[at + 1 :]]
    assert Script(WORDS).answer(prompt, 30) != Script(WORDS).answer(other, 30)


def test_streams_get_the_scripts_tokens_through_the_real_loop() -> None:
    """With chunked prefill, a prefix cache, and a cache so small that streams are put back and computed again."""
    loop = rig(num_blocks=24, max_num_batched_tokens=8)
    shared = [1, 2, 3, 4, 5, 6, 7, 8]
    asked = {number: [*shared, *range(number)] for number in range(6)}
    commands: list[list[Command]] = [[submission(number, prompt, 20)] for number, prompt in asked.items()]
    loop.run(*commands)
    for number, prompt in asked.items():
        assert loop.tokens[number] == Script(WORDS).answer(prompt, 20)
        assert loop.finished[number].cause is StopCause.MAX_TOKENS
    assert loop.pool.used == 0


def test_neither_seed_nor_temperature_changes_what_is_said() -> None:
    loop = rig()
    hot = Sampling(temperature=2.0, seed=7)
    loop.run([submission(1, [5], 12, sampling=hot), submission(2, [5], 12)])
    assert loop.tokens[1] == loop.tokens[2] == Script(WORDS).answer([5], 12)


def test_rows_of_several_positions_are_those_of_the_sequence() -> None:
    made = runner()
    made.allocate_kv(4, 4)
    timer = StepTimer()
    made.execute(StepBatch([StreamSlice(1, [1, 2, 3], 0, [2], 1)]), timer)
    logits = made.execute(StepBatch([StreamSlice(1, [4, 5], 3, [2, 0], 2), StreamSlice(2, [9], 0, [3], 1)]), timer)
    greedy = SampleRow(Sampling(), 0)
    script = Script(WORDS)
    expected = [script.answer([1, 2, 3, 4], 1), script.answer([1, 2, 3, 4, 5], 1), script.answer([9], 1)]
    assert sample(logits, [greedy] * 3) == [token for tokens in expected for token in tokens]
    assert float(logits.sum()) == 3 * float(logits.max()), "nothing is left of the call before"


def test_blocks_can_leave_and_come_back() -> None:
    made = runner(replace(SMALL, kv_bytes=100))
    made.allocate_kv(4, 4)
    prompt = [1, 2, 3, 4]
    made.execute(StepBatch([StreamSlice(1, prompt, 0, [1], 1)]), StepTimer())
    saved = made.read_blocks([1])
    assert saved.shape == (1, 4 * made.kv_bytes_per_token())
    made.write_blocks([3], saved)
    logits = made.execute(StepBatch([StreamSlice(1, [5], 4, [3, 0], 1)]), StepTimer())
    assert int(logits.argmax()) == Script(WORDS).answer([1, 2, 3, 4, 5], 1)[0]


@pytest.mark.parametrize(("name", "measured"), [("qwen3-8b-w8a8", 18.0), ("qwen3-14b-w8a8", 10.7)])
def test_a_decode_is_as_fast_as_such_a_model_was_measured_on_a_310p(name: str, measured: float) -> None:
    plain, bits = known_size(name)
    size = plain.stored_as("float16", bits)
    one = StepBatch([StreamSlice(1, [0], 512, [], 1)])
    assert 1 / size.step_s(one, SPEED) == pytest.approx(measured, rel=0.06)


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic() -> None:
    size = known_size("qwen3-8b")[0]

    def seconds(streams: int, tokens: int) -> float:
        return size.step_s(StepBatch([StreamSlice(i, [0] * tokens, 0, [], 1) for i in range(streams)]), SPEED)

    assert seconds(16, 1) < 1.01 * seconds(1, 1), "a batch of 16 costs no more than one"
    assert seconds(1, 2048) > 5 * seconds(1, 1)
    assert seconds(1, 2048) == pytest.approx(2 * seconds(1, 1024), rel=0.01)


def test_a_size_is_read_from_a_configuration(tmp_path: Path) -> None:
    folder = modelled.model_folder(tmp_path)
    size = size_of(ModelConfig(folder))
    attention, feed_forward = 2 * 64 * 16 * (4 + 2), 3 * 64 * 128
    assert size.parameters == 2 * (attention + feed_forward) + 2 * 64 * 261
    assert size.kv_bytes == 2 * 2 * 2 * 16 * 2
    assert size.stored_as("float16", "int4").weight_bytes < size.weight_bytes / 3


def test_a_step_sleeps_for_what_is_left_of_it_and_makes_up_for_an_overrun() -> None:
    slept: list[float] = []
    made = runner(ModelSize(10_000_000_000, 64), slept)
    made.allocate_kv(4, 4)
    step = StepBatch([StreamSlice(1, [1], 0, [0], 1)])
    timer = StepTimer()
    made.execute(step, timer)
    modelled_s = ModelSize(10_000_000_000, 64).step_s(step, SPEED)
    assert modelled_s - 0.05 < slept[0] <= modelled_s
    late = ModelledRunner(made.facts, ModelSize(1, 64), SPEED, made.script, lambda seconds: _wait(seconds + 0.004))
    late.allocate_kv(4, 4)
    first, second = StepTimer(), StepTimer()
    late.execute(step, first)
    late.execute(step, second)
    assert second.seconds["device"] < first.seconds["device"]


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)  # what sleeps too long is what is tested


def facts_of(chip: str = "310p", **changes: Any) -> dict[str, Any]:
    return Board(1, chip=chip).read(0) | changes


def test_a_device_takes_its_memory_and_speed_from_the_board(tmp_path: Path) -> None:
    device = ModelledDevice(facts_of())
    available, total = device.memory()
    assert (total, available) == (44280 * 2**20, (44280 - 1529) * 2**20)
    assert device.chip == "310P3 (simulated, scripted tokens)"
    made = device.load(modelled.model_folder(tmp_path), "auto", None, lambda phase, share: None)
    assert (made.facts.dtype, made.facts.revision) == ("float16", "modelled")
    assert "scripted" in made.facts.architecture
    assert made.script.words == modelled.script(tmp_path).words
    assert made.facts.weight_bytes == size_of(ModelConfig(tmp_path)).weight_bytes
    named = ModelledDevice(facts_of(), known_size("qwen3-8b-w8a8"))
    big = named.load(tmp_path, "auto", 256, lambda phase, share: None)
    assert (big.facts.quantization, big.facts.weight_bytes, big.facts.max_model_len) == ("w8a8", 8_190_000_000, 256)
    with pytest.raises(ModelError, match="max_model_len 4096 is out of range"):
        named.load(tmp_path, "auto", 4096, lambda phase, share: None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sim:unix:/nowhere/b.sock#npu:0,modelled", "npu:0: a modelled chip needs its board: no board at"),
        ("sim:unix:/nowhere/b.sock#npu:0,modelled=llama-9000", "no such model; expected qwen3-0.6b"),
        ("sim:unix:/nowhere/b.sock#cpu,modelled", "a board simulates NPUs"),
        ("sim:unix:/nowhere/b.sock,modelled", "expected sim:ADDRESS#npu:N"),
    ],
)
def test_what_cannot_be_modelled_is_refused(spec: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_device(spec, 1, test_faults=False)


def test_a_mixture_of_experts_has_to_be_named(tmp_path: Path) -> None:
    folder = modelled.model_folder(tmp_path)
    config = (folder / "config.json").read_text().replace('"hidden_size"', '"num_experts": 8, "hidden_size"')
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError, match="architectures must be of a dense model to be modelled"):
        size_of(ModelConfig(folder))
