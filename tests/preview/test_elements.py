from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, PipelineError, StateError, UsageError
from cereal.preview.elements import PreviewElements, preview_elements

N = 10
DATA = {"image": np.arange(N * 4, dtype=np.uint8).reshape(N, 2, 2), "label": np.arange(N)}


def some(
    data: Any, count: int | None = None, state: Any = None, key: Any = None, step: Any = None
) -> PreviewElements:
    return preview_elements(data, count, state, key, step)


def labels(found: PreviewElements) -> list[int]:
    for image, label in zip(found.columns["image"], found.columns["label"], strict=True):
        np.testing.assert_array_equal(image, DATA["image"][label])
    return [int(label) for label in found.columns["label"]]


def source(ordering: Any = "sequential") -> cereal.ArraySampleSource:
    return cereal.ArraySampleSource(DATA, ordering=ordering)


def element(index: int) -> dict[str, Any]:
    return {name: array[index] for name, array in DATA.items()}


class Rows:
    """A dataset that notes what is read."""

    def __init__(self, n: int = N) -> None:
        self.n, self.read = n, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append((index, threading.current_thread()))
        return element(index)


@cereal.pytree_dataclass
class Counting(cereal.Source[Any]):
    steps_per_epoch: int = cereal.static_field(default=N)

    def element_spec(self) -> Any:
        return {"label": jax.ShapeDtypeStruct((), jnp.int32)}

    def init_state(self, key: Any) -> Any:
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return jnp.int32(0)

    def next(self, state: Any) -> Any:
        return {"label": state}, state % 3 != 2, state + 1


# Loaders


def test_a_loader_gives_its_first_batch() -> None:
    found = some(DataLoader([source(), BatchTransform(4)]))
    assert labels(found) == [0, 1, 2, 3]
    assert found.mask == [True] * 4
    assert found.places == ["#0", "#1", "#2", "#3"]
    assert found.title == "ArraySampleSource(ordering=sequential), step 0, 4 elements"


def test_key_and_step_name_a_batch() -> None:
    loader = DataLoader([source("shuffle"), BatchTransform(4)])
    for key in (0, jax.random.key(3)):
        for step in (0, 1, 7):
            found = some(loader, key=key, step=step)
            assert labels(found) == loader.indices_at(key, step).tolist()
            assert found.places == [f"#{i}" for i in labels(found)]
            assert f"step {step}" in found.title


def test_a_state_names_the_batch_that_comes_next() -> None:
    loader = DataLoader([source(), BatchTransform(4)])
    state = loader.next_batch(loader.init_state(0))[1]
    before = np.array(state.words)
    found = some(loader, state=state)
    assert labels(found) == [4, 5, 6, 7]
    assert "epoch 0 from 4" in found.title
    np.testing.assert_array_equal(np.asarray(state.words), before)


def test_padding_is_told() -> None:
    loader = DataLoader([source(), BatchTransform(4, pad_last_batch=True)])
    assert some(loader, step=2).mask == [True, True, False, False]


def test_count_takes_a_part_of_a_batch_or_goes_on_to_the_end_of_the_epoch() -> None:
    loader = DataLoader([source(), BatchTransform(4, pad_last_batch=True)])
    assert labels(some(loader, 3)) == [0, 1, 2]
    assert some(loader, 3).title.endswith("3 of 4 elements")
    assert labels(some(loader, 7)) == [0, 1, 2, 3, 4, 5, 6]
    whole = some(loader, 100)
    assert labels(whole)[:N] == list(range(N))
    assert whole.mask == [True] * N + [False] * 2
    assert labels(some(loader, 100, step=1))[:6] == [4, 5, 6, 7, 8, 9]


def test_a_large_batch_is_cut() -> None:
    large = {"label": np.arange(1000)}
    found = some(DataLoader([large, BatchTransform(500)]))
    assert [int(x) for x in found.columns["label"]] == list(range(64))
    assert found.title.endswith("64 of 500 elements")


def test_a_loader_without_batches_gives_elements() -> None:
    assert labels(some(DataLoader([source()]))) == list(range(N))
    assert labels(some(DataLoader([source()]), 3, step=4)) == [4, 5, 6]


def test_batches_of_batches_are_one_list() -> None:
    loader = DataLoader([source(), BatchTransform(3), BatchTransform(2, pad_last_batch=True)])
    assert labels(some(loader)) == [0, 1, 2, 3, 4, 5]
    found = some(loader, step=1)
    assert labels(found)[:4] == [6, 7, 8, 9]
    assert found.mask == [True] * 4 + [False] * 2


