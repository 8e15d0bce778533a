"""A cache in files outlives its process, however that ends, and is never taken for another's."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    FilterTransform,
    MapTransform,
    PipelineError,
    RangeSource,
    SliceSource,
    WindowSource,
)
from cereal.cache.elements import FEW
from cereal.pipeline.host_source import HostData, HostIndexed, living

N = 64


class Numbers(HostData):
    """0, 10, 20, ...; knows which of them were read."""

    def __init__(self, broken_from: int = N) -> None:
        super().__init__()
        self.visits = np.zeros(N, np.int64)
        self.broken_from = broken_from

    def take(self, indices: np.ndarray) -> np.ndarray:
        if indices.max() >= self.broken_from:
            raise KeyboardInterrupt("in the middle")
        self.visits[np.unique(indices)] += 1
        return (indices * 10).astype(np.int32)

    def digest_of(self) -> Any:
        return "numbers"


@cereal.pytree_dataclass
class OnHost(HostIndexed[Any]):
    numbers: Numbers
    ordering: Any = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return N

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.int32)

    def _take_host(self, indices: np.ndarray) -> Any:
        return self.numbers.take(indices)

    def reader(self) -> Any:
        number = self.numbers.number
        return lambda indices: living(number).take(indices)


def elements_of(loader: DataLoader[Any], key: int = 0) -> np.ndarray:
    """What an epoch gives, sorted."""
    pairs = loader.iterate(loader.init_state(key))
    return np.sort(np.concatenate([np.asarray(batch).reshape(-1) for batch, _ in pairs]))


def read_once(folder: Path, ordering: str = "sequential", broken_from: int = N) -> np.ndarray:
    """Reads an epoch through a new cache over the folder; which elements that took."""
    numbers = Numbers(broken_from)
    source = CacheTransform(folder)(OnHost(numbers, ordering))
    try:
        found = elements_of(DataLoader([source, BatchTransform(16)]))
    finally:
        del source
        gc.collect()
    np.testing.assert_array_equal(found, 10 * np.arange(N))
    return np.flatnonzero(numbers.visits)


# The next run


def test_the_next_run_reads_only_the_few_that_it_checks_in_whatever_order(tmp_path: Path) -> None:
    assert len(read_once(tmp_path)) == N
    for ordering in ("sequential", "shuffle"):
        read = read_once(tmp_path, ordering)
        assert len(read) == FEW
        assert read[0] == 0


def test_after_an_interrupt_the_next_run_reads_the_rest(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="in the middle"):
        read_once(tmp_path, broken_from=40)
    read = read_once(tmp_path)
    np.testing.assert_array_equal(read[FEW:], np.arange(32, N))
    assert read[0] == 0
    assert read[FEW - 1] < 32  # the checked ones are among those that were there
    assert len(read_once(tmp_path)) == FEW


def test_two_stores_of_one_process_share_the_files(tmp_path: Path) -> None:
    first, second = Numbers(), Numbers()
    stages = [CacheTransform(tmp_path / "deep" / "down"), BatchTransform(16)]
    one, other = (DataLoader([OnHost(numbers), *stages]) for numbers in (first, second))
    np.testing.assert_array_equal(elements_of(one), elements_of(other))
    assert len(list((tmp_path / "deep" / "down").iterdir())) == 1


def test_a_pickled_loader_finds_its_files(tmp_path: Path) -> None:
    loader = DataLoader([RangeSource(8), CacheTransform(tmp_path)])
    np.testing.assert_array_equal(elements_of(pickle.loads(pickle.dumps(loader))), np.arange(8))
    assert len(list(tmp_path.iterdir())) == 1


CHILD = """
import sys
import jax, numpy as np
import cereal
from cereal.cache.elements import FEW
from cereal.pipeline.host_source import HostData, HostIndexed, living
from cereal.cache import store as cache_store

cache_store._SYNC_BYTES = 1  # whatever is read goes to the disk
stop_at = int(sys.argv[2])


