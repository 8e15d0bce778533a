from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cereal
from cereal.testing import check_source

N = 7
ROWS = np.arange(N * 6).reshape(N, 2, 3)


class Pair(NamedTuple):
    image: Any
    label: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    image: Any
    label: Any


TREES = {
    "an array": ROWS.astype(np.float32),
    "a dict": {"image": ROWS.astype(np.uint8), "label": np.arange(N, dtype=np.int32)},
    "a tuple": (ROWS.astype(np.float32), np.arange(N, dtype=np.int32)),
    "a list": [ROWS.astype(np.float32), np.arange(N, dtype=np.int32)],
    "a nested tree": {"a": {"b": [ROWS.astype(np.float32)], "c": (np.arange(N) > 3,)}, "d": None},
    "a named tuple": Pair(ROWS.astype(np.float32), np.arange(N, dtype=np.int32)),
    "a dataclass": Record(ROWS.astype(np.float32), np.arange(N, dtype=np.int32)),
    "one number an element": np.arange(N, dtype=np.float32),
    "words and bytes": {"words": np.arange(N * 256, dtype=np.uint8).reshape(N, 16, 16), "y": ROWS},
    "random keys": {"key": jax.random.split(jax.random.key(0), N)},
}


def raw(tree: Any) -> Any:
    """As NumPy arrays that can be compared."""
    return jax.tree.map(
        lambda x: np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


def assert_rows_of(batch: Any, data: Any, indices: np.ndarray) -> None:
    """The batch is the data's rows at these indices, by plain NumPy indexing."""
    batch, data = raw(batch), raw(data)
    assert jax.tree.structure(batch) == jax.tree.structure(data)
    for rows, stored in zip(jax.tree.leaves(batch), jax.tree.leaves(data), strict=True):
        np.testing.assert_array_equal(rows, stored[indices].astype(rows.dtype))


@pytest.mark.parametrize("name", TREES)
def test_every_tree_of_arrays_is_a_source(name: str) -> None:
    check_source(cereal.ArraySampleSource(TREES[name], ordering=[6, 0, 3, 3]))


@pytest.mark.parametrize("name", TREES)
def test_batches_are_rows_of_the_data(name: str) -> None:
    data = TREES[name]
    loader = cereal.DataLoader([cereal.ArraySampleSource(data), cereal.BatchTransform(3)])
    for step, (batch, _) in enumerate(loader.iterate(loader.init_state(1), steps=4)):
        assert_rows_of(batch, data, loader.indices_at(1, step))


DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32,
    jnp.bfloat16, np.complex64, jnp.float8_e4m3fn, jnp.int4,
]  # fmt: skip


@jax.jit
def take(source: Any, indices: Any) -> Any:
    return source.take(indices)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (8, 8), (9, 7), (16, 16), (16, 15), (10, 10, 3)], ids=str)
def test_every_dtype_and_shape_comes_back_as_it_was(dtype: Any, shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).integers(0, 8, (N, *shape)).astype(dtype)
    source = cereal.ArraySampleSource(data, ordering="sequential")
    assert source.element_spec() == jax.ShapeDtypeStruct(shape, dtype)
    indices = np.array([5, 0, 5], np.int32)
    taken = take(source, indices)
    assert taken.dtype == dtype
    np.testing.assert_array_equal(np.asarray(taken), data[indices])


@settings(max_examples=25)
@given(
    st.sampled_from([np.uint8, np.int8, np.uint16, np.int16]),
    st.lists(st.integers(1, 9), max_size=3),
    st.lists(st.integers(0, N - 1), min_size=1, max_size=5),
)
def test_narrow_integers_of_every_shape_come_back_as_they_were(
    dtype: Any, shape: list[int], indices: list[int]
) -> None:
    limits = np.iinfo(dtype)
    data = np.random.default_rng(0).integers(limits.min, limits.max, (N, *shape), dtype)
    taken = take(cereal.ArraySampleSource(data), np.array(indices, np.int32))
    np.testing.assert_array_equal(taken, data[indices])
    assert taken.dtype == dtype


@pytest.mark.parametrize(
    ("wide", "canonical"),
    [(np.float64, np.float32), (np.int64, np.int32), (np.uint64, np.uint32)],
)
def test_64_bit_numpy_arrays_become_what_jax_has(wide: Any, canonical: Any) -> None:
    source = cereal.ArraySampleSource(ROWS.astype(wide))
    assert source.element_spec().dtype == canonical
    taken = source.take(jnp.array([2, 5], jnp.int32))
    assert taken.dtype == canonical
    np.testing.assert_array_equal(taken, ROWS[[2, 5]])


# Where the data lies


