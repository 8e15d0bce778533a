"""Host data inside of compiled programs: a pure callback asks for a position.

    program:  key, position  ->  rows  --callback-->  fetched rows  ->  compiled stages
                                          |
                       a loader's service, which has read them ahead; or the source itself

The callback returns the rows as `fetch` makes them. It is asked again under rematerialisation, by
several devices, and once for all lanes of a `vmap`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .callback import guard, poison
from .device_count import device_count_of_program
from .host_data import host_data_in, identity_on_host, living
from .reading import Reading, reading_as
from .rows import Rows

if TYPE_CHECKING:
    from .positional import Positional


def fetched_in_program(source: Positional[Any], rows: Rows, position: Any = None) -> Rows:
    """The routed rows with what Python reads for them, by a callback of the program.

    `position`, a state's words and its bookmark, says where this is, for those who read ahead.
    """
    for data in host_data_in(source):
        data.enter_program()
    service, identity = source.service, identity_on_host(source)
    leaves, structure = jax.tree.flatten(source)
    leaves = leaves if service is None else []  # a service has the source itself
    with reading_as(Reading(masked=True)):
        promised = jax.tree.map(_struct, source.fetch(jax.tree.map(_struct, rows)))
    axes, (inputs, rows_structure) = rows.index.ndim, jax.tree.flatten(rows)
    outputs, out_structure = jax.tree.flatten(promised)

    def read(requests: list[Any]) -> list[list[np.ndarray]]:
        if service is not None:
            asked = [(at, jax.tree.unflatten(rows_structure, x)) for _, at, x in requests]
            found = living(service).serve(asked)
        else:
            with reading_as(Reading(masked=True)), jax.no_execution():
                found = [
                    jax.tree.unflatten(structure, leaves).fetch(
                        jax.tree.unflatten(rows_structure, x)
                    )
                    for leaves, _, x in requests
                ]
        return [_as_promised(each, outputs, out_structure) for each in found]

    def call(devices: Any, *args: Any) -> list[np.ndarray]:
        leaves, position, inputs = jax.tree.map(np.asarray, args)
        mapped = inputs[index_at].ndim - axes
        # Under vmap the callback gets all lanes at once, with an axis of 1 where they agree.
        arrays = jax.tree.leaves((leaves, position, inputs))
        sizes = np.broadcast_shapes(*(x.shape[:mapped] for x in arrays))
        requests = [
            jax.tree.map(lambda x, at=at: _lane(x, at), (leaves, position, inputs))
            for at in np.ndindex(*sizes)
        ]
        nothing = lambda: [poison(outputs)] * len(requests)  # noqa: E731
        found = guard(identity, devices, lambda: read(requests), nothing)
        return [
            np.stack(parts).reshape((*sizes, *parts[0].shape)) if mapped else parts[0]
            for parts in zip(*found, strict=True)
        ]

    index_at = jax.tree.unflatten(rows_structure, range(len(inputs))).index
    asked = (device_count_of_program(rows.index), leaves, position, inputs)
    found = jax.pure_callback(call, outputs, *asked, vmap_method="expand_dims")
    return jax.tree.unflatten(out_structure, found)


def _lane(x: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    return x[tuple(i if size > 1 else 0 for i, size in zip(at, x.shape, strict=False))]


def _struct(x: Any) -> jax.ShapeDtypeStruct:
    dtype = x.dtype
    if isinstance(dtype, np.dtype):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(x.shape, dtype)


def _as_promised(fetched: Rows, outputs: list[Any], structure: Any) -> list[np.ndarray]:
    found, found_structure = jax.tree.flatten(fetched)
    assert found_structure == structure, (found_structure, structure)
    return [np.asarray(x, s.dtype) for x, s in zip(found, outputs, strict=True)]