class Numbers(HostData):
    reads = 0

    def take(self, indices):
        if stop_at and indices.max() >= stop_at:
            print("stopped", flush=True)
            sys.stdin.read()
        self.reads += len(np.unique(indices))
        return (indices * 10).astype(np.int32)

    def digest_of(self):
        return "numbers"


@cereal.pytree_dataclass
class OnHost(HostIndexed):
    numbers: Numbers

    def __len__(self):
        return 64

    def element_spec(self):
        return jax.ShapeDtypeStruct((), np.int32)

    def _take_host(self, indices):
        return self.numbers.take(indices)

    def reader(self):
        return lambda indices: living(self.numbers.number).take(indices)


def shifted(x, by={1: 2, 3: 4}):
    return x + by[3]


numbers = Numbers()
print("ready", flush=True)
sys.stdin.readline()
stages = [cereal.MapTransform(shifted), cereal.CacheTransform(sys.argv[1])]
loader = cereal.DataLoader([OnHost(numbers), *stages, cereal.BatchTransform(16)])
values = np.concatenate([batch for batch, _ in loader])
assert (values == 10 * np.arange(64) + 4).all(), values
print("read", numbers.reads, flush=True)
"""


class Child:
    """A process that reads an epoch through a cache in the folder, when told to."""

    def __init__(self, folder: Path, stop_at: int = 0, seed: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(stop_at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )

    def line(self) -> str:
        out: IO[str] | None = self.process.stdout
        assert out is not None
        return out.readline().strip()

    def go(self) -> None:
        assert self.line() == "ready"
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow  # four processes
def test_a_killed_process_loses_nothing_that_was_synced(tmp_path: Path) -> None:
    with (
        Child(tmp_path, stop_at=48, seed=1) as first,
        Child(tmp_path, seed=2) as second,
        Child(tmp_path, seed=3) as third,
    ):
        first.go()
        assert first.line() == "stopped"
        first.process.kill()  # SIGKILL
        first.process.wait()
        second.go()
        assert second.line() == f"read {16 + FEW}"
        second.process.wait()
        third.go()
        assert third.line() == f"read {FEW}"


@pytest.mark.slow  # two processes
def test_two_processes_may_fill_one_cache_at_the_same_time(tmp_path: Path) -> None:
    with Child(tmp_path) as one, Child(tmp_path) as other:
        one.go()
        other.go()
        assert one.line().startswith("read ")
        assert other.line().startswith("read ")
        assert [child.process.wait() for child in (one, other)] == [0, 0]
    (place,) = tmp_path.iterdir()
    np.testing.assert_array_equal(np.load(place / "filled.npy"), np.ones(N))


# Never another's


def shifted_by(amount: int) -> Callable[[Any], Any]:
    return lambda x: x + amount


def array(values: np.ndarray) -> ArraySampleSource[Any]:
    return ArraySampleSource(values, ordering="sequential")


PIPELINES: dict[str, tuple[list[Any], Any]] = {
    "a range": ([RangeSource(8)], np.arange(8)),
    "another range": ([RangeSource(2, 10)], np.arange(2, 10)),
    "an array": ([array(np.arange(8) * 3)], np.arange(8) * 3),
    "another array": ([array(np.arange(8) * 5)], np.arange(8) * 5),
    "another dtype": ([array(np.arange(8.0) * 3)], np.arange(8.0) * 3),
    "a slice": ([SliceSource(RangeSource(20), range(0, 16, 2))], np.arange(0, 16, 2)),
    "another slice": ([SliceSource(RangeSource(20), range(1, 17, 2))], np.arange(1, 17, 2)),
    "a list": ([SliceSource(RangeSource(20), [7, 1, 2, 3])], [1, 2, 3, 7]),
    "a function": ([RangeSource(8), MapTransform(shifted_by(1))], np.arange(8) + 1),
    "over another value": ([RangeSource(8), MapTransform(shifted_by(2))], np.arange(8) + 2),
    "twice": ([RangeSource(8), *[MapTransform(shifted_by(1))] * 2], np.arange(8) + 2),
    "masked": ([RangeSource(8), FilterTransform(lambda x: x > 3)], np.arange(8)),
}


def test_every_pipeline_has_a_cache_of_its_own(tmp_path: Path) -> None:
    for name, (stages, expected) in [*PIPELINES.items(), *PIPELINES.items()]:
        loader = DataLoader([*stages, CacheTransform(tmp_path), BatchTransform(len(expected))])
        np.testing.assert_array_equal(elements_of(loader), expected, err_msg=name)
    assert len(list(tmp_path.iterdir())) == len(PIPELINES)


def test_parts_of_one_mapped_file_have_caches_of_their_own(tmp_path: Path) -> None:
    numbers = np.zeros(400, np.int32)
    numbers[264:300] = 1
    numbers.tofile(tmp_path / "numbers.bin")
    mapped = np.memmap(tmp_path / "numbers.bin", np.int32, mode="r")
    for begin in (0, 200):
        windows = WindowSource(mapped[begin : begin + 100], 100)
        loader = DataLoader([windows, CacheTransform(tmp_path / "cache")])
        window, _ = next(loader.iterate(loader.init_state(0)))
        np.testing.assert_array_equal(window, numbers[begin : begin + 100])


# Damage


def cached_range(folder: Path) -> DataLoader[Any]:
    return DataLoader([RangeSource(1, 4097), CacheTransform(folder), BatchTransform(4096)])


class Evil:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def save_pickle(path: Path, shape: tuple[int, ...]) -> None:
    np.save(path, np.full(shape, Evil(path.parent.parent / "ran"), object), allow_pickle=True)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "elements cut off": lambda at: os.truncate(at / "leaf0.npy", 8192),
    "no elements": lambda at: os.truncate(at / "leaf0.npy", 0),
    "a cut header": lambda at: os.truncate(at / "leaf0.npy", 60),
    "elements missing": lambda at: (at / "leaf0.npy").unlink(),
    "marks missing": lambda at: (at / "filled.npy").unlink(),
    "marks that are text": lambda at: (at / "filled.npy").write_text("yes " * 2000),
    "marks of another length": lambda at: np.save(at / "filled.npy", np.ones(9, np.uint8)),
    "marks that are floats": lambda at: np.save(at / "filled.npy", np.ones(4096)),
    "another shape": lambda at: np.save(at / "leaf0.npy", np.ones((4096, 1), np.int32)),
    "another dtype": lambda at: np.save(at / "leaf0.npy", np.ones(4096, np.float32)),
    "pickled elements": lambda at: save_pickle(at / "leaf0.npy", (4096,)),
    "pickled marks": lambda at: save_pickle(at / "filled.npy", (4096,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_an_error_that_names_its_folder(damage: str, tmp_path: Path) -> None:
    elements_of(cached_range(tmp_path / "cache"))
    gc.collect()
    (place,) = (tmp_path / "cache").iterdir()
    DAMAGES[damage](place)
    with pytest.raises(PipelineError, match=f"the cache in {place} .* delete that folder"):
        elements_of(cached_range(tmp_path / "cache"))
    assert not (tmp_path / "cache" / "ran").exists()
    shutil.rmtree(place)
    np.testing.assert_array_equal(elements_of(cached_range(tmp_path / "cache")), range(1, 4097))


# No place for it


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_is_an_error_when_built_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with (
        pytest.raises(PipelineError, match=f"a cache of 16,384 bytes in {tmp_path}.*free space"),
        files_of_at_most(10_000),
    ):
        cached_range(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "below", "below/deep"])
def test_a_folder_that_is_a_file_is_an_error_that_names_it(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(PipelineError, match=f"{tmp_path / 'file'}.*pass another folder"):
        cached_range(tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "not a folder"


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As a user to whom permissions apply."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with pytest.raises(PipelineError, match=f"{name}.*pass another folder"), without_rights():
            cached_range(Path(name))
        assert os.listdir(name) == []
