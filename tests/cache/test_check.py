"""A cache in files is never taken for that of other code: a few elements are computed again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.cache.hidden import HOW, N, batches, hidden, scaled

from cereal import (
    BatchTransform,
    CacheTransform,
    DataLoader,
    FilterTransform,
    HostFilterTransform,
    HostMapTransform,
    IterableSource,
    MapTransform,
    PipelineError,
    RangeSource,
    SliceSource,
)
from cereal.cache.elements import FEW


@pytest.mark.parametrize("how", HOW)
def test_elements_of_other_code_are_an_error_that_names_one(
    how: str, number: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    for _ in range(2):
        np.testing.assert_array_equal(batches(scaled(how, number, folder)), range(1, N + 1))
    number.write_text("2")
    (place,) = folder.iterdir()
    what = rf"element 0 in its files .* `element` was 1 and is 2\. .*version=\.\.\.\).*{place}"
    with pytest.raises(PipelineError, match=what):
        DataLoader(scaled(how, number, folder))
    doubled = 2 * np.arange(1, N + 1)
    np.testing.assert_array_equal(batches(scaled(how, number, folder, version=2)), doubled)
    shutil.rmtree(place)
    np.testing.assert_array_equal(batches(scaled(how, number, folder)), doubled)


def test_a_difference_in_one_leaf_is_named_with_its_place(number: Path, tmp_path: Path) -> None:
    def stages() -> list[Any]:
        def fn(x: Any) -> Any:
            return {"same": x, "other": np.full((2, 3), 7) * [[1, 1, 1], [1, hidden(number), 1]]}

        return [RangeSource(4), HostMapTransform(fn), CacheTransform(tmp_path / "cache")]

    list(DataLoader(stages()))
    number.write_text("3")
    with pytest.raises(PipelineError, match=r"`element\['other'\]` \[1, 1\] was 7 and is 21"):
        DataLoader(stages())


@pytest.mark.parametrize("how", HOW)
def test_of_a_cache_that_is_partly_filled_what_is_there_is_checked(
    how: str, number: Path, tmp_path: Path
) -> None:
    stages = scaled(how, number, tmp_path / "cache")
    loader = DataLoader([*stages, BatchTransform(4)])
    loader.batch_at(0, 5)  # 20 to 23, not the first
    pipeline: Any = loader.source
    cached = pipeline.source
    cached.store.save()
    DataLoader(scaled(how, number, tmp_path / "cache"))
    number.write_text("2")
    with pytest.raises(PipelineError, match="element 20 in its files"):
        DataLoader(scaled(how, number, tmp_path / "cache"))


def test_an_empty_cache_is_opened_without_computing(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def fn(x: Any) -> Any:
        with open(calls, "a") as file:
            file.write("x")
        return x

    source: Any = HostMapTransform(fn)(RangeSource(4))
    once = calls.stat().st_size  # a sample, for the shapes
    for _ in range(2):
        CacheTransform(tmp_path / "cache")(source)
    assert calls.stat().st_size == once


@pytest.mark.parametrize("kind", [FilterTransform, HostFilterTransform])
def test_masks_are_checked_and_what_is_left_out_is_not(
    kind: Any, number: Path, tmp_path: Path
) -> None:
    def stages(cut: Callable[[Any], Any]) -> list[Any]:
        return [RangeSource(N), kind(cut), CacheTransform(tmp_path / "cache")]

    def above(x: Any) -> Any:
        return x >= hidden(number)

    number.write_text("20")
    for _ in range(2):
        pairs = list(DataLoader([*stages(lambda x: above(x)), BatchTransform(8)]))
        assert sum(int(mask.sum()) for _, mask in pairs) == 20
    number.write_text("39")
    with pytest.raises(PipelineError, match="its mask was True and is False"):
        DataLoader(stages(lambda x: above(x)))


def test_a_masked_element_that_differs_is_named_as_it_is_without_its_mask(
    number: Path, tmp_path: Path
) -> None:
    def stages() -> list[Any]:
        fn = lambda x: {"a": x * hidden(number)}  # noqa: E731
        keep = HostFilterTransform(lambda e: e["a"] > 0)
        return [RangeSource(1, 9), HostMapTransform(fn), keep, CacheTransform(tmp_path / "cache")]

    list(DataLoader(stages()))
    number.write_text("2")
    with pytest.raises(PipelineError, match=r"`element\['a'\]` was 1 and is 2"):
        DataLoader(stages())


def test_of_what_only_iterates_the_first_elements_are_checked(number: Path, tmp_path: Path) -> None:
    reads = tmp_path / "reads"

    def stages() -> list[Any]:
        def numbers() -> Any:
            for x in range(N):
                with open(reads, "a") as file:
                    file.write(f"{x}\n")
                yield np.int32(x * hidden(number))

        return [IterableSource(numbers, length=N), CacheTransform(tmp_path / "cache")]

    np.testing.assert_array_equal(batches(stages()), range(N))
    reads.unlink()
    np.testing.assert_array_equal(batches(stages()), range(N))
    assert {int(line) for line in reads.read_text().split()} == set(range(FEW))
    number.write_text("2")
    with pytest.raises(PipelineError, match="element 1 in its files"):
        DataLoader(stages())


def test_a_function_that_is_not_deterministic_is_told_so(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")

    def draw(x: Any) -> Any:
        count.write_text(count.read_text() + "x")
        return x + len(count.read_text())

    stages = [RangeSource(4), HostMapTransform(draw)]
    list(DataLoader([*stages, CacheTransform(tmp_path / "cache")]))
    with pytest.raises(PipelineError, match=r"element 0 comes out differently .*not deterministic"):
        DataLoader([*stages, CacheTransform(tmp_path / "cache")])


def test_nan_is_what_it_was(tmp_path: Path) -> None:
    def fn(x: Any) -> Any:
        return np.array([np.nan, x, -np.inf, -0.0], np.float32)

    for stage in (HostMapTransform(fn), MapTransform(lambda x: jnp.log(x * 1.0 - 20))):
        for _ in range(2):
            list(DataLoader([RangeSource(N), stage, CacheTransform(tmp_path)]))


def test_a_cache_without_anything_to_check_it_by_is_an_error(tmp_path: Path) -> None:
    stages = [RangeSource(N), MapTransform(lambda x: x + 1), CacheTransform(tmp_path)]
    list(DataLoader(stages))
    (place,) = tmp_path.iterdir()
    witnesses = sorted(place.glob("witness-*.npz"))
    assert len(witnesses) >= FEW
    witnesses[0].write_bytes(b"not this")
    with pytest.raises(PipelineError, match=f"the cache in {place} cannot be read .witness-0"):
        DataLoader(stages)
    for path in witnesses:
        path.unlink()
    with pytest.raises(PipelineError, match=f"the cache in {place} has elements, but nothing to"):
        DataLoader(stages)


def test_an_error_while_computing_again_says_what_it_was_for(number: Path, tmp_path: Path) -> None:
    def stages() -> list[Any]:
        # The shapes come from the first element: that one does not fail.
        fn = lambda x: x if x < 1 else x // hidden(number)  # noqa: E731
        return [RangeSource(N), HostMapTransform(fn), CacheTransform(tmp_path / "cache")]

    list(DataLoader(stages()))
    number.unlink()
    with pytest.raises(FileNotFoundError, match="number") as caught:
        DataLoader(stages())
    assert any("computes a few elements again" in note for note in caught.value.__notes__)


# Where it is opened


@pytest.mark.parametrize("how", HOW)
def test_a_cache_opened_inside_of_a_trace_is_checked(
    how: str, number: Path, tmp_path: Path
) -> None:
    batches(scaled(how, number, tmp_path / "cache"))

    loaders = []  # kept, for the program reads from them

    @jax.jit
    def first(key: Any) -> Any:
        loader = DataLoader([*scaled(how, number, tmp_path / "cache"), BatchTransform(4)])
        loaders.append(loader)
        return loader.next_batch(loader.init_state(key))[0]

    key = jax.random.key(0)
    np.testing.assert_array_equal(first(key), range(1, 5))
    number.write_text("2")
    jax.clear_caches()
    with pytest.raises(PipelineError, match="element 0 in its files"):
        first(key)


def test_a_cache_over_a_cache_is_checked(number: Path, tmp_path: Path) -> None:
    def stages() -> list[Any]:
        return [*scaled("host", number, tmp_path / "a"), CacheTransform(tmp_path / "b")]

    for _ in range(2):
        np.testing.assert_array_equal(batches(stages()), range(1, N + 1))
    number.write_text("2")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(PipelineError, match=r"CacheTransform\('.*/b'\): element 0 in"):
        DataLoader(stages())


def test_settings_that_change_results_have_caches_of_their_own(tmp_path: Path) -> None:
    def stages() -> list[Any]:
        draw = lambda x: jax.random.uniform(jax.random.key(x))  # noqa: E731
        return [RangeSource(4), HostMapTransform(lambda x: np.asarray(draw(int(x))))]

    found = {}
    for _ in range(2):
        for impl in ("threefry2x32", "rbg"):
            with jax.default_prng_impl(impl):
                found[impl] = batches([*stages(), CacheTransform(tmp_path)], 4)
                np.testing.assert_array_equal(found[impl], batches(stages(), 4))
    assert (found["rbg"] != found["threefry2x32"]).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_setting_of_programs_is_none_of_what_python_made(tmp_path: Path) -> None:
    for how, count in (("host", 1), ("compiled", 2)):
        stage = HOW[how](lambda x: x * 1.5)
        for precision in ("default", "highest"):
            with jax.default_matmul_precision(precision):
                list(DataLoader([RangeSource(4), stage, CacheTransform(tmp_path / how)]))
        assert len(list((tmp_path / how).iterdir())) == count


def test_a_cache_filled_for_a_program_is_that_filled_by_iterating() -> None:
    draw = HostMapTransform(lambda x: np.asarray(jax.random.uniform(jax.random.key(int(x)))))
    with jax.default_prng_impl("rbg"), jax.threefry_partitionable(False):
        read = batches([RangeSource(4), draw, CacheTransform("host")], 4)
        loader = DataLoader([RangeSource(4), draw, CacheTransform("host"), BatchTransform(4)])
        batch, _, _ = jax.jit(loader.next_batch)(loader.init_state(0))
    np.testing.assert_array_equal(batch, read)


def test_a_slice_of_a_checked_cache_reads_its_elements(number: Path, tmp_path: Path) -> None:
    source = RangeSource(1, N + 1)
    for _ in range(2):
        stage = HostMapTransform(lambda x: x * hidden(number))
        cached = CacheTransform(tmp_path / "cache")(stage(source))
        part = SliceSource(cached, range(30, 34))
        np.testing.assert_array_equal(batches([part], 4), [31, 32, 33, 34])
