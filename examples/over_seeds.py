"""What the examples of CartPole share: all seeds trained at once, and their learning curve.

`cartpole_pg.py`, `cartpole_pg_rnn.py`, `cartpole_ppo.py`, `cartpole_dqn.py` and
`cartpole_offline.py` import it; it is not run by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure


def over_seeds(
    train: Callable[[jax.Array, int], tuple[Any, jax.Array]],
    play: Callable[[jax.Array, Any], jax.Array],
    seeds: int,
    updates: int,
    steps: int,
    out: Path,
    *,
    axis: str = "environment steps",
    keep: Callable[[Any], None] | None = None,
) -> dict[str, np.ndarray]:
    """Trains and plays with every seed; `steps` (counted on `axis`) are in one update.

    `keep` is called with what `train` made, for all seeds.
    """
    keys = jax.random.split(jax.random.key(0), seeds)
    trained, curves = jax.jit(jax.vmap(lambda key: train(key, updates)))(keys)
    returns = jax.jit(jax.vmap(play))(keys, trained)
    for seed, mean in enumerate(returns):
        print(f"seed {seed:2}: mean return {mean:5.1f}")
    draw(np.asarray(curves), steps, axis, out)
    if keep is not None:
        keep(trained)
    return {"return": np.asarray(returns), "curve": np.asarray(curves)}


def draw(curves: np.ndarray, steps: int, axis: str, out: Path) -> None:
    """The mean over seeds, and all between the worst and the best."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    made = np.arange(1, curves.shape[1] + 1) * steps
    ax.fill_between(made, curves.min(axis=0), curves.max(axis=0), alpha=0.3)
    ax.plot(made, curves.mean(axis=0))
    ax.set(xlabel=axis, ylabel=f"mean return, {len(curves)} seeds")
    figure.savefig(out)


def read_options(description: str, updates: int, out: str, **paths: str | None) -> dict[str, Any]:
    """`--seeds`, `--updates`, `--out` and `paths` of the command line, with these defaults."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=updates)
    for name, default in {"out": out, **paths}.items():
        parser.add_argument(f"--{name}", type=Path, default=default)
    return vars(parser.parse_args())
