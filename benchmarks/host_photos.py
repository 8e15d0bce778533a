"""JPEG decoding (Pillow) and a random crop of 224 x 224, by 2 threads on 2 cores.

    python benchmarks/host_photos.py --photos FOLDER

The photos are those of the folder, by default `$CEREAL_DATA_DIR/photos`; without one, photos are
made (500 x 375, noise that compresses like a photo), which is said in the output. Every side
decodes the same photos, each as often, in an order of its own, with the same two functions, and
puts batches into JAX arrays; the consumer keeps the latest batch and waits for the last one.

    single core   one Python loop: decode, crop, np.stack, jax.device_put
    ours          DiskSampleSource, HostMapTransform, HostRandomMapTransform, workers=2
    torch         DataLoader, 2 worker processes
    Grain         threads (default, 16/32 and 2/32 of ReadOptions), and 2 worker processes
    SPDL          PipelineBuilder, 2 threads
    bare threads  a ThreadPoolExecutor of 2, batch by batch as ours: what two threads give here

Threads are started within the time that is measured, worker processes before it. Grain's processes
cannot be kept from epoch to epoch, so they read one endless epoch, and some batches that they had
ready are thrown away before each measurement; after it they are given time to come to rest. A peer
that is not installed is left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from measure import machine, report, report_ratio, seconds
from PIL import Image  # pyright: ignore[reportMissingImports]

from cereal import (
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    HostMapTransform,
    HostRandomMapTransform,
)

SIZE, WORKERS, THROWN_AWAY = 224, 2, 12
seeds = itertools.count()


class Side(NamedTuple):
    """A way to read the photos; what is done before and after it is not measured."""

    epoch: Callable[[], Iterable[Any]]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


def decode(path: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def crop(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    top = rng.integers(image.shape[0] - SIZE + 1)
    left = rng.integers(image.shape[1] - SIZE + 1)
    return image[top : top + SIZE, left : left + SIZE]


def make_photos(folder: Path, count: int = 64) -> None:
    """Noise of all sizes: coarse and strong, fine and weak, as photos have it."""
    for number in range(count):
        rng = np.random.default_rng(number)
        image = np.zeros((375, 500, 3))
        for cell, strength in ((125, 50), (25, 25), (5, 10), (1, 4)):
            noise = rng.normal(0, strength, (375 // cell, 500 // cell, 3))
            image += noise.repeat(cell, 0).repeat(cell, 1)
        pixels = np.clip(image + 128, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.jpg", quality=88)


def photos_in(folder: Path) -> list[str]:
    found = sorted(str(p) for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    sizes = {path: Image.open(path).size for path in found}
    return [path for path, (width, height) in sizes.items() if min(width, height) >= SIZE]


class Photos:
    """Decoded and cropped, as map-style datasets have it."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self._rng = np.random.default_rng()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.ascontiguousarray(crop(decode(self.paths[index]), self._rng))


def consume(batches: Iterable[Any]) -> Any:
    last = None
    for batch in batches:
        last = jax.device_put(batch)
    return last


def single_core(paths: list[str], batch: int) -> Callable[[], Iterable[Any]]:
    def epoch() -> Iterable[Any]:
        rng = np.random.default_rng(next(seeds))
        order = rng.permutation(len(paths))
        for begin in range(0, len(paths), batch):
            yield np.stack([crop(decode(paths[i]), rng) for i in order[begin : begin + batch]])

    return epoch


def bare_threads(paths: list[str], batch: int) -> Callable[[], Iterable[Any]]:
    data = Photos(paths)

    def epoch() -> Iterable[Any]:
        order = np.random.default_rng(next(seeds)).permutation(len(paths)).tolist()
        with ThreadPoolExecutor(WORKERS) as threads:
            images = threads.map(data.__getitem__, order)
            for _ in range(0, len(paths), batch):
                yield np.stack(list(itertools.islice(images, batch)))

    return epoch


def ours(paths: list[str], batch: int) -> Callable[[], Iterable[Any]]:
    source = DiskSampleSource(len(paths), paths.__getitem__)
    stages = [HostMapTransform(decode), HostRandomMapTransform(crop), BatchTransform(batch)]
    # As many batches ahead as torch has by default: two a worker.
    loader = DataLoader([source, *stages], workers=WORKERS, prefetch=2 * WORKERS)

    def epoch() -> Iterable[Any]:
        for images, _ in loader.iterate(loader.init_state(next(seeds)), epochs=1):
            yield images

    return epoch


def torch_sides(paths: list[str], batch: int) -> dict[str, Side]:
    try:
        from torch.utils import data as torch_data  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("torch: not installed")
        return {}
    loader = torch_data.DataLoader(
        Photos(paths),
        batch,
        shuffle=True,
        num_workers=WORKERS,
        multiprocessing_context="spawn",  # not forked: JAX has threads
        persistent_workers=True,
    )
    return {"torch, 2 processes": Side(lambda: (images.numpy() for images in loader))}


