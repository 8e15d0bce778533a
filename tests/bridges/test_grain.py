"""Grain's datasets first in a loader's list, and its transforms in it."""

from __future__ import annotations

import dataclasses
import gc
import re
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, IterableSource, PipelineError

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    equal,
    loader_of,
    rows,
)

pytestmark = pytest.mark.bridges
grain = import_module("grain")


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Grain's threads end soon after their iterator is gone; so it must be gone."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    left = [each for each in threading.enumerate() if each not in before and not each.daemon]
    for thread in left:
        thread.join(timeout=30)
    assert not [thread.name for thread in left if thread.is_alive()]


class Source:
    """A data source, as Grain wants one."""

    def __len__(self) -> int:
        return N

    def __repr__(self) -> str:
        return "Source()"  # a state of Grain's loader belongs to a source of this name

    def __getitem__(self, index: int) -> Any:
        return {"image": IMAGES[index], "label": int(LABELS[index])}


def mapped() -> Any:
    return grain.MapDataset.source(Source())


def inverted() -> Any:
    return mapped().map(lambda element: {**element, "image": 255 - element["image"]})


WANTED = {"image": IMAGES, "label": LABELS}
DATASETS: dict[str, tuple[Callable[[], Any], Any]] = {
    "source": (Source, WANTED),
    "MapDataset": (mapped, WANTED),
    "mapped": (inverted, {"image": 255 - IMAGES, "label": LABELS}),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_bare_dataset_gives_its_elements(name: str) -> None:
    make, wanted = DATASETS[name]
    check_values(make(), wanted)


@pytest.mark.parametrize("name", DATASETS)
def test_a_shuffled_epoch_is_complete(name: str) -> None:
    make, wanted = DATASETS[name]
    source = DatasetSource(make(), ordering="shuffle")
    check_shuffled(source, wanted, lambda found: found["label"])


@pytest.mark.parametrize("name", DATASETS)
def test_it_goes_on_in_the_middle_of_an_epoch(name: str) -> None:
    check_resume(*DATASETS[name])


@pytest.mark.parametrize("name", DATASETS)
def test_it_is_read_inside_of_jit(name: str) -> None:
    make, wanted = DATASETS[name]
    check_in_jit(make(), wanted)


def test_batches_are_those_of_its_own_batching() -> None:
    own = list(mapped().batch(5))
    ours = list(DataLoader([mapped(), BatchTransform(5)]))
    assert len(own) == len(ours) == 2
    for theirs, (batch, _) in zip(own, ours, strict=True):
        equal(batch, {**theirs, "label": theirs["label"].astype(np.int32)})


def own_epochs(dataset: Any, epochs: int = 3) -> list[Any]:
    """What Grain gives, epoch by epoch."""
    return [element["label"] for element in dataset.repeat(epochs)]


@pytest.mark.parametrize("workers", [0, 2])
def test_its_own_shuffle_and_augmentation_differ_between_epochs(workers: int) -> None:
    def noisy(element: Any, rng: np.random.Generator) -> Any:
        return {**element, "label": element["label"] + 100 * int(rng.integers(1000))}

    for dataset in (
        mapped().seed(3).shuffle(),
        mapped().seed(3).random_map(noisy),
        mapped().seed(3).shuffle().map(lambda x: x).random_map(noisy)[2:9],
        mapped().seed(3).shuffle().repeat(2),
        mapped().map_with_index(lambda i, x: {**x, "label": i}),
        grain.MapDataset.mix([mapped(), mapped()[:3]], weights=[0.5, 0.5]),
        grain.MapDataset.concatenate([mapped().shuffle(seed=1), mapped().shuffle(seed=2)]),
        mapped().seed(1).shuffle().batch(2).map(lambda x: {"label": x["label"][0]}),
    ):
        loader = loader_of(dataset, workers)
        found = rows(loader, loader.init_state(0), epochs=3)["label"].tolist()
        assert found == own_epochs(dataset)
        check_in_second_epoch(loader_of(dataset, workers), dataset, found)


def check_in_second_epoch(loader: DataLoader[Any], dataset: Any, found: list[Any]) -> None:
    """Read again from the middle, and by its index."""
    n = len(dataset)
    batches = loader.iterate(loader.init_state(0), epochs=2)
    for _ in range(-(-n // 4) + 1):
        next(batches)
    rest = rows(loader, batches.state)["label"].tolist()
    assert rest == found[n + 4 : 2 * n]
    assert loader.read_element(1, epoch=1)["label"] == found[n + 1]


def test_shuffled_here_too_its_augmentation_differs_between_epochs() -> None:
    dataset = mapped().seed(0).random_map(lambda x, rng: {**x, "draw": int(rng.integers(2**30))})
    loader = loader_of(DatasetSource(dataset, ordering="shuffle"))
    found = rows(loader, loader.init_state(0), epochs=2)
    assert sorted(found["label"][:N].tolist()) == sorted(found["label"][N:].tolist())
    assert len(set(found["draw"].tolist())) == 2 * N


def test_what_is_random_in_it_is_neither_cached_nor_split() -> None:
    shuffled = DatasetSource(mapped().seed(3).shuffle())
    with pytest.raises(PipelineError, match="change from epoch to epoch"):
        cereal.CacheTransform("host")(shuffled)
    with pytest.raises(PipelineError, match="would share data"):
        cereal.split(shuffled, (0.8, 0.2))
    augmented = DatasetSource(mapped().seed(3).random_map(lambda x, rng: x))
    with pytest.raises(PipelineError, match="change from epoch to epoch"):
        cereal.CacheTransform("host")(augmented)
    train, val = cereal.split(augmented, (0.8, 0.2))
    assert (len(train), len(val)) == (8, 2)


def test_a_loop_without_a_state_is_told_that_epochs_differ() -> None:
    with pytest.raises(cereal.UsageError, match=r"init_state\(key\)"):
        iter(loader_of(mapped().seed(3).shuffle()))


def test_a_slice_is_a_dataset_too() -> None:
    assert rows(loader_of(mapped()[2:8]))["label"].tolist() == [2, 3, 4, 5, 6, 7]


def test_it_becomes_arrays_in_one_call() -> None:
    equal(cereal.dataset_to_jax(mapped()), WANTED)


def test_read_once_it_trains_in_one_program() -> None:
    loader = DataLoader([mapped(), cereal.CacheTransform("device"), BatchTransform(5)])
    body = lambda carry, batch, mask: (carry, batch["label"])  # noqa: E731
    _, _, found = loader.scan_epoch(loader.init_state(0), 0, body)
    assert found.reshape(-1).tolist() == LABELS.tolist()


# Its transforms, in the list


class Invert(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return {**element, "image": 255 - element["image"]}


@dataclasses.dataclass(frozen=True)
class Shift(grain.transforms.RandomMap):
    most: int

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {**element, "shift": rng.integers(self.most)}


class Odd(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return element["label"] % 2 == 1


def loader_with(*stages: Any, workers: int = 2) -> DataLoader[Any]:
    return DataLoader([Source(), *stages, BatchTransform(4, pad_last_batch=True)], workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_is_a_host_stage(workers: int) -> None:
    found = rows(loader_with(Invert(), workers=workers))
    equal(found, {"image": 255 - IMAGES, "label": LABELS})


def test_a_random_map_draws_anew_for_every_element_of_every_epoch() -> None:
    found = [rows(loader_with(Shift(1000), workers=w), epochs=2)["shift"] for w in (0, 2)]
    np.testing.assert_array_equal(*found)
    assert len(set(found[0].tolist())) > N  # 20 draws out of 1000
    assert found[0][:N].tolist() != found[0][N:].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_filter_masks(workers: int) -> None:
    found = rows(loader_with(Odd(), Invert(), workers=workers))
    equal(found, {"image": 255 - IMAGES[1::2], "label": LABELS[1::2]})


def test_a_class_of_transform_is_told_to_be_an_instance() -> None:
    with pytest.raises(PipelineError, match=r"stage 1 is the class Invert, not an instance"):
        loader_with(Invert)
    with pytest.raises(PipelineError, match=r"stage 0 is the class Source, not an instance"):
        loader_of(Source)


def test_its_batch_is_told_the_name_of_ours() -> None:
    with pytest.raises(PipelineError, match=r"stage 1 .*BatchTransform\("):
        loader_with(grain.transforms.Batch(2))


# What only iterates


@pytest.mark.parametrize("length", [None, N])
def test_an_iterator_with_a_state_resumes_by_it(length: int | None) -> None:
    dataset = mapped().seed(0).shuffle().to_iter_dataset()
    order = np.array([element["label"] for element in dataset])

    def source() -> Any:
        return IterableSource(lambda: iter(dataset), length=length)

    wanted = {"image": IMAGES[order], "label": LABELS[order]}
    check_values(source(), wanted)
    check_resume(source, wanted)
    check_in_jit(source(), wanted)


def test_its_own_loader_is_read_through_a_function_that_makes_it() -> None:
    sampler = grain.samplers.SequentialSampler(N, grain.sharding.NoSharding())

    def source() -> Any:
        loader = grain.DataLoader(data_source=Source(), sampler=sampler, operations=[Invert()])
        return IterableSource(lambda: iter(loader))

    wanted = {"image": 255 - IMAGES, "label": LABELS}
    check_values(source(), wanted)
    check_resume(source, wanted)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_iter_dataset_stands_first_in_the_list(threads: int) -> None:
    def dataset() -> Any:
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
        return mapped().seed(0).shuffle().to_iter_dataset(options)

    order = np.array([element["label"] for element in dataset()])
    wanted = {"image": IMAGES[order], "label": LABELS[order]}
    check_values(dataset(), wanted)
    check_resume(dataset, wanted)
    check_in_jit(dataset(), wanted)
    assert "IterDataset" in repr(loader_of(dataset()))


def test_an_iter_dataset_resumes_by_its_own_state() -> None:
    seen: list[int] = []

    def noted(element: Any) -> Any:
        seen.append(element["label"])
        return element

    def dataset() -> Any:
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        return mapped().to_iter_dataset(options).map(noted)

    with loader_of(dataset(), workers=0) as loader:
        batches = loader.iterate()
        next(batches)
        next(batches)
        state = batches.state
        batches.close()
    with loader_of(dataset(), workers=0) as loader:
        seen.clear()
        assert rows(loader, state)["label"].tolist() == [8, 9]
    assert seen == [8, 9]  # nothing was skipped one by one


def test_an_iter_dataset_has_its_own_order() -> None:
    with pytest.raises(PipelineError, match="can only be iterated"):
        DatasetSource(mapped().to_iter_dataset(), ordering="shuffle")


# What is wrong


def test_its_loader_and_samplers_are_told_what_to_write() -> None:
    sampler = grain.samplers.SequentialSampler(N, grain.sharding.NoSharding())
    loader = grain.DataLoader(
        data_source=Source(), sampler=sampler, operations=[Invert(), grain.transforms.Batch(2)]
    )
    words = 'DatasetSource(Source(...), ordering="shuffle"), Invert(...), BatchTransform(n)'
    with pytest.raises(PipelineError, match=re.escape(words)):
        loader_of(loader)
    with pytest.raises(PipelineError, match=r"SequentialSampler is an order.*DatasetSource\("):
        loader_of(sampler)


def test_splits_are_named() -> None:
    splits = {"train": mapped(), "test": mapped()}
    with pytest.raises(PipelineError, match=r"'train', 'test'; write `splits\['train'\]`"):
        loader_of(splits)
    with pytest.raises(PipelineError, match=r"a list of datasets.*0, 1"):
        loader_of(list(splits.values()))


def test_its_filter_leaves_holes_and_is_told_to_go_into_the_list() -> None:
    for odd in (0, 1):  # the first element is a hole, or the second
        holes = mapped().filter(lambda element, odd=odd: element["label"] % 2 == odd)
        with pytest.raises(PipelineError, match=r"None.*HostFilterTransform"):
            rows(loader_of(holes))


def test_repeated_without_end_it_is_told_how_long_it_may_be() -> None:
    with pytest.raises(PipelineError, match=r"has 9223372036854775807 elements"):
        loader_of(mapped().repeat())
    assert rows(loader_of(mapped().repeat(2)))["label"].tolist() == LABELS.tolist() * 2
