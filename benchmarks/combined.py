"""Combined sources: what slicing, splitting and mixing cost beside one array, and many parts.

    python benchmarks/combined.py

60,000 MNIST-shaped uint8 rows with labels, batch 128; the consumer is an int32 sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from in_memory import ZERO, consume
from measure import compare, inverse, machine, mnist_shaped, report_ratio

from cereal import ArraySampleSource, BatchTransform, DataLoader, MixSource, SliceSource, split

BATCH = 128
N = 60_000


def loader_of(source: Any) -> DataLoader[Any]:
    return DataLoader([source, BatchTransform(BATCH, drop_last=True)])


def epoch(source: Any) -> Callable[[], Any]:
    loader = loader_of(source)
    state, steps = loader.init_state(0), N // BATCH
    return lambda: loader.scan_epoch(state, ZERO, consume, steps=steps)


def batches(source: Any, count: int) -> Callable[[], Any]:
    loader = loader_of(source)
    state = loader.init_state(0)

    def run() -> Any:
        last = None
        for batch, _ in loader.iterate(state, steps=count):
            last = batch
        return last

    return run


def cut(data: Any, begin: int, end: int) -> Any:
    return {name: leaf[begin:end] for name, leaf in data.items()}


def mixtures() -> dict[str, Any]:
    data = mnist_shaped()
    first, second = cut(data, 0, N // 2), cut(data, N // 2, N)
    whole = ArraySampleSource(data)
    a, b = ArraySampleSource(first), ArraySampleSource(second)
    sliced = SliceSource(a, range(N // 2 - 1000)), SliceSource(b, range(1000, N // 2))
    train, extra = split(whole, (0.8, 0.2), key=7)
    return {
        "one array": whole,
        "slice + mix + shuffle, two arrays": MixSource(sliced, (3, 1), ordering="shuffle"),
        "split + mix + shuffle, one array": MixSource([train, extra], (3, 1), ordering="shuffle"),
    }


def against_one_array(pairs: int) -> None:
    made = mixtures()
    plain = made.pop("one array")
    for name, source in made.items():
        result = inverse(compare(epoch(source), epoch(plain), pairs))
        title = f"scan_epoch: {name} / one array"
        report_ratio(title, result, "at most 1.3x", result["ratio"] <= 1.3)
        result = inverse(compare(batches(source, 400), batches(plain, 400), pairs))
        report_ratio(f"iterate: {name} / one array", result, "reported", True)


def many_parts(pairs: int) -> None:
    data = mnist_shaped()

    def mix(count: int) -> Any:
        size = N // count
        parts = [ArraySampleSource(cut(data, k * size, (k + 1) * size)) for k in range(count)]
        weights = np.random.default_rng(0).integers(1, 6, count)
        return MixSource(parts, weights, ordering="shuffle", epoch=N)

    two = mix(2)
    for count in (10, 100, 1000):
        many = mix(count)
        for name, run in (("scan_epoch", epoch), ("iterate", lambda s: batches(s, 400))):
            result = inverse(compare(run(many), run(two), pairs))
            title = f"{name}: {count} mixed sources / 2"
            report_ratio(title, result, "at most 1.5x", result["ratio"] <= 1.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    options = parser.parse_args()
    print(machine())
    against_one_array(options.pairs)
    many_parts(options.pairs)
