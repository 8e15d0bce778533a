"""Buffers beside the rest of the library: devices, guards, meshes, the conformance kit, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.rl.corridor import ONE, walk
from tests.rl.replay.streams import KEY, numbered, replaying, same
from tests.slowly import slowly

import cereal
from cereal.rl import MixedBatchesSource, set_priorities
from cereal.testing import check_loader, check_source


def over_rollouts(**options: Any) -> Any:
    replay = cereal.ReplayTransform(24, 8, collect=2, sample="prioritized", **options)
    return cereal.DataLoader([walk(num_envs=4), replay])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"sample": "prioritized"}, slowly({"write": "reservoir"})])
def test_the_conformance_kit_finds_nothing(options: Any) -> None:
    loader = replaying(numbered(40), 20, batch_size=4, **options)
    check_source(loader.source)
    check_loader(loader)


@pytest.mark.parametrize("options", [{"n_step": 2}, {"sequence": 2}])
@pytest.mark.usefixtures("strict_jax")
def test_nothing_is_promoted_on_the_quiet(options: Any) -> None:
    loader = over_rollouts(**options)
    state = jax.eval_shape(lambda key: loader.init_state(key, ONE), KEY)
    batch, state, _ = jax.eval_shape(loader.next_batch, state)
    jax.eval_shape(set_priorities, state, batch["index"], batch["weight"])


@pytest.mark.slow
def test_all_of_it_runs_under_a_transfer_guard() -> None:
    old = [cereal.RangeSource(50), cereal.BatchTransform(3)]
    new = [cereal.RangeSource(1000, 1100), cereal.BufferTransform(8, 4, 4)]
    mixed = cereal.DataLoader([MixedBatchesSource([old, new])])
    key, params, zero = jax.random.key(0), jax.device_put(ONE), jnp.int32(0)
    loader = over_rollouts(n_step=2)
    with jax.transfer_guard("disallow"):
        state = loader.init_state(key, params)
        batches = loader.iterate(state, steps=2)
        for batch, _ in batches:
            batches.feed_back(set_priorities, batch["index"], batch["weight"])
        batch, state, _ = loader.next_batch(batches.state)
        state = set_priorities(state, batch["index"], batch["weight"])
        loader.scan_epoch(state, zero, lambda carry, batch, mask: (carry, None), steps=2)
        list(mixed.iterate(mixed.init_state(key), steps=2))


@pytest.mark.slow
def test_batches_go_where_they_are_put() -> None:
    there, mesh = jax.devices()[2], cereal.mesh(data=4)
    spread = NamedSharding(mesh, P("data"))
    plain = over_rollouts()
    wanted = [batch for batch, _ in plain.iterate(plain.init_state(KEY, ONE), steps=3)]
    for loader, sharding in (
        (cereal.DataLoader([plain.source, cereal.DevicePutTransform(there)]), None),
        (cereal.DataLoader([plain.source, cereal.DevicePutTransform(spread)]), spread),
        (cereal.DataLoader([plain.source], sharding=spread), spread),
    ):
        batches = loader.iterate(loader.init_state(KEY, ONE), steps=3)
        for batch, other in zip(batches, wanted, strict=True):
            assert same(jax.device_get(batch[0]), jax.device_get(other))
            reward = batch[0]["reward"]
            assert reward.devices() == {there} if sharding is None else reward.sharding == sharding


def test_batches_of_batches_and_single_elements() -> None:
    source = over_rollouts().source
    many = cereal.DataLoader([source, cereal.BatchTransform(3)])
    batch, _, mask = many.next_batch(many.init_state(KEY, ONE))
    assert batch["state"].shape == mask.shape == (3, 8)
    single = cereal.DataLoader([source, cereal.UnbatchTransform()])
    batch, _, mask = single.next_batch(single.init_state(KEY, ONE))
    assert batch["state"].shape == mask.shape == ()


def test_a_buffer_over_files_collects_what_python_reads(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100))
    files = cereal.MemmapSource({"x": np.load(tmp_path / "x.npy", mmap_mode="r")}, "sequential")
    double = cereal.HostMapTransform(lambda element: {"x": 2 * element["x"]})
    replay = cereal.ReplayTransform(100, 10, collect=10, sample="queue")
    with cereal.DataLoader([files, double, replay]) as loader:
        found = [b["x"].tolist() for b, _ in loader.iterate(loader.init_state(KEY), steps=3)]
    assert sum(found, []) == list(range(0, 60, 2))  # noqa: RUF017


def test_a_host_function_that_fails_is_reported() -> None:
    def fail(element: Any) -> Any:
        if element >= 8:
            raise ValueError("no such file")
        return element

    replay = cereal.ReplayTransform(100, 4, collect=4)
    stages = [cereal.RangeSource(20), cereal.HostMapTransform(fail), replay]
    with cereal.DataLoader(stages) as loader:
        batches = loader.iterate(loader.init_state(KEY), steps=5)
        for _ in range(2):
            next(batches)
        with pytest.raises(Exception, match="no such file"):
            jax.block_until_ready(next(batches))
        with pytest.raises(cereal.UsageError, match="begin again from a state"):
            next(batches)