@pytest.mark.parametrize(
    "data", [np.arange(640, dtype=np.float32), np.arange(6400, dtype=np.uint8).reshape(100, 64)]
)
def test_writing_into_a_numpy_array_afterwards_changes_nothing(data: np.ndarray) -> None:
    before = data.copy()
    source = cereal.ArraySampleSource(data, ordering="sequential")
    data[:] = 0
    np.testing.assert_array_equal(source.take(jnp.arange(50, dtype=jnp.int32)), before[:50])
    data[:] = before


def test_arrays_that_cannot_be_written_or_are_no_block_are_taken_too() -> None:
    frozen = np.arange(N * 64, dtype=np.uint8).reshape(N, 64)
    frozen.flags.writeable = False
    strided = np.arange(2 * N * 64, dtype=np.uint8).reshape(2 * N, 64)[::2]
    turned = np.asfortranarray(frozen)
    big_endian = np.arange(N * 64, dtype=">i2").reshape(N, 64)
    for data in (frozen, strided, turned, big_endian):
        taken = cereal.ArraySampleSource(data).take(jnp.array([6, 2], jnp.int32))
        np.testing.assert_array_equal(taken, data[[6, 2]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.uint8, jnp.int16, jnp.bool_])
def test_a_jax_array_is_not_copied(dtype: Any) -> None:
    data = jnp.zeros((100, 64), dtype)
    source = cereal.ArraySampleSource(data)
    (leaf,) = jax.tree.leaves(source.data)
    assert leaf.unsafe_buffer_pointer() == data.unsafe_buffer_pointer()


def test_two_sources_over_one_array_hold_it_once() -> None:
    data = {"x": jnp.zeros((100, 64), jnp.uint8), "y": jnp.zeros(100)}
    leaves = [jax.tree.leaves(cereal.ArraySampleSource(data).data) for _ in range(2)]
    for first, second in zip(*leaves, strict=True):
        assert first.unsafe_buffer_pointer() == second.unsafe_buffer_pointer()


def test_a_jax_array_that_is_donated_afterwards_does_not_change_the_data() -> None:
    data = jnp.arange(25600, dtype=jnp.uint8).reshape(100, 16, 16)
    expected = np.array(data)
    source = cereal.ArraySampleSource(data, ordering="sequential")
    jax.block_until_ready(jax.jit(lambda x: x * 0, donate_argnums=0)(data))
    np.testing.assert_array_equal(source.take(jnp.arange(100, dtype=jnp.int32)), expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.uint8])
def test_an_array_committed_to_another_device_stays_there(dtype: Any) -> None:
    there = jax.devices()[2]
    data = jax.device_put(jnp.arange(N * 256, dtype=dtype).reshape(N, 16, 16), there)
    source = cereal.ArraySampleSource(data)
    assert {device for leaf in jax.tree.leaves(source.data) for device in leaf.devices()} == {there}
    loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    state = loader.init_state(0)
    for batch, _ in (loader.next_batch(state)[::2], next(loader.iterate(state))):
        assert batch.devices() == {there}
        assert_rows_of(batch, data, loader.indices_at(0, 0))


# What goes wrong


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"`data` holds no arrays, got \{\}"),
        (None, "`data` holds no arrays, got None"),
        ({"x": np.zeros((0, 3))}, "`data` is empty: its arrays have length 0"),
        (
            {"x": np.zeros(3), "y": np.zeros(4)},
            r"one length, got `data\['x'\]` 3, `data\['y'\]` 4; cut them to the same",
        ),
        ({"x": np.float32(3)}, r"`data\['x'\]` has no axis .* give it one leading axis"),
        (jnp.float32(3), "`data` has no axis to take elements from"),
        ({"x": [1, 2]}, r"`data\['x'\]\[0\]` must be an array, got int \(1\); write `np.asarray"),
        ("text", r"`data` must be an array, got str \('text'\)"),
        (np.array(["a", "b"]), r"`data` must be an array of numbers, got <U1\[2\]: text; write"),
        (np.array([None, 1]), "Python objects, the first a NoneType .None.; turn text and missing"),
        (np.zeros(3, "datetime64[s]"), "points in time; write `.data - data.0.. / np.timedelta64"),
    ],
)
def test_bad_data_is_refused_when_built_naming_the_leaf(data: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^ArraySampleSource: .*" + message):
        cereal.ArraySampleSource(data)


def test_a_file_mapped_into_memory_is_refused_with_the_line_to_write(tmp_path: Any) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    with pytest.raises(
        cereal.PipelineError, match=r"mapped into memory; write `MemmapSource\(data\)`"
    ):
        cereal.ArraySampleSource({"x": mapped})


def test_options_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        cereal.ArraySampleSource(ROWS, "shuffle", "index")  # type: ignore[misc]
