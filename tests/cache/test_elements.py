"""Elements by index, outside of any loader."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import quickly

import cereal
from cereal.cache import elements
from cereal.cache.elements import FEW, chunks_of, few_of, few_true, read_elements
from cereal.testing import assert_same

DATA = {"x": np.arange(80, dtype=np.float32).reshape(40, 2), "y": np.arange(40) % 3 == 0}


def kept(x: Any) -> Any:
    return x % 3 == 0


SOURCES: dict[str, Any] = {
    "a range": lambda: cereal.RangeSource(40),
    "arrays": lambda: cereal.ArraySampleSource(DATA),
    "shuffled": lambda: cereal.RangeSource(40, ordering="shuffle"),
    "listed": lambda: cereal.RangeSource(40, ordering=[3, 1]),
    "mapped": lambda: cereal.MapTransform(lambda x: x * x)(cereal.RangeSource(40)),
    "a slice": lambda: cereal.SliceSource(cereal.RangeSource(99), range(98, 18, -2)),
    "a split": lambda: cereal.split(cereal.RangeSource(80), (0.5, 0.5), key=1)[0],
    "joined": lambda: cereal.ConcatSource([cereal.RangeSource(25), cereal.RangeSource(5, 20)]),
    "a cache": lambda: cereal.CacheTransform("host")(cereal.RangeSource(40)),
    "a cached slice": lambda: cereal.SliceSource(
        cereal.CacheTransform("host")(cereal.RangeSource(60)), range(10, 50)
    ),
}


@pytest.mark.parametrize(
    "name", quickly(SOURCES, "arrays", "listed", "a split", "joined", "a cached slice")
)
def test_elements_are_what_take_gives(name: str) -> None:
    source = SOURCES[name]()
    for indices in ([0], [39, 0, 39, 7], list(range(1, 20))):
        values, mask = read_elements(source, np.array(indices))
        assert mask is None
        expected = source.take(jnp.array(indices, jnp.int32))
        assert_same(values, expected, f"{name} at {indices}")


def test_elements_of_no_indices_are_none_of_the_right_shape() -> None:
    values, _ = read_elements(cereal.ArraySampleSource(DATA), np.array([], np.int64))
    assert values["x"].shape == (0, 2)
    assert values["y"].dtype == jnp.bool_


def test_masks_come_with_the_elements() -> None:
    source: Any = cereal.FilterTransform(kept)(cereal.RangeSource(40))
    values, mask = read_elements(source, np.arange(2, 7))
    np.testing.assert_array_equal(values, np.arange(2, 7))
    np.testing.assert_array_equal(mask, [False, True, False, False, True])


def test_no_promotion_of_dtypes_or_ranks_is_needed(strict_jax: None) -> None:
    source: Any = cereal.FilterTransform(lambda e: e["y"])(cereal.ArraySampleSource(DATA))
    values, mask = read_elements(source, np.array([4, 3]))
    np.testing.assert_array_equal(values["x"], DATA["x"][[4, 3]])
    np.testing.assert_array_equal(mask, [False, True])


def test_many_lengths_share_a_few_programs() -> None:
    sizes = set[int]()
    source: Any = cereal.MapTransform(lambda x: x + 17)(cereal.RangeSource(100))
    for length in (1, 32, 5, 15, 16, 17, 31, 32, 2, 3, 4, 20):
        values, _ = read_elements(source, np.arange(length), sizes)
        np.testing.assert_array_equal(values, np.arange(17, length + 17))
    assert len(sizes) == 4


# Chunks


@cereal.pytree_dataclass
class Sized(cereal.IndexedSource[Any]):
    """Elements of so many bytes."""

    size: int = cereal.static_field()

    def __len__(self) -> int:
        return 1 << 20

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((self.size,), np.uint8)

    def take(self, indices: Any) -> Any:
        return jnp.zeros((*indices.shape, self.size), jnp.uint8)


@pytest.mark.parametrize("size", [0, 1, 3, 1000, 1 << 20, 1 << 26])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100_000])
def test_chunks_are_the_indices_in_their_order(size: int, count: int) -> None:
    indices = np.arange(count) * 7 % 1_000_003
    chunks = list(chunks_of(Sized(size), indices))
    np.testing.assert_array_equal(np.concatenate([[], *chunks]), indices)
    assert all(len(chunk) for chunk in chunks)
    assert all(len(chunk) == len(chunks[0]) for chunk in chunks[:-1])


@pytest.mark.parametrize("size", [1, 3, 1000, 100_000])
def test_a_chunk_fits_the_bytes_that_are_allowed(size: int) -> None:
    first = next(chunks_of(Sized(size), np.arange(1 << 20)))
    assert len(first) * size <= elements._MOST_BYTES
    assert (len(first) * 2 * size > elements._MOST_BYTES) or len(first) == 1 << 20
    assert len(first).bit_count() == 1


@pytest.mark.parametrize("n", [1, 3, 4, 5, 100, 2**31])
def test_a_few_are_the_first_and_others_and_always_the_same(n: int) -> None:
    found = few_of(n, cereal.RangeSource(5))
    assert len(set(found.tolist())) == min(n, FEW)
    assert found[0] == 0
    assert (np.diff(found) > 0).all()
    assert found[-1] < n
    np.testing.assert_array_equal(found, few_of(n, cereal.RangeSource(5)))


def test_a_few_of_what_only_iterates_are_the_first() -> None:
    source: Any = cereal.IterableSource(lambda: iter(range(100)), length=100)
    np.testing.assert_array_equal(few_of(100, source), range(FEW))


def test_a_few_that_are_true_are_true() -> None:
    which = np.zeros(1000, np.bool_)
    which[[7, *range(500, 600)]] = True
    found = few_true(which, cereal.RangeSource(1000))
    assert found[0] == 7
    assert len(found) == FEW
    assert which[found].all()
    assert len(few_true(np.zeros(9, np.bool_), cereal.RangeSource(9))) == 0
