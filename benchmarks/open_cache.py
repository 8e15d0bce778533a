"""Opening a file cache of 10^6 elements with its check, beyond computing the few elements.

python benchmarks/open_cache.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import machine, on_gpu, report

import cereal
from cereal.cache.elements import FEW, few_of, read_elements

N = 10**6
ROUNDS = 7


def on_host() -> Any:
    """Elements that Python makes."""
    table = np.arange(N, dtype=np.float32)
    fn = cereal.HostMapTransform(lambda x: np.full(8, table[x], np.float32))
    return fn(cereal.RangeSource(N))


def compiled() -> Any:
    """Elements that programs make."""
    data = cereal.ArraySampleSource(np.arange(N, dtype=np.float32))
    return cereal.MapTransform(lambda x: jnp.cos(x + jnp.arange(8.0)))(data)


def computing(source: Any) -> float:
    """The seconds that the few elements take by themselves, as the check computes them."""
    few = few_of(N, source)
    parts = [few] if source.traits.by_python else [few[i : i + 1] for i in range(FEW)]
    begin = time.perf_counter()
    for part in parts:
        jax.block_until_ready(read_elements(source, part))
    return time.perf_counter() - begin


def opening(make: Callable[[], Any], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = cereal.CacheTransform(folder)
        filled: Any = cache(make())
        filled.store.fill()
        times = []
        for _ in range(ROUNDS):
            source = make()
            alone = min(computing(source) for _ in range(3))
            begin = time.perf_counter()
            opened: Any = cache(source)
            times.append(time.perf_counter() - begin - alone)
            assert opened.store.full
        found = statistics.median(times)
    what = f"opening a file cache of 10^6 elements made {name}, with its check"
    report(f"{what}, beyond computing the few", f"{1e3 * found:.1f} ms", "0.2 s", found <= 0.2)


if __name__ == "__main__":
    print(machine(), "(GPU)" if on_gpu() else "(CPU)")
    opening(on_host, "by Python")
    opening(compiled, "by programs")
