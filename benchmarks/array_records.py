"""ArrayRecord, shuffled: cereal against Grain.

    python benchmarks/array_records.py [--records 100000] [--rounds 5]

100,000 records of 1 KB (256 float32), in a file that the library writes with its default options,
`group_size:1`; batches of 128. Grain reads it as its users write it, `MapDataset.source(...)
.shuffle(seed).map(decode)`, batched before or after it becomes an iterator, with 16 threads (its
default), with few, and with none; the fastest of these is its time. Its batches stay NumPy arrays;
ours become arrays of JAX. What we read is compared with what was written.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grain  # pyright: ignore[reportMissingImports]
import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportMissingImports]
from measure import compare, machine, report, report_ratio

from cereal import ArrayRecordSource, BatchTransform, DataLoader, DatasetSource

BATCH, WIDTH = 128, 256
FORM = ((WIDTH,), "float32")


def written(path: Path, n: int) -> np.ndarray:
    data = np.random.default_rng(0).normal(size=(n, WIDTH)).astype(np.float32)
    data[:, 0] = np.arange(n)  # its number
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for row in data:
        writer.write(row.tobytes())
    writer.close()
    return data


def decode(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.float32)


def ways_of_grain(path: Path, rows: int) -> dict[str, Iterable[Any]]:
    source = grain.sources.ArrayRecordDataSource(str(path))
    dataset = grain.MapDataset.source(source).shuffle(seed=0)[:rows].map(decode)
    made: dict[str, Iterable[Any]] = {}
    for threads in (0, 2, 16):
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500 if threads else 0)
        made[f"{threads} threads"] = dataset.to_iter_dataset(options).batch(BATCH)
        made[f"{threads} threads, batched first"] = dataset.batch(BATCH).to_iter_dataset(options)
    return made


def rate(batches: Iterable[Any], rows: int) -> float:
    """Records a second."""
    begin = time.perf_counter()
    assert sum(1 for _ in batches) >= rows // BATCH
    return rows / (time.perf_counter() - begin)


def fastest_of_grain(path: Path, rows: int) -> tuple[str, Callable[[], Any]]:
    ways = ways_of_grain(path, rows)
    found = {name: max(rate(way, rows) for _ in range(2)) for name, way in ways.items()}
    for name, each in found.items():
        print(f"      Grain, {name:25} {each:8,.0f} records a second")
    best = max(found, key=found.__getitem__)
    return best, lambda: sum(1 for _ in ways[best])


def check(loader: DataLoader[Any], data: np.ndarray) -> None:
    seen = np.concatenate(
        [
            np.asarray(batch)[np.asarray(mask)]
            for batch, mask in loader.iterate(loader.init_state(0))
        ]
    )
    number = seen[:, 0].astype(np.int64)
    assert sorted(number.tolist()) == list(range(len(data)))
    np.testing.assert_array_equal(seen, data[number])


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.array_record"
        data = written(path, options.records)
        part = min(options.records, 50 * BATCH)  # both read a part of an epoch: Grain takes long
        best, theirs = fastest_of_grain(path, part)
        ways = {
            "decode=((256,), 'float32')": ArrayRecordSource(path, FORM),
            "decode=np.frombuffer": ArrayRecordSource(path, decode),
            "Grain's dataset, by cereal": DatasetSource(
                grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(path))).map(decode),
                ordering="shuffle",
            ),
        }
        for name, source in ways.items():
            with DataLoader([source, BatchTransform(BATCH, pad_last_batch=True)]) as loader:
                check(loader, data)
                steps, keys = part // BATCH, iter(range(1, 10**6))

                def ours(loader: Any = loader, keys: Any = keys, steps: int = steps) -> None:
                    batches = loader.iterate(loader.init_state(next(keys)))
                    for _ in range(steps):
                        next(batches)
                    batches.close()

                result = compare(ours, theirs, options.rounds)
                title = f"{part:,} records of 1 KB, shuffled, {name} / Grain, {best}"
                report_ratio(title, result, "at least 3x", result["ratio"] >= 3)
                per = 1e6 * result["ours"] / part
                report(f"      {name}", f"{per:.1f} us a record", "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    print(machine())
    main(parser.parse_args())
