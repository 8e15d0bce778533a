"""What is ours of the time of an element: batches of 512 cheap elements, against a plain loop.

    python benchmarks/per_element.py

The plain loop calls the same functions for the same elements, stacks each column with NumPy and
puts the batch on the device. Ours is `DataLoader(...).iterate(...)`, read by the caller (workers=0)
and by the threads that the loader chooses. Both keep the latest batch and wait for the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from measure import compare, inverse, machine, report_ratio

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
)

BATCH, STEPS, PAIRS, GOAL = 512, 20, 11, 1.5
N = BATCH * STEPS
seeds = itertools.count()
NAMES = [f"column_{number}" for number in range(50)]


def read(i: int) -> dict[str, Any]:
    return {"x": np.full(16, i, np.float32), "y": i % 10}


def wide(i: int) -> dict[str, float]:
    return {name: number * 0.5 for number, name in enumerate(NAMES, start=i)}


def scaled(element: dict[str, Any]) -> dict[str, Any]:
    return {"x": (element["x"] - 5.0) * 0.25, "y": element["y"]}


def flipped(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**element, "x": element["x"][::-1] if rng.random() < 0.5 else element["x"]}


def iterated() -> Iterator[dict[str, Any]]:
    for i in range(N):
        yield read(i)


def with_own_generator(i: int) -> dict[str, Any]:
    """As a user would write it: a generator that is kept, and given the element's key."""
    STATE["state"]["key"][:] = i, 0
    STATE["state"]["counter"][:] = 0
    STATE["buffer_pos"], STATE["has_uint32"], STATE["uinteger"] = 4, 0, 0
    BITS.state = STATE
    return flipped(ROWS[i], RNG)


ROWS = [read(i) for i in range(N)]
BITS = np.random.Philox(key=0)
RNG, STATE = np.random.Generator(BITS), BITS.state


def stacked(elements: list[dict[str, Any]]) -> Any:
    """A batch of a list of elements."""

    def column(values: list[Any]) -> np.ndarray:
        if isinstance(values[0], np.ndarray):
            return np.stack(values)
        return np.asarray(values, np.int32 if isinstance(values[0], int) else np.float32)

    return {name: column([each[name] for each in elements]) for name in elements[0]}


def plain(elements: Callable[[], Iterator[Any]]) -> Any:
    taken, last = elements(), None
    while some := list(itertools.islice(taken, BATCH)):
        last = jax.device_put(stacked(some))
    return last


def ours(loader: DataLoader[Any]) -> Any:
    last = None
    for batch, _ in loader.iterate(loader.init_state(next(seeds))):
        last = batch
    return last


def disk(fn: Callable[[int], Any]) -> DiskSampleSource:
    return DiskSampleSource(N, fn, ordering="sequential")


CASES: dict[str, tuple[list[Any], Callable[[], Iterator[Any]]]] = {
    "IterableSource": ([IterableSource(iterated, length=N)], iterated),
    "DiskSampleSource": ([disk(read)], lambda: map(read, range(N))),
    "HostRandomMapTransform": (
        [DatasetSource(ROWS), HostRandomMapTransform(flipped)],
        lambda: map(with_own_generator, range(N)),
    ),
    "a dict of 50 floats": ([disk(wide)], lambda: map(wide, range(N))),
    "DatasetSource, HostMapTransform": (
        [DatasetSource(ROWS), HostMapTransform(scaled)],
        lambda: map(scaled, ROWS),
    ),
}


def main() -> None:
    print(machine())
    for name, (stages, elements) in CASES.items():
        options: Any
        for options in ({"workers": 0}, {}):
            with DataLoader([*stages, BatchTransform(BATCH)], **options) as loader:
                result = inverse(
                    compare(lambda loader=loader: ours(loader), lambda e=elements: plain(e), PAIRS)
                )
            each = f"{1e6 * result['ours'] / N:.2f} / {1e6 * result['theirs'] / N:.2f} us"
            label = f"{name}, {'workers=0' if options else 'by default'}, {each}"
            report_ratio(label, result, f"<= {GOAL}", result["ratio"] <= GOAL)


if __name__ == "__main__":
    main()
