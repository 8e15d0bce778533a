"""`DataLoader(sharding=...)` while `jax.set_mesh` has set a mesh, as `jax.make_mesh` makes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tests.slowly import quickly

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    MapTransform,
    RandomMapTransform,
)

N, SIZE = 64, 16
ROWS = np.arange(N * 4, dtype=np.int32).reshape(N, 4)
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
SOURCES: dict[str, Callable[[], Any]] = {
    "arrays": lambda: ArraySampleSource(ROWS, ordering="shuffle"),
    "function": lambda: DiskSampleSource(N, lambda i: ROWS[i], ordering="shuffle"),
}


def add(element: Any, key: Any) -> Any:
    return element + jax.random.randint(key, (), 0, 100)


def keep(carry: Any, batch: Any, mask: Any) -> Any:
    return carry + mask.sum(), batch


def by_iterate(loader: Any) -> Any:
    return next(iter(loader.iterate(loader.init_state(3))))[0]


def by_next_batch(loader: Any) -> Any:
    return loader.next_batch(loader.init_state(3))[0]


def by_argument(loader: Any) -> Any:
    return jax.jit(lambda loader, state: loader.next_batch(state)[0])(loader, loader.init_state(3))


def by_scan_epoch(loader: Any) -> Any:
    return loader.scan_epoch(loader.init_state(3), jnp.int32(0), keep)[2][0]


WAYS = [by_iterate, by_next_batch, by_argument, by_scan_epoch]


def loader_of(source: str, **options: Any) -> DataLoader[Any]:
    stages = [BatchTransform(SIZE), RandomMapTransform(add), MapTransform(lambda x: x.at[1].add(1))]
    return DataLoader([SOURCES[source](), *stages], **options)


@pytest.mark.parametrize(
    "built", ["under the mesh", pytest.param("before", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("source", "kind"),
    quickly(itertools.product(SOURCES, KINDS), ("function", "explicit")),
)
def test_stages_run_under_a_mesh_that_was_set(source: str, kind: str, built: str) -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(KINDS[kind],))
    with loader_of(source) as plain:
        wanted = np.asarray(by_next_batch(plain))
    before = loader_of(source, sharding=(mesh, "data"))
    with jax.set_mesh(mesh):
        loader = before if built == "before" else loader_of(source, sharding=(mesh, "data"))
        for way in WAYS:
            np.testing.assert_array_equal(way(loader), wanted)
        loader.close()
    before.close()


def test_batches_have_their_masks_under_another_mesh() -> None:
    mesh = jax.make_mesh((4,), ("data",))
    loader = DataLoader([SOURCES["function"](), BatchTransform(SIZE)], sharding=(mesh, "data"))
    with jax.set_mesh(jax.make_mesh((2,), ("other",), devices=jax.devices()[:2])):
        for _, mask in loader.iterate(loader.init_state(0)):
            assert mask.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data")), 1)
            assert np.asarray(mask).all()
    loader.close()
