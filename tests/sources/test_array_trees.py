"""What is taken for a tree of arrays, and what is refused with the line to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    MemmapSource,
    PipelineError,
    RangeSource,
    WindowSource,
    dataset_to_jax,
    save_arrays,
)

TAKE = {
    "ArraySampleSource": ArraySampleSource,
    "MemmapSource": MemmapSource,
    "WindowSource": lambda data: WindowSource(data, 2),
    "dataset_to_jax": dataset_to_jax,
    "save_arrays": lambda data: save_arrays("never-written", data),
    "stage 0": lambda data: DataLoader([data, BatchTransform(2)]),
}
SOURCE = ArraySampleSource({"x": np.arange(6.0)})
LOADER = DataLoader([SOURCE, BatchTransform(2)])
PARTS = {
    "loader": (LOADER, r"is a DataLoader, .* not data; .* `DataLoader\(\[loader.source, ...\]\)`"),
    "iterator": (
        LOADER.iterate(LOADER.init_state(0)),
        "is an iterator over the batches of a loader and not data",
    ),
    "state": (
        LOADER.init_state(0),
        r"is a PipelineState, a position and not data; .* `loader.next_batch\(state\)`",
    ),
    "source": (SOURCE, "is an ArraySampleSource, not data; a source stands first in"),
    "transform": (BatchTransform(2), "is a BatchTransform, not data; transforms stand behind"),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("owner", TAKE)
def test_parts_of_pipelines_are_no_data(owner, part):
    value, words = PARTS[part]
    for data, place in ((value, ""), ({"a": value, "b": np.zeros(6)}, r"\['a'\]")):
        if owner == "stage 0" and (not place or part != "transform"):
            continue  # what stands first in the list has words of its own
        with pytest.raises(PipelineError, match=rf"{owner}: `\w+{place}` {words}"):
            TAKE[owner](data)


class Frame:
    """Looks like a frame of another library."""

    def __init__(self, **columns):
        vars(self).update(columns)

    def __len__(self):
        return 3


POLARS = type("DataFrame", (Frame,), {"__module__": "polars.dataframe.frame"})(columns=["a"])
ARROW = type("Table", (Frame,), {"__module__": "pyarrow.lib"})(column_names=["a"], columns=[1])
SERIES = type("Series", (Frame,), {"__module__": "pandas.core.series"})()


@pytest.mark.parametrize("owner", [*TAKE, "DatasetSource"])
def test_a_column_is_refused_with_the_line_that_converts_it(owner):
    take = {**TAKE, "DatasetSource": DatasetSource}[owner]
    with pytest.raises(PipelineError, match=r"Series of pandas; write `column.to_numpy\(\)`"):
        take(SERIES)


AS_IT_IS = ("stage 0", "dataset_to_jax", "DatasetSource")  # these take frames


@pytest.mark.parametrize("owner", [owner for owner in TAKE if owner not in AS_IT_IS])
def test_frames_are_refused_as_arrays_with_the_line_that_converts_them(owner):
    take = TAKE[owner]
    with pytest.raises(
        PipelineError, match=r"DataFrame of polars; put it first .*frame\[name\].to_numpy\(\) for"
    ):
        take(POLARS)
    with pytest.raises(
        PipelineError, match=r"Table of pyarrow; .* for name in table.column_names}"
    ):
        take(ARROW)


COLUMNS = {
    "text": (np.array(["cat", "dog"]), r"got <U3\[2\]: text; write `names, \w+\['x'\] = np.unique"),
    "objects": (
        np.array(["cat", "dog"], object),
        r"text; .*, after `\w+\['x'\] = .*astype\(str\)`",
    ),
    "bytes": (np.array([b"cat"]), r"got \|S3\[1\]: text; write"),
    "dates": (
        np.array(["2020-01-01"], "M8[D]"),
        r"in time; write `\(\w+\['x'\] - .*\[0\]\) /",
    ),
    "spans": (
        np.array([3], "m8[s]"),
        r"spans of time; write `\w+\['x'\] / np.timedelta64\(1,",
    ),
    "records": (
        np.zeros(3, [("a", "i4")]),
        r"records; write `{name: \w+\['x'\]\[name\] for name",
    ),
    "missing": (np.array([1.0, None]), "Python objects, the first a float .1.0.; turn text and"),
    "ragged": (
        np.array([[1, 2], [3]], object),
        r"rows that are lists. .*`np.stack\(\w+\['x'\]\)`; else put `list\(\w+\['x'\]\)` first",
    ),
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("owner", TAKE)
def test_columns_that_are_no_numbers_are_named_and_a_way_is_shown(owner, column):
    array, words = COLUMNS[column]
    with pytest.raises(
        PipelineError, match=rf"{owner}: `\w+\['x'\]` must be .* numbers, .*{words}"
    ):
        TAKE[owner]({"x": array})


def test_the_lines_that_are_shown_work():
    data = np.array(["cat", "dog", "cat"])
    names, data = np.unique(data, return_inverse=True)
    assert names[np.asarray(ArraySampleSource(data).data)].tolist() == ["cat", "dog", "cat"]
    data = np.array(["cat", "dog", "cat"], object).astype(str)
    assert np.unique(data, return_inverse=True)[1].tolist() == [0, 1, 0]
    data = np.array(["2020-01-01", "2020-01-03"], "M8[D]")
    data = (data - data[0]) / np.timedelta64(1, "s")
    assert ArraySampleSource(data).data.tolist() == [0, 2 * 86400]
    data = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f4")])
    source = ArraySampleSource({name: data[name] for name in ("a", "b")})
    assert source.data["b"].tolist() == [2, 4]


@pytest.mark.parametrize("owner", ["ArraySampleSource", "MemmapSource", "WindowSource"])
def test_lists_may_be_rows_or_columns_and_are_refused(owner):
    for rows in ([np.zeros(3)] * 3, [jnp.zeros(3)] * 2, [[1, 2, 3], [4, 5, 6]], [1, 2, 3]):
        with pytest.raises(PipelineError, match=rf"{owner}: `data` is a list of \d, .*`np.stack"):
            TAKE[owner](rows)
    with pytest.raises(PipelineError, match=f"{owner}: .* list of 2 dicts, which are elements"):
        TAKE[owner]([{"x": np.zeros(3)}, {"x": np.zeros(3)}])
    for ragged in ([np.zeros(3), np.zeros(2)], [[1, 2], [3]]):
        with pytest.raises(
            PipelineError, match=f"{owner}: .*different shapes. If they are columns"
        ):
            TAKE[owner](ragged)


def test_a_list_of_different_shapes_and_one_length_is_columns():
    source = ArraySampleSource([np.zeros((3, 2)), np.arange(3)])
    assert [leaf.shape for leaf in source.element_spec()] == [(2,), ()]


def test_lists_of_columns_that_were_saved_are_opened(tmp_path):
    save_arrays(tmp_path / "pair", [np.arange(3), np.zeros(3)])
    source = MemmapSource(tmp_path / "pair", "sequential")
    batch, _ = DataLoader([source, BatchTransform(3)]).batch_at(0, 0)
    assert batch[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("owner", [owner for owner in TAKE if owner != "stage 0"])
def test_keys_that_cannot_be_sorted_are_refused(owner):
    with pytest.raises(
        PipelineError, match=f"{owner}: the keys of a dict in .* make all of them str"
    ):
        TAKE[owner]({1: np.zeros(3), "a": np.zeros(3)})


def test_so_they_are_in_the_list():
    with pytest.raises(
        PipelineError, match="stage 0: the keys of a dict in `data` cannot be sorted"
    ):
        DataLoader([{1: np.zeros(3), "a": np.zeros(3)}, BatchTransform(2)])


@pytest.mark.parametrize("key", [jax.random.PRNGKey(3), jax.random.key(3)])
def test_a_random_key_is_no_order(key):
    words = "`ordering` is a random key; write .*init_state"
    with pytest.raises(PipelineError, match=f"RangeSource: {words}"):
        RangeSource(6, ordering=key)
    with pytest.raises(PipelineError, match=f"DatasetSource: {words}"):
        DatasetSource(["a", "b"], key)


def test_indices_of_32_bits_are_an_order():
    indices = jnp.array([3, 5], jnp.uint32).astype(np.int32)
    assert RangeSource(6, ordering=indices).traits.length == 2
    assert RangeSource(6, ordering=np.array([3, 5], np.uint32)).traits.length == 2


def test_a_path_that_is_none_is_refused():
    with pytest.raises(
        PipelineError, match=r"save_arrays: `path` must be a path, .* got int \(3\)"
    ):
        save_arrays(3, {"a": np.zeros(2)})  # type: ignore[arg-type]


def test_trees_of_users_own_classes_are_data():
    @cereal.pytree_dataclass
    class Pair:
        image: jax.Array
        label: jax.Array

    source = ArraySampleSource(Pair(jnp.zeros((4, 2)), jnp.arange(4)))
    assert len(source) == 4