def grain_sides(paths: list[str], batch: int) -> dict[str, Side]:
    try:
        import grain  # pyright: ignore[reportMissingImports]
        from absl import flags  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("Grain: not installed")
        return {}

    def cropped() -> Any:
        data = grain.MapDataset.source(paths).shuffle(seed=next(seeds))
        return data.map(decode).random_map(crop, seed=next(seeds))

    def threads(*read: int) -> Side:
        return Side(lambda: cropped().to_iter_dataset(grain.ReadOptions(*read)).batch(batch))

    flags.FLAGS.mark_as_parsed()  # Grain 0.2.18 asks for it
    endless: list[Any] = []

    def processes() -> Iterable[Any]:
        if not endless:
            data = cropped().repeat().batch(batch).to_iter_dataset(grain.ReadOptions(1, 1))
            endless.append(iter(data.mp_prefetch(grain.MultiprocessingOptions(WORKERS))))
        return itertools.islice(endless[0], len(paths) // batch)

    def before() -> None:
        for _ in zip(range(THROWN_AWAY), processes(), strict=False):
            pass

    def after() -> None:
        time.sleep(1)  # they fill their buffers, and would take our cores

    return {
        "Grain, threads, default": threads(),
        "Grain, threads, ReadOptions(16, 32)": threads(16, 32),
        "Grain, threads, ReadOptions(2, 32)": threads(2, 32),
        "Grain, 2 processes": Side(processes, before, after, lambda: endless[0].close()),
    }


def spdl_sides(paths: list[str], batch: int) -> dict[str, Side]:
    try:
        from spdl.pipeline import PipelineBuilder  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("SPDL: not installed")
        return {}
    data = Photos(paths)

    def epoch() -> Iterable[Any]:
        order = np.random.default_rng(next(seeds)).permutation(len(paths)).tolist()
        pipeline = (
            PipelineBuilder()
            .add_source(order)
            .pipe(data.__getitem__, concurrency=WORKERS)
            .aggregate(batch)
            .pipe(np.stack)
            .add_sink(3)
            .build(num_threads=WORKERS)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return {"SPDL, 2 threads": Side(epoch)}


def measured(mine: Side, theirs: Side, pairs: int) -> dict[str, Any]:
    """theirs / ours, as `measure.compare` does it."""

    def once(side: Side) -> float:
        side.before()
        taken = seconds(lambda: consume(side.epoch()))
        side.after()
        return taken

    once(mine), once(theirs)  # pyright: ignore[reportUnusedExpression]
    found: dict[int, list[float]] = {0: [], 1: []}
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            found[which].append(once((mine, theirs)[which]))
    theirs.close()
    ratios = [b / a for a, b in zip(found[0], found[1], strict=True)]
    low, mid, high = (float(np.quantile(ratios, q)) for q in (0.25, 0.5, 0.75))
    a, b = (statistics.median(found[which]) for which in (0, 1))
    return {"ratio": mid, "quartiles": (low, high), "ours": a, "theirs": b, "pairs": pairs}


def halved(result: dict[str, Any]) -> dict[str, Any]:
    low, high = result["quartiles"]
    return {**result, "ratio": result["ratio"] / 2, "quartiles": (low / 2, high / 2)}


def figures(paths: list[str], options: argparse.Namespace) -> None:
    batch, count = options.batch, options.images // options.batch * options.batch
    paths = list(itertools.islice(itertools.cycle(paths), count))
    mine = Side(ours(paths, batch))
    result = halved(measured(mine, Side(single_core(paths, batch)), options.pairs))
    title = f"2 threads / twice a single-core loop, {count} photos"
    report_ratio(title, result, "at least 0.85x", result["ratio"] >= 0.85)
    rate = count / result["ours"]
    report("ours", f"{rate:.0f} photos a second", "reported", True)
    result = measured(mine, Side(bare_threads(paths, batch)), options.pairs)
    report_ratio("2 bare threads / ours", result, "reported", True)
    found = {}
    for make in (torch_sides, grain_sides, spdl_sides):
        for title, side in make(paths, batch).items():
            found[title] = measured(mine, side, options.peer_pairs)
            report_ratio(f"{title} / ours", found[title], "reported", True)
    if found:
        title = min(found, key=lambda title: found[title]["ratio"])
        best = found[title]
        report_ratio(f"the best of them, {title} / ours", best, "at least 1x", best["ratio"] >= 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("CEREAL_DATA_DIR")
    default = Path(known) / "photos" if known else None
    parser.add_argument("--photos", type=Path, default=default, help="a folder of JPEG files")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--peer-pairs", type=int, default=7)
    parser.add_argument("--images", type=int, default=640, help="photos in each measurement")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    print(machine(), f"Pillow {Image.__version__}", f"{os.cpu_count()} cores", sep=", ")
    with tempfile.TemporaryDirectory() as folder:
        if options.photos is None or not options.photos.is_dir():
            print(f"made photos, no real ones: {options.photos or 'no --photos'}")
            make_photos(Path(folder))
            options.photos = Path(folder)
        found = photos_in(options.photos)
        print(f"{len(found)} photos")
        figures(found, options)
