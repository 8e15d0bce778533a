"""Tables in pieces: which are read, how often, which are kept, and how they are packed."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import jax
import numpy as np
import pytest

from cereal.reading.leaves import ArrayForm
from cereal.reading.tables.columns import Numbers
from cereal.reading.tables.packed import PackedPiece, PackedTable
from cereal.reading.tables.pieces import Kept, PiecedTable
from cereal.reading.tables.table import TableReader, objects

LENGTHS = [4, 3, 5]
N = sum(LENGTHS)
COLUMNS: dict[str, np.ndarray] = {
    "a": np.arange(N, dtype=np.float32),
    "b": np.arange(N, dtype=np.float32) * 2,
    "c": np.arange(N, dtype=np.int64) * 3,
    "d": np.arange(N, dtype=np.int64) * 4,
    "v": np.arange(N * 2, dtype=np.int16).reshape(N, 2),
}


def values_of(number: int) -> dict[str, np.ndarray]:
    begin = sum(LENGTHS[:number])
    return {name: column[begin : begin + LENGTHS[number]] for name, column in COLUMNS.items()}


class InPieces(PiecedTable):
    """Pieces of the columns; in some of them a value of `c` may be missing."""

    def __init__(self, missing: tuple[int, ...] = (), most_bytes: int = 1 << 20) -> None:
        self.lengths, self.most_bytes, self._missing = LENGTHS, most_bytes, missing
        self.form = {name: ArrayForm(x.shape[1:], x.dtype) for name, x in COLUMNS.items()}

    def load(self, number: int) -> tuple[Any, int]:
        parts = [Numbers(values) for values in values_of(number).values()]
        if number in self._missing:
            parts[2].missing = np.arange(LENGTHS[number]) == 1
        return parts, sum(part.values.nbytes for part in parts)

    def digest(self) -> Any:
        return []


class InPackedPieces(InPieces, PackedTable):
    """The same, packed."""


def check(table: PiecedTable, indices: Any) -> None:
    indices = np.asarray(indices).astype(np.int64, copy=False)
    for column, whole in zip(table.take(indices), COLUMNS.values(), strict=True):
        np.testing.assert_array_equal(np.asarray(column), whole[indices])


@pytest.mark.parametrize("make", [InPieces, InPackedPieces])
@pytest.mark.parametrize("most_bytes", [0, 200, 1 << 20])
@pytest.mark.parametrize(
    "indices", [[0], [3, 1, 1], [4, 6], [0, 11, 5, 4], [*range(N)][::-1], [], [11]]
)
def test_rows_are_found_in_their_pieces(make: Any, most_bytes: int, indices: list[int]) -> None:
    table = make(most_bytes=most_bytes)
    assert len(table) == N
    assert table.blocks.tolist() == LENGTHS
    for _ in range(2):
        check(table, indices)
    check(pickle.loads(pickle.dumps(table)), indices)


def test_columns_of_one_dtype_are_one_gather() -> None:
    table = InPackedPieces()
    a, b, c, d, v = table.take(np.array([7, 2]))
    assert np.shares_memory(a.base, b)
    assert np.shares_memory(c.base, d)
    assert (a.dtype, c.dtype, v.dtype) == (np.float32, np.int32, np.int16)
    assert table._kept.loads == 2
    assert all(isinstance(table.piece(number), PackedPiece) for number in (0, 2))


def test_a_table_that_fits_is_read_once_and_another_as_often_as_it_must() -> None:
    for make, most_bytes, wanted in [
        (InPieces, 1 << 20, 3), (InPackedPieces, 1 << 20, 3),
        (InPieces, 0, 9), (InPackedPieces, 0, 9),
    ]:  # fmt: skip
        table = make(most_bytes=most_bytes)
        for _ in range(3):
            for number in range(3):
                check(table, [sum(LENGTHS[:number])])
        assert table._kept.loads == wanted
    kept = InPieces(most_bytes=0)
    kept.keep_at_least(3)
    for index in (0, 4, 7, 0, 4, 7):
        check(kept, [index])
    assert kept._kept.loads == 3


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_missing_values_leave_what_was_packed_as_it_is(missing: Any, order: list[int]) -> None:
    table = InPackedPieces(missing)
    for number in [*order, *order]:
        begin = sum(LENGTHS[:number])
        rows = [at for at in range(LENGTHS[number]) if not (number in missing and at == 1)]
        check(table, begin + np.array(rows))
    column = table.take(np.arange(N))[2]
    gone = [sum(LENGTHS[:number]) + 1 for number in missing]
    wanted = [None if at in gone else at * 3 for at in range(N)]
    assert [None if x is None else int(x) for x in column] == wanted


def test_threads_may_meet_a_missing_value_at_any_time() -> None:
    for _ in range(20):
        table, wrong = InPackedPieces((1,)), []

        def read(first: int, table: Any = table, wrong: Any = wrong) -> None:
            try:
                for at in range(30):
                    check(table, [(first + at) % 4, 7 + (first + at) % 5, 4])
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_numbers_that_do_not_fit_become_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLUMNS, "c", COLUMNS["c"] + 2**40)
    columns = TableReader("it", InPackedPieces()).take(np.array([1, 2]))
    assert columns[2] == [2**40 + 3, 2**40 + 6]
    assert columns[3].dtype == np.int32


def test_64_bits_are_read_anew_when_they_are_switched_on() -> None:
    table = InPackedPieces()
    assert table.take(np.array([1]))[2].dtype == np.int32
    with jax.enable_x64(True):
        assert table.take(np.array([1]))[2].dtype == np.int64
        check(table, [0, 5, 11])
    check(table, [0, 5, 11])


def test_tables_with_objects_are_not_packed() -> None:
    class WithText(InPackedPieces):
        def __init__(self) -> None:
            super().__init__()
            self.form["v"] = objects("text")

    assert WithText()._store.whole is None
    check(WithText(), [1, 5, 8])


def test_a_piece_is_read_by_one_thread_and_others_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)

    def load(number: int) -> tuple[Any, int]:
        both.wait()  # passes only if two pieces are read at once
        return number, 1

    kept, found = Kept(load, 10), []
    threads = [threading.Thread(target=lambda k=k: found.append(kept.get(k % 2))) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 0, 0, 1, 1, 1]
    assert kept.loads == 2


def test_a_piece_that_failed_is_tried_again() -> None:
    tries = []

    def load(number: int) -> tuple[Any, int]:
        tries.append(number)
        if len(tries) == 1:
            raise OSError("not now")
        return "piece", 1

    kept = Kept(load, 10)
    with pytest.raises(OSError, match="not now"):
        kept.get(0)
    assert kept.get(0) == "piece"
