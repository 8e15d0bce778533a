"""The room of reading works where JAX is not installed, or not wanted."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.slowly import quickly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
    MemmapSource,
    MixSource,
    RangeSource,
    SliceSource,
    WindowSource,
    ZipSource,
    pad_collate,
    save_arrays,
)
from cereal.pipeline.execute import routed_rows
from cereal.workers.read_service import without_service

Pair = namedtuple("Pair", ["x", "y"])

PACKAGE = Path(cereal.__file__).parent
# `cereal/__init__.py`, which imports everything, is not run.
BARE = f"""
import sys, types
bare = types.ModuleType("cereal")
bare.__path__ = [{str(PACKAGE)!r}]
sys.modules["cereal"] = bare
"""


def run(code: str, **given: Any) -> str:
    """What a new interpreter prints."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", BARE + code],
        capture_output=True,
        text=True,
        check=False,
        **given,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_no_file_of_the_room_imports_jax() -> None:
    files = sorted((PACKAGE / "reading").rglob("*.py"))
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    assert len(names) > 15
    imports = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    check = "print([name for name in sys.modules if name.startswith('jax')])"
    assert run(f"{imports}\n{check}").strip() == "[]"


# Programs in a process that has no JAX


def read(i: int) -> Any:
    return {"image": np.full((2, 3), i, np.uint8), "label": i, "more": Pair(i / 2, [np.arange(2)])}


def read_in_epoch(i: int, epoch: int) -> Any:
    return float(i + 100 * epoch)


class Many:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return {"x": i}

    def __getitems__(self, indices: list[int]) -> Any:
        return [{"x": i * 2} for i in indices]


def jitter(x: Any, rng: Any) -> Any:
    return x + rng.integers(1000)


def disk(fn: Any = read) -> Any:
    return DiskSampleSource(12, fn)


def small(x: Any) -> bool:
    return x["label"] < 7


def cut(x: Any) -> Any:
    return {**x, "image": x["image"][:1]}


def arrays() -> Any:
    return {"x": np.arange(24.0).reshape(12, 2), "y": np.arange(12)}


def on_disk(folder: Path) -> Any:
    save_arrays(folder / "arrays", arrays())
    return MemmapSource(folder / "arrays")


def windows(folder: Path) -> Any:
    np.save(folder / "tokens.npy", np.arange(30, dtype=np.uint16))
    return WindowSource(np.load(folder / "tokens.npy", mmap_mode="r"), 3, predict=2)


def two(folder: Path) -> Any:
    noisy = HostRandomMapTransform(jitter)(DatasetSource(list(range(8))))
    return [noisy, HostMapTransform(jnp_free)(DatasetSource(list(range(100, 112))))]


def jnp_free(x: Any) -> Any:
    return x - 1


def listed(elements: list[Any]) -> Any:
    return {"n": np.array([len(each) for each in elements], np.int32)}


WORDS = ["a" * n for n in range(12)]
BATCH = BatchTransform(4)
CASES: dict[str, Callable[[Path], list[Any]]] = {
    "function": lambda _: [disk(), BATCH],
    "epochs": lambda _: [disk(read_in_epoch), BATCH],
    "dataset": lambda _: [DatasetSource(list(range(12))), HostMapTransform(jnp_free), BATCH],
    "many at once": lambda _: [DatasetSource(Many()), BATCH],
    "files": lambda folder: [on_disk(folder), BATCH],
    "windows": lambda folder: [windows(folder), BATCH],
    "arrays": lambda _: [ArraySampleSource(arrays(), index_key="i"), HostMapTransform(dict), BATCH],
    "range": lambda _: [RangeSource(12, index_key="a"), HostMapTransform(dict), BATCH],
    "filter": lambda _: [disk(), HostFilterTransform(small), HostMapTransform(cut), BATCH],
    "random": lambda _: [DatasetSource(list(range(12))), HostRandomMapTransform(jitter), BATCH],
    "after batching": lambda _: [disk(), BATCH, HostMapTransform(dict), HostFilterTransform(small)],
    "microbatches": lambda _: [disk(), BatchTransform(2), HostMapTransform(cut), BatchTransform(3),
                               HostMapTransform(dict)],
    "collate": lambda _: [WORDS, BatchTransform(3, collate=listed)],
    "padded": lambda _: [[[1], [2, 3]] * 6, BatchTransform(3, collate=pad_collate(4))],
    "mixed": lambda folder: [MixSource(two(folder), ordering="shuffle"), BATCH],
    "joined": lambda folder: [ConcatSource(two(folder)), HostMapTransform(jnp_free), BATCH],
    "zipped": lambda folder: [ZipSource({"b": disk(), "a": on_disk(folder)}),
                              HostMapTransform(dict), BATCH],
    "cut": lambda folder: [SliceSource(on_disk(folder), range(2, 11)),
                           HostMapTransform(dict), BATCH],
}  # fmt: skip

CHILD = """
import pickle, hashlib
program, many = pickle.loads(sys.stdin.buffer.read())
from cereal.base.fitting import set_wide_types
set_wide_types(lambda: False)
for rows in many:
    leaves, keep = program.read(rows)
    print([(x.shape, str(x.dtype), hashlib.md5(x.tobytes()).hexdigest()) for x in leaves],
          None if keep is None else keep.tolist())
print(program.labels, program.place(many[0], 1, 0), program.form)
print([name for name in sys.modules if name.startswith("jax")])
"""


@pytest.mark.parametrize(
    "case",
    quickly(CASES, "many at once", "windows", "arrays", "filter", "random", "collate", "mixed"),
)
def test_a_program_reads_the_same_in_a_process_without_jax(case: str, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    loader = DataLoader(CASES[case](tmp_path), workers=0)
    source: Any = loader.source
    source = without_service(source)
    many = [routed_rows(source, loader.state_at(3, step).words, 1)[0][0] for step in (0, 2)]
    if not source._host_stages:
        source = source.source
    if isinstance(source, MixSource):
        source, many = source.store, [rows.below.replaced(key=rows.key) for rows in many]
        source, many = source.bases[0], [x.below[0].replaced(key=x.key) for x in many]
    program = source._program
    assert program.can_move
    sent = cloudpickle.dumps((program, many))
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", BARE + CHILD], input=sent, capture_output=True
    )
    assert found.returncode == 0, found.stderr.decode()
    lines = found.stdout.decode().splitlines()
    for rows, line in zip(many, lines, strict=False):
        leaves, keep = program.read(rows)
        mine = [(x.shape, str(x.dtype), hashlib.md5(x.tobytes()).hexdigest()) for x in leaves]
        assert line == f"{mine} {None if keep is None else keep.tolist()}"
        assert len(leaves) == program.form.structure.num_leaves
    assert lines[-2] == f"{program.labels} {program.place(many[0], 1, 0)} {program.form}"
    assert lines[-1] == "[]"


def test_files_are_sent_as_their_names(tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", np.zeros((1000, 1000), np.uint8))
    data = np.load(tmp_path / "large.npy", mmap_mode="r")
    for source in (MemmapSource(data), MemmapSource(data[10:900]), WindowSource(data, 5)):
        assert len(cloudpickle.dumps(source._program)) < 10_000
    beside = {"a": data, "b": np.zeros((1000, 7))}
    assert len(cloudpickle.dumps(MemmapSource(beside)._program)) < 100_000


def test_iterators_and_caches_in_memory_stay_where_they_are() -> None:
    assert not IterableSource(lambda: iter(range(9)), length=9)._program.can_move
    cached = CacheTransform("host")(RangeSource(5))
    assert not cached._program.can_move  # type: ignore[attr-defined]
