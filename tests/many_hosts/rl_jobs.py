"""What the processes of the tests of rollouts do. Each function runs in every process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.many_hosts.jobs import gathered, mesh_of
from tests.rl.corridor import ONE, walk

import cereal

STAGES: dict[str, Any] = {
    "segments": lambda: [cereal.rl.EpisodeStatisticsTransform(), cereal.BatchTransform(4)],
    "buffer": lambda: [
        cereal.rl.EpisodeStatisticsTransform(add=False),
        cereal.ReplayTransform(24, 4, collect=2, sample="prioritized"),
    ],
}


def all_alike(stages: str, explicit: bool) -> Any:
    """Every way of running gives the batches of a loader without a mesh."""
    mesh = mesh_of("data", explicit=explicit)
    spread = NamedSharding(mesh, P("data"))
    plain = cereal.DataLoader([walk(num_envs=2), *STAGES[stages]()])
    loader = cereal.DataLoader([walk(num_envs=2), *STAGES[stages]()], sharding=spread)
    parts = []
    for way in ("iterate", "scan", "next", "jit"):
        found, wanted = run(loader, way), run(plain, way)
        jax.tree.map(np.testing.assert_array_equal, gathered(found), jax.device_get(wanted))
        parts.append(jax.tree.leaves(found)[0].sharding.num_devices)
    return {"devices": parts}


def run(loader: Any, way: str) -> Any:
    """Three batches; if there are priorities, they are set after each."""
    state, batches = loader.init_state(0, ONE), []

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        del mask
        return carry, batch

    def given(state: Any, carry: Any, batch: Any) -> Any:
        del carry
        if "index" not in batch:
            return state
        priority = jnp.abs(batch["reward"]) + batch["weight"]
        return cereal.rl.set_priorities(state, batch["index"], priority)

    if way == "scan":
        return loader.scan_epoch(state, 0, body, steps=3, feedback=given)[2]
    if way == "iterate":
        iterator = loader.iterate(state, steps=3)
        for batch, _ in iterator:
            batches.append(batch)
            iterator.feed_back(given, None, batch)
        return batches
    step = jax.jit(loader.next_batch) if way == "jit" else loader.next_batch
    for _ in range(3):
        batch, state, _ = step(state)
        batches.append(batch)
        state = jax.jit(given)(state, None, batch)
    return batches
