"""Arrays in files become a source without being copied, or are read row by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    HostMapTransform,
    MemmapSource,
    PipelineError,
    save_arrays,
)
from cereal.sources.array_files import open_arrays
from cereal.sources.on_disk import source_on_disk
from cereal.testing import check_resume, check_source

N = 11
DATA = {
    "image": np.random.default_rng(0).integers(0, 256, (N, 4, 3, 1), np.uint8),
    "label": np.arange(N, dtype=np.int32) * 3,
}


def opened(tmp_path: Path, data: Any) -> Any:
    save_arrays(tmp_path / "arrays", data)
    return open_arrays(tmp_path / "arrays", "test")


def source_of(arrays: Any, ordering: Any = "shuffle", prefetch_size: Any = 8) -> Any:
    return source_on_disk(arrays, ordering, prefetch_size, "Owner")


def assert_rows(loader: DataLoader[Any], data: Any, key: int = 3) -> None:
    """All batches of two epochs are the rows that the order says."""
    batches = list(loader.iterate(loader.init_state(key), epochs=2))
    assert len(batches) >= 2 * N // 4
    for step, (batch, _) in enumerate(batches):
        index = loader.indices_at(key, step)
        for name, array in data.items():
            np.testing.assert_array_equal(batch[name], array[index])
            assert batch[name].dtype == jax.dtypes.canonicalize_dtype(array.dtype)


# Without a copy


def test_the_memory_of_the_files_is_the_memory_of_the_source(tmp_path: Path) -> None:
    arrays = opened(tmp_path, DATA)
    source = source_of(arrays)
    assert isinstance(source, ArraySampleSource)
    places = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(source.data)}
    assert places == {array.ctypes.data for array in arrays.values()}
    loader = DataLoader([source, BatchTransform(4)])
    assert {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(loader.source)} >= places


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
def test_batches_are_rows_of_the_files(ordering: str, tmp_path: Path) -> None:
    source = source_of(opened(tmp_path, DATA), ordering)
    assert_rows(DataLoader([source, BatchTransform(4)]), DATA)


def test_sources_keep_the_contract(tmp_path: Path) -> None:
    source = source_of(opened(tmp_path, DATA))
    check_source(source)
    check_resume(DataLoader([source, BatchTransform(4)]), epochs=1)


def test_files_may_go_away_once_they_are_mapped(tmp_path: Path) -> None:
    source = source_of(opened(tmp_path, DATA), "sequential")
    for path in (tmp_path / "arrays").iterdir():
        path.unlink()
    assert_rows(DataLoader([source, BatchTransform(4)]), DATA)


def test_a_program_that_may_reuse_its_arguments_leaves_the_files_alone(tmp_path: Path) -> None:
    source = source_of(opened(tmp_path, {"x": np.zeros((64, 16), np.float32)}))
    more = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    jax.block_until_ready(more(jax.tree.leaves(source.data)[0]))
    assert not np.load(tmp_path / "arrays" / "x.npy").any()


# Row by row


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_numbers_that_jax_would_change_are_read_by_the_row(dtype: str, tmp_path: Path) -> None:
    data = {"x": np.arange(N * 2).reshape(N, 2).astype(dtype), "label": DATA["label"]}
    source = source_of(opened(tmp_path, data), "shuffle", 5)
    assert isinstance(source, MemmapSource)
    assert source.prefetch_size == 5
    assert_rows(DataLoader([source, BatchTransform(4)]), data)


@pytest.mark.parametrize("offset", [1, 4, 16, 64])
def test_files_that_begin_anywhere_are_read(offset: int, tmp_path: Path) -> None:
    """JAX takes memory only from certain addresses on; a file of raw bytes may begin elsewhere."""
    path = tmp_path / "raw.bin"
    path.write_bytes(bytes(offset) + DATA["image"].tobytes())
    array = np.memmap(path, np.uint8, "r", offset, DATA["image"].shape)
    source = source_of({"image": array})
    assert isinstance(
        source, ArraySampleSource if offset == 64 else ArraySampleSource | MemmapSource
    )
    assert_rows(DataLoader([source, BatchTransform(4)]), {"image": DATA["image"]})


def test_parts_of_files_are_read(tmp_path: Path) -> None:
    arrays = opened(tmp_path, {"x": np.arange(4 * N, dtype=np.int32).reshape(2 * N, 2)})
    for part in (slice(N, 2 * N), slice(0, 2 * N, 2), slice(2 * N, N - 1, -1)):
        source = source_of({"x": arrays["x"][part]})
        assert_rows(DataLoader([source, BatchTransform(4)]), {"x": np.array(arrays["x"][part])})


# On the host


@pytest.mark.parametrize("workers", [0, 2])
def test_python_may_work_on_the_rows(workers: int, tmp_path: Path) -> None:
    def turned(element: Any) -> Any:
        return {**element, "image": np.asarray(element["image"])[::-1]}

    source = source_of(opened(tmp_path, DATA))
    loader = DataLoader([source, HostMapTransform(turned), BatchTransform(4)], workers=workers)
    assert_rows(loader, {**DATA, "image": DATA["image"][:, ::-1]})


# Bad input


@pytest.mark.parametrize("value", [0, -1, 2.5, "8", None, True])
def test_elements_ahead_must_be_a_positive_integer(value: Any, tmp_path: Path) -> None:
    says = rf"^Owner: `prefetch_size` must be an integer .* 1, got {re.escape(repr(value))}\.$"
    with pytest.raises(PipelineError, match=says):
        source_of(opened(tmp_path, DATA), "shuffle", value)


def test_elements_ahead_may_be_an_integer_of_numpy(tmp_path: Path) -> None:
    assert len(source_of(opened(tmp_path, DATA), "shuffle", np.int64(8))) == N


def test_an_unknown_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="'backwards'"):
        source_of(opened(tmp_path, DATA), "backwards")


def test_arrays_of_two_lengths_are_refused(tmp_path: Path) -> None:
    arrays = opened(tmp_path, {"image": DATA["image"], "label": DATA["label"][1:]})
    with pytest.raises(PipelineError, match=r"(?s)11.*10"):
        source_of(arrays)
