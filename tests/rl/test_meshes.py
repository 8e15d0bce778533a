"""Rollouts and buffers over a mesh, as `jax.make_mesh` makes it: with explicit axes."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.rl.corridor import ONE, walk
from tests.slowly import quickly, slowly

import cereal
from cereal.rl import EpisodeStatisticsTransform, recent_episodes

double = cereal.MapTransform(lambda step: {**step, "reward": 2 * step["reward"]})
STAGES: dict[str, list[Any]] = {
    "segments": [cereal.BatchTransform(4), double],
    "statistics": [EpisodeStatisticsTransform(), cereal.BatchTransform(4)],
    "buffer": [
        EpisodeStatisticsTransform(add=False),
        double,
        cereal.ReplayTransform(24, 4, collect=2, sample="prioritized"),
    ],
}


def found(loader: Any, way: str) -> Any:
    """Three batches, and how the episodes went."""
    state, batches = loader.init_state(jax.random.key(0), ONE), []
    if way == "iterate":
        iterator = loader.iterate(state, steps=3)
        batches = [batch for batch, _ in iterator]
        state = iterator.state
    elif way == "scan":
        state, _, batches = loader.scan_epoch(state, 0, lambda c, b, m: (c, b), steps=3)
    else:
        step = jax.jit(loader.next_batch) if way == "jit" else loader.next_batch
        for _ in range(3):
            batch, state, _ = step(state)
            batches.append(batch)
    seen = {} if "episodes" not in str(jax.tree.structure(state)) else recent_episodes(state)
    return batches, seen


EVERY = list(itertools.product(STAGES, ["iterate", "scan", "next", "jit"], [False, True]))


@pytest.mark.parametrize(
    ("stages", "way", "under"),
    quickly(
        EVERY, ("segments", "iterate", False), ("buffer", "scan", True), ("buffer", "jit", False)
    ),
)
def test_batches_are_those_without_a_mesh(stages: str, way: str, under: bool) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    plain = cereal.DataLoader([walk(num_envs=2), *STAGES[stages]])
    with jax.set_mesh(mesh) if under else contextlib.nullcontext():
        spread = NamedSharding(mesh, P("data"))
        loader = cereal.DataLoader([walk(num_envs=2), *STAGES[stages]], sharding=spread)
        batches = found(loader, way)
        leaf = jax.tree.leaves(batches[0])[0]
        assert len(leaf.sharding.device_set) == 4
        assert leaf.sharding.spec[1 if way == "scan" else 0] == "data"
        batches = jax.device_get(batches)
    wanted = jax.device_get(found(plain, way))
    jax.tree.map(np.testing.assert_array_equal, batches, wanted)


@pytest.mark.parametrize("way", ["feed_back", *map(slowly, ["feedback", "jit", "eager"])])
@pytest.mark.parametrize("kind", [AxisType.Explicit, slowly(AxisType.Auto)], ids=str)
def test_priorities_come_back_from_a_mesh(kind: Any, way: str) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    spread = NamedSharding(mesh, P("data"))
    loader = cereal.DataLoader([walk(num_envs=2), *STAGES["buffer"]], sharding=spread)
    plain = cereal.DataLoader([walk(num_envs=2), *STAGES["buffer"]])
    ends = [jax.device_get(jax.tree.leaves(trained(each, way))) for each in (loader, plain)]
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_mesh_refuses() -> None:
    mesh = jax.make_mesh((4,), ("data",))
    spread = NamedSharding(mesh, P("data"))
    stages = [walk(num_envs=2), cereal.ReplayTransform(24, 4, prefill=4, storage="host")]
    with pytest.raises(cereal.PipelineError, match=r"beside one device.*P\('data'.*\) over data=4"):
        cereal.DataLoader(stages, sharding=spread)
    with pytest.raises(cereal.PipelineError, match=r"beside one device.*for each device"):
        cereal.DataLoader([*stages, cereal.DevicePutTransform(spread)])
    mixed = cereal.rl.MixedBatchesSource([stages, stages])
    with pytest.raises(cereal.PipelineError, match="beside one device"):
        cereal.DataLoader([mixed], sharding=spread)
    for over in (cereal.ReplayTransform(24, 4), cereal.BufferTransform(8, 4)):
        with pytest.raises(cereal.PipelineError, match="beside one device"):
            cereal.DataLoader([*stages, over], sharding=spread)
    six = [walk(num_envs=2), cereal.ReplayTransform(24, 6)]
    with pytest.raises(cereal.PipelineError, match=r"a batch of 6 .* can are 4 or 8\.$"):
        cereal.DataLoader(six, sharding=spread)
    there = jax.devices()[2]
    loader = cereal.DataLoader([*stages, cereal.DevicePutTransform(there)])
    batch, _ = next(loader.iterate(loader.init_state(0, ONE)))
    assert batch["reward"].devices() == {there}


def trained(loader: Any, way: str) -> Any:
    """The state after some steps, whose priorities were set."""
    state = loader.init_state(jax.random.key(0), ONE)

    def priority(batch: Any) -> Any:
        return jnp.abs(batch["reward"]) + batch["weight"]

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        del mask
        return carry, (batch["index"], priority(batch))

    if way == "feedback":
        back = lambda state, carry, output: cereal.rl.set_priorities(state, *output)  # noqa: E731
        return loader.scan_epoch(state, 0, body, steps=4, feedback=back)[0]
    if way == "feed_back":
        batches = loader.iterate(state, steps=4)
        for batch, _ in batches:
            batches.feed_back(cereal.rl.set_priorities, batch["index"], priority(batch))
        return batches.state
    give = jax.jit(cereal.rl.set_priorities) if way == "jit" else cereal.rl.set_priorities
    for _ in range(4):
        batch, state, _ = loader.next_batch(state)
        state = give(state, batch["index"], priority(batch))
    return state
