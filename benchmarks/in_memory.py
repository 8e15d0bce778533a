"""In-memory epochs: `scan_epoch` and `iterate` against cyreal and hand-written loops.

    python benchmarks/in_memory.py

60,000 MNIST-shaped uint8 rows with labels, batch 128, shuffled; the consumer is an int32 sum.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import (
    compare,
    inverse,
    machine,
    mnist_shaped,
    on_gpu,
    peer_path,
    report,
    report_ratio,
    seconds,
)

import cereal

BATCH = 128
DATA = mnist_shaped()
N = len(DATA["label"])
STEPS = N // BATCH
ZERO = jnp.int32(0)  # made once: making it costs a GPU half a millisecond


def consume(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    del mask
    return total + batch["image"].astype(jnp.int32).sum() + batch["label"].sum(), None


def our_loader() -> cereal.DataLoader:
    source = cereal.ArraySampleSource(DATA, ordering="shuffle")
    return cereal.DataLoader([source, cereal.BatchTransform(BATCH, drop_last=True)])


@partial(jax.jit, static_argnames="unroll")
def by_hand(data: Any, order: jax.Array, unroll: int) -> jax.Array:
    def body(total: jax.Array, indices: jax.Array) -> tuple[Any, None]:
        return consume(total, jax.tree.map(lambda x: x[indices], data), None)

    return jax.lax.scan(body, jnp.int32(0), order, unroll=unroll)[0]


def hand_written(pairs: int) -> None:
    loader, data = our_loader(), jax.tree.map(jnp.asarray, DATA)
    state = loader.init_state(0)
    order = np.random.default_rng(0).permutation(N)[: STEPS * BATCH]
    order = jnp.asarray(order.reshape(STEPS, BATCH), jnp.int32)
    for unroll in (1, 8):
        result = compare(
            lambda unroll=unroll: loader.scan_epoch(state, ZERO, consume, unroll=unroll),
            lambda unroll=unroll: by_hand(data, order, unroll),
            pairs,
        )
        result = inverse(result)
        name = f"scan_epoch / lax.scan over a stored permutation, unroll={unroll}"
        report_ratio(name, result, "at most 1.15x", result["ratio"] <= 1.15)


def against_cyreal(pairs: int) -> None:
    peer_path()
    from cyreal.loader import DataLoader
    from cyreal.sources import ArraySource
    from cyreal.transforms import BatchTransform

    peer = DataLoader(
        pipeline=[ArraySource(DATA, ordering="shuffle"), BatchTransform(BATCH, drop_last=True)]
    )
    peer_state = peer.init_state(jax.random.PRNGKey(0))
    loader = our_loader()
    state = loader.init_state(0)
    for unroll in (1, 8):
        theirs = jax.jit(partial(peer.scan_epoch, body_fn=consume, unroll=unroll))
        result = compare(
            lambda unroll=unroll: loader.scan_epoch(state, ZERO, consume, unroll=unroll),
            lambda theirs=theirs: theirs(peer_state, ZERO),
            pairs,
        )
        goal = (500 if unroll == 1 else 1000) if on_gpu() else 8
        name = f"cyreal 0.2.1's scan_epoch / ours, unroll={unroll}"
        report_ratio(name, result, f"at least {goal}x", result["ratio"] >= goal)


def numpy_loop(pairs: int) -> None:
    loader = our_loader()
    order = np.random.default_rng(0).permutation(N)
    summed = jax.jit(lambda batch: consume(jnp.int32(0), batch, None)[0])

    seeds = itertools.count()

    def ours(use: Any) -> Any:
        last = None
        for batch, _ in loader.iterate(loader.init_state(next(seeds))):
            last = use(batch)
        return last

    def theirs(use: Any) -> Any:
        last = None
        for step in range(STEPS):
            indices = order[step * BATCH : (step + 1) * BATCH]
            last = use(jax.device_put({name: leaf[indices] for name, leaf in DATA.items()}))
        return last

    goal = 10 if on_gpu() else 2.5
    result = compare(lambda: ours(lambda b: b), lambda: theirs(lambda b: b), pairs)
    name = "NumPy gather + device_put / iterate"
    report_ratio(name, result, f"at least {goal}x", result["ratio"] >= goal)
    alone = statistics.median(seconds(lambda: ours(lambda b: b)) for _ in range(2 * pairs))
    each = 1e6 * alone / STEPS
    limit = "at most 17 µs" if on_gpu() else "reported"
    for how, taken in (
        ("beside the NumPy loop", 1e6 * result["ours"] / STEPS),
        ("by itself", each),
    ):
        met = not on_gpu() or taken <= 17
        report(f"iterate, {how}", f"{taken:.1f} µs a batch", limit, met)
    result = compare(lambda: ours(summed), lambda: theirs(summed), pairs)
    report_ratio("the same with the int32 sum of every batch", result, "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--cyreal-pairs", type=int, default=15, help="0 leaves it out")
    options = parser.parse_args()
    print(machine())
    hand_written(options.pairs)
    numpy_loop(options.pairs)
    if options.cyreal_pairs:
        against_cyreal(options.cyreal_pairs)
