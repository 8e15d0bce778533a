"""WindowSource: windows over arrays in memory and in files."""

from __future__ import annotations

import itertools
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tests.core.programs import gone

import cereal
from cereal import BatchTransform, DataLoader, MapTransform, WindowSource
from cereal.core.digest import digest
from cereal.testing import assert_same, check_loader, check_resume, check_source

T = 23
TOKENS = np.arange(T, dtype=np.uint16)
TABLE = np.arange(T * 3, dtype=np.float32).reshape(T, 3)
FRAMES = (np.arange(T * 4 * 5) % 251).astype(np.uint8).reshape(T, 4, 5)
KINDS: dict[str, Any] = {
    "tokens": TOKENS,
    "a table": TABLE,
    "frames": FRAMES,
    "a tree": {"tokens": TOKENS, "more": (TABLE, [FRAMES])},
    "a JAX array": jnp.asarray(TABLE),
    "bfloat16": TABLE.astype(jnp.bfloat16),
}
RULES: list[dict[str, Any]] = [{}, {"pad_last_batch": True}, {"drop_last": True}]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


def mapped(data: Any, folder: Path) -> Any:
    """The same arrays, in files."""

    def one(array: Any) -> np.memmap:
        path = folder / f"{next(_numbers)}.bin"
        np.asarray(array).tofile(path)
        return np.memmap(path, array.dtype, mode="r", shape=array.shape)

    return jax.tree.map(one, data)


def cut(data: Any, indices: Any, length: int, stride: int = 1) -> Any:
    """The windows at these indices, by plain slicing."""

    def one(array: Any) -> np.ndarray:
        array = np.asarray(array)
        return np.stack([array[i * stride : i * stride + length] for i in indices])

    return jax.tree.map(one, data)


def parted(data: Any, indices: Any, context: int, predict: int, stride: int = 1) -> Any:
    whole = cut(data, indices, context + predict, stride)
    return {
        "context": jax.tree.map(lambda x: x[:, :context], whole),
        "target": jax.tree.map(lambda x: x[:, context:], whole),
    }


def batches(data: Any, *stages: Any, length: int = 5, steps: int = 8, **options: Any) -> list[Any]:
    loader = DataLoader([WindowSource(data, length, **options), *stages])
    return list(loader.iterate(loader.init_state(3), steps=steps))


# Against plain slicing


