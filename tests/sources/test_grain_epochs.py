"""Datasets that number their epochs through, as Grain's do; told by their class, without Grain."""

from __future__ import annotations

from typing import Any

import pytest

from cereal import BatchTransform, DataLoader, DatasetSource
from cereal.reading.bridges.grain import epochs_of


def grain_class(name: str, base: type = object) -> type:
    """A class that says it is Grain's."""

    def get(self: Any, index: int) -> int:
        return index

    body = {"__len__": lambda self: 6, "__getitem__": get, "parents": ()}
    return type(name, (base,), {**body, "__module__": "grain._src.python.dataset"})


MapDataset = grain_class("MapDataset")


def made(name: str, *parents: Any) -> Any:
    dataset = grain_class(name, MapDataset)()
    dataset.parents = parents
    return dataset


def test_epochs_differ_where_a_parent_shuffles_or_draws() -> None:
    source = made("SourceMapDataset")
    assert epochs_of(made("MapMapDataset", source)) == "same"
    assert epochs_of(made("MapMapDataset", made("RandomMapMapDataset", source))) == "changed"
    mixed = made("ZipMapDataset", source, made("ShuffleMapDataset", source))
    assert epochs_of(made("RandomMapMapDataset", mixed)) == "moved"


def test_a_users_own_dataset_of_grain_may_do_anything() -> None:
    class Mine(MapDataset):  # type: ignore[misc,valid-type]
        pass

    assert epochs_of(Mine()) == "moved"
    assert epochs_of([1, 2, 3]) == "same"


@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_read_through_its_epochs(workers: int) -> None:
    dataset = made("ShuffleMapDataset", made("SourceMapDataset"))
    loader = DataLoader([dataset, BatchTransform(3)], workers=workers)
    found = [b.tolist() for b, _ in loader.iterate(loader.init_state(0), epochs=3)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14], [15, 16, 17]]


def test_where_epochs_are_alike_the_index_stays_below_the_length() -> None:
    loader = DataLoader([DatasetSource(made("SourceMapDataset")), BatchTransform(6)])
    found = [b.tolist() for b, _ in loader.iterate(epochs=2)]
    assert found == [[0, 1, 2, 3, 4, 5]] * 2
