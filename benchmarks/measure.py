"""How the benchmarks measure: ratios of interleaved pairs, with their spread."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

PAIRS = 21
FIGURES: list[tuple[str, str, str, bool]] = []


def seconds(fn: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - begin


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int = PAIRS, repeat: int = 1
) -> dict[str, Any]:
    """theirs / ours: the median over interleaved pairs, its quartiles, and both medians.

    Each side runs once before the clock starts, and the order within a pair alternates.
    """

    def many(fn: Callable[[], Any]) -> float:
        return min(seconds(fn) for _ in range(repeat))

    seconds(ours), seconds(theirs)
    a, b = [], []
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 else (1, 0):
            (b if side else a).append(many(theirs if side else ours))
    ratios = sorted(y / x for x, y in zip(a, b, strict=True))
    low, mid, high = (float(np.quantile(ratios, q)) for q in (0.25, 0.5, 0.75))
    return {
        "ratio": mid,
        "quartiles": (low, high),
        "ours": statistics.median(a),
        "theirs": statistics.median(b),
        "pairs": pairs,
    }


def inverse(result: dict[str, Any]) -> dict[str, Any]:
    """ours / theirs, where a smaller number is the better one."""
    low, high = result["quartiles"]
    return {**result, "ratio": 1 / result["ratio"], "quartiles": (1 / high, 1 / low)}


def report(name: str, value: str, goal: str, met: bool) -> None:
    FIGURES.append((name, value, goal, met))
    print(f"{'ok  ' if met else 'MISS'}  {name}: {value}  (goal: {goal})", flush=True)


def report_ratio(name: str, result: dict[str, Any], goal: str, met: bool) -> None:
    low, high = result["quartiles"]
    report(
        name,
        f"{result['ratio']:.2f}x [{low:.2f}, {high:.2f}] of {result['pairs']} pairs; "
        f"ours {1e3 * result['ours']:.3f} ms, theirs {1e3 * result['theirs']:.3f} ms",
        goal,
        met,
    )


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def machine() -> str:
    device = jax.devices()[0]
    return f"JAX {jax.__version__}, {device.device_kind}, Python {sys.version.split()[0]}"


def mnist_shaped(n: int = 60_000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (n, 28, 28), np.uint8),
        "label": rng.integers(0, 10, n).astype(np.int32),
    }


def peer_path() -> None:
    """Lets `import cyreal` find a copy in `benchmarks/peers`, where nothing can be installed."""
    sys.path.append(str(Path(__file__).parent / "peers"))
