"""Save and restore of the loader's state through Orbax, at step 10 and at step 10^7.

    python benchmarks/checkpoint.py [--pairs 21]

A save is `get_state` and a whole `CheckpointManager.save` of the state alone, until it is on disk;
a restore is the manager's and `set_state`. The first batch is the time from a dict in memory to a
batch on the device, with the loader and its programs warm. Files go to the folder for temporary
files. The same at both steps means within the noise: a ratio of two steps that are the same, 10 and
11, is measured beside it.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from measure import PAIRS, compare, machine, on_gpu, report, report_ratio

import cereal

EARLY, NEXT, LATE = 10, 11, 10_000_000
BATCH = 128


def in_memory() -> cereal.DataLoader:
    data = np.arange(60_000 * 8, dtype=np.float32).reshape(-1, 8)
    source = cereal.ArraySampleSource(data, ordering="shuffle")
    return cereal.DataLoader([source, cereal.BatchTransform(BATCH)])


def on_host() -> cereal.DataLoader:
    data = np.arange(60_000 * 8, dtype=np.float32).reshape(-1, 8)
    source = cereal.DiskSampleSource(len(data), lambda index: data[index], ordering="shuffle")
    stages = [source, cereal.BatchTransform(BATCH)]
    return cereal.DataLoader(stages, workers=1, worker_type="thread")


def at(loader: cereal.DataLoader, step: int) -> Any:
    return loader.iterate(loader.state_at(7, step), epochs=None)


def through_orbax(
    loader: cereal.DataLoader, manager: ocp.CheckpointManager, step: int, numbers: Any
) -> Callable[[], None]:
    """A function that saves the state at a step, and restores it."""
    batches, other = at(loader, step), at(loader, 0)
    wanted = ocp.args.Composite(data=ocp.args.JsonRestore())

    def run() -> None:
        number = next(numbers)
        data = ocp.args.JsonSave(batches.get_state())
        manager.save(number, args=ocp.args.Composite(data=data))
        manager.wait_until_finished()
        other.set_state(manager.restore(number, args=wanted)["data"])

    run()
    assert other.get_state() == batches.get_state()
    return run


def to_first_batch(loader: cereal.DataLoader, step: int) -> Callable[[], Any]:
    """A function that restores a dict and gives the first batch after it."""
    saved, other = at(loader, step).get_state(), at(loader, 0)

    def run() -> Any:
        other.set_state(saved)
        return next(other)

    np.testing.assert_array_equal(run()[0], loader.batch_at(7, step)[0])
    return run


def reported(name: str, make: Callable[[int], Callable[[], Any]], pairs: int, repeat: int) -> None:
    early = make(EARLY)
    noise = compare(early, make(NEXT), pairs, repeat)
    result = compare(early, make(LATE), pairs, repeat)
    low, high = noise["quartiles"]
    print(f"      noise, step {NEXT} / step {EARLY}: {noise['ratio']:.2f}x [{low:.2f}, {high:.2f}]")
    met = 1 / 1.1 <= result["ratio"] <= 1.1
    report_ratio(f"{name}, step 10^7 / step 10", result, "within 1.1x", met)


def asking(loader: cereal.DataLoader, name: str) -> None:
    batches = at(loader, LATE)
    next(batches)
    took = min(timeit.repeat(batches.get_state, number=1000, repeat=7)) / 1000
    report(f"get_state, {name}", f"{1e6 * took:.1f} µs", "100 µs", took <= 1e-4)


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = ocp.CheckpointManagerOptions(max_to_keep=1)
        for name, make in (("in memory", in_memory), ("read by Python", on_host)):
            numbers = itertools.count()
            with (
                make() as loader,
                ocp.CheckpointManager(Path(folder, make.__name__), options=options) as manager,
            ):
                asking(loader, name)
                saving = lambda step: through_orbax(loader, manager, step, numbers)  # noqa: B023, E731
                reported(f"save and restore, {name}", saving, pairs, 1)
                first = lambda step: to_first_batch(loader, step)  # noqa: E731
                reported(f"first batch after a restore, {name}", first, pairs, 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    print(machine(), "(GPU)" if on_gpu() else "(CPU)")
    main(parser.parse_args().pairs)
    jax.clear_caches()
