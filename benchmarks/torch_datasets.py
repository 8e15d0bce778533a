"""torch's datasets, read by cereal and by torch's own DataLoader.

    python benchmarks/torch_datasets.py

An epoch, shuffled, in batches of 128; torch's batches are tensors, ours are arrays of JAX.

    TensorDataset        28x28 bytes, and 32 floats, with a label; no workers
    only `__getitem__`   28x28 as floats (cheap), and after 0.1 ms of NumPy; 0 workers, and 2

torch's two workers are processes that live on between epochs; of ours, the loader chooses threads
or processes, during a few epochs before the clock starts.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from measure import compare, machine, mnist_shaped, report_ratio

from cereal import BatchTransform, DataLoader, DatasetSource

try:
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils import data as torch_data  # pyright: ignore[reportMissingImports]
except ImportError:
    raise SystemExit("torch is not installed: this benchmark is left out") from None

BATCH = 128
seeds = itertools.count()


class Floats(torch_data.Dataset):
    """Images as floats, one by one."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index].astype(np.float32), int(self.labels[index])


class Worked(Floats):
    """The same after some work, as an augmentation would be."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, label = super().__getitem__(index)
        for _ in range(4):
            image = np.roll(image, 1, axis=0) * 0.5 + np.sqrt(image) * 0.5
        return image, label


def ours(dataset: Any, workers: int | None) -> Callable[[], Any]:
    source = DatasetSource(dataset, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(BATCH, drop_last=True)], workers=workers)

    def epoch() -> Any:
        last = None
        for last in loader.iterate(loader.init_state(next(seeds))):  # noqa: B007
            pass
        return last

    return epoch


def theirs(dataset: Any, workers: int) -> Callable[[], Any]:
    options: dict[str, Any] = {}
    if workers:
        options = {"persistent_workers": True, "multiprocessing_context": "spawn"}
    loader = torch_data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers, **options
    )

    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


def main(options: argparse.Namespace) -> None:
    made = mnist_shaped(options.images)
    images, labels = torch.from_numpy(made["image"]), torch.from_numpy(made["label"]).long()
    floats = torch.from_numpy(np.random.default_rng(0).random((options.images, 32), np.float32))
    tensors = {"28x28 bytes": (images, labels), "32 floats": (floats, labels)}
    for name, each in tensors.items():
        dataset = torch_data.TensorDataset(*each)
        found = compare(ours(dataset, None), theirs(dataset, 0), options.pairs)
        goal = "at least 5x faster than torch's loader"
        report_ratio(f"TensorDataset, {name}", found, goal, found["ratio"] >= 5)
    few = options.images // 8
    for kind, workers in itertools.product((Floats, Worked), (0, 2)):
        n = few if kind is Worked else options.images // 2
        dataset = kind(made["image"][:n], made["label"][:n])
        epoch = ours(dataset, workers)
        for _ in range(4 if workers else 0):
            epoch()
        found = compare(epoch, theirs(dataset, workers), max(7, options.pairs // 2))
        name = f"only __getitem__, {kind.__name__.lower()}, {workers} workers"
        report_ratio(name, found, "never slower than torch's loader", found["ratio"] >= 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--pairs", type=int, default=11)
    warnings.simplefilter("ignore")  # torch's, about its own workers
    print(f"{machine()}, torch {torch.__version__}, {jax.device_count()} device")
    main(parser.parse_args())
