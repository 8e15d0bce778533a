"""`convert` against hand-written loops; and an epoch of a slow source against one of its folder.

python benchmarks/convert.py
"""

from __future__ import annotations

import io
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import compare, inverse, machine, report, report_ratio
from numpy.lib.format import open_memmap

import cereal

PAIRS = 7
FEW = 8
THREADS: dict[str, Any] = {"workers": 2, "worker_type": "thread"}
NEW = itertools.count()


class Images:
    """A dataset whose elements cost next to nothing, so all that is timed is the rest.

    (It has only a few images. To hash the arrays of a dataset in memory takes a second a gigabyte.)
    """

    def __init__(self, n: int, shape: tuple[int, ...]) -> None:
        self.n = n
        self.data = np.random.default_rng(0).integers(0, 256, (FEW, *shape), np.uint8)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return {"image": self.data[index % FEW], "label": index % 10}


class Texts(Images):
    """Tokens of different lengths."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.tokens = [np.arange(k, dtype=np.int32) for k in range(200)]

    def __getitem__(self, index: int) -> Any:
        return {"tokens": self.tokens[index * 7919 % 200]}


def by_hand(dataset: Any, folder: Path) -> None:
    """The loop that one writes without `convert`: not atomic, and it begins again after a kill."""
    folder.mkdir()
    first = dataset[0]
    n, image = len(dataset), first["image"]
    images = open_memmap(folder / "image.npy", "w+", image.dtype, (n, *image.shape))
    labels = open_memmap(folder / "label.npy", "w+", np.int32, (n,))
    for index in range(n):
        element = dataset[index]
        images[index] = element["image"]
        labels[index] = element["label"]
    images.flush()
    labels.flush()


def texts_by_hand(dataset: Any, folder: Path) -> None:
    """The same for tokens: two passes, since the number of tokens is not known before."""
    folder.mkdir()
    lengths = [len(dataset[index]["tokens"]) for index in range(len(dataset))]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = open_memmap(folder / "tokens.npy", "w+", np.int32, (int(offsets[-1]),))
    for index in range(len(dataset)):
        values[offsets[index] : offsets[index + 1]] = dataset[index]["tokens"]
    np.save(folder / "offsets.npy", offsets)
    values.flush()


def against(name: str, dataset: Any, hand: Callable[[Any, Path], None], place: Path) -> None:
    source = cereal.DatasetSource(dataset)

    def run(write: Callable[[Path], Any]) -> Callable[[], None]:
        def once() -> None:
            folder = place / str(next(NEW))
            write(folder)
            shutil.rmtree(folder)

        return once

    ours = run(lambda folder: cereal.convert(source, folder, workers=0, progress=False))
    found = inverse(compare(ours, run(lambda folder: hand(dataset, folder)), PAIRS))
    report_ratio(
        f"convert, workers=0, against a loop: {name}", found, "at most 1.2", found["ratio"] <= 1.2
    )


def photos(n: int) -> list[bytes]:
    from PIL import Image

    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
        file = io.BytesIO()
        small.resize((256, 256)).save(file, "JPEG")
        found.append(file.getvalue())
    return found


def decode(data: bytes) -> np.ndarray:
    """A photo of 128 x 128."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).resize((128, 128)))


def epoch(source: Any) -> float:
    loader = cereal.DataLoader([source, cereal.BatchTransform(64)], **THREADS)
    begin = time.perf_counter()
    for _ in loader.iterate(loader.init_state(0)):
        pass
    return time.perf_counter() - begin


def once_and_then(place: Path) -> None:
    """What a slow source costs in every epoch, once, and then."""
    slow = cereal.HostMapTransform(decode)(cereal.DatasetSource(photos(1_000)))
    epoch(slow)
    epochs, conversions = [], []
    for number in range(3):
        epochs.append(epoch(slow))
        begin = time.perf_counter()
        cereal.convert(slow, place / f"photos{number}", progress=False, **THREADS)
        conversions.append(time.perf_counter() - begin)
    before, took = min(epochs), min(conversions)
    folder = cereal.MemmapSource(place / "photos0")
    after = min(epoch(folder) for _ in range(3))
    name = "1,000 JPEGs: an epoch of the source, converting it, an epoch of the folder"
    value = f"{before:.2f} s, {took:.2f} s, {after:.3f} s: {before / after:.0f}x faster"
    report(name, value, "converting at most 1.3 epochs", took <= 1.3 * before)
    begin = time.perf_counter()
    cereal.convert(slow, place / "photos0", progress=False)
    took = time.perf_counter() - begin
    report("convert of a folder that is there", f"{1e3 * took:.0f} ms", "0.5 s", took < 0.5)


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        place = Path(folder)
        against("images of 3 KB", Images(30_000, (32, 32, 3)), by_hand, place)
        against("images of 150 KB", Images(2_000, (224, 224, 3)), by_hand, place)
        against("tokens, 0 to 199", Texts(50_000), texts_by_hand, place)
        once_and_then(place)


if __name__ == "__main__":
    main()
