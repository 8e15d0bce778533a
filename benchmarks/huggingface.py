"""Hugging Face: shuffled batches of 128 from a dataset on disk, against the dataset's own way.

    python benchmarks/huggingface.py

Images of 28x28 as arrays (`Array2D`), 60,000 of them, and 10,000 as PNG (`datasets.Image`). The
library is asked in its quickest way, the format "numpy". Its indices are the slow part: `shuffle()`
only writes down an order, and rows are then gathered one by one. `flatten_indices()` writes the
rows in that order to a new file, which is read in slices; it is measured too, with the writing,
which every new order needs, and without it. Cereal gives arrays of JAX, the library NumPy's.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from measure import compare, machine, mnist_shaped, report, report_ratio

from cereal import BatchTransform, DataLoader, DatasetSource

BATCH, BATCHES = 128, 40


def stored(folder: Path, images: int, kind: str) -> Any:
    """A dataset on disk, as `load_from_disk` opens it."""
    datasets: Any = import_module("datasets")
    datasets.disable_progress_bars()
    data = mnist_shaped(images)
    image = datasets.Array2D((28, 28), "uint8") if kind == "arrays" else datasets.Image()
    kinds = {"image": image, "label": datasets.ClassLabel(num_classes=10)}
    columns = {"image": list(data["image"]), "label": data["label"]}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    made.save_to_disk(folder / kind)
    return datasets.load_from_disk(folder / kind)


def ours(dataset: Any) -> Callable[[], Any]:
    source = DatasetSource(dataset, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(BATCH)])
    keys = itertools.count()

    def read() -> Any:
        batches = loader.iterate(loader.init_state(next(keys)))
        found = [next(batches) for _ in range(BATCHES)]
        batches.close()
        return found

    for _ in range(8):  # until it has chosen its workers
        jax.block_until_ready(read())
    return read


def some(batches: Iterator[Any]) -> list[Any]:
    return list(itertools.islice(batches, BATCHES))


def theirs(dataset: Any) -> Callable[[], Any]:
    seeds = itertools.count()
    return lambda: some(dataset.shuffle(seed=next(seeds)).with_format("numpy").iter(BATCH))


def arrays(dataset: Any, pairs: int) -> None:
    own, bare = theirs(dataset), ours(dataset)
    found = compare(bare, own, pairs)
    name = f"{BATCHES} shuffled batches of {BATCH} arrays: the library's time / ours"
    report_ratio(name, found, "at least 20", found["ratio"] >= 20)
    found = compare(ours(dataset.with_format("numpy")), own, pairs)
    report_ratio('... ours over the format "numpy" (int32)', found, "reported", True)
    begin = time.perf_counter()
    flat = dataset.shuffle(seed=0).flatten_indices().with_format("numpy")
    writing = time.perf_counter() - begin
    found = compare(bare, lambda: some(flat.iter(BATCH)), pairs)
    report_ratio("... against rows that were written in their order", found, "reported", True)
    share = BATCHES * BATCH / len(dataset)
    whole = (found["theirs"] + share * writing) / found["ours"]
    value = f"{whole:.0f}x; writing them takes {writing:.1f} s for {len(dataset):,} rows"
    report("... with its share of the writing", value, "reported", True)


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arrays(stored(Path(folder), options.images, "arrays"), options.pairs)
        encoded = stored(Path(folder), min(options.images, 10_000), "png")
        found = compare(ours(encoded), theirs(encoded), options.pairs)
        report_ratio("... PNG images, decoded", found, "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--pairs", type=int, default=7)
    print(machine())
    main(parser.parse_args())
