"""With 64-bit types on, indices are int32 wherever a stage sees them, as they are without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    HostFilterTransform,
    HostMapTransform,
    MapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    ZipSource,
    select,
)

double = MapTransform(lambda x: jax.tree.map(lambda leaf: leaf * 2, x))


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def indexed() -> Any:
    data = {"x": np.arange(6, dtype=np.float32)}
    return ArraySampleSource(data, ordering="sequential", index_key="index")


SOURCES: dict[str, Callable[[], Any]] = {
    "a range": lambda: RangeSource(6),
    "an index key": indexed,
    "a slice": lambda: SliceSource(RangeSource(20), [3, 1, 2, 7]),
    "a split": lambda: cereal.split(RangeSource(12), (0.5, 0.5), key=1)[0],
    "sources joined": lambda: ConcatSource([RangeSource(3), RangeSource(4)]),
    "a repetition": lambda: RepeatSource(RangeSource(3), 2),
    "a pair": lambda: ZipSource([RangeSource(6), indexed()]),
    "windows": lambda: cereal.WindowSource(np.arange(9, dtype=np.int32), 3),
    "host stages": lambda: HostMapTransform(lambda x: x)(RangeSource(6)),
    "a host filter": lambda: HostFilterTransform(lambda x: x % 2 == 0)(RangeSource(6)),
}


def same_as(expected: Any, found: Any) -> None:
    for wanted, got in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert np.asarray(got).dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", SOURCES)
def test_a_cache_gives_what_iterating_gives(name: str, tmp_path: Path) -> None:
    stages = [SOURCES[name](), double]
    expected = DataLoader([*stages, BatchTransform(3)]).batch_at(0, 0)
    for where in ("device", "host", tmp_path):
        loader = DataLoader([*stages, CacheTransform(where), BatchTransform(3)])
        same_as(expected, next(loader.iterate(loader.init_state(0))))


@pytest.mark.parametrize("name", SOURCES)
def test_single_elements_are_those_of_batches(name: str) -> None:
    loader = DataLoader([SOURCES[name](), double, BatchTransform(3)])
    batch, _ = loader.batch_at(0, 0)
    index = int(loader.indices_at(0, 0)[0])
    same_as(jax.tree.map(lambda x: x[0], batch), loader.read_element(index))


def test_a_selection_sees_int32() -> None:
    seen = []

    def large(x: Any) -> Any:
        seen.append(x.dtype)
        return x > 4

    assert len(select(double(RangeSource(6)), large)) == 3
    assert set(seen) == {np.dtype(np.int32)}


def test_a_source_of_ones_own_is_asked_with_int32() -> None:
    seen = []

    @cereal.pytree_dataclass
    class Own(cereal.IndexedSource[Any]):
        def __len__(self) -> int:
            return 6

        def element_spec(self) -> Any:
            return jax.ShapeDtypeStruct((), np.int32)

        def take(self, indices: Any) -> Any:
            seen.append(indices.dtype)
            return indices * 2

    DataLoader([Own(), CacheTransform("host"), BatchTransform(3)]).batch_at(0, 0)
    DataLoader([Own(), BatchTransform(3)]).read_element(1)
    assert set(seen) == {np.dtype(np.int32)}


def test_wide_indices_of_the_caller_are_narrowed() -> None:
    wide = jnp.arange(6)
    assert wide.dtype == np.int64
    assert RangeSource(6).take(wide).dtype == np.int32
    assert indexed().take(wide)["index"].dtype == np.int32


def test_preview_and_evaluate_take_what_iterates() -> None:
    loader = DataLoader([indexed(), double, BatchTransform(3)])
    assert float(cereal.evaluate(loader, lambda batch: batch["index"])) == 5
    image = MapTransform(lambda e: {"image": jnp.ones((4, 4)) * e["x"], "label": e["index"]})
    sheet = cereal.preview(DataLoader([indexed(), image, BatchTransform(3)]))
    assert type(sheet).__name__ == "ContactSheet"
