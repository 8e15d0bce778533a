"""The tutorial on MNIST: cereal's epoch against the libraries' own loaders.

    python benchmarks/tutorial.py

Every way of `examples/tutorial_mnist.py`, one epoch of each in turn, in rounds; the order of turns
moves on with every round, and the first round, which compiles, does not count. Each way goes on
training its own network, so that the accuracies can be compared at the end. Two ways are added to
the tutorial's: Grain's `MapDataset` besides its `DataLoader`, and TFDS with one dataset for all
epochs, which it then keeps in memory by itself (the tutorial makes it anew for every epoch). So
there is a fastest loader that reads, and a fastest of all. A library that is not installed is left
out. Where MNIST is not to be had, pixels are random, which is said: then only times count.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import machine, mnist_shaped, report

from cereal import CerealError, MNISTDataset

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import tutorial_mnist as tutorial

CACHED = ("TFDS, cached", "own")


def load() -> tuple[tutorial.Arrays, tutorial.Arrays, bool]:
    try:
        train, test = (MNISTDataset(split=split).as_array_dict() for split in ("train", "test"))
        return train, test, True
    except CerealError as error:
        print(f"MNIST is not to be had, so pixels are random: {error}")
    made = mnist_shaped()
    made["image"] = made["image"][..., None]
    return made, {name: rows[:10_000] for name, rows in made.items()}, False


def make_ways(
    train: tutorial.Arrays, folder: str, only: list[str]
) -> dict[tuple[str, str], tutorial.Epoch]:
    ways: dict[tuple[str, str], tutorial.Epoch] = {}
    for name, (modules, make_dataset) in tutorial.LIBRARIES.items():
        if only and name not in only:
            continue
        if any(importlib.util.find_spec(each) is None for each in modules.split()):
            print(f"      {name} is left out: not all of {modules} is installed")
            continue
        dataset, batches = make_dataset(train, folder)
        ways[name, "own"] = tutorial.own(batches)
        if name == "TFDS":
            ways[CACHED] = tutorial.own(partial(iter, batches()))
        if name == "Grain":
            import grain  # pyright: ignore[reportMissingImports]

            batched = grain.MapDataset.source(dataset).batch(tutorial.BATCH)
            ways["Grain MapDataset", "own"] = tutorial.own(partial(iter, batched))
        ways[name, "streamed"] = tutorial.streamed(dataset)
        begin = time.perf_counter()
        ways[name, "read once"] = tutorial.read_once(dataset)
        report(f"{name}: reading once", f"{time.perf_counter() - begin:.2f} s", "reported", True)
    ways["arrays", "read once"] = tutorial.read_once(train)
    return ways


def rounds_of(ways: dict[Any, tutorial.Epoch], rounds: int) -> tuple[dict[Any, Any], np.ndarray]:
    """The networks, and seconds by round and way."""
    params = dict.fromkeys(ways, tutorial.init_params(jax.random.key(0)))
    taken = np.zeros((rounds, len(ways)))
    for turn, place in itertools.product(range(-1, rounds), range(len(ways))):
        column = (place + turn) % len(ways)
        name = list(ways)[column]
        begin = time.perf_counter()
        params[name] = jax.block_until_ready(ways[name](params[name]))
        if turn >= 0:
            taken[turn, column] = time.perf_counter() - begin
    return params, taken


def figures(names: list[tuple[str, str]], taken: np.ndarray) -> None:
    seconds = {name: taken[:, column] for column, name in enumerate(names)}
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        low, high = np.quantile(each, (0.25, 0.75))
        print(f"      {name[0]:16}  {name[1]:9}  {medians[name]:.2f} s [{low:.2f}, {high:.2f}]")
    natives = [name for name in names if name[1] == "own"]
    if not natives:
        return
    fastest = min(natives, key=medians.__getitem__)
    reads = [name for name in natives if name != CACHED] or natives
    fastest_reader = min(reads, key=medians.__getitem__)

    def against(name: tuple[str, str], peer: tuple[str, str], which: str, *, owed: bool) -> None:
        ratios = seconds[name] / seconds[peer]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        value = f"{middle:.2f} [{low:.2f}, {high:.2f}] of {len(ratios)} rounds"
        title = f"{name[0]}, {name[1]}: epoch / {which} ({peer[0]})"
        report(title, value, "at most 1" if owed else "reported", not owed or middle <= 1)

    for name in names:
        if name[1] == "read once":
            against(name, fastest, "the fastest own loader", owed=True)
        elif name[1] == "streamed":
            against(name, (name[0], "own"), "its own loader", owed=True)
            against(name, fastest_reader, "the fastest own loader that reads", owed=False)


def main(options: argparse.Namespace) -> None:
    train, test, real = load()
    with tempfile.TemporaryDirectory() as folder:
        part = {name: rows[: options.images] for name, rows in train.items()}
        ways = make_ways(part, folder, options.only)
        params, taken = rounds_of(ways, options.rounds)
    figures(list(ways), taken)
    scores = [float(tutorial.accuracy(each, *tutorial.pair(test))) for each in params.values()]
    value = f"{min(scores):.2%} to {max(scores):.2%} after {options.rounds + 1} epochs"
    close = max(scores) - min(scores) <= 0.005
    report("test accuracy of all ways", value, "within 0.5 %", close or not real)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--only", nargs="*", default=[], help="the libraries, such as torch")
    print(machine())
    main(parser.parse_args())
