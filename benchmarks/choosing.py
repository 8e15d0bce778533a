"""Default settings against the best fixed setting, in one run.

    python benchmarks/choosing.py [--quick] [--photos FOLDER] [--only NAME ...]

    photos   JPEG files, decoded and resized to 224 x 224 by Pillow, 32 a batch
    memmap   rows of 3,072 bytes of a memory map, shuffled, 8,192 a batch
    python   a Python function of 100 µs an element, which holds the interpreter lock, 32 a batch
    light    a Python function of 2 µs an element, 256 a batch
    rows     rows of a Hugging Face dataset with four columns, 64 a batch

The fixed settings are `workers=0`, and 1, 2, 4, ... threads and processes. Each loader is used for
several epochs: the default one first until it has chosen, the others for one epoch. Then all run
in turns, one epoch each, and at last the default and the best of the others in pairs: that ratio
counts. How long the choice took is reported. Without a folder of photos (by default
`$CEREAL_DATA_DIR/photos`) photos are made.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from host_memmap import make_file
from measure import compare, machine, report, report_ratio, seconds
from sides import HAS_PROCESSES, Kind, in_turns, make_loader, say_what_is_missing, seeds
from work import calibrated_spin, decode_and_resize, descendants, tokens_as_array

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostMapTransform,
    MemmapSource,
)


class Case(NamedTuple):
    """A pipeline, and how many of its batches an epoch has."""

    stages: list[Any]
    batches: int


class Setting(NamedTuple):
    """How many workers, of which kind; None is the default."""

    workers: int | None = None
    kind: Kind | None = None

    @property
    def title(self) -> str:
        if self.workers is None:
            return "default"
        return f"{self.kind or 'workers'} {self.workers}".replace("workers 0", "workers=0")


def fixed_settings() -> list[Setting]:
    counts = [n for n in (1, 2, 4, 8, 16) if n <= max(4, os.cpu_count() or 1)]
    kinds: tuple[Kind, ...] = ("thread", "process") if HAS_PROCESSES else ("thread",)
    return [Setting(0), *(Setting(n, kind) for kind in kinds for n in counts)]


def photos_case(folder: Path, options: argparse.Namespace) -> Case:
    from host_photos import make_photos, photos_in

    if options.photos is None or not options.photos.is_dir():
        print(f"made photos, no real ones: {options.photos or 'no --photos'}")
        make_photos(folder)
        options.photos = folder
    batches = 5 if options.quick else 20
    paths = list(itertools.islice(itertools.cycle(photos_in(options.photos)), 32 * batches))
    source = DiskSampleSource(len(paths), paths.__getitem__)
    return Case([source, HostMapTransform(decode_and_resize), BatchTransform(32)], batches)


def memmap_case(folder: Path, options: argparse.Namespace) -> Case:
    batches = 8 if options.quick else 24
    path = make_file(folder / "rows.npy", 8192 * batches, 3072)
    return Case([MemmapSource(path), BatchTransform(8192)], batches)


def python_case(seconds_each: float, batch: int) -> Callable[..., Case]:
    def make(folder: Path, options: argparse.Namespace) -> Case:
        del folder
        batches = 24 if options.quick else 96
        spin = calibrated_spin(seconds_each)
        source = DatasetSource(range(batch * batches), ordering="shuffle")
        return Case([source, HostMapTransform(spin), BatchTransform(batch)], batches)

    return make


def rows_case(folder: Path, options: argparse.Namespace) -> Case:
    del folder
    batches = 24 if options.quick else 96
    n = 64 * batches
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {
        "label": rng.integers(0, 10, n).tolist(),
        "weight": rng.random(n).tolist(),
        "length": rng.integers(1, 64, n).tolist(),
        "tokens": rng.integers(0, 50_000, (n, 64)).tolist(),
    }
    try:
        import datasets  # pyright: ignore[reportMissingImports]

        rows = datasets.Dataset.from_dict(columns)
    except ImportError:
        print("datasets: not installed; a list of dicts stands in")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    source = DatasetSource(rows, ordering="shuffle")
    return Case([source, HostMapTransform(tokens_as_array), BatchTransform(64)], batches)


CASES: dict[str, Callable[[Path, argparse.Namespace], Case]] = {
    "photos": photos_case,
    "memmap": memmap_case,
    "python": python_case(100e-6, 32),
    "light": python_case(2e-6, 256),
    "rows": rows_case,
}


def epoch(loader: DataLoader[Any]) -> Any:
    last = None
    for batch, _ in loader.iterate(loader.init_state(next(seeds)), epochs=1):
        last = batch
    return last


def at_work(loader: DataLoader[Any], batches: int) -> str:
    """The workers that there are in the middle of an epoch, however the loader calls them."""
    with loader.iterate(loader.init_state(next(seeds)), epochs=1) as taken:
        for _ in itertools.islice(taken, max(2, batches // 2)):
            pass
        threads = sum(each.name.startswith("cereal") for each in threading.enumerate())
        return f"{threads} threads and {len(descendants())} processes"


def warmed_up(name: str, case: Case, options: argparse.Namespace) -> DataLoader[Any]:
    """The default loader, after it has chosen, or after some time."""
    loader = make_loader(case.stages)
    chooser, taken = loader.service.who.chooser, [seconds(lambda: epoch(loader))]
    while chooser is not None and not chooser.settled and sum(taken) < options.warm:
        taken.append(seconds(lambda: epoch(loader)))
    words = f"{sum(taken):.1f} s, {len(taken) * case.batches} batches; {loader.service.in_words()}"
    report(f"{name}: the default has chosen after", words, "reported", True)
    for setting, rate in () if chooser is None else chooser.rates.items():
        print(f"        measured: {setting}: {rate:.0f} elements a second")
    print(f"      {name}: the default has {at_work(loader, case.batches)}")
    return loader


def figures(name: str, case: Case, options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        loaders = {"default": stack.enter_context(warmed_up(name, case, options))}
        for setting in fixed_settings():
            loader = stack.enter_context(make_loader(case.stages, setting.workers, setting.kind))
            epoch(loader)
            loaders[setting.title] = loader
        sides = {
            title: (lambda loader=loader: seconds(lambda: epoch(loader)))
            for title, loader in loaders.items()
        }
        taken = {
            title: statistics.median(s) for title, s in in_turns(sides, options.rounds).items()
        }
        for title, each in taken.items():
            rate = case.batches / each
            print(f"      {name}: {title:12} {1e3 * each:8.1f} ms an epoch, {rate:8.1f} batches/s")
        best = min(taken.keys() - {"default"}, key=lambda title: taken[title])
        mine, theirs = loaders["default"], loaders[best]
        result = compare(lambda: epoch(mine), lambda: epoch(theirs), options.pairs)
        title = f"{name}: speed of the default / of the best fixed ({best})"
        report_ratio(title, result, "at least 0.9x", result["ratio"] >= 0.9)


def main(options: argparse.Namespace) -> None:
    print(machine(), f"{os.cpu_count()} cores", sep=", ")
    say_what_is_missing()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or CASES:
            own = Path(folder) / name
            own.mkdir()
            figures(name, CASES[name](own, options), options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("CEREAL_DATA_DIR")
    default = Path(known) / "photos" if known else None
    parser.add_argument("--photos", type=Path, default=default, help="a folder of JPEG files")
    parser.add_argument("--quick", action="store_true", help="a short run, with more spread")
    parser.add_argument("--only", nargs="+", choices=CASES, help="some of the cases")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds in which it may choose")
    asked = parser.parse_args()
    asked.rounds, asked.pairs = (3, 5) if asked.quick else (7, 15)
    main(asked)