def test_parts_that_belong_to_the_whole_batch_are_left_out() -> None:
    def brighten(batch: Any, mask: Any) -> Any:
        keys = jax.random.split(jax.random.key(0), 4)  # one for each, but nothing to see
        return {**batch, "bright": batch["image"].mean(), "key": keys}

    loader = DataLoader([source(), BatchTransform(4), cereal.MapTransform(brighten)])
    assert sorted(some(loader).columns) == ["image", "label"]
    alone = cereal.MapTransform(lambda batch: batch["label"].sum())
    with pytest.raises(PipelineError, match=r"nothing to draw for single elements.*\[4\]"):
        some(DataLoader([source(), BatchTransform(4), alone]))


def test_sharded_batches_are_gathered() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    loader = DataLoader([source(), BatchTransform(8), cereal.DevicePutTransform(spread)])
    assert labels(some(loader)) == list(range(8))


def test_a_list_of_stages_and_a_source_are_loaders() -> None:
    assert labels(some([source(), BatchTransform(4)])) == [0, 1, 2, 3]
    assert labels(some([DATA, BatchTransform(4)], step=1)) == [4, 5, 6, 7]
    assert labels(some(source(), 3)) == [0, 1, 2]
    assert labels(some(BatchTransform(4)(source()), step=1)) == [4, 5, 6, 7]


def test_streams_are_stepped_through() -> None:
    found = some(DataLoader([Counting(), BatchTransform(4)]), step=1)
    assert [int(x) for x in found.columns["label"]] == [4, 5, 6, 7]
    assert found.mask == [True, False, True, True]
    alone = some(DataLoader(Counting()), 100, state=jnp.int32(1))
    assert [int(x) for x in alone.columns["label"]] == list(range(1, N + 1))


# The host part


def test_a_host_loader_is_read_by_the_caller_and_keeps_no_thread() -> None:
    rows = Rows()
    before = set(threading.enumerate())
    loader = DataLoader([rows, BatchTransform(4)], workers=3, prefetch=4)
    rows.read.clear()
    assert labels(some(loader, step=1)) == [4, 5, 6, 7]
    assert [index for index, _ in rows.read] == [4, 5, 6, 7]
    assert {thread for _, thread in rows.read} == {threading.current_thread()}
    assert set(threading.enumerate()) <= before


def test_a_loop_that_is_under_way_does_not_notice() -> None:
    loader = DataLoader([Rows(), BatchTransform(2)], workers=2)
    got = []
    with loader.iterate(loader.init_state(0)) as batches:
        for batch, _ in batches:
            got += batch["label"].tolist()
            state = batches.state
            assert labels(some(loader, state=state))[0] == len(got) % N
            np.testing.assert_array_equal(batches.state.words, state.words)
    assert got == list(range(N))
    loader.close()


def test_errors_that_the_loader_skips_are_masked_and_not_counted() -> None:
    def read(index: int) -> Any:
        if index == 1:
            raise OSError("cannot read")
        return element(index)

    disk = cereal.DiskSampleSource(length=N, sample_fn=read, ordering="sequential")
    loader = DataLoader([disk, BatchTransform(4)], on_error="skip", workers=2)
    found = some(loader)
    assert found.mask == [True, False, True, True]
    assert loader.skipped == 0
    with pytest.raises(OSError, match="cannot read"):
        some(DataLoader([disk, BatchTransform(4)], timeout=60.0))


@pytest.mark.parametrize("length", [None, N])
def test_what_only_iterates_is_read_to_its_end(length: int | None) -> None:
    def make() -> Iterator[Any]:
        yield from (element(index) for index in range(N))

    loader = DataLoader(
        [cereal.IterableSource(make, length=length), BatchTransform(4, pad_last_batch=True)],
        workers=1,
    )
    batches = loader.iterate()
    first = next(batches)[0]["label"].tolist()
    found = some(loader, 100)
    assert len(found.mask) == 12
    assert [x for x, real in zip(labels(found), found.mask, strict=True) if real] == list(range(N))
    rest = [label for batch, mask in batches for label in batch["label"][mask].tolist()]
    assert first + rest == list(range(N))
    loader.close()


def test_elements_that_are_no_arrays_are_read_as_python_makes_them() -> None:
    words = cereal.DatasetSource(["a", "bb", "ccc", "dddd"])
    found = some(words)
    assert found.columns == {"": ["a", "bb", "ccc", "dddd"]}
    assert some(words, 2, step=1).columns == {"": ["bb", "ccc"]}
    assert some(words, step=3).places == ["#3"]
    long = cereal.HostFilterTransform(lambda word: len(word) != 2)(words)
    filtered = some(long)
    assert filtered.columns[""] == ["a", None, "ccc", "dddd"]
    assert filtered.mask == [True, False, True, True]


