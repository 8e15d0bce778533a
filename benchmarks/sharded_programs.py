"""Collectives in programs that a loader with `sharding=` feeds, and `scan_epoch` over 8 devices.

    python benchmarks/sharded_programs.py

Counted in compiled programs: all-gather, all-reduce, all-to-all, collective-permute and
reduce-scatter with the shapes of their results. These are all the ways in which numbers go from
device to device, so a batch that does not lie where the program wants it shows up, too.

    a training step   A network of two layers, its loss over the real elements and its gradients:
                      compiled for batches and masks of `iterate`, and for arrays that were put
                      together by hand. Data in memory and in a file; three meshes.
    with next_batch   The same, but the program calls `next_batch`, too: it reads data in memory and
                      adds random numbers to it. Against the training step alone: the loader's part
                      must send nothing.
    an epoch          The first step over data in memory: `scan_epoch`, and `lax.scan` over a stored
                      permutation with the data on every device and the batch divided over them.

Measured: the time of that epoch on one axis of 8 devices; for the network, and for a sum of every
batch, which leaves little but the loader's own work. Axes of a mesh are automatic or explicit.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from measure import compare, inverse, machine, report, report_ratio

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    MemmapSource,
    RandomMapTransform,
    save_arrays,
)

N, WIDTH, HIDDEN, CLASSES, BATCH = 60_000, 784, 64, 10, 128
STEPS = N // BATCH
KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")

# For each mesh: its shape, and where the images and both matrices go.
MESHES: dict[str, tuple[tuple[int, ...], P, P, P]] = {
    "data": ((8,), P("data"), P(), P()),
    "data x model": ((4, 2), P("data"), P(None, "model"), P("model")),
    "data x seq": ((4, 2), P("data", "seq"), P("seq"), P()),
}


def make_mesh(name: str, kind: AxisType) -> Mesh:
    shape, axes = MESHES[name][0], tuple(name.split(" x "))
    return Mesh(np.array(jax.devices()).reshape(shape), axes, axis_types=(kind,) * len(axes))


def make_data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (N, WIDTH), np.uint8),
        "label": rng.integers(0, CLASSES, N).astype(np.int32),
    }


def make_params(mesh: Mesh, name: str) -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(WIDTH, HIDDEN)).astype(np.float32) / 28
    second = rng.normal(size=(HIDDEN, CLASSES)).astype(np.float32) / 8
    _, _, one, two = MESHES[name]
    return {
        "first": jax.device_put(first, NamedSharding(mesh, one)),
        "second": jax.device_put(second, NamedSharding(mesh, two)),
    }


# What is computed


def product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """`x @ matrix`; with explicit axes, one says where it goes."""
    sharding = jax.typeof(matrix).sharding
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    where = P("data", sharding.spec[1]) if explicit else None
    return jnp.einsum("ij,jk->ik", x, matrix, out_sharding=where)


def loss(params: Any, batch: Any, mask: Any) -> jax.Array:
    hidden = jnp.tanh(product(batch["image"].astype(jnp.float32) / 255, params["first"]))
    logits = jax.nn.log_softmax(product(hidden, params["second"]))
    hits = jax.nn.one_hot(batch["label"], CLASSES)
    return -jnp.sum(jnp.where(mask, jnp.sum(logits * hits, axis=-1), 0)) / jnp.sum(mask)


def train(params: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    value, gradient = jax.value_and_grad(loss)(params, batch, mask)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def summed(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    del mask
    return total + batch["image"].astype(jnp.int32).sum() + batch["label"].sum(), None


def collectives(compiled: Any) -> collections.Counter[str]:
    """Which a program has: the kind, and the shapes of the results."""
    found = _COLLECTIVE.findall(compiled.as_text())
    return collections.Counter(f"{kind} {re.sub('{.*?}', '', shape)}" for shape, kind in found)


def report_counts(name: str, ours: Any, theirs: Any) -> None:
    mine, other = collectives(ours), collectives(theirs)
    for extra in (mine - other, other - mine):
        if extra:
            print(f"      {'ours' if extra == mine - other else 'by hand'} only: {dict(extra)}")
    value = f"{mine.total()} ours, {other.total()} by hand"
    report(f"collectives, {name}", value, "the same", mine == other)


# A training step


def steps(folder: Path, data: Any, kind: AxisType) -> None:
    for name in MESHES:
        mesh = make_mesh(name, kind)
        specs = {"image": MESHES[name][1], "label": P("data")}
        hand = {
            k: jax.device_put(v[:BATCH], NamedSharding(mesh, specs[k])) for k, v in data.items()
        }
        mask = jax.device_put(np.ones(BATCH, np.bool_), NamedSharding(mesh, P("data")))
        params = make_params(mesh, name)
        with _under(mesh, kind):
            theirs = jax.jit(train).lower(params, hand, mask).compile()
            for where, batches in _batches(folder, data, (mesh, specs)):
                ours = jax.jit(train).lower(params, *next(batches)).compile()
                report_counts(f"a step, {name}, data in {where}, {kind.name}", ours, theirs)
            ours = with_next_batch(data, (mesh, specs), params)
            report_counts(f"a step with next_batch, {name}, {kind.name}", ours, theirs)


def _batches(folder: Path, data: Any, sharding: Any) -> Iterator[tuple[str, Iterator[Any]]]:
    for where, source in (
        ("memory", ArraySampleSource(data, ordering="shuffle")),
        ("a file", MemmapSource(folder / "rows", ordering="shuffle")),
    ):
        with DataLoader([source, BatchTransform(BATCH)], sharding=sharding) as loader:
            yield where, loader.iterate(loader.init_state(0))


def with_next_batch(data: Any, sharding: Any, params: Any) -> Any:
    """The compiled step of training, in which the loader makes the batch."""
    stages = [
        ArraySampleSource(data, ordering="shuffle"),
        BatchTransform(BATCH),
        RandomMapTransform(add_noise),
    ]
    loader = DataLoader(stages, sharding=sharding)

    def step(loader: Any, state: Any, params: Any) -> Any:
        batch, state, mask = loader.next_batch(state)
        return train(params, batch, mask), state

    return jax.jit(step).lower(loader, loader.init_state(0), params).compile()


def add_noise(element: Any, key: Any) -> Any:
    noise = jax.random.bits(key, element["image"].shape, jnp.uint8) >> 6
    return {**element, "image": element["image"] ^ noise}


def _under(mesh: Mesh, kind: AxisType) -> Any:
    """With explicit axes, programs are traced under the mesh."""
    return jax.set_mesh(mesh) if kind == AxisType.Explicit else jax.default_device(None)


# An epoch


def by_hand(body: Any, batch_at: Any) -> Any:
    @jax.jit
    def run(data: Any, order: jax.Array, carry: Any) -> Any:
        def one(carry: Any, indices: jax.Array) -> tuple[Any, Any]:
            return body(carry, *batch_at(data, indices))

        return jax.lax.scan(one, carry, order)

    return run


def batch_of(mesh: Mesh) -> Any:
    """The batch and the mask of some indices, divided over the devices."""
    where = NamedSharding(mesh, P("data"))
    explicit = AxisType.Explicit in mesh.axis_types

    def auto(data: Any, indices: jax.Array) -> tuple[Any, Any]:
        divide = lambda x: jax.lax.with_sharding_constraint(x, where)  # noqa: E731
        return jax.tree.map(lambda x: divide(x[indices]), data), divide(jnp.ones(BATCH, jnp.bool_))

    def typed(data: Any, indices: jax.Array) -> tuple[Any, Any]:
        indices = jax.sharding.reshard(indices, where)
        mask = jax.sharding.reshard(jnp.ones(BATCH, jnp.bool_), where)
        return jax.tree.map(lambda x: x.at[indices].get(out_sharding=where), data), mask

    return typed if explicit else auto


def epoch(data: Any, kind: AxisType, pairs: int) -> None:
    mesh = make_mesh("data", kind)
    stages = [ArraySampleSource(data, ordering="shuffle"), BatchTransform(BATCH, drop_last=True)]
    loader = DataLoader(stages, sharding=(mesh, "data"))
    everywhere = NamedSharding(mesh, P())
    state, there = loader.init_state(0), jax.device_put(data, everywhere)
    order = np.random.default_rng(0).permutation(N)[: STEPS * BATCH].astype(np.int32)
    order = jax.device_put(order.reshape(STEPS, BATCH), everywhere)
    zero = jax.device_put(np.int32(0), everywhere)
    goal = 1.15 if kind == AxisType.Auto else None
    for name, body, carry in (
        ("a sum", summed, zero),
        ("training", train, make_params(mesh, "data")),
    ):
        theirs = by_hand(body, batch_of(mesh))
        mine = jax.jit(
            lambda loader, state, carry, body=body: loader.scan_epoch(state, carry, body)
        )
        with _under(mesh, kind):
            ours = mine.lower(loader, state, carry).compile()
            hand = theirs.lower(there, order, carry).compile()
            report_counts(f"an epoch, {name}, {kind.name}", ours, hand)
            result = compare(
                lambda body=body, carry=carry: loader.scan_epoch(state, carry, body),
                lambda carry=carry, theirs=theirs: theirs(there, order, carry),
                pairs,
            )
        result = inverse(result)
        met = goal is None or result["ratio"] <= goal
        title = f"scan_epoch / lax.scan by hand, {name}, {kind.name}"
        report_ratio(title, result, "reported" if goal is None else f"at most {goal}x", met)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    print(machine(), f"{jax.device_count()} devices")
    data = make_data()
    with tempfile.TemporaryDirectory() as name:
        save_arrays(Path(name) / "rows", data)
        for kind in (AxisType.Auto, AxisType.Explicit):
            steps(Path(name), data, kind)
            epoch(data, kind, options.pairs if kind == AxisType.Auto else options.pairs // 3)
