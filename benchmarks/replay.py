"""Replay: add 256 transitions, sample 256, set their priorities; flashbax in the same run.

    python benchmarks/replay.py [--capacity 1000000] [--pairs 5] [--calls 100] [--steps 1000]
        [--modes uniform,prioritized]

Transitions of CartPole (41 bytes), in a full buffer. A step adds those of 64 environments x 4
steps, or of 256 x 1, samples a batch of 256, and, with priorities, writes new ones for the batch.

    call   one compiled call for a step, with the state donated, as flashbax recommends
    scan   1,000 steps in one `lax.scan`, which sums up what it sampled

    uniform       add, sample
    prioritized   add, sample with importance weights, set priorities
    no weights    the same, without them: once flashbax's probabilities are used, XLA copies its
                  tree of 8 MB in every step

flashbax has several buffers that can do this: the item buffer, and the trajectory buffer with
sequences of length 1. Each is timed, and the fastest one is compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from measure import compare, machine, report, report_ratio, seconds

import cereal
from cereal.loaders.compose import compose
from cereal.rl.replay.replay_stream import ReplayStream
from cereal.rl.replay.storing import store

BATCH = 256
SHAPES = ((64, 4), (256, 1))


def transition() -> dict[str, Any]:
    return {
        "state": jnp.zeros(4),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "next_state": jnp.zeros(4),
        "done": jnp.bool_(False),
    }


def transitions(*shape: int) -> dict[str, Any]:
    """Different values for every transition."""
    number = jnp.arange(shape[0] * shape[1]).reshape(shape)
    return jax.tree.map(
        lambda x: jnp.broadcast_to(
            number.reshape(*shape, *(1,) * x.ndim).astype(x.dtype), (*shape, *x.shape)
        ),
        transition(),
    )


def new_priority(batch: dict[str, Any]) -> Any:
    """What a training step would send back: it needs the batch."""
    return 0.1 + jnp.abs(batch["state"].sum(-1) - batch["reward"])


@dataclasses.dataclass(eq=False)
class Side:
    """A full buffer, and what a training loop does with it in one step."""

    name: str
    state: Any
    step: Callable[[Any, Any, Any], tuple[Any, dict[str, Any]]]
    added: Any

    def __post_init__(self) -> None:
        self.key = jax.random.key(0)
        self.compiled = jax.jit(self.step, donate_argnums=0)

    def call(self, calls: int) -> Any:
        batch = None
        for _ in range(calls):
            self.state, batch = self.compiled(self.state, self.added, self.key)
        return self.state, batch

    @partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
    def _scan(self, steps: int, state: Any, added: Any, key: Any) -> Any:
        def body(carry: Any, key: Any) -> tuple[Any, None]:
            state, total = carry
            state, batch = self.step(state, added, key)
            return (state, total + sum(jnp.sum(x, dtype=jnp.float32) for x in batch.values())), None

        return jax.lax.scan(body, (state, jnp.float32(0)), jax.random.split(key, steps))[0]

    def scan(self, steps: int) -> Any:
        self.state, total = self._scan(steps, self.state, self.added, self.key)
        return total

    def beyond(self, capacity: int) -> float:
        """Bytes of the state for an item, without the item."""
        data = sum(x.nbytes for x in jax.tree.leaves(transition()))
        return sum(x.nbytes for x in jax.tree.leaves(self.state)) / capacity - data

    def copied(self) -> int:
        """Bytes that a compiled call needs beside its arguments and results."""
        lowered = self.compiled.lower(self.state, self.added, self.key)
        analysis = lowered.compile().memory_analysis()
        return -1 if analysis is None else analysis.temp_size_in_bytes


# ------------------------------------------------------------------------------------ cereal


def environment(envs: int) -> Any:
    """Only the shapes of it are used: the benchmark stores transitions of its own."""
    import gymnax

    def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        del observation, new_episode, key
        return jnp.int32(0), policy_state

    made = gymnax.make("CartPole-v1")
    source = cereal.GymnaxSource(*made, act, None, 1_000, envs)
    without_info = cereal.MapTransform(lambda x: {name: x[name] for name in transition()})
    return [source, without_info]


def cereal_side(mode: str, shape: tuple[int, int], capacity: int) -> Side:
    """All that a `ReplayTransform` does in a step, but for its environments."""
    prioritized = mode != "uniform"
    sample = "prioritized" if prioritized else "uniform"
    replay = cereal.ReplayTransform(
        capacity, batch_size=BATCH, collect=shape[1], sample=sample, beta=1.0
    )
    stream = compose([*environment(shape[0]), replay])
    assert isinstance(stream, ReplayStream)

    def add(state: Any, added: Any) -> Any:
        steps = added["action"].shape[0]
        return store(state, *stream.axes.flat(added, jnp.ones(steps, bool), steps))

    def step(state: Any, added: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        del key
        batch, _, state = stream._drawn(add(state, added))
        if prioritized:
            state = cereal.rl.set_priorities(state, batch["index"], new_priority(batch))
        wanted = transition() if mode == "no weights" else batch
        return state, {name: batch[name] for name in wanted}

    fill = jax.jit(add, donate_argnums=0)
    # The environments are not part of what is compared; flashbax's state has none.
    state = dataclasses.replace(stream.init_state(jax.random.key(0)), source=None)
    for _ in range(101):
        state = fill(state, transitions(capacity // shape[0] // 100, shape[0]))
    return Side("cereal", state, step, transitions(shape[1], shape[0]))


# ---------------------------------------------------------------------------------- flashbax


def flashbax_buffer(kind: str, prioritized: bool, shape: tuple[int, int], capacity: int) -> Any:
    fbx = importlib.import_module("flashbax")
    device = {"device": jax.default_backend()} if prioritized else {}
    if kind == "item":
        make = fbx.make_prioritised_item_buffer if prioritized else fbx.make_item_buffer
        return make(capacity, BATCH, BATCH, add_sequences=True, add_batches=True, **device)
    make = fbx.make_prioritised_trajectory_buffer if prioritized else fbx.make_trajectory_buffer
    rows = {"add_batch_size": shape[0], "max_length_time_axis": capacity // shape[0]}
    one = {"sample_sequence_length": 1, "period": 1, "min_length_time_axis": 1}
    return make(sample_batch_size=BATCH, **rows, **one, **device)


def flashbax_side(kind: str, mode: str, shape: tuple[int, int], capacity: int) -> Side:
    prioritized = mode != "uniform"
    buffer = flashbax_buffer(kind, prioritized, shape, capacity)

    def step(state: Any, added: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        state = buffer.add(state, added)
        sample = buffer.sample(state, key)
        batch = sample.experience
        if kind == "trajectory":
            batch = jax.tree.map(lambda x: x[:, 0], batch)
        if prioritized:
            state = buffer.set_priorities(state, sample.indices, new_priority(batch))
        if mode == "prioritized":
            weight = 1 / sample.probabilities
            own = {"index": sample.indices, "probability": sample.probabilities}
            batch = {**batch, **own, "weight": weight / weight.max()}
        return state, batch

    add = jax.jit(buffer.add, donate_argnums=0)
    state = jax.tree.map(jnp.array, buffer.init(transition()))
    chunk = transitions(shape[0], capacity // shape[0] // 100)
    for _ in range(101):
        state = add(state, chunk)
    return Side(f"flashbax's {kind} buffer", state, step, transitions(*shape))


def fastest(sides: list[Side], how: Callable[[Side], Any]) -> Side:
    """The flashbax buffer that needs the least time for this; each runs once before."""

    def best(side: Side) -> float:
        how(side)
        return seconds(lambda: how(side))

    return min(sides, key=best)


# ------------------------------------------------------------------------------ measurements


def rounds(args: argparse.Namespace, shape: tuple[int, int], mode: str) -> None:
    ours = cereal_side(mode, shape, args.capacity)
    peers = [flashbax_side(kind, mode, shape, args.capacity) for kind in ("item", "trajectory")]
    for way, many in (("call", args.calls), ("scan", args.steps)):

        def how(side: Side, way: str = way, many: int = many) -> Any:
            return getattr(side, way)(many)

        theirs = fastest(peers, how)
        result = compare(
            lambda how=how: how(ours), lambda how=how, theirs=theirs: how(theirs), args.pairs
        )
        result |= {name: result[name] / many for name in ("ours", "theirs")}
        name = f"{mode}, {shape[0]} x {shape[1]}, {way}: {theirs.name} / cereal"
        report_ratio(name, result, "above 1x", result["ratio"] > 1)
    for side in (ours, peers[0]):
        name = f"{mode}, {shape[0]} x {shape[1]}: {side.name}, memory beyond the data"
        beyond, beside = side.beyond(args.capacity), side.copied()
        value = f"{beyond:.2f} bytes an item; {beside:,} bytes in a step"
        report(name, value, "at most 12 bytes an item", beyond <= 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--modes", default="uniform,prioritized,no weights")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{machine()}: {args.capacity:,} items, batches of {BATCH}")
    for mode in args.modes.split(","):
        for shape in SHAPES if mode != "no weights" else SHAPES[:1]:
            rounds(args, shape, mode)


if __name__ == "__main__":
    main()
