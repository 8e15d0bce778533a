"""What is left of the priorities after 10^7 updates, against float64, with flashbax beside it.

    python benchmarks/replay_exact.py [--capacity 1000000] [--updates 10000000] [--decades 6]

Batches of 256 items get new priorities: log-uniform over six orders of magnitude, every tenth is
zero (`--decades 0`: all are 1). The true priorities are what was written last, summed in float64.

    a node     its value against the sum of the true priorities below it
    a draw     2^24 draws, counted in 1,000 runs of items and in decades of priority: chi-square;
               and the item that is drawn too often by the largest factor (of 100 draws or more)
    never      items that no random number leads to, though their priority is above zero
               (flashbax: all float32 numbers that it can draw are tried; cereal: for each item,
               the words that should lead to it)

flashbax draws one number for each of 256 strata, so its counts vary less than independent draws.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import machine, report
from scipy import stats

BATCH, DRAWS, RUNS = 256, 2**24, 1_000


@dataclass(frozen=True)
class Side:
    """One library: how to fill it, set priorities, draw items, and look into its tree."""

    name: str
    full: Callable[[int], Any]
    update: Callable[[Any, Any, Any], Any]
    draw: Callable[[Any, Any], Any]
    levels: Callable[[Any], dict[int, np.ndarray]]
    reached: Callable[[Any, int], np.ndarray]


# ------------------------------------------------------------------------------------ cereal


def cereal_side(capacity: int) -> Side:
    from cereal.rl.replay.storage import sum_tree as tree

    depth = len(tree.rows_of_levels(capacity))
    all_real = jnp.ones(BATCH, bool)

    def levels(nodes: Any) -> dict[int, np.ndarray]:
        ends = np.cumsum(tree.rows_of_levels(capacity))
        found = np.split(np.asarray(nodes), ends[:-1])
        root = np.asarray(tree.total(nodes))[None]
        return {tree.WIDTH**i: x.ravel() for i, x in enumerate(found)} | {tree.WIDTH**depth: root}

    def draw(nodes: Any, key: Any) -> Any:
        return tree.draw(nodes, capacity, jax.random.bits(key, (depth, BATCH), jnp.uint32))

    return Side(
        "cereal",
        lambda capacity: tree.set_run(
            tree.empty_tree(capacity), capacity, 0, jnp.ones(capacity), jnp.ones(capacity, bool)
        ),
        lambda nodes, items, priority: tree.set_priority(
            nodes, capacity, items, priority, all_real
        ),
        draw,
        levels,
        cereal_reaches,
    )


def cereal_reaches(nodes: Any, capacity: int) -> np.ndarray:
    """The items that the random words lead to which should: one word for each level."""
    from cereal.rl.replay.storage import sum_tree as tree

    find = jax.jit(lambda nodes, words: tree.draw(nodes, capacity, words))
    table, rows = np.asarray(nodes), tree.rows_of_levels(capacity)
    reached = np.zeros(capacity, bool)
    for begin in range(0, capacity, 2**17):
        items = np.minimum(np.arange(begin, begin + 2**17), capacity - 1)
        words, first = [], len(table)
        for level in reversed(range(len(rows))):
            first -= rows[level]
            here = items // tree.WIDTH**level
            words.append(word_for(table[first + here // tree.WIDTH], here % tree.WIDTH))
        reached[items] |= np.asarray(find(nodes, jnp.asarray(np.stack(words)))) == items
    return reached


def word_for(priorities: np.ndarray, place: np.ndarray) -> np.ndarray:
    """A word in the middle of those that should choose this one of the priorities [k, 16]."""
    priorities = priorities.astype(np.float64)
    end = np.take_along_axis(priorities.cumsum(1), place[:, None], 1)[:, 0]
    own = np.take_along_axis(priorities, place[:, None], 1)[:, 0]
    share = (end - own / 2) / np.maximum(priorities.sum(1), 1e-30)
    return np.minimum(share * 2.0**32, 2.0**32 - 1).astype(np.uint32)


# ---------------------------------------------------------------------------------- flashbax


def flashbax_side(capacity: int) -> Side:
    fbx = importlib.import_module("flashbax")

    platform = jax.default_backend()
    buffer = fbx.make_prioritised_item_buffer(
        max_length=capacity,
        min_length=BATCH,
        sample_batch_size=BATCH,
        add_sequences=True,
        priority_exponent=1.0,
        device=platform,
    )

    def full(capacity: int) -> Any:
        chunk = capacity // 100
        add = jax.jit(buffer.add, donate_argnums=0)
        state = buffer.init({"x": jnp.uint8(0)})
        for _ in range(100):
            state = add(state, {"x": jnp.zeros(chunk, jnp.uint8)})
        return state

    def levels(state: Any) -> dict[int, np.ndarray]:
        nodes, depth = np.asarray(state.sum_tree_state.nodes), state.sum_tree_state.tree_depth
        return {2 ** (depth - i): nodes[2**i - 1 : 2 ** (i + 1) - 1] for i in range(depth + 1)}

    return Side(
        "flashbax",
        full,
        buffer.set_priorities,
        lambda state, key: buffer.sample(state, key).indices,
        levels,
        lambda state, capacity: flashbax_reaches(state.sum_tree_state, capacity),
    )


def flashbax_reaches(tree: Any, capacity: int) -> np.ndarray:
    """The items that some float32 number in [0, 1) leads to, of those that 256 strata can give."""
    sum_tree = importlib.import_module("flashbax.buffers.sum_tree")

    find = jax.vmap(lambda tree, query: sum_tree.sample(tree, query_value=query), (None, 0))

    @partial(jax.jit, donate_argnums=1)
    def mark(tree: Any, reached: Any, low: Any, spacing: Any) -> Any:
        def some(reached: Any, begin: Any) -> tuple[Any, None]:
            steps = (begin + jnp.arange(2**16)).astype(jnp.float32)
            return reached.at[find(tree, low + steps * spacing)].set(True, mode="drop"), None

        return jax.lax.scan(some, reached, jnp.arange(0, 2**23, 2**16))[0]

    reached = mark(tree, jnp.zeros(capacity, bool), 0.0, 2.0**-31)
    for power in range(1, 9):  # from [1/2, 1) down to the first stratum, 2^23 numbers in each
        reached = mark(tree, reached, 2.0**-power, 2.0 ** -(23 + power))
    return np.asarray(reached)


# ------------------------------------------------------------------------------ measurements


def new_priorities(key: Any, decades: float) -> Any:
    size, zero = jax.random.split(key)
    priority = 10.0 ** (decades * (jax.random.uniform(size, (BATCH,)) - 0.5))
    return jnp.where((jax.random.uniform(zero, (BATCH,)) < 0.1) & (decades > 0), 0.0, priority)


def updated(side: Side, capacity: int, updates: int, decades: float) -> tuple[Any, np.ndarray]:
    """The state after the updates, and the true priorities."""

    def body(carry: Any, key: Any) -> tuple[Any, None]:
        state, truth = carry
        where, what = jax.random.split(key)
        width = capacity // BATCH  # one item of each run: no item twice in a batch
        items = jax.random.randint(where, (BATCH,), 0, width) + width * jnp.arange(BATCH)
        priority = new_priorities(what, decades)
        return (side.update(state, items, priority), truth.at[items].set(priority)), None

    @partial(jax.jit, donate_argnums=0)
    def run(carry: Any, keys: Any) -> Any:
        return jax.lax.scan(body, carry, keys)[0]

    carry, chunks = (side.full(capacity), jnp.ones(capacity, jnp.float32)), 10
    for chunk in range(chunks):
        keys = jax.random.split(jax.random.key(chunk), updates // BATCH // chunks)
        carry = run(carry, keys)
    return carry[0], np.asarray(carry[1])


def drawn(side: Side, state: Any, capacity: int) -> np.ndarray:
    """How often each item was drawn; the last number counts what lies outside the buffer."""

    @jax.jit
    def run(state: Any, keys: Any) -> Any:
        def body(counts: Any, key: Any) -> tuple[Any, None]:
            items = side.draw(state, key)
            items = jnp.where((items < 0) | (items >= capacity), capacity, items)
            return counts.at[items].add(1), None

        return jax.lax.scan(body, jnp.zeros(capacity + 1, jnp.int32), keys)[0]

    return np.asarray(run(state, jax.random.split(jax.random.key(99), DRAWS // BATCH)))


def chi_square(counts: np.ndarray, truth: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """The statistic for each degree of freedom, and how likely it is to be larger by chance."""
    seen = np.bincount(group, counts.astype(np.float64))
    wanted = np.bincount(group, truth.astype(np.float64))
    seen, wanted = seen[wanted > 0], wanted[wanted > 0] / wanted.sum() * counts.sum()
    some = wanted >= 20
    statistic = float(((seen - wanted)[some] ** 2 / wanted[some]).sum())
    free = int(some.sum()) - 1
    return statistic / max(free, 1), float(stats.chi2.sf(statistic, max(free, 1)))


def node_errors(levels: dict[int, np.ndarray], truth: np.ndarray) -> dict[str, Any]:
    """`levels`: the nodes, by how many items each of them is the sum of."""
    worst, negative, ghosts = 0.0, 0, 0
    for width, level in levels.items():
        wanted = np.zeros(width * len(level))
        wanted[: len(truth)] = truth
        wanted, level = wanted.reshape(-1, width).sum(1), level.astype(np.float64)
        some = wanted > 0
        worst = max(worst, float((np.abs(level - wanted)[some] / wanted[some]).max(initial=0)))
        negative += int((level < 0).sum())
        ghosts += int((level[~some] > 0).sum())
    root = float(levels[max(levels)][0]) / truth.sum(dtype=np.float64) - 1
    return {"root": abs(root), "node": worst, "negative": negative, "ghosts": ghosts}


def measure(side: Side, capacity: int, updates: int, decades: float) -> dict[str, Any]:
    begin = time.perf_counter()
    state, truth = updated(side, capacity, updates, decades)
    after = time.perf_counter()
    found = node_errors(side.levels(state), truth)
    counts = drawn(side, state, capacity)
    inside = counts[:-1]
    run = np.arange(capacity) * RUNS // capacity
    decade = np.floor(np.log10(np.maximum(truth, 1e-9))).astype(int) + 9
    by_run, by_decade = chi_square(inside, truth, run), chi_square(inside, truth, decade)
    often = inside >= 100
    wanted = np.maximum(truth / truth.sum(dtype=np.float64), 1e-12) * DRAWS
    missing = (truth > 0) & ~side.reached(state, capacity)
    return found | {
        "zero": int(inside[truth == 0].sum()),
        "outside": int(counts[-1]),
        "runs": by_run[0],
        "runs_chance": by_run[1],
        "decades": by_decade[0],
        "decades_chance": by_decade[1],
        "often": float((inside[often] / wanted[often]).max(initial=0)),
        "never": float(missing.sum() / max((truth > 0).sum(), 1)),
        "never_mass": float(truth[missing].sum(dtype=np.float64) / truth.sum(dtype=np.float64)),
        "seconds": (after - begin, time.perf_counter() - after),
    }


ROWS = (
    ("root", "root against the sum of the priorities", "{:.1e}", 1e-5),
    ("node", "largest relative error of a node", "{:.1e}", 1e-5),
    ("negative", "negative nodes", "{:,}", 0),
    ("ghosts", "nodes above zero, with only zeros below", "{:,}", 0),
    ("zero", "items of priority zero that were drawn", "{:,}", 0),
    ("outside", "draws outside the buffer", "{:,}", 0),
    ("runs", "chi-square / freedom, 1,000 runs of items", "{:.2f}", None),
    ("decades", "chi-square / freedom, decades of priority", "{:.2f}", None),
    ("often", "most frequent item / what its priority asks for", "{:,.1f}x", 2.0),
    ("never", "share of the items that are never drawn", "{:.2%}", 0.0),
    ("never_mass", "their share of all the priority", "{:.2%}", 0.0),
)


def show(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for row, name, form, goal in ROWS:
        values = [form.format(side[row]) for side in (ours, theirs)]
        met = ours[row] <= goal if goal is not None else ours[f"{row}_chance"] > 0.001
        goal_text = "within noise" if goal is None else f"at most {form.format(goal)}"
        report(name, f"cereal {values[0]}, flashbax {values[1]}", goal_text, met)
    for name, side in (("cereal", ours), ("flashbax", theirs)):
        setting, looking = side["seconds"]
        print(f"      {name}: updates {setting:.1f} s, looks {looking:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=10_000_000)
    parser.add_argument("--decades", type=float, default=6, help="0: all priorities are 1")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{machine()}: {args.capacity:,} items, {args.updates:,} updates of priorities")
    ours, theirs = (
        measure(side(args.capacity), args.capacity, args.updates, args.decades)
        for side in (cereal_side, flashbax_side)
    )
    show(ours, theirs)


if __name__ == "__main__":
    main()
