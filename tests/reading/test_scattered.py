"""Tables in pieces: rows of several pieces in one batch, gathered or asked one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from cereal.reading.leaves import ArrayForm
from cereal.reading.tables.columns import Numbers, Objects, Ragged
from cereal.reading.tables.pieces import PiecedTable

RNG = np.random.default_rng(0)


class InPieces(PiecedTable):
    """Arrays, cut into pieces that stay in memory."""

    stays = True
    _reopened = ("_made",)

    def __init__(self, columns: list[Any], cuts: Sequence[int]) -> None:
        self._columns, self._cuts = columns, [0, *cuts, len(columns[0])]
        self.lengths = np.diff(self._cuts).tolist()
        self.form = {str(at): ArrayForm((), np.dtype(object)) for at in range(len(columns))}

    @cached_property
    def _made(self) -> dict[int, Any]:
        return {}

    def piece(self, number: int) -> Any:
        begin, end = self._cuts[number : number + 2]
        return self._made.setdefault(number, [_part(c[begin:end]) for c in self._columns])

    def load(self, number: int) -> Any:
        return self.piece(number), 0

    def digest(self) -> Any:
        return None


def _part(values: Any) -> Any:
    if isinstance(values, list):
        return Objects(lambda rows: [values[row] for row in rows])
    return values if isinstance(values, Ragged) else Numbers(values)


KINDS = {
    "bytes": RNG.integers(0, 256, (50, 7), np.uint8),
    "one byte": RNG.integers(0, 256, 50).astype(np.uint8),
    "numbers": RNG.integers(0, 2**31, 50).astype(np.int32),
    "halves": RNG.normal(size=50).astype(np.float16),
    "matrices": RNG.normal(size=(50, 3, 5)).astype(np.float32),
    "large rows": RNG.integers(0, 256, (50, 3, 4000), np.uint8),
    "columns of a matrix": np.asfortranarray(RNG.normal(size=(50, 4)), np.float32),
    "nothing": np.zeros((50, 0), np.float32),
}


@pytest.mark.parametrize("cuts", [[], [20], [3, 7, 30], range(2, 50, 2)], ids=len)
def test_rows_come_from_their_pieces(cuts: Sequence[int]) -> None:
    words = [f"word {i}" for i in range(50)]
    table = InPieces([*KINDS.values(), words], cuts)
    for rows in (np.arange(50), RNG.permutation(50), np.array([49, 0, 0, 49]), np.array([21])):
        *found, text = table.take(rows)
        for column, (name, values) in zip(found, KINDS.items(), strict=True):
            np.testing.assert_array_equal(column, values[rows], err_msg=name)
            assert column.dtype == values.dtype
        assert text == [words[row] for row in rows]


def test_a_gathered_column_is_fresh() -> None:
    values = KINDS["matrices"].copy()
    table = InPieces([values], [10, 20])
    (found,) = table.take(np.array([1, 11, 21]))
    found[:] = 0
    np.testing.assert_array_equal(values, KINDS["matrices"])


def test_pieces_of_other_shapes_are_not_gathered() -> None:
    class Odd(InPieces):
        def piece(self, number: int) -> Any:
            return [Numbers(np.full((5, 2 + number), number))]

    table = Odd([np.zeros(10)], [5])
    (found,) = table.take(np.array([1, 6]))
    assert [row.tolist() for row in found] == [[0, 0], [1, 1, 1]]


def test_missing_values_are_none_in_any_piece() -> None:
    class Holed(InPieces):
        def piece(self, number: int) -> Any:
            missing = np.arange(5) == 2 if number else None
            return [Numbers(np.arange(5) + 5 * number, missing)]

    table = Holed([np.zeros(10)], [5])
    assert table.take(np.array([1, 7, 8]))[0] == [1, None, 8]
    np.testing.assert_array_equal(table.take(np.array([1, 8]))[0], [1, 8])
