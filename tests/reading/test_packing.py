"""Columns: what is added comes out, however it was added; chunks reach the writer."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import PipelineError
from cereal.reading.packing import column as columns
from cereal.reading.packing.column import Packed, form_of_column, packed_array
from cereal.reading.packing.pack import Chunk, Handover, Part, layout_of

VALUES: dict[str, list[Any]] = {
    "integers": [3, -5, np.int64(7), np.array(2)],
    "floats": [0.5, float("inf"), 1e30, np.float64(2)],
    "truth": [True, False, np.bool_(True)],
    "arrays": [np.arange(3.0), np.ones(3), np.zeros(3, np.float32)],
    "ragged arrays": [np.arange(k) for k in (2, 0, 5, 2)],
    "lists": [[1, 2], [], [3]],
    "rows of pairs": [np.ones((k, 2), np.int32) for k in (1, 0, 3)],
    "empty arrays": [np.zeros((0, 4), np.uint8), np.zeros((0, 4), np.uint8)],
    "no columns": [np.zeros((3, 0), np.uint8), np.zeros((2, 0), np.uint8)],
    "text": ["a", "", "é" * 3, "\udc80"],
    "plain text": ["abc", "", "d"],
    "bytes": [b"a", b"", bytearray(b"xyz")],
}


def split(packed: Packed, count: int) -> list[Any]:
    """The values of each element."""
    if packed.lengths is None:
        return list(packed.values)
    ends = np.cumsum(np.broadcast_to(packed.lengths, count))
    return [packed.values[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def expected(value: Any) -> Any:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes | bytearray) else value


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("room", [1, 64 << 20])
@pytest.mark.parametrize("name", VALUES)
def test_what_is_added_comes_out(
    name: str, room: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_ROOM", room)
    values = VALUES[name]
    column = form_of_column(values[0], "x").column(len(values))
    if at_once:
        column.extend(values)
    else:
        for value in values:
            column.add(column.check(value))
    packed = column.packed()
    assert packed.values.dtype == column.form.dtype
    for found, value in zip(split(packed, len(values)), values, strict=True):
        np.testing.assert_array_equal(found, np.asarray(expected(value), packed.values.dtype))


def test_a_buffer_may_be_used_again_after_it_was_added() -> None:
    buffer = np.zeros(3, np.int32)
    column = form_of_column(buffer, "x").column(8)
    for number in range(4):
        buffer[:] = number
        column.add(column.check(buffer[: 3 - number // 2]))
    assert column.packed().values.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]


def test_an_array_of_many_is_taken_as_it_is_or_refused() -> None:
    form = form_of_column(np.zeros((2, 3), np.float32), "x")
    packed = packed_array(np.ones((5, 4, 3)), form)
    assert packed.values.shape == (20, 3)
    assert packed.lengths == 4
    for wrong in (np.ones((5, 4, 2)), np.ones((5, 4)), np.ones((5, 4, 3), np.int32)):
        with pytest.raises(PipelineError, match="not"):
            packed_array(wrong, form)


def chunk_of(number: int) -> Chunk:
    return Chunk([Part(2, [Packed(np.full(4, number), 2)])], 0.0)


def test_chunks_are_handed_over_in_memory_or_by_files(tmp_path: Path) -> None:
    here = Handover(str(tmp_path))
    there = pickle.loads(pickle.dumps(here))
    for number in (0, 8, 16):
        (here if number == 8 else there).give(number, chunk_of(number))
    for number in (0, 8, 16):
        found = here.take(number)
        assert found.parts[0].columns[0].values.tolist() == [number] * 4
        assert (found.summary() == chunk_of(number).summary()).all()
    assert list(tmp_path.iterdir()) == []


def test_a_layout_names_what_cannot_be_stored() -> None:
    with pytest.raises(PipelineError, match=r"`element\['a'\]\[1\]` is no number, array, text"):
        layout_of({"a": (1, object())})
    assert layout_of({"a": "abc", "b": np.zeros(4)}).nbytes == 3 + 16
