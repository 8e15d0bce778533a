"""Arrow's tables, first in a loader's list."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    HostFilterTransform,
    HostMapTransform,
    PipelineError,
    pad_collate,
)
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import LABELS, N, check_in_jit, check_resume, check_shuffled, check_values, rows

pytestmark = pytest.mark.bridges
pa = import_module("pyarrow")

VECTORS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
WANTED = {
    "color": LABELS % 2,
    "inner": {"flag": LABELS % 3 == 0, "small": LABELS.astype(np.int8)},
    "label": LABELS,
    "x": VECTORS,
    "y": VECTORS,
}


def table() -> Any:
    """In two pieces, with nested columns of numbers; one of them is a list of one length."""
    inner = [{"flag": i % 3 == 0, "small": i} for i in range(N)]
    kind = pa.struct([("flag", pa.bool_()), ("small", pa.int8())])
    whole = pa.table(
        {
            "label": pa.array(LABELS, pa.int64()),
            "x": pa.array(VECTORS.tolist(), pa.list_(pa.float32())),
            "y": pa.array(VECTORS.tolist(), pa.list_(pa.float64(), 3)),
            "color": pa.array(["red", "blue"] * (N // 2)).dictionary_encode(),
            "inner": pa.array(inner, kind),
        }
    )
    return pa.concat_tables([whole.slice(0, 4), whole.slice(4)])


def test_a_table_is_its_rows_by_every_road() -> None:
    check_values(table(), WANTED)
    check_resume(table, WANTED)
    check_in_jit(table(), WANTED)
    source = DatasetSource(table(), ordering="shuffle")
    check_shuffled(source, WANTED, lambda found: found["label"])
    check_source(source)
    check_all_ways(DataLoader([source, BatchTransform(3)]))


def test_categories_are_numbers_with_names() -> None:
    source = DatasetSource(table())
    assert source.classes == {"color": ("red", "blue")}


def test_dictionaries_that_differ_between_pieces_are_one() -> None:
    pieces = [pa.table({"c": pa.array(c).dictionary_encode()}) for c in (["a", "b"], ["c", "a"])]
    source = DatasetSource(pa.concat_tables(pieces))
    names = source.classes["c"]
    found = [names[i] for i in rows(DataLoader([source, BatchTransform(4)]))["c"]]
    assert found == ["a", "b", "c", "a"]


def test_the_index_is_added_under_its_key() -> None:
    loader = DataLoader([DatasetSource(table(), index_key="at"), BatchTransform(N)])
    assert rows(loader)["at"].tolist() == list(range(N))
    with pytest.raises(PipelineError, match="has a key 'label' already"):
        DatasetSource(table(), index_key="label")


def test_worker_processes_read_it() -> None:
    loader = DataLoader([table(), BatchTransform(5)], workers=2, worker_type="process")
    with loader:
        assert rows(loader)["label"].tolist() == LABELS.tolist()


@pytest.mark.parametrize("value", [1.5, 2])
def test_a_missing_value_is_named_and_may_be_replaced(value: float) -> None:
    holed = pa.table({"n": pa.array([value] * 5 + [None] + [value] * 2)})
    with pytest.raises(PipelineError, match=r"element\['n'\]` is None, a missing") as caught:
        rows(DataLoader([holed, BatchTransform(4)]))
    assert caught.value.element.index == 5  # type: ignore[attr-defined]
    filled = HostMapTransform(lambda e: {"n": np.float32(-1 if e["n"] is None else e["n"])})
    assert rows(DataLoader([holed, filled, BatchTransform(4)]))["n"].tolist()[5] == -1
    there = HostFilterTransform(lambda e: e["n"] is not None)
    assert len(rows(DataLoader([holed, there, BatchTransform(4)]))["n"]) == 7


def test_the_first_value_may_be_missing() -> None:
    holed = pa.table({"n": pa.array([None, 1, 2, 3])})
    with pytest.raises(PipelineError, match=r"element\['n'\]` is None, a missing") as caught:
        rows(DataLoader([holed, BatchTransform(2)]))
    assert caught.value.element.index == 0  # type: ignore[attr-defined]


def test_what_stands_in_a_gap_is_not_looked_at() -> None:
    values = pa.py_buffer(np.array([1, 2**40, 3, 4]))
    column = pa.Array.from_buffers(pa.int64(), 4, [pa.py_buffer(b"\x0d"), values])
    assert column.to_pylist() == [1, None, 3, 4]
    there = HostFilterTransform(lambda e: e["n"] is not None)
    loader = DataLoader([pa.table({"n": column}), there, BatchTransform(4)])
    assert rows(loader)["n"].tolist() == [1, 3, 4]


def test_rows_of_different_lengths_need_a_collate() -> None:
    ragged = pa.table({"r": [[1], [2, 3], []]})
    with pytest.raises(PipelineError, match=r"lengths \(0 to 2\).*pad_collate\(2\)"):
        DataLoader([ragged, BatchTransform(2)])
    ((batch, _),) = DataLoader([ragged, BatchTransform(3, collate=pad_collate(2))])
    assert batch["r"].tolist() == [[1, 0], [2, 3], [0, 0]]
    assert batch["lengths"].tolist() == [1, 2, 0]


def test_lengths_that_differ_between_pieces_need_one_too() -> None:
    pieces = [pa.table({"r": [[1, 2]] * 3}), pa.table({"r": [[1]] * 3})]
    with pytest.raises(PipelineError, match=r"lengths \(1 to 2\).*pad_collate\(2\)"):
        DataLoader([pa.concat_tables(pieces), BatchTransform(2)])


def test_text_needs_a_stage_that_makes_numbers() -> None:
    words = pa.table({"t": ["a", "bbb"], "n": [1, 2]})
    with pytest.raises(PipelineError, match=r"element\['t'\]` is a Python object .*type string"):
        DataLoader([words, BatchTransform(2)])
    length = HostMapTransform(lambda e: {"n": e["n"], "l": len(e["t"])})
    found = rows(DataLoader([words, length, BatchTransform(2)]))
    assert found["l"].tolist() == [1, 3]


def test_a_number_of_64_bits_that_does_not_fit_is_refused() -> None:
    wide = pa.table({"n": pa.array([1, 2**40])})
    with pytest.raises(PipelineError, match=rf"the integer {2**40} does not fit int32") as caught:
        rows(DataLoader([wide, BatchTransform(2)]))
    assert caught.value.element.index == 1  # type: ignore[attr-defined]


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(PipelineError, match="two columns called 'a'"):
        DatasetSource(twice)


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(PipelineError, match="no rows"):
        DatasetSource(pa.table({"a": pa.array([], pa.int32())}))


@pytest.mark.parametrize("size", [2, -1])
def test_lists_with_gaps_give_arrays_where_nothing_is_missing(size: int) -> None:
    kind = pa.list_(pa.int32(), size)
    first = pa.table({"x": pa.array([[0, 0], [1, 2], None], kind)}).slice(1)
    second = pa.table({"x": pa.array([[3, 4], [5, None]], kind)})
    seen: list[Any] = []
    see = HostMapTransform(lambda element: seen.append(element["x"]) or 0)
    source = DatasetSource(pa.concat_tables([first, second]), ordering="sequential")
    with DataLoader([source, see, BatchTransform(4)], workers=0) as loader:
        rows(loader)
    for found, wanted in zip(seen[-4:], ([1, 2], None, [3, 4], [5, None]), strict=True):
        whole = wanted is not None and None not in wanted
        assert isinstance(found, np.ndarray) == whole
        assert (found.tolist() if whole else found) == wanted


def test_rows_of_a_ragged_column_have_one_dtype_whatever_their_neighbours() -> None:
    lists = pa.table({"x": pa.array([[0.1], [0.2], [0.3, 0.4], [0.5]], pa.list_(pa.float64()))})
    seen: list[Any] = []
    see = HostMapTransform(lambda element: seen.append(element["x"].dtype) or 0)
    with DataLoader([lists, see, BatchTransform(2)], workers=0) as loader:
        rows(loader)  # the rows of the first batch have one length
    assert set(seen) == {np.dtype(np.float32)}