def test_an_iterator_of_objects_ends() -> None:
    letters = cereal.IterableSource(lambda: iter("abc"))
    assert some(letters).columns == {"": ["a", "b", "c"]}


# Datasets and arrays


def test_only_so_many_elements_of_a_dataset_are_read() -> None:
    rows = Rows()
    assert labels(some(rows, 3)) == [0, 1, 2]
    assert [index for index, _ in rows.read] == [0, 1, 2]
    assert some(rows, 3).title == "Rows, 3 of 10 elements"
    assert some(rows).title == "Rows, 10 elements"


def test_a_list_is_a_dataset() -> None:
    assert labels(some([element(3), element(5)])) == [3, 5]
    tuples = some([(DATA["image"][0], "a"), (DATA["image"][1], "b")])
    assert tuples.columns["1"] == ["a", "b"]


def test_elements_with_parts_missing_have_none() -> None:
    assert some([{"a": 1, "b": 2}, {"a": 3}]).columns == {"a": [1, 3], "b": [2, None]}


def test_a_dataset_says_what_its_labels_are_called() -> None:
    class Feature:
        names = ("yes", "no")

    rows = Rows()
    assert some(rows).names == {}
    rows.classes = ("cat", "dog")  # type: ignore[attr-defined]
    assert some(rows, 1).names == {None: ("cat", "dog"), "label": ("cat", "dog")}
    rows.features = {"label": Feature(), "image": object()}  # type: ignore[attr-defined]
    assert some(rows, 1).names == {None: ("cat", "dog"), "label": ("yes", "no")}
    rows.classes = 7  # type: ignore[attr-defined]
    assert some(rows, 1).names == {"label": ("yes", "no")}


def test_trees_of_arrays_are_elements_by_row() -> None:
    assert labels(some(DATA, 3)) == [0, 1, 2]
    assert labels(some({name: jnp.asarray(x) for name, x in DATA.items()})) == list(range(N))
    pair = some((DATA["image"], DATA["label"]))
    assert sorted(pair.columns) == ["0", "1"]
    assert len(some(DATA["image"], 4).columns[""]) == 4
    texts = some({"image": DATA["image"][:2], "text": ["a", "b"]})
    assert texts.columns["text"] == ["a", "b"]
    assert some(DATA, 3).title == "arrays, 3 of 10 elements"


def test_a_batch_with_its_mask_is_taken_as_such() -> None:
    loader = DataLoader([source(), BatchTransform(2), BatchTransform(2, pad_last_batch=True)])
    found = some(loader.batch_at(0, 2))
    assert labels(found)[:2] == [8, 9]
    assert found.mask == [True, True, False, False]
    assert labels(some(loader.batch_at(0, 0), 3)) == [0, 1, 2]


# Refusals


def test_what_cannot_be_looked_at_is_told_what_can() -> None:
    with pytest.raises(UsageError, match=r"that is a class: write `DigitsDataset\(...\)`"):
        some(cereal.DigitsDataset)
    with pytest.raises(UsageError, match="cannot look at list_iterator; read elements of it"):
        some(iter([1]))
    with pytest.raises(UsageError, match=r"`preview\(loader, state=batches.state\)`"):
        some(DataLoader([source(), BatchTransform(4)]).iterate())
    with pytest.raises(UsageError, match="cannot look at int; pass a loader"):
        some(3)
    with pytest.raises(PipelineError, match="Rows has no elements"):
        some(Rows(0))
    with pytest.raises(PipelineError, match=r"one length, .*'image': 10, 'label': 3"):
        some({"image": DATA["image"], "label": DATA["label"][:3]})
    with pytest.raises(PipelineError, match=r"'train' is Rows; pass arrays, or one of the data"):
        some({"train": Rows()})
    with pytest.raises(PipelineError, match="these arrays have no elements"):
        some({"image": np.zeros((0, 2, 2))})


def test_positions_are_for_loaders_and_said_once() -> None:
    loader = DataLoader([source(), BatchTransform(4)])
    with pytest.raises(UsageError, match="pass `state=`, or `key=` and `step=`, not both"):
        some(loader, state=loader.init_state(0), step=1)
    for options in ({"key": 0}, {"step": 0}, {"state": 0}):
        with pytest.raises(UsageError, match="are for loaders, and dict is none"):
            some(DATA, **options)
    with pytest.raises(StateError, match="belongs to another pipeline"):
        some(loader, state=DataLoader([cereal.RangeSource(3)]).init_state(0))


def test_the_error_of_an_element_says_which_it_was() -> None:
    class Broken(Rows):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise KeyError("gone")
            return element(index)

    with pytest.raises(KeyError) as error:
        some(Broken())
    assert error.value.__notes__ == ["cereal: preview, element 2 of Broken"]
