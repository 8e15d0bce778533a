"""Data and states on a mesh with explicit axes, as `jax.make_mesh` makes them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cereal import (
    ArraySampleSource,
    BatchTransform,
    BlockShuffle,
    CacheTransform,
    ClassBalanced,
    ConcatSource,
    DataLoader,
    DiskSampleSource,
    MapTransform,
    MixSource,
    RandomMapTransform,
    UsageError,
    WeightedSampling,
    WindowSource,
)
from cereal.order.data_blocks import DataBlocks

N = 48
ROWS = np.arange(N * 4, dtype=np.float32).reshape(N, 4)
IMAGES = np.arange(N * 28 * 28).astype(np.uint8).reshape(N, 28, 28)  # kept as words on the CPU
WEIGHTS = np.arange(1, N + 1)
BATCH = BatchTransform(8)


def spread() -> NamedSharding:
    mesh = jax.make_mesh((4,), ("models",), devices=jax.devices()[:4])
    return NamedSharding(mesh, PartitionSpec("models"))


def everywhere() -> NamedSharding:
    return NamedSharding(spread().mesh, PartitionSpec())


def ordered(ordering: Any) -> list[Any]:
    return [ArraySampleSource(ROWS, ordering=ordering), BATCH]


def noisy(x: Any, key: Any) -> Any:
    return x + jax.random.normal(key, x.shape)


PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "sequential": lambda: ordered("sequential"),
    "shuffle": lambda: ordered("shuffle"),
    "listed": lambda: ordered(np.arange(0, N, 2)),
    "blocks": lambda: ordered(BlockShuffle(8)),
    "blocks of the data": lambda: ordered(DataBlocks([20, 8, 20], 2, "Test")),
    "balanced": lambda: ordered(ClassBalanced(np.arange(N) % 3)),
    "with replacement": lambda: ordered(WeightedSampling(WEIGHTS)),
    "a race": lambda: ordered(WeightedSampling(WEIGHTS, replacement=False)),
    "padded": lambda: [ArraySampleSource(ROWS), BatchTransform(20, pad_last_batch=True)],
    "words": lambda: [ArraySampleSource(IMAGES), BATCH],
    "windows": lambda: [WindowSource(np.arange(200), 5), BATCH],
    "mixed": lambda: [
        MixSource([ArraySampleSource(ROWS), ArraySampleSource(-ROWS)], weights=(3, 1)),
        BATCH,
    ],
    "joined": lambda: [ConcatSource([ArraySampleSource(ROWS), ArraySampleSource(-ROWS)]), BATCH],
    "random": lambda: [ArraySampleSource(ROWS), BATCH, RandomMapTransform(noisy)],
    "functions": lambda: [
        ArraySampleSource(ROWS),
        MapTransform(lambda x: jnp.where(x > 3, jnp.sqrt(x), 0)),
        BATCH,
        MapTransform(lambda x: jnp.clip(x, 0, 9) + jnp.take(jnp.arange(5.0), 3)),
    ],
    "host": lambda: [DiskSampleSource(N, lambda i: ROWS[i]), BATCH],
}


# Each compiles for several seconds: two are enough for every day.
QUICK = ("shuffle", "words")
EACH = [
    pytest.param(make, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for name, make in PIPELINES.items()
]


@pytest.mark.parametrize("make", EACH)
def test_states_may_be_mapped_over_a_mesh(make: Callable[[], list[Any]]) -> None:
    with DataLoader(make()) as loader:
        states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 8))
        expected = jax.vmap(loader.next_batch)(states)[0]
        over = jax.device_put(states, spread())
        found, after, mask = jax.jit(jax.vmap(loader.next_batch))(over)
        np.testing.assert_array_equal(found, expected)
        assert mask.all()
        assert (after.offset > 0).all()


@pytest.mark.slow
def test_functions_that_cannot_be_mapped_over_a_mesh_are_refused_in_words() -> None:
    loader = DataLoader([ArraySampleSource(ROWS), BATCH, MapTransform(jax.nn.relu)])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 8))
    over = jax.device_put(states, spread())
    with pytest.raises(UsageError, match="cannot map these states over a mesh with explicit axes"):
        jax.jit(jax.vmap(loader.next_batch))(over)


def keep(carry: Any, batch: Any, mask: Any) -> Any:
    return carry, batch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffle", "words", "mixed", "blocks", "blocks of the data"])
def test_every_device_scans_the_epochs_of_its_own_states(name: str) -> None:
    plain = DataLoader(PIPELINES[name]())
    loader = jax.device_put(plain, everywhere())
    states = jax.vmap(plain.init_state)(jax.random.split(jax.random.key(0), 4))

    def epoch(loader: Any, state: Any) -> Any:
        return loader.scan_epoch(state, 0, keep)[2]

    mapped = jax.jit(jax.vmap(epoch, in_axes=(None, 0)))
    found = mapped(loader, jax.device_put(states, spread()))
    np.testing.assert_array_equal(found, mapped(plain, states))
    assert found.sharding.spec[0] == "models"


@pytest.mark.parametrize("spec", [PartitionSpec(), PartitionSpec("models")])
@pytest.mark.parametrize("stages", [[], [MapTransform(lambda x: x + 1)]], ids=["read", "mapped"])
def test_a_cache_keeps_data_on_its_mesh(spec: Any, stages: list[Any]) -> None:
    data = jax.device_put(ROWS, NamedSharding(spread().mesh, spec))
    loader = DataLoader([ArraySampleSource(data), *stages, CacheTransform("device"), BATCH])
    plain = DataLoader([ArraySampleSource(ROWS), *stages, BATCH])
    pairs = zip(
        loader.iterate(loader.init_state(7)), plain.iterate(plain.init_state(7)), strict=True
    )
    for (batch, _), (expected, _) in pairs:
        np.testing.assert_array_equal(batch, expected)
        assert batch.sharding.mesh == spread().mesh


@pytest.mark.slow
def test_sixty_four_models_train_over_eight_devices() -> None:
    script = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from cereal import ArraySampleSource, BatchTransform, DataLoader, DevicePutTransform

        mesh = jax.make_mesh((8,), ("d",))
        rows = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
        stages = [ArraySampleSource({"x": rows}), BatchTransform(8)]
        loader = DataLoader(stages)
        states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 64))
        over = jax.device_put(states, NamedSharding(mesh, P("d")))
        on = jax.device_put(loader, NamedSharding(mesh, P()))
        found = jax.jit(jax.vmap(on.next_batch))(over)[0]["x"]
        expected = jax.vmap(loader.next_batch)(states)[0]["x"]
        assert np.array_equal(found, expected)
        assert found.sharding.spec[0] == "d" and len(found.sharding.device_set) == 8

        for kind in jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit:
            two = jax.make_mesh((4, 2), ("d", "m"), axis_types=(kind, kind))
            put = DevicePutTransform(NamedSharding(two, P("d", "m")))
            loader = DataLoader([*stages, put])

            def body(carry, batch, mask):
                return carry + batch["x"].sum(), (batch["x"], mask)

            state = loader.init_state(0)
            _, total, (xs, masks) = loader.scan_epoch(state, jnp.float32(0), body)
            assert float(total) == rows.sum()
            assert xs.sharding.spec == P(None, "d", "m"), xs.sharding
            assert masks.sharding.spec == P(None, "d"), masks.sharding
        print("all of it")
    """
    flags = "--xla_force_host_platform_device_count=8"
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.stdout.strip() == "all of it", ran.stderr
