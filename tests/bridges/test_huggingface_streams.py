"""Hugging Face's streams, first in a loader's list: their order, their epochs, their states."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

import jax
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, DatasetSource, IterableSource, PipelineError

from .checks import N, check_in_jit, check_resume, check_values, loader_of, rows

pytestmark = pytest.mark.bridges
datasets = import_module("datasets")

LABELS = np.arange(N, dtype=np.int32)
VECTORS = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
WANTED = {"x": VECTORS, "label": LABELS}


@pytest.fixture(autouse=True)
def iterators_are_collected() -> Iterator[None]:
    """An iterator that mixes streams has threads of the library's own, as long as it lives."""
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(10)


def numbers(shards: int = 2) -> Any:
    columns = {"x": VECTORS.tolist(), "label": LABELS.tolist()}
    return datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=shards)


def generated() -> Any:
    def elements(parts: list[int]) -> Any:
        for part in parts:
            for i in range(part, part + N // 2):
                yield {"x": VECTORS[i].tolist(), "label": i}

    return datasets.IterableDataset.from_generator(elements, gen_kwargs={"parts": [0, N // 2]})


def one_more(element: Any) -> Any:
    return {"label": element["label"] + 1}


def all_one_more(batch: Any) -> Any:
    return {"label": [label + 1 for label in batch["label"]]}


def is_even(element: Any) -> bool:
    return element["label"] % 2 == 0


STREAMS: dict[str, Callable[[], Any]] = {
    "shards": numbers,
    "a generator": generated,
    "as numpy": lambda: numbers().with_format("numpy"),
    "as torch": lambda: numbers().with_format("torch"),
    "mapped": lambda: numbers().map(one_more),
    "mapped in batches": lambda: numbers().map(all_one_more, batched=True, batch_size=3),
    "mapped as numpy": lambda: numbers().with_format("numpy").map(all_one_more, batched=True),
    "filtered": lambda: numbers(5).filter(is_even),
    "a part": lambda: generated().skip(2).take(7),
    "renamed": lambda: numbers().rename_column("x", "y").select_columns(["y", "label"]),
    "two": lambda: datasets.concatenate_datasets([numbers(), generated()]),
    "mixed": lambda: datasets.interleave_datasets([numbers(), generated()]),
    "mixed at random": lambda: datasets.interleave_datasets(
        [numbers(), generated()], probabilities=[0.5, 0.5], seed=1
    ),
    "shuffled": lambda: numbers(5).shuffle(seed=1, buffer_size=4),
    "shuffled, then mapped": lambda: generated().shuffle(seed=2, buffer_size=3).map(one_more),
}


def of_library(dataset: Any, epoch: int = 0) -> Any:
    if epoch:
        dataset.set_epoch(epoch)
    elements = [jax.tree.map(np.asarray, element) for element in dataset]
    return [int(element["label"]) for element in elements]


@pytest.mark.parametrize("name", ["shards", "a generator", "as numpy", "as torch"])
def test_a_stream_is_read_by_every_road(name: str) -> None:
    check_values(STREAMS[name](), WANTED)
    check_resume(STREAMS[name], WANTED)
    check_in_jit(STREAMS[name](), WANTED)


@pytest.mark.parametrize("name", STREAMS)
def test_it_goes_on_after_every_batch_as_it_would_have(name: str) -> None:
    make = STREAMS[name]
    own = [of_library(make())]
    own.append(of_library(make(), 1) if "shuffled" in name or "random" in name else own[0])
    with loader_of(make()) as loader:
        batches = loader.iterate(loader.init_state(0), epochs=2)
        states, labels = [loader.init_state(0)], []
        for batch, mask in batches:
            labels.append(np.asarray(batch["label"])[np.asarray(mask)].tolist())
            states.append(batches.state)
    assert [*chain(*labels)] == own[0] + own[1]
    for done in range(1, len(labels)):
        with loader_of(make()) as loader:
            found = rows(loader, states[done], epochs=2 - int(states[done].epoch))
        assert found["label"].tolist() == [*chain(*labels[done:])]


def test_its_own_state_is_used_where_it_is_exact() -> None:
    def count(element: Any, seen: list[int]) -> Any:
        seen.append(element["label"])
        return element

    for shuffled in (False, True):
        seen: list[int] = []

        def make(seen: list[int] = seen, shuffled: bool = shuffled) -> Any:
            stream = numbers(10)
            stream = stream.shuffle(seed=1, buffer_size=4) if shuffled else stream
            return stream.map(count, fn_kwargs={"seen": seen})

        with loader_of(make()) as loader:
            batches = loader.iterate(loader.init_state(0), epochs=1)
            next(batches)
            next(batches)
            state = batches.state
            batches.close()
        seen.clear()
        rows(loader_of(make(), workers=0), state)
        # The first tells the shapes. The library's state does not have what is in a buffer.
        assert set(seen) == ({0, *range(8, N)} if not shuffled else set(range(N)))


def test_a_shuffled_stream_of_a_function_skips_too() -> None:
    def source() -> Any:
        return IterableSource(lambda: numbers(5).shuffle(seed=1, buffer_size=4))

    order = of_library(numbers(5).shuffle(seed=1, buffer_size=4))
    check_resume(source, {"x": VECTORS[order], "label": LABELS[order]})


def test_an_epoch_of_ours_is_an_epoch_of_theirs() -> None:
    stream = numbers(5).shuffle(seed=3, buffer_size=5)
    with loader_of(stream) as loader:
        found = rows(loader, epochs=3)["label"].reshape(3, N).tolist()
    own = [of_library(numbers(5).shuffle(seed=3, buffer_size=5), epoch) for epoch in range(3)]
    assert found == own
    assert stream.epoch == 0  # the user's own object is left alone
    assert of_library(stream) == own[0]


def test_two_loaders_over_one_stream_do_not_meet() -> None:
    stream = numbers()
    with loader_of(stream) as one, loader_of(stream) as other:
        first, second = one.iterate(), other.iterate()
        found = [[int(x) for x in next(it)[0]["label"]] for it in (first, second, first, second)]
        first.close()
        second.close()
    assert found == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2


def test_a_column_of_a_stream_is_a_stream() -> None:
    check_values(numbers()["x"], VECTORS)
    check_resume(lambda: numbers()["label"], LABELS)
    nested = datasets.Dataset.from_dict({"a": [{"b": i} for i in range(N)]})
    check_values(nested.to_iterable_dataset()["a"]["b"], LABELS)


def test_a_stream_cannot_be_shuffled_by_index() -> None:
    with pytest.raises(PipelineError, match=r"can only be iterated.*first in the loader's list"):
        DatasetSource(numbers(), ordering="shuffle")


def test_streams_of_splits_are_named() -> None:
    splits = datasets.IterableDatasetDict({"train": numbers(), "test": numbers()})
    with pytest.raises(PipelineError, match=r"IterableDatasetDict.*one of 'train', 'test'"):
        DataLoader([splits, BatchTransform(2)])