@pytest.mark.parametrize(
    ("kind", "length", "stride"),
    [*((kind, 4, 3) for kind in KINDS), ("tokens", 5, 1), ("tokens", 1, 1), ("tokens", T, 1)],
)
def test_windows_are_slices(kind: str, length: int, stride: int) -> None:
    data = KINDS[kind]
    source = WindowSource(data, length, stride)
    n = (T - length) // stride + 1
    assert len(source) == n
    indices = np.array([n - 1, 0, n // 2, 0], np.int32)
    assert_same(source.take(jnp.asarray(indices)), cut(data, indices, length, stride), kind)


@pytest.mark.parametrize("kind", ["tokens", "a tree", "bfloat16"])
def test_windows_of_files_are_slices(kind: str, folder: Path) -> None:
    data = KINDS[kind]
    source = WindowSource(mapped(data, folder), 4, 3)
    indices = np.array([6, 0, 3, 3])
    assert_same(source._take_host(indices), cut(data, indices, 4, 3), kind)


@given(st.data())
def test_every_window_is_a_slice_whatever_the_size(folder: Path, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    length = data.draw(st.integers(1, size))
    predict = data.draw(st.integers(0, size - length))
    stride = data.draw(st.integers(1, size + 2))
    array = np.arange(1000, 1000 + 2 * size).reshape(size, 2)
    source = WindowSource(mapped(array, folder), length, stride, predict=predict)
    starts = range(0, size - length - predict + 1, stride)
    assert len(source) == len(starts)
    expected = parted(array, starts, length, predict) if predict else cut(array, starts, length)
    taken = source._take_host(np.arange(len(source)))
    jax.tree.map(np.testing.assert_array_equal, taken, expected)


@pytest.mark.parametrize("in_file", [False, True])
def test_predict_gives_a_context_and_the_target_after_it(in_file: bool, folder: Path) -> None:
    data = {"x": TABLE, "y": TOKENS}
    source = WindowSource(mapped(data, folder) if in_file else data, 4, 2, predict=3)
    assert source.element_spec()["target"]["x"] == jax.ShapeDtypeStruct((3, 3), jnp.float32)
    taken = source.take(jnp.array([8, 0], jnp.int32))
    assert_same(taken, parted(data, [8, 0], 4, 3, 2), "the elements")


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    ("wide", "canonical"),
    [(np.float64, np.float32), (np.int64, np.int32)],
)
def test_64_bit_data_becomes_what_jax_has(
    in_file: bool, wide: Any, canonical: Any, folder: Path
) -> None:
    data = TABLE.astype(wide)
    source = WindowSource(mapped(data, folder) if in_file else data, 3, ordering="sequential")
    assert source.element_spec() == jax.ShapeDtypeStruct((3, 3), canonical)
    batch, _ = DataLoader([source, BatchTransform(2)]).batch_at(0, 0)
    assert_same(batch, cut(TABLE, [0, 1], 3).astype(canonical), "the batch")


@pytest.mark.parametrize("dtype", [">u2", ">f8"])
@pytest.mark.parametrize("in_file", [False, True])
def test_data_in_the_other_byte_order_has_the_same_values(
    dtype: str, in_file: bool, folder: Path
) -> None:
    data = TOKENS.astype(dtype)
    source = WindowSource(mapped(data, folder) if in_file else data, 3, ordering="sequential")
    loader = DataLoader([source, BatchTransform(2)])
    state = loader.state_at(0, 1)
    for batch in (loader.next_batch(state)[0], jax.jit(loader.next_batch)(state)[0]):
        assert batch.dtype.isnative
        np.testing.assert_array_equal(batch, cut(TOKENS, [2, 3], 3))


def test_windows_are_shuffled_unless_told_otherwise() -> None:
    shuffled, plain = WindowSource(TOKENS, 5), WindowSource(TOKENS, 5, ordering="sequential")
    first = np.concatenate([DataLoader(shuffled).indices_at(0, step) for step in range(19)])
    np.testing.assert_array_equal(np.sort(first), np.arange(19))
    assert (first != np.arange(19)).any()
    assert DataLoader([plain, BatchTransform(4)]).indices_at(0, 0).tolist() == [0, 1, 2, 3]


def test_windows_keep_the_contract_of_a_source(strict_jax: None, folder: Path) -> None:
    check_source(WindowSource({"x": TABLE}, 20, predict=1))
    check_source(WindowSource(mapped({"x": TABLE}, folder), 20, predict=1))


def test_gradients_flow_into_the_data() -> None:
    def total(data: Any) -> Any:
        source = WindowSource(data, 3, ordering="sequential")
        return DataLoader([source, BatchTransform(4)]).batch_at(0, 0)[0].sum()

    assert jax.grad(total)(jnp.arange(8.0)).tolist() == [1, 2, 3, 3, 2, 1, 0, 0]


# Files give what arrays give


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_road_gives_from_a_file_what_memory_gives(rule: Any, folder: Path) -> None:
    stages = [BatchTransform(3, **rule), MapTransform(lambda w: (w[:, :-1], w[:, 1:] * 2))]
    loader = DataLoader([WindowSource(mapped(TOKENS, folder)[:12], 5), *stages])
    check_loader(loader, key=3)
    if rule == RULES[1]:
        check_resume(loader)
    found = list(loader.iterate(loader.init_state(3), steps=8))
    assert_same(found, batches(TOKENS[:12], *stages), "the batches")


def test_a_map_on_either_side_of_batches_of_batches_gives_what_arrays_give(folder: Path) -> None:
    memory = {"x": TABLE, "t": TOKENS}
    scale = MapTransform(lambda w: {**w, "x": w["x"] * 0.5})
    twice = [BatchTransform(3), BatchTransform(2, pad_last_batch=True)]
    for stages in ([scale, *twice], [*twice, scale]):
        found = batches(mapped(memory, folder), *stages)
        assert_same(found, batches(memory, *stages), "the batches")


def test_gradients_through_a_stage_are_those_over_arrays(folder: Path) -> None:
    def gradient(data: Any) -> Any:
        loader = DataLoader([WindowSource(data, 5, ordering="shuffle"), BatchTransform(4)])

        def loss(weight: Any, state: Any) -> Any:
            batch, _, mask = loader.next_batch(state)
            return cereal.masked_mean((batch * weight) ** 2, mask)

        def epoch(weight: Any) -> Any:
            def body(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
                return total + cereal.masked_mean((batch * weight) ** 2, mask), None

            return loader.scan_epoch(loader.init_state(1), 0.0, body)[1]

        return jax.grad(loss)(0.5, loader.init_state(1)), jax.jit(jax.grad(epoch))(0.5)

    data = TABLE / 10
    assert_same(gradient(mapped(data, folder)), gradient(data), "the gradients")


def test_a_part_of_a_file_is_windowed_like_that_part_of_the_array(folder: Path) -> None:
    file = mapped(TABLE, folder)
    for part in (slice(4, 20), slice(None, None, 2), slice(None, None, -1)):
        found = WindowSource(file[part], 3)._take_host(np.array([0, 5]))
        np.testing.assert_array_equal(found, cut(TABLE[part], [0, 5], 3))


def test_a_file_beside_an_array_is_read_together_with_it(folder: Path) -> None:
    beside = np.arange(T, dtype=np.float32)
    both = {"file": mapped(TOKENS, folder), "array": beside, "jax": jnp.asarray(TABLE)}
    expected = batches({"file": TOKENS, "array": beside, "jax": TABLE}, BatchTransform(4))
    assert_same(batches(both, BatchTransform(4)), expected, "the batches")


def test_writing_into_an_array_beside_a_file_afterwards_changes_nothing(folder: Path) -> None:
    beside = np.arange(T, dtype=np.float32)
    source = WindowSource({"file": mapped(TOKENS, folder), "array": beside}, 3)
    beside[:] = -1
    found = source._take_host(np.array([0, 7]))
    np.testing.assert_array_equal(found["array"], cut(np.arange(T), [0, 7], 3))


def test_a_pickled_loader_over_a_file_gives_the_same_batches(folder: Path) -> None:
    files = [WindowSource(mapped(data, folder), 5) for data in (TOKENS, TOKENS + 100)]
    for source in (files[0], cereal.ConcatSource(files)):
        loader = DataLoader([source, BatchTransform(4)])
        again = pickle.loads(pickle.dumps(loader))
        assert_same(again.batch_at(2, 6), loader.batch_at(2, 6), "the batch")
        assert again.init_state(0).fingerprint == loader.init_state(0).fingerprint


# Memory


def test_memory_does_not_grow_with_the_window_and_a_jax_array_is_not_copied() -> None:
    data = jnp.asarray(TABLE)
    for length in (1, 20):
        (copied,) = jax.tree.leaves(WindowSource(TABLE, length, predict=2))
        assert copied.nbytes == TABLE.nbytes
        (leaf,) = jax.tree.leaves(WindowSource(data, length, predict=2))
        assert leaf.unsafe_buffer_pointer() == data.unsafe_buffer_pointer()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [PartitionSpec("d"), PartitionSpec(None, "d")], ids=str)
def test_an_array_over_several_devices_is_windowed_like_any_other(kind: Any, spec: Any) -> None:
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    data = jax.device_put(FRAMES[:20].reshape(20, 20), NamedSharding(mesh, spec))
    loader = DataLoader([WindowSource(data, 3), BatchTransform(4)])
    expected = cut(np.asarray(data), loader.indices_at(0, 1), 3)
    np.testing.assert_array_equal(loader.batch_at(0, 1)[0], expected)


def test_a_file_is_neither_copied_nor_a_leaf(folder: Path) -> None:
    file = mapped(TABLE, folder)
    source = WindowSource(file, 5)
    assert jax.tree.leaves(source) == []
    assert np.shares_memory(source.data.tree, file)


@pytest.fixture(scope="module")
def four_gigabytes(folder: Path) -> Path:
    """A file of zeros that takes no room, with a few numbers at its end and in its middle."""
    path = folder / "sparse.bin"
    path.touch()
    os.truncate(path, 2**32)
    with path.open("r+b") as file:
        for place in (2**31 + 6, 2**32 - 16):
            file.seek(place)
            file.write(np.arange(1, 9, dtype=np.uint16).tobytes())
    return path


def test_windows_over_a_file_of_two_thousand_million_tokens(four_gigabytes: Path) -> None:
    tokens = np.memmap(four_gigabytes, np.uint16, mode="r")
    n = 2**31 - 8
    shuffled = DataLoader([WindowSource(tokens, 9), BatchTransform(4)])
    assert len(shuffled.source.source) == n  # type: ignore[attr-defined]
    for step, (batch, _) in enumerate(shuffled.iterate(shuffled.init_state(1), steps=3)):
        indices = shuffled.indices_at(1, step)
        assert indices.max() > 2**16
        np.testing.assert_array_equal(batch, cut(tokens, indices, 9))
    listed = WindowSource(tokens, 9, ordering=[n - 1, 2**30, 0])
    batch, _ = DataLoader([listed, BatchTransform(3)]).batch_at(0, 0)
    assert batch[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert batch[1].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]


def test_windows_are_counted_beyond_31_bits(four_gigabytes: Path) -> None:
    data = np.memmap(four_gigabytes, np.uint8, mode="r")
    far = DataLoader([WindowSource(data, 8, ordering="sequential"), BatchTransform(2)])
    batch, _ = far.batch_at(0, 2**31 - 5)
    np.testing.assert_array_equal(batch, [data[-10:-2], data[-9:-1]])
    n = 2**31 - 4
    source = WindowSource(data, 10, 2, ordering=[n - 1, 0])
    assert len(source) == n
    loader = DataLoader([source, BatchTransform(2)])
    for batch, *_ in (loader.batch_at(0, 0), jax.jit(loader.next_batch)(loader.init_state(0))):
        np.testing.assert_array_equal(batch, [data[2 * n - 2 : 2 * n + 8], np.zeros(10)])


def test_an_array_in_memory_that_is_too_long_to_count_is_refused() -> None:
    data = np.broadcast_to(np.uint8(0), (2**31,))
    with pytest.raises(cereal.PipelineError, match="cut the data into several sources"):
        WindowSource(data, 8, stride=8)


def open_files(folder: Path) -> int:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(str(folder) in os.readlink(link) for link in links if link.is_symlink())


def test_a_file_is_closed_when_all_loaders_are_gone(tmp_path: Path, capfd: Any) -> None:
    loader = DataLoader([WindowSource(mapped(TOKENS, tmp_path), 5), BatchTransform(4)])
    state = loader.init_state(0)
    passed = jax.jit(lambda loader, state: loader.next_batch(state))
    passed(loader, state)
    compiled = jax.jit(loader.next_batch).lower(state).compile()
    expected = loader.next_batch(state)
    assert_same(compiled(state), expected, "the compiled program")
    list(loader.iterate(state, steps=3))
    loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, batch.sum()))
    jax.vmap(loader.next_batch)(jax.tree.map(lambda x: x[None], state))
    leaves, structure = jax.tree.flatten(loader)
    data = weakref.ref(loader.source.source.data)  # type: ignore[attr-defined]
    del loader
    assert gone(data)
    assert open_files(tmp_path) == 0
    with pytest.raises(cereal.CerealError, match="the data of a source on the host is gone"):
        jax.tree.unflatten(structure, leaves)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"host is gone: .*; keep the loader"):
        jax.block_until_ready(compiled(state))
    capfd.readouterr()  # JAX prints the traceback too


