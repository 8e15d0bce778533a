"""The ten lines of each guide "coming from ...", before and after, on the same images.

    python benchmarks/coming_from.py
    python benchmarks/coming_from.py --only Grain

An epoch of 28x28 images in memory, shuffled, in batches of 128, without any training. What a guide
says of its speed is printed here. A library that is not installed is left out. (torch, with more
kinds of datasets: `benchmarks/torch_datasets.py`; from files: `benchmarks/tutorial.py`.)
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from measure import compare, machine, mnist_shaped, peer_path, report_ratio

from cereal import ArraySampleSource, BatchTransform, DataLoader, DatasetSource

BATCH = 128
Arrays = dict[str, np.ndarray]
Epoch = Callable[[], Any]
seeds = itertools.count()


class Rows:
    """A dataset with `__getitem__`."""

    def __init__(self, data: Arrays) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.data.items()}


def taken(batches: Any) -> Any:
    """The last batch of an epoch."""
    last = None
    for last in batches:  # noqa: B007
        pass
    return last


def ours(first: Any) -> Epoch:
    loader = DataLoader([first, BatchTransform(BATCH, drop_last=True)])
    return lambda: taken(loader.iterate(loader.init_state(next(seeds))))


def from_dataset(dataset: Any) -> Epoch:
    return ours(DatasetSource(dataset, ordering="shuffle"))


def torch(data: Arrays) -> tuple[Epoch, Epoch]:
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils.data import (  # pyright: ignore[reportMissingImports]
        DataLoader,
        TensorDataset,
    )

    dataset = TensorDataset(*(torch.from_numpy(column) for column in data.values()))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    return lambda: taken(loader), from_dataset(dataset)


def grain(data: Arrays) -> tuple[Epoch, Epoch]:
    import grain  # pyright: ignore[reportMissingImports]

    def epoch() -> Any:
        dataset = grain.MapDataset.source(Rows(data)).seed(next(seeds)).shuffle()
        return taken(dataset.batch(BATCH, drop_remainder=True))

    return epoch, from_dataset(Rows(data))


def tf_data(data: Arrays) -> tuple[Epoch, Epoch]:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else it talks
    tf = importlib.import_module("tensorflow")

    tf.config.set_visible_devices([], "GPU")
    dataset = tf.data.Dataset.from_tensor_slices(data).shuffle(len(data["label"]))
    dataset = dataset.batch(BATCH, drop_remainder=True).prefetch(1)
    return lambda: taken(dataset.as_numpy_iterator()), from_dataset(Rows(data))


def hugging_face(data: Arrays) -> tuple[Epoch, Epoch]:
    from datasets import Dataset, disable_progress_bars  # pyright: ignore[reportMissingImports]

    disable_progress_bars()
    flat = {"image": data["image"].reshape(len(data["image"]), -1), "label": data["label"]}
    dataset = Dataset.from_dict(flat).with_format("numpy")

    def epoch() -> Any:
        shuffled = dataset.shuffle(seed=next(seeds), keep_in_memory=True)
        return taken(shuffled.iter(BATCH, drop_last_batch=True))

    return epoch, from_dataset(dataset)


def loadax(data: Arrays) -> tuple[Epoch, Epoch]:
    from loadax import (  # pyright: ignore[reportMissingImports]
        Batcher,
        DataloaderBuilder,
        InMemoryDataset,
        ShuffledDataset,
    )

    rows = [Rows(data)[index] for index in range(len(data["label"]))]
    stack = Batcher(lambda many: jax.tree.map(lambda *each: np.stack(each), *many))
    shuffled = ShuffledDataset(InMemoryDataset(rows), jax.random.key(0))
    loader = DataloaderBuilder(stack).batch_size(BATCH).workers(1).prefetch(2).build(shuffled)
    return lambda: taken(loader), from_dataset(rows)


def cyreal(data: Arrays) -> tuple[Epoch, Epoch]:
    peer_path()
    from cyreal.loader import DataLoader  # pyright: ignore[reportMissingImports]
    from cyreal.sources import ArraySource  # pyright: ignore[reportMissingImports]
    from cyreal.transforms import BatchTransform  # pyright: ignore[reportMissingImports]

    stages = [ArraySource(data, ordering="shuffle"), BatchTransform(BATCH, drop_last=True)]
    loader = DataLoader(stages)
    step, steps = jax.jit(loader.next), loader.steps_per_epoch

    def epoch() -> Any:
        batch, state = None, loader.init_state(jax.random.key(next(seeds)))
        for _ in range(steps):
            batch, state, _ = step(state)
        return batch

    return epoch, ours(ArraySampleSource(data, ordering="shuffle"))


# A name; what it does; and the part of the images that it gets, since some would take minutes.
ORIGINS: dict[str, tuple[Callable[[Arrays], tuple[Epoch, Epoch]], float]] = {
    "torch": (torch, 1.0),
    "Grain": (grain, 0.1),
    "tf.data": (tf_data, 1.0),
    "Hugging Face": (hugging_face, 0.5),
    "Loadax": (loadax, 0.1),
    "cyreal": (cyreal, 1.0),
}


def main(options: argparse.Namespace) -> None:
    data = mnist_shaped(options.images)
    for name, (make, share) in ORIGINS.items():
        if options.only not in ("", name):
            continue
        n = int(share * options.images)
        try:
            theirs, mine = make({key: column[:n] for key, column in data.items()})
        except ImportError as error:
            print(f"      {name} is left out: {error}")
            continue
        found = compare(mine, theirs, options.pairs)
        report_ratio(f"{name}: its epoch / ours, {n} images", found, "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="", choices=["", *ORIGINS])
    warnings.simplefilter("ignore")  # of the other libraries
    print(machine())
    main(parser.parse_args())
