"""Worker processes give what threads give, and need neither JAX nor the script."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.workers.process_loaders import (
    BATCH,
    EXPECTED,
    arrays,
    children,
    equal,
    in_processes,
    nothing_left,
)
from tests.workers.reading import numbers, until

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    ConcatSource,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
    MapTransform,
    MemmapSource,
    RandomMapTransform,
    ZipSource,
    pad_collate,
)

pytestmark = pytest.mark.usefixtures(nothing_left.__name__)
_ = nothing_left


def read(i: int) -> dict[str, Any]:
    return {"x": np.arange(5, dtype=np.float32) * i, "label": i}


def noise(element: Any, rng: Any) -> Any:
    return {**element, "x": element["x"] + rng.normal(size=5).astype(np.float32)}


def pipelines(tmp_path: Path) -> dict[str, list[Any]]:
    """One of each kind; functions are made here, so that they travel by value."""
    scale = 3

    class Words:
        def __len__(self) -> int:
            return 50

        def __getitem__(self, i: int) -> str:
            return "a" * (i % 7)

    rows = np.arange(300, dtype=np.float32).reshape(50, 6)
    if not (tmp_path / "data").exists():
        cereal.save_arrays(tmp_path / "data", {"x": rows, "y": np.arange(50)})
    disk = DiskSampleSource(50, read, ordering="shuffle")
    noisy = HostRandomMapTransform(noise)
    files = MemmapSource(tmp_path / "data", ordering="shuffle")
    return {
        "function": [disk, BatchTransform(8, pad_last_batch=True)],
        "random": [disk, noisy, BatchTransform(8, drop_last=True)],
        "after batching": [disk, BatchTransform(8), noisy],
        "class": [Words(), HostMapTransform(lambda s: len(s) * scale), BatchTransform(8)],
        "filter": [disk, HostFilterTransform(lambda e: e["label"] % 3 > 0), BatchTransform(8)],
        "batch function": [disk, BatchTransform(8), HostMapTransform(lambda b: {"x": b["x"] * 2})],
        "collate": [
            [list(range(k % 5)) for k in range(50)],
            BatchTransform(8, collate=pad_collate(4)),
        ],
        "twice": [disk, BatchTransform(4), BatchTransform(2), HostMapTransform(lambda b: b)],
        "files": [files, BatchTransform(8)],
        "files, then Python": [files, HostMapTransform(lambda e: e["x"] + 1), BatchTransform(8)],
        "arrays": [ArraySampleSource(rows), HostMapTransform(lambda e: e * 2), BatchTransform(8)],
        "concatenated": [
            ConcatSource([disk, DiskSampleSource(20, read)]),
            HostMapTransform(lambda e: e["x"] * 2),
            BatchTransform(8),
        ],
        "concatenated files": [ConcatSource([files, files]), BatchTransform(8)],
        "zipped": [ZipSource({"a": files, "b": disk}), BatchTransform(8)],
        "compiled after": [disk, noisy, BatchTransform(8), MapTransform(lambda e: e["x"] * 2)],
        "random in JAX": [
            disk,
            BatchTransform(8),
            RandomMapTransform(lambda e, key: e["x"] + jax.random.normal(key, (5,))),
        ],
        "iterator": [IterableSource(lambda: iter(range(50))), HostMapTransform(lambda x: x + 1),
                     BatchTransform(8)],
    }  # fmt: skip


KINDS = ["random", "iterator"]
MORE = [
    "class", "collate",
    "function", "after batching", "filter", "batch function", "twice", "files", "arrays",
    "concatenated files", "compiled after", "random in JAX", "files, then Python", "concatenated",
    "zipped",
]  # fmt: skip
SLOWLY = [pytest.param(kind, marks=pytest.mark.slow) for kind in MORE]


@pytest.mark.parametrize("kind", [*KINDS, *SLOWLY])
def test_batches_are_those_of_no_workers(kind: str, tmp_path: Path) -> None:
    stages = pipelines(tmp_path)[kind]
    alone = DataLoader(stages, workers=0)
    with DataLoader(stages, workers=2, worker_type="process", prefetch=3) as loader:
        state, theirs = loader.init_state(3), alone.init_state(3)
        assert equal(arrays(loader.iterate(state)), arrays(alone.iterate(theirs)))
        batch, _, mask = loader.next_batch(state)
        expected, _, expected_mask = alone.next_batch(theirs)
        assert equal(arrays([(batch, mask)]), arrays([(expected, expected_mask)]))


def test_scans_and_programs_of_the_user_are_served(tmp_path: Path) -> None:
    stages = pipelines(tmp_path)["random"]

    def add(carry: Any, batch: Any, mask: Any) -> Any:
        return carry + batch["x"].sum(), batch["label"]

    def run(loader: Any) -> Any:
        state = loader.init_state(1)
        _, total, labels = loader.scan_epoch(state, 0.0, add)
        found, step = [], jax.jit(loader.next_batch)
        for _ in range(8):
            batch, state, mask = step(state)
            found.append((batch, mask))
        return arrays([(total, labels), *found])

    with DataLoader(stages, workers=2, worker_type="process") as loader:
        assert equal(run(loader), run(DataLoader(stages, workers=0)))


def test_a_worker_has_neither_jax_nor_the_script_nor_a_gpu() -> None:
    def look(i: int) -> Any:
        import os
        import sys

        jax_there = any(name.split(".")[0] == "jax" for name in sys.modules)
        main = getattr(sys.modules["__main__"], "__file__", "")
        gpus = os.environ["JAX_PLATFORMS"] != "cpu" or os.environ["CUDA_VISIBLE_DEVICES"] != "-1"
        return np.array(
            [jax_there, not main.endswith("start.py"), gpus, os.getpid() == i], np.int32
        )

    spec = jax.ShapeDtypeStruct((4,), np.int32)
    with in_processes(look, spec=spec) as loader:
        for batch, _ in loader.iterate():
            assert not np.asarray(batch).any()


def test_a_function_that_runs_jax_is_refused() -> None:
    def by_jax(i: int) -> Any:
        import jax.numpy as jnp

        return np.asarray(jnp.int32(i) + 1)

    with (
        in_processes(by_jax) as loader,
        pytest.raises(cereal.UsageError, match=r'runs JAX.*worker_type="thread"'),
    ):
        list(loader.iterate())


@pytest.mark.slow
def test_a_module_that_imports_jax_brings_it_along(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "with_jax.py").write_text(
        "import jax, jax.numpy as jnp\nONE = jnp.ones(3)\n"
        "def read(i):\n    return i + len(jax.devices('cpu')[:1]) - 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import with_jax  # pyright: ignore[reportMissingImports]

    with in_processes(with_jax.read) as loader:
        assert numbers(loader.iterate()) == EXPECTED


def test_workers_stay_from_epoch_to_epoch_and_serve_several_iterators() -> None:
    spec = jax.ShapeDtypeStruct((2,), np.int32)

    def pid(i: int) -> Any:
        return np.array([i, os.getpid()], np.int32)

    with in_processes(pid, spec=spec) as loader:
        seen = set()
        for _ in range(3):
            one, two = loader.iterate(), loader.iterate()
            for (a, _), (b, _) in zip(one, two, strict=True):
                assert np.array_equal(a[:, 0], b[:, 0])
                seen |= set(np.asarray(a)[:, 1].tolist())
        assert len(seen) <= 2
        assert seen <= set(children())  # one of them may have read everything
        loader.close()
        assert not children()
        assert len(list(loader.iterate())) == len(EXPECTED)  # it may be used again
    assert not children()


def test_what_a_function_refers_to_may_change_between_epochs() -> None:
    settings = {"add": 0}
    table = np.zeros(100_000, np.int32)  # large enough to be shared

    with in_processes(lambda i: i + settings["add"] + table[0]) as loader:
        assert numbers(loader.iterate()) == EXPECTED
        settings["add"] = 10
        assert numbers(loader.iterate()) == [[x + 10 for x in batch] for batch in EXPECTED]
        table[0] = 5
        assert numbers(loader.iterate()) == [[x + 15 for x in batch] for batch in EXPECTED]


def test_64_bit_types_are_as_the_caller_has_them() -> None:
    with (
        jax.enable_x64(True),
        in_processes(lambda i: i + 2**40, spec=jax.ShapeDtypeStruct((), np.int64)) as loader,
    ):
        batch, _ = next(iter(loader.iterate()))
        assert batch.tolist() == [2**40 + i for i in range(BATCH)]


def test_numpys_settings_go_along() -> None:
    with in_processes(lambda i: int(np.float64(i) / np.float64(0) > 0)) as loader:
        with np.errstate(all="ignore"):
            assert len(list(loader.iterate())) == len(EXPECTED)
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            list(loader.iterate())


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.slow
def test_memory_does_not_grow_and_arrays_are_not_copied() -> None:
    data = np.ones((64, 1 << 18), np.float32)  # 64 MB
    source = DatasetSource(data)

    with DataLoader([source, BatchTransform(4)], workers=2, worker_type="process") as loader:
        for _ in loader.iterate():
            pass
        before = [resident(pid) for pid in children()]
        assert max(before) < 48 * 2**20, before
        for _ in range(20):
            for _ in loader.iterate():
                pass
        after = [resident(pid) for pid in children()]
        assert max(after) < max(before) + 8 * 2**20, (before, after)


def test_batches_that_the_user_keeps_are_not_overwritten() -> None:
    spec = jax.ShapeDtypeStruct((50_000,), np.int32)
    with in_processes(lambda i: np.full(50_000, i, np.int32), spec=spec) as loader:
        kept = [batch for batch, _ in loader.iterate()]
        views = [np.asarray(batch) for batch in kept]
        for _ in range(2):
            list(loader.iterate())
        del kept
    gc.collect()
    for view, expected in zip(views, EXPECTED, strict=True):
        assert (view == np.array(expected)[:, None]).all()


def test_what_does_not_pickle_is_said_when_the_loader_is_built() -> None:
    lock = threading.Lock()
    with pytest.raises(cereal.PipelineError, match=r"does not pickle.*worker_type"):
        in_processes(lambda i: i + lock.locked())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"worker_type": "processes"}, "must be"),
        ({"worker_type": "process", "workers": 0}, "workers=0"),
        ({"worker_type": "thread", "workers": 0}, "workers=0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, words: str) -> None:
    with pytest.raises(cereal.PipelineError, match=words):
        DataLoader([DiskSampleSource(4, read), BatchTransform(2)], **options)


def test_the_first_batch_does_not_wait_for_all_workers() -> None:
    def slow_start(i: int) -> int:
        return i

    with in_processes(slow_start, workers=8) as loader:
        began = time.monotonic()
        next(iter(loader.iterate()))
        assert time.monotonic() - began < 20
        assert until(lambda: len(children()) <= 8)
