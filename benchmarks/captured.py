"""A loader over 1 GB in the user's own `jit`: as an argument, and captured under `cereal.jit`.

python benchmarks/captured.py            # --plain also captures 200 MB under plain jax.jit
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from measure import machine, on_gpu, report

import cereal

GB = 2**30


def loader(nbytes: int) -> cereal.DataLoader:
    rows = nbytes // 1024
    data = {"image": jnp.ones((rows, 32, 32), jnp.uint8), "label": jnp.zeros(rows, jnp.int32)}
    jax.block_until_ready(data)
    return cereal.DataLoader([cereal.ArraySampleSource(data), cereal.BatchTransform(128)])


def memory() -> int:
    """Bytes in use on the device, or the high-water mark of the process."""
    if on_gpu():
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(name: str, call: Callable[[Any], Any], state: Any) -> None:
    before = memory()
    begin = time.perf_counter()
    result = jax.block_until_ready(call(state))
    first = time.perf_counter() - begin
    more = memory() - before
    limit = 2 if on_gpu() else 1
    report(
        f"1 GB, {name}: trace + compile + first call",
        f"{first:.2f} s",
        f"{limit} s",
        first <= limit,
    )
    report(
        f"1 GB, {name}: more memory",
        f"{more / 2**20:.0f} MB",
        "no copy of the data",
        more < GB // 2,
    )
    state = result[1]
    times = []
    for _ in range(300):
        jax.block_until_ready(state)
        begin = time.perf_counter()
        out = call(state)
        times.append(time.perf_counter() - begin)
        jax.block_until_ready(out)
        state = out[1]
    dispatch = 1e6 * statistics.median(times)
    goal = "reported" if on_gpu() else "25 µs"
    report(f"1 GB, {name}: dispatch", f"{dispatch:.1f} µs a call", goal, on_gpu() or dispatch <= 25)


def bare(loader: cereal.DataLoader, state: Any) -> None:
    """What JAX takes to dispatch the same program when it is given bare arrays."""
    leaves, structure = jax.tree.flatten(loader)

    @jax.jit
    def run(words: Any, *arrays: Any) -> Any:
        there = cereal.PipelineState(words, state.fingerprint)
        total, after = step(jax.tree.unflatten(structure, arrays), there)
        return total, after.words

    words, times = state.words, []
    jax.block_until_ready(run(words, *leaves))
    for _ in range(300):
        jax.block_until_ready(words)
        begin = time.perf_counter()
        out = run(words, *leaves)
        times.append(time.perf_counter() - begin)
        jax.block_until_ready(out)
        words = out[1]
    dispatch = 1e6 * statistics.median(times)
    report(
        "1 GB, the same program over bare arrays: dispatch",
        f"{dispatch:.1f} µs a call",
        "reported",
        True,
    )


def step(loader: cereal.DataLoader, state: Any) -> Any:
    batch, state, _ = loader.next_batch(state)
    return batch["image"].astype(jnp.int32).sum(), state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="also 200 MB under plain jax.jit")
    options = parser.parse_args()
    print(machine())
    large = loader(GB)
    start = large.init_state(0)
    bare(large, start)
    compiled = jax.jit(step)
    measured("as an argument", lambda state: compiled(large, state), start)
    captured = cereal.jit(lambda state: step(large, state))
    measured("captured under cereal.jit", captured, start)
    if options.plain:
        smaller = loader(GB // 5)
        plain = jax.jit(lambda state: step(smaller, state))
        begin = time.perf_counter()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            jax.block_until_ready(plain(smaller.init_state(0)))
        report(
            "200 MB captured under plain jax.jit",
            f"{time.perf_counter() - begin:.1f} s, {len(told)} warning",
            "reported",
            True,
        )
