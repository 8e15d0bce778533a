"""What other libraries say when they refuse something: cereal tells their errors apart by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pooch
import pytest
from jax.experimental import io_callback
from jax.extend.core import jaxpr_as_fun

from cereal.core.foreign_errors import (
    has_wrong_hash,
    is_read_only,
    lacks_mesh,
    maps_ordered_callback,
    maps_what_is_shared,
    ran_inside_program,
)


def write_into_read_only() -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    array[0] = 1


def run_where_nothing_may_run() -> None:
    with jax.no_execution():
        jnp.zeros(2).block_until_ready()


def map_a_callback_in_order() -> None:
    def call(x: Any) -> Any:
        return io_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x, ordered=True)

    jax.vmap(call)(jnp.zeros(2))


def map_what_is_shared() -> None:
    jax.vmap(lambda x: x, out_axes=None)(jnp.zeros(2))


def map_over_a_mesh_it_was_traced_without() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    traced = jax.make_jaxpr(jax.nn.relu)(jax.ShapeDtypeStruct((), jnp.float32))
    run = jaxpr_as_fun(traced)
    there = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    jax.vmap(run)(jax.device_put(jnp.zeros(2), there))


def take_another_file() -> None:
    pooch.hashes.hash_matches(__file__, "0" * 64, strict=True)


FOUND: dict[Callable[[Any], bool], Callable[[], None]] = {
    is_read_only: write_into_read_only,
    ran_inside_program: run_where_nothing_may_run,
    maps_ordered_callback: map_a_callback_in_order,
    maps_what_is_shared: map_what_is_shared,
    lacks_mesh: map_over_a_mesh_it_was_traced_without,
    has_wrong_hash: take_another_file,
}


@pytest.mark.parametrize("recognised", FOUND, ids=lambda function: function.__name__)
def test_the_library_still_says_it_in_these_words(recognised: Callable[[Any], bool]) -> None:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        FOUND[recognised]()
    assert recognised(caught.value), str(caught.value)
