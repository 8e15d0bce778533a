"""Parquet files, batches of 1,024, shuffled: against pyarrow's own scan and Grain's reader.

    python benchmarks/parquet.py                  [--flights FILE] [--pairs 3] [--rows N]

Two kinds of data: 3,000,000 rows of flights (two columns of numbers), if the file is given, and
1,000,000 rows of 32 float32, which are written to a temporary folder, once with pyarrow's default
row groups (one of 1,048,576 rows) and once with groups of 65,536.

    scan     `ParquetFile.iter_batches(1024)`, every column as a NumPy array, in the file's order
    Grain    `ParquetIterDataset(path).batch(1024)`, in the file's order; on a few batches, scaled
    block    cereal, `ordering=BlockShuffle()`; what is decoded is forgotten before every epoch, so
             that it decodes all row groups in each, as the scan does. The goals are for this.
    later    the same with room for two row groups, not forgotten. Of one row group it decodes
             nothing, and the scan decodes all: no comparison of like with like
    global   cereal, `ordering="shuffle"`, with room for all, decoded before: as from epoch 2 on

cereal gives JAX arrays; the scan stops at NumPy, which is less. `into JAX` is a scan that hands
its arrays over, too. cereal reads the 32 columns as 32 arrays, and as one float32[1024,32]
(`columns={"x": [...]}`), in which form models use them; the scan stacks them then.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import compare, machine, report, report_ratio

from cereal import BatchTransform, BlockShuffle, DataLoader, ParquetSource

BATCH = 1024
seeds = itertools.count()


def write(folder: Path, name: str, rows: int, size: int | None) -> str:
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    rng = np.random.default_rng(0)
    table = pa.table({f"c{k:02}": rng.random(rows, np.float32) for k in range(32)})
    pq.write_table(table, folder / name, row_group_size=size)
    return str(folder / name)


def last(batches: Iterator[Any]) -> Any:
    """The consumer of all sides: it keeps the latest batch."""
    latest = None
    for batch in batches:
        latest = batch
    return latest


def scan(path: str, names: list[str], *, matrix: bool, into_jax: bool) -> Callable[[], Any]:
    pq = import_module("pyarrow.parquet")

    def batches() -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            for found in file.iter_batches(BATCH, columns=names):
                columns = [column.to_numpy() for column in found.columns]
                batch: Any = np.stack(columns, 1) if matrix else dict(zip(names, columns))  # noqa: B905
                yield jax.device_put(batch) if into_jax else batch

    return lambda: last(batches())


def grain(path: str, count: int) -> Callable[[], Any]:
    reader = import_module("grain.experimental").ParquetIterDataset

    def batches() -> Any:
        return last(itertools.islice(iter(reader(path).batch(BATCH)), count))

    return batches


def cereal(loader: DataLoader[Any], *, forget: bool) -> Callable[[], Any]:
    table: Any = loader.source.source.data.table  # type: ignore[attr-defined]

    def epoch() -> Any:
        if forget:
            vars(table).pop("_stores", None)
        return last(loader.iterate(loader.init_state(next(seeds)), epochs=1))

    return epoch


def loader_of(path: str, columns: Any, ordering: Any, args: Any) -> DataLoader[Any]:
    room = 1 << 30
    if ordering != "shuffle":
        room = 2 * max(ParquetSource(path, columns).data.table.sizes)
    source = ParquetSource(path, columns, ordering, cache_bytes=room)
    options: Any = {} if args.workers is None else {"workers": args.workers}
    if args.workers:
        options["worker_type"] = "thread"  # the pieces that processes read are not counted here
    return DataLoader([source, BatchTransform(BATCH, drop_last=True)], **options)


def measure(title: str, path: str, names: list[str], args: Any) -> None:
    forms: dict[str, Any] = {f"{len(names)} arrays": names, "one array": {"x": names}}
    for form, columns in forms.items():
        name, matrix = f"{title}, {form}", form == "one array"
        into_numpy = scan(path, names, matrix=matrix, into_jax=False)
        into_jax = scan(path, names, matrix=matrix, into_jax=True)
        with loader_of(path, columns, BlockShuffle(), args) as loader:
            ours = cereal(loader, forget=True)
            result = compare(ours, into_numpy, args.pairs)
            met = result["ratio"] >= 0.7
            report_ratio(f"{name}: block against the scan", result, "at least 0.70", met)
            result = compare(ours, into_jax, args.pairs)
            report_ratio(f"{name}: block against the scan into JAX", result, "reported", True)
            if args.grain:
                against_grain(name, ours, path, len(loader.source.source), args)  # type: ignore
            later = cereal(loader, forget=False)
            result = compare(later, into_numpy, args.pairs)
            report_ratio(f"{name}: later against the scan", result, "reported", True)
            ours()
            table = loader.source.source.data.table  # type: ignore[attr-defined]
            if args.workers is not None:
                loads, groups = table._kept.loads, len(table.lengths)
                once = f"{loads} of {groups} row groups were read"
                report(f"{name}: an epoch", once, "each once", loads == groups)
        with loader_of(path, columns, "shuffle", args) as loader:
            result = compare(cereal(loader, forget=False), into_numpy, args.pairs)
            report_ratio(f"{name}: global against the scan", result, "reported", True)


def against_grain(name: str, ours: Any, path: str, rows: int, args: Any) -> None:
    try:
        theirs = grain(path, args.grain)
    except ImportError:
        print(f"      {name}: Grain is not installed")
        return
    result = compare(ours, theirs, 2)
    scale = rows / (BATCH * args.grain)
    low, high = result["quartiles"]
    result.update(ratio=result["ratio"] * scale, quartiles=(low * scale, high * scale))
    result["theirs"] *= scale
    report_ratio(f"{name}: block against Grain", result, "at least 10", result["ratio"] >= 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flights", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--workers", type=int, help="threads; else the loader decides")
    parser.add_argument("--grain", type=int, default=2, help="batches that Grain reads; 0: none")
    args = parser.parse_args()
    print(f"{machine()}; batches of {BATCH}")
    if args.flights is not None and args.flights.exists():
        measure("flights", str(args.flights), ["delay", "distance"], args)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"c{k:02}" for k in range(32)]
        for title, size in (("default groups", None), ("groups of 65,536", 65_536)):
            path = write(Path(folder), f"{size}.parquet", args.rows, size)
            measure(f"32 float32, {title}", path, names, args)


if __name__ == "__main__":
    main()
