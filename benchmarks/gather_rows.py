"""Bandwidth of the row gather: 3,072-byte uint8 rows, 65,536 a batch, on a GPU.

python benchmarks/gather_rows.py
"""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp
from measure import machine, on_gpu, report

import cereal

ROWS, BATCH = (1_000_000, 65_536) if on_gpu() else (100_000, 8_192)


def main() -> None:
    image = jax.random.bits(jax.random.key(0), (ROWS, 32, 32, 3), jnp.uint8)
    source = cereal.ArraySampleSource({"image": image}, ordering="shuffle")
    indices = jax.random.permutation(jax.random.key(1), ROWS)[:BATCH].astype(jnp.int32)
    take = jax.jit(lambda source, indices: source.take(indices))
    plain = jax.jit(lambda image, indices: image[indices])
    for name, call in (
        ("ArraySampleSource.take", lambda: take(source, indices)),
        ("image[indices]", lambda: plain(image, indices)),
    ):
        jax.block_until_ready(call())
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            out = [call() for _ in range(10)]
            jax.block_until_ready(out)
            times.append((time.perf_counter() - begin) / 10)
        rate = 2 * BATCH * 3072 / statistics.median(times) / 1e9
        ours = name.startswith("Array") and on_gpu()
        report(
            f"{name}, read plus write",
            f"{rate:,.1f} GB/s",
            "1,800 GB/s" if ours else "reported",
            not ours or rate >= 1800,
        )
    loader = cereal.DataLoader([source, cereal.BatchTransform(BATCH)])
    batch, _ = loader.batch_at(0, 3)
    same = bool((batch["image"] == image[loader.indices_at(0, 3)]).all())
    report("the rows are the right ones", str(same), "True", same)


if __name__ == "__main__":
    print(machine())
    main()
