"""Tensors read by several threads ahead of the asker."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.runner import ModelError
from coldplate_engine.weights.read_ahead import ReadAhead
from coldplate_engine.weights.stored import StoredTensor

SIZES = (0, 1, 700, 300, 64, 1000, 5, 420, 999, 100)


def layout(folder: Path) -> tuple[dict[str, StoredTensor], dict[str, bytes]]:
    """Tensors in two files, their names in an order of their own."""
    contents = {f"layers.{at}.x" if at < 8 else f"lm_head.{at}": bytes([at] * size) for at, size in enumerate(SIZES)}
    tensors = {}
    for half in range(2):
        path, at = folder / f"{half}.bin", 3
        with path.open("wb") as file:
            file.write(b"xxx")
            for name in list(contents)[half::2]:
                file.write(contents[name])
                tensors[name] = StoredTensor(path, "U8", (len(contents[name]),), at, len(contents[name]))
                at += len(contents[name])
    return tensors, contents


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, StoredTensor], dict[str, bytes]]:
    return layout(tmp_path_factory.mktemp("read-ahead"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(SIZES) - 1), max_size=30), st.integers(0, 2000))
def test_any_order_and_any_window(
    stored: tuple[dict[str, StoredTensor], dict[str, bytes]], order: list[int], window: int
) -> None:
    tensors, contents = stored
    names = list(contents)
    reader = ReadAhead(tensors, ahead_bytes=window)
    try:
        for at in order:
            taken = reader.take(names[at])
            assert bytes(taken.tolist()) == contents[names[at]]
            assert sum(pending.data.nbytes for pending in reader._pending.values()) < window + max(SIZES)
        assert reader.clock.bytes >= sum(len(contents[names[at]]) for at in set(order))
    finally:
        reader.close()
    assert (reader.clock.seconds > 0) == (reader.clock.bytes > 0)


def test_what_was_taken_is_the_callers_own(tmp_path: Path) -> None:
    tensors, _ = layout(tmp_path)
    reader = ReadAhead(tensors)
    first = reader.take("layers.3.x")
    first.zero_()
    assert torch.equal(reader.take("layers.3.x"), torch.full((300,), 3, dtype=torch.uint8))
    reader.close()


def test_in_the_likely_order_every_byte_is_read_once(tmp_path: Path) -> None:
    tensors, contents = layout(tmp_path)
    reader = ReadAhead(tensors, ahead_bytes=800)
    for name in contents:
        reader.take(name)
    reader.close()
    assert reader.clock.bytes == sum(SIZES)


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    tensors, _ = layout(tmp_path)
    path = tensors["lm_head.9"].file
    path.write_bytes(path.read_bytes()[:-10])
    reader = ReadAhead(tensors)
    with pytest.raises(ModelError, match=r"1\.bin: was cut while being read: tensor lm_head\.9"):
        reader.take("lm_head.9")
    reader.close()
    path.unlink()
    reader = ReadAhead(tensors)
    with pytest.raises(ModelError, match=r"1\.bin: cannot be read: No such file"):
        reader.take("lm_head.9")
    reader.close()
