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
    jax.block_until_ready(call(state))
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


def bare(loader: cereal.DataLoader, state: Any) -> Callable[[Any], Any]:
    """The same program, given bare arrays: what JAX itself takes to dispatch it."""
    leaves, structure = jax.tree.flatten(loader)

    @jax.jit
    def run(words: Any, *arrays: Any) -> Any:
        there = cereal.PipelineState(words, state.fingerprint)
        total, after = step(jax.tree.unflatten(structure, arrays), there)
        return total, after.words

    return lambda state: run(state.words, *leaves)


def dispatches(calls: dict[str, Callable[[Any], Any]], state: Any) -> None:
    """Time until a call returns, with nothing else in flight, in two ways.

    In turns of a hundred, as a training loop calls one program again and again; and in turns of
    one, where each program finds the caches as another left them.
    """
    for turn, rounds in ((100, 15), (1, 1000)):
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                for _ in range(turn):
                    begin = time.perf_counter()
                    out = call(state)
                    times[name].append(time.perf_counter() - begin)
                    jax.block_until_ready(out)
        for name, taken in times.items():
            median = 1e6 * statistics.median(taken)
            limited = "bare" not in name and not on_gpu()
            what = f"1 GB, {name}: dispatch, in turns of {turn}"
            goal = "25 µs" if limited else "reported"
            report(what, f"{median:.1f} µs a call", goal, not limited or median <= 25)


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
    compiled = jax.jit(step)
    measured("as an argument", lambda state: compiled(large, state), start)
    captured = cereal.jit(lambda state: step(large, state))
    measured("captured under cereal.jit", captured, start)
    dispatches(
        {
            "the same program over bare arrays": bare(large, start),
            "as an argument": lambda state: compiled(large, state),
            "captured under cereal.jit": captured,
        },
        start,
    )
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