def test_parts_of_a_file_that_begin_alike_have_different_digests(folder: Path) -> None:
    data = np.zeros(600, np.uint16)
    data[450:] = np.arange(150)
    file = mapped(data, folder)
    parts = [file[:300], file[300:], file[100:400], file[::2]]
    assert len({digest(WindowSource(part, 4)) for part in parts}) == len(parts)
    assert digest(WindowSource(parts[1], 4)) == digest(WindowSource(file[300:], 4))


# What goes wrong


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (TOKENS, {"length": T + 1}, r"a window of 24 \(length=24, .* has 23; shorten it to .* 23"),
        (
            TOKENS,
            {"length": 20, "predict": 4},
            r"window of 24 \(length=20, predict=4\) is",
        ),
        (TOKENS, {"length": 0}, "`length` must be an integer of at least 1, got 0"),
        (TOKENS, {"length": True}, "`length` must be an integer of at least 1, got True"),
        (TOKENS, {"length": 3, "stride": 0}, "`stride` must be an integer of at least 1, got 0"),
        (TOKENS, {"length": 3, "stride": "2"}, "`stride` must be an integer .*, got '2'"),
        (TOKENS, {"length": 3, "predict": -1}, "`predict` must be an integer .* 0, got -1"),
        (TOKENS, {"length": 3, "ordering": "random"}, '`ordering` must be "sequential", "shuf'),
        (TOKENS, {"length": 3, "ordering": [21]}, "has the index 21, outside .* 0 to 20"),
        (TOKENS[:0], {"length": 1}, "`data` is empty: its arrays have length 0"),
        (np.array(["a", "b"]), {"length": 1}, "`data` must be an array of numbers, .*: text"),
        (np.zeros(9, [("a", "i4")]), {"length": 1}, "records; write `{name: data.name. for"),
        (np.float32(1), {"length": 1}, "`data` has no axis to take elements from"),
        (
            {"x": TOKENS, "y": TABLE[:9]},
            {"length": 3},
            r"one length, got `data\['x'\]` 23, `data\['y'\]` 9; cut them to the same",
        ),
    ],
)
def test_bad_input_is_refused_when_built(data: Any, options: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=r"^WindowSource: .*" + message):
        WindowSource(data, **options)
