"""Pipelines over files in the loader: every road, every combination, state, chunks, devices."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.compilations import compilations
from tests.slowly import slowly

import cereal
from cereal import (
    BatchTransform,
    ConcatSource,
    DataLoader,
    MapTransform,
    MixSource,
    RandomMapTransform,
    SliceSource,
    WindowSource,
    ZipSource,
)
from cereal.loaders.scan import host_scan
from cereal.testing import assert_same, check_loader, check_resume
from cereal.workers import rows_ahead as routes

A = np.arange(17, dtype=np.float32)
B = np.arange(100, 131, dtype=np.float32)
RULES: list[dict[str, Any]] = [{}, {"pad_last_batch": True}, {"drop_last": True}]
Make = Callable[[Any, Any], Any]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def mapped(array: np.ndarray, folder: Path) -> np.memmap:
    path = folder / f"{next(_numbers)}.bin"
    array.tofile(path)
    return np.memmap(path, array.dtype, mode="r", shape=array.shape)


def windows(data: Any, **options: Any) -> WindowSource:
    return WindowSource(data, 5, **options)


def some(loader: DataLoader[Any], steps: int = 7, key: int = 3) -> list[Any]:
    return list(loader.iterate(loader.init_state(key), steps=steps))


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry + 1, (batch, mask)


def augment(window: jax.Array, key: jax.Array) -> jax.Array:
    return window + jax.random.uniform(key)


# Combinations: files give what arrays give

COMBINED: dict[str, Make] = {
    "mix": lambda a, b: MixSource([windows(a), windows(b)], (1, 2)),
    "concat": lambda a, b: ConcatSource([windows(a), windows(b)]),
    "slice": lambda a, b: SliceSource(SliceSource(windows(b), range(20, 2, -3)), [4, 4, 0]),
    "zip": lambda a, b: ZipSource({"a": windows(a), "b": SliceSource(windows(b), range(13))}),
    "split": lambda a, b: cereal.split(windows(b, stride=5), (0.5, 0.5), key=1)[1],
    "select": lambda a, b: cereal.select(windows(b), lambda window: window[0] % 3 == 0),
    "unbatch": lambda a, b: cereal.UnbatchTransform()(windows(a)),
    "a mixture of mixtures": lambda a, b: MixSource(
        [MixSource([windows(a), windows(b)], (1, 1)), windows(b)], (1, 3)
    ),
    "augmented parts": lambda a, b: ConcatSource(
        [RandomMapTransform(augment)(windows(a)), MapTransform(jnp.sin)(windows(b))]
    ),
}


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINED)
def test_combined_files_give_what_combined_arrays_give(name: str, folder: Path) -> None:
    make, files = COMBINED[name], [mapped(data, folder) for data in (A, B)]
    mine, theirs = (DataLoader([make(*parts), BatchTransform(4)]) for parts in (files, (A, B)))
    assert mine.source.traits.host
    assert not theirs.source.traits.host
    expected = some(theirs)
    assert_same(some(mine), expected, name)
    if name in ("concat", "zip", "augmented parts"):  # each kind of reader inside a program
        inside = jax.jit(lambda loader, state: loader.next_batch(state)[0])
        assert_same(inside(mine, mine.init_state(3)), expected[0][0], f"{name}, under jit")


@pytest.mark.parametrize("name", ["mix", slowly("zip")])
def test_a_file_beside_an_array_gives_what_two_arrays_give(name: str, folder: Path) -> None:
    make = COMBINED[name]
    theirs = some(DataLoader([make(A, B), BatchTransform(4)]))
    for parts in ((mapped(A, folder), B), (A, mapped(B, folder))):
        mine = DataLoader([make(*parts), BatchTransform(4)])
        assert mine.source.traits.host
        assert_same(some(mine), theirs, name)


def test_every_road_over_a_mixture_of_a_file_and_an_array_is_the_same(folder: Path) -> None:
    parts = [windows(mapped(A[:9], folder)), windows(B[:12])]
    check_loader(DataLoader([MixSource(parts, (1, 2)), BatchTransform(3, pad_last_batch=True)]))


@pytest.mark.parametrize("combine", [ConcatSource, ZipSource])
def test_windows_that_overlap_are_not_split_at_random_in_files_either(
    combine: Any, folder: Path
) -> None:
    for a, b in ((A, A + 50), (mapped(A, folder), mapped(A + 50, folder))):
        with pytest.raises(cereal.PipelineError, match="overlap, so parts of it would share data"):
            cereal.split(combine([windows(a), windows(b)]), (0.5, 0.5), key=0)


def test_a_part_that_repeats_elements_is_not_split_in_files_either(folder: Path) -> None:
    def apart(data: Any) -> Any:
        return windows(data, stride=5)

    for a, b in ((A, B), (mapped(A, folder), mapped(B, folder))):
        twice = SliceSource(apart(a), [0, 0, 1])
        cached = cereal.CacheTransform("host")(twice)
        for part in (twice, cached):
            with pytest.raises(cereal.PipelineError, match="may have an element several times"):
                cereal.split(ConcatSource([part, apart(b)]), (0.5, 0.5))


@pytest.mark.parametrize("in_file", [slowly(False), True])
def test_batching_twice_is_batching_once_and_reshaping(in_file: bool, folder: Path) -> None:
    parts = [mapped(data, folder) if in_file else data for data in (A, B)]
    both = ConcatSource([windows(part) for part in parts], ordering="shuffle")
    stage = RandomMapTransform(augment)
    once = DataLoader([both, stage, BatchTransform(32)])
    for stages in (
        [stage, BatchTransform(8), BatchTransform(4)],
        [BatchTransform(8), BatchTransform(4), stage],
    ):
        twice = DataLoader([both, *stages])
        assert twice.element_spec().shape == (4, 8, 5)
        batch, mask = twice.batch_at(3, 1)  # it reaches into the second epoch
        assert_same(batch, once.batch_at(3, 1)[0].reshape(4, 8, 5), "microbatches")
        assert mask.shape == (4, 8)


# State


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_state_is_exact_after_every_batch_and_across_refills(
    rule: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_LANES", 8)  # the order of two batches at a time
    loader = DataLoader([windows(mapped(A, folder)), BatchTransform(4, **rule)])
    iterator = loader.iterate(loader.init_state(3), epochs=None)
    for step in range(9):
        assert_same(next(iterator), loader.batch_at(3, step), f"step {step}")
        assert_same(iterator.state, loader.state_at(3, step + 1), f"after step {step}")
    if not rule:
        check_resume(loader)


def test_several_iterators_over_one_loader_do_not_disturb_each_other(folder: Path) -> None:
    loader = DataLoader([windows(mapped(A, folder)), BatchTransform(4)])
    expected = some(DataLoader([windows(mapped(A, folder)), BatchTransform(4)]))
    first, second = (loader.iterate(loader.init_state(3), steps=7) for _ in range(2))
    found: tuple[list[Any], list[Any]] = ([], [])
    for turn in (0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1):
        found[turn].append(next((first, second)[turn]))
    for each in found:
        assert_same(each, expected, "an iterator")


@pytest.mark.filterwarnings("ignore::cereal.EpochWarning")  # one epoch, four times
def test_threads_read_one_file_at_once(folder: Path) -> None:
    loader = DataLoader([windows(mapped(A, folder)), BatchTransform(4)])
    expected, found = some(loader), {}

    def work(number: int) -> None:
        found[number] = some(loader)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert_same(found[number], expected, f"thread {number}")


def test_a_loop_that_is_left_early_goes_on_from_its_state(folder: Path) -> None:
    loader = DataLoader([windows(mapped(A, folder)), BatchTransform(4)])
    expected = some(DataLoader([windows(mapped(A, folder)), BatchTransform(4)]))
    iterator = loader.iterate(loader.init_state(3), steps=7)
    found = list(itertools.islice(iterator, 3))
    found += loader.iterate(iterator.state, steps=4)
    assert_same(found, expected, "the two loops")
    iterator.state = loader.state_at(3, 1)
    assert_same(next(iterator), expected[1], "the iterator, set back")


# Callbacks and devices


class OwnError(Exception):
    pass


def test_a_callback_over_a_file_runs_once_per_batch_in_order(folder: Path) -> None:
    seen: list[float] = []
    log = cereal.HostCallbackTransform(lambda batch, mask: seen.append(float(batch[0, 0])))
    source = windows(mapped(A, folder), ordering="sequential")
    loader = DataLoader([source, BatchTransform(4, pad_last_batch=True), log])
    firsts = [0, 4, 8, 12]
    assert len(list(loader.iterate())) == 4
    assert seen == firsts
    loader.scan_epoch(loader.init_state(0), 0, keep)
    assert seen == firsts * 2
    jax.block_until_ready(jax.jit(loader.next_batch)(loader.init_state(0)))
    assert seen == [*firsts * 2, 0]


def test_an_error_of_a_callback_over_a_file_comes_out_and_the_loader_works_on(folder: Path) -> None:
    def check(batch: Any, mask: Any) -> None:
        if batch[0, 0] == 8:
            raise OwnError("met 8")

    source = windows(mapped(A, folder), ordering="sequential")
    loader = DataLoader([source, BatchTransform(4), cereal.HostCallbackTransform(check)])
    iterator = loader.iterate()
    for first in (0, 4):
        assert next(iterator)[0][0, 0] == first
    with pytest.raises(OwnError, match="met 8"):
        next(iterator)
    with pytest.raises(OwnError, match="met 8"):
        loader.batch_at(0, 2)
    with pytest.raises(OwnError, match="met 8"):
        loader.scan_epoch(loader.init_state(0), 0, keep)
    assert loader.batch_at(0, 1)[0][0, 0] == 4


def test_batches_of_a_file_go_to_the_device_or_over_the_devices(folder: Path) -> None:
    devices = jax.devices()
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    stages = [windows(mapped(A, folder)), BatchTransform(4, pad_last_batch=True)]
    expected = some(DataLoader(stages))
    for place, where in (
        (devices[2], {devices[2]}),
        (NamedSharding(mesh, PartitionSpec("data")), set(devices)),
    ):
        loader = DataLoader([*stages, cereal.DevicePutTransform(place)])
        found = some(loader)
        assert_same(found, expected, "the batches")
        for batch, mask in [*found, loader.batch_at(3, 1)]:
            assert batch.devices() == where
            assert mask.devices() == where


# Scans


def test_a_scan_in_chunks_is_a_scan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [BatchTransform(4, pad_last_batch=True), MapTransform(lambda x: x * 2)]
    mine, theirs = (DataLoader([windows(d), *stages]) for d in (mapped(A, folder), A))
    for steps in (7, 0):
        expected = theirs.scan_epoch(theirs.init_state(3), 0, keep, steps=steps)
        for most in (host_scan.MOST_BYTES, 1, 170, 500):  # a batch has 80 bytes
            with monkeypatch.context() as patch:
                patch.setattr(host_scan, "MOST_BYTES", most)
                found = mine.scan_epoch(mine.init_state(3), 0, keep, steps=steps)
            assert_same(found, expected, f"{steps} steps, {most} bytes at a time")


def test_metrics_over_a_file_in_chunks_are_those_over_an_array(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def metrics(batch: Any, mask: Any) -> Any:
        return {"mean": batch.mean(axis=1), "even": batch[:, 0] % 2 == 0}

    mine, theirs = (
        DataLoader([windows(data), BatchTransform(4)]) for data in (mapped(B, folder), B)
    )
    expected = cereal.evaluate(theirs, metrics)
    assert_same(cereal.evaluate(mine, metrics), expected, "whole")
    monkeypatch.setattr(host_scan, "MOST_BYTES", 250)
    assert_same(cereal.evaluate(mine, metrics), expected, "in chunks")
    assert float(expected["mean"]) == 115


class Traced:
    """A body that counts how often it is traced."""

    count = 0

    def __call__(self, carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        self.count += 1
        return carry + batch.sum(), None


def test_a_second_scan_compiles_nothing(folder: Path) -> None:
    loader, body = DataLoader([windows(mapped(A, folder)), BatchTransform(4)]), Traced()
    state, total = loader.init_state(0), jnp.float32(0)
    state, total, _ = loader.scan_epoch(state, total, body)
    with compilations() as made:
        loader.scan_epoch(state, total, body)
    assert made() == 0


@pytest.mark.parametrize("devices", [1, 4])
def test_a_scan_in_the_users_own_jit_is_the_scan_outside(devices: int, folder: Path) -> None:
    loader = DataLoader([windows(mapped(A, folder)), BatchTransform(4)])
    weight = jnp.arange(4.0)
    if devices > 1:
        mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        weight = jax.device_put(weight, NamedSharding(mesh, PartitionSpec("data")))

    def train(loader: Any, weight: Any, state: Any) -> Any:
        def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
            return carry + batch[:, 0], batch * carry[:, None]

        return loader.scan_epoch(state, weight, body)

    state = loader.init_state(2)
    expected = train(loader, jnp.arange(4.0), state)
    assert_same(jax.jit(train)(loader, weight, state), expected, "loader passed")
    captured = cereal.jit(lambda weight, state: train(loader, weight, state))
    assert_same(captured(weight, state), expected, "loader captured")


def test_nothing_leaks_out_of_a_trace(folder: Path, strict_jax: None) -> None:
    loader = DataLoader([windows(mapped(A, folder)), BatchTransform(4), MapTransform(jnp.sin)])
    with jax.checking_leaks():
        some(loader, 2)
        loader.scan_epoch(loader.init_state(0), jnp.int32(0), keep, steps=2)
        jax.jit(lambda loader, state: loader.next_batch(state))(loader, loader.init_state(0))
        jax.grad(lambda w: loader.next_batch(loader.init_state(0))[0].sum() * w)(1.0)
