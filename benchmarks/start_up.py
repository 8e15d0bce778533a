"""First batches of a shuffled range of 10^9, and time per batch far into the data.

python benchmarks/start_up.py
"""

from __future__ import annotations

import statistics
import time

import jax
from measure import compare, machine, on_gpu, report, report_ratio

import cereal

BATCH = 128


def loader(n: int) -> cereal.DataLoader:
    return cereal.DataLoader(
        [cereal.RangeSource(n, ordering="shuffle"), cereal.BatchTransform(BATCH)]
    )


def first_batch() -> float:
    begin = time.perf_counter()
    made = loader(10**9)
    jax.block_until_ready(made.next_batch(made.init_state(7)))
    return time.perf_counter() - begin


def first_batches() -> None:
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(())))  # start the backend
    first = first_batch()
    report(
        "first batch of a shuffled range of 10^9, with compilation",
        f"{first:.2f} s",
        "1 s",
        first <= 1,
    )
    second = statistics.median(first_batch() for _ in range(15))
    report(
        "first batch of a second, equal loader", f"{1e3 * second:.2f} ms", "50 ms", second <= 0.05
    )


def per_batch() -> None:
    small, large = loader(10**4), loader(10**9)
    start, late = large.state_at(0, 0), large.state_at(0, 1000 * (10**9 // BATCH))

    def run(made: cereal.DataLoader, state: object) -> object:
        batch = None
        for _ in range(200):
            batch, state, _ = made.next_batch(state)
        return batch

    result = compare(lambda: run(small, small.init_state(0)), lambda: run(large, start))
    report_ratio(
        "200 batches at n = 10^9 / at n = 10^4",
        result,
        "within 1.3x",
        1 / 1.3 <= result["ratio"] <= 1.3,
    )
    result = compare(lambda: run(large, start), lambda: run(large, late))
    report_ratio(
        "200 batches in epoch 1,000 / in epoch 0",
        result,
        "within 1.3x",
        1 / 1.3 <= result["ratio"] <= 1.3,
    )


if __name__ == "__main__":
    print(machine(), "(GPU)" if on_gpu() else "(CPU)")
    first_batches()
    per_batch()
