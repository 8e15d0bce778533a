"""Programs know on how many devices they run; the process may have more."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from tests.functions.programs import spread

from cereal.device.device_count import device_count_of_program


def counted(x: Any) -> Any:
    return x * 0 + device_count_of_program(x)


ROADS: dict[str, Any] = {
    "jit": jax.jit(counted),
    "a jit in a jit": jax.jit(lambda x: jax.jit(counted)(x)),
    "vmap": jax.jit(lambda x: jax.vmap(counted)(jnp.stack([x, x]))),
    "scan": jax.jit(lambda x: jax.lax.scan(lambda c, _: (counted(c), None), x, length=2)[0]),
    "a gradient": jax.jit(jax.grad(jax.checkpoint(lambda x: x * device_count_of_program(x)))),
    "cond": jax.jit(lambda x: jax.lax.cond(x > 0, counted, lambda x: x, x)),
}


@pytest.mark.parametrize("name", ROADS)
def test_a_program_runs_where_its_arguments_lie(name: str) -> None:
    assert jax.device_count() == 4
    one = jax.device_put(jnp.float32(1), jax.devices()[2])
    assert set(np.asarray(ROADS[name](one)).ravel().tolist()) == {1}
    assert set(np.asarray(ROADS[name](spread(jnp.float32(1)))).ravel().tolist()) == {4}


@pytest.mark.parametrize("devices", [2, 4])
def test_a_shard_map_runs_on_its_mesh(devices: int) -> None:
    auto = (AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices], axis_types=auto)
    each = jax.shard_map(
        counted, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")
    )
    assert jax.jit(each)(jnp.ones(4)).tolist() == [devices] * 4


def test_pmap_runs_on_as_many_as_it_maps_over() -> None:
    assert jax.pmap(counted)(jnp.ones(2)).tolist() == [2, 2]


def test_operations_by_themselves_run_where_their_arguments_lie() -> None:
    assert int(device_count_of_program(3)) == 1
    assert int(device_count_of_program(jnp.ones(3))) == 1
    assert int(device_count_of_program(spread(jnp.ones(3)))) == 4
    with jax.disable_jit():
        assert float(counted(jnp.float32(3))) == 1
