"""Host data inside of compiled programs: the program calls back into Python for the rows of a step.

    program:  key, position  ->  rows  --callback-->  fetched rows  ->  compiled stages
                                          |
                       a loader's service, which has read them ahead; or the source itself

The callback returns the rows as `fetch` makes them. JAX may call it several times for one step:
under rematerialisation, or from several devices. Under `vmap` it is called once for all states.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..base.spec import spec_of
from ..device.device_count import device_count_of_program, refuse_other_processes
from ..device.placement import is_spread
from ..order.rows import Rows, whole_index
from ..reading.read_context import ReadContext, use_read_context
from .callbacks import guard, poison
from .host_data import host_data_in, identity_on_host, living
from .settings import settings_of_program


def fetched_in_program(source: Any, rows: Rows, position: Any = None) -> Rows:
    """The routed rows with what Python reads for them, through a callback of the program.

    `position` is a state's words and its bookmark: a loader that reads ahead needs it.
    """
    placement = source.traits.placement
    if is_spread(placement):
        refuse_other_processes(placement.device_set)
    for data in host_data_in(source):
        data.enter_program()
    service, identity = source._service_number, identity_on_host(source)
    settings = settings_of_program()
    received = whole_index if source._plan.wide else lambda rows: rows
    leaves, structure = jax.tree.flatten(source)
    leaves = leaves if service is None else []  # a service has the source itself
    with use_read_context(ReadContext(masked=True)):
        promised = jax.tree.map(spec_of, source._fetch(jax.tree.map(spec_of, rows)))
    axes, (inputs, rows_structure) = rows.index.ndim, jax.tree.flatten(rows)
    outputs, out_structure = jax.tree.flatten(promised)

    def read(requests: list[Any]) -> list[list[np.ndarray]]:
        if service is not None:
            asked = [(at, received(rows_structure.unflatten(x))) for _, at, x in requests]
            found = living(service).serve(asked)
        else:
            with use_read_context(ReadContext(masked=True)), jax.no_execution():
                found = [
                    structure.unflatten(leaves)._fetch(received(rows_structure.unflatten(x)))
                    for leaves, _, x in requests
                ]
        return [_as_promised(each, outputs, out_structure) for each in found]

    def call(devices: Any, *args: Any) -> list[np.ndarray]:
        args = jax.tree.map(np.asarray, args)
        requests, sizes = _lanes(args, args[-1][index_at].ndim - axes)
        nothing = lambda: [poison(outputs)] * len(requests)  # noqa: E731
        with settings():  # JAX calls this in its own thread, which has no settings
            found = guard(identity, devices, lambda: read(requests), nothing)
        return [_as_words(_stacked(each, sizes)) for each in zip(*found, strict=True)]

    index_at = jax.tree.unflatten(rows_structure, range(len(inputs))).index
    asked = (device_count_of_program(rows.index), leaves, position, inputs)
    words = jax.pure_callback(
        call, jax.tree.map(_words, outputs), *asked, vmap_method="expand_dims"
    )
    found = [_from_words(x, spec) for x, spec in zip(words, outputs, strict=True)]
    return jax.tree.unflatten(out_structure, found)


# Under `vmap` the callback gets the stacked arguments of all mapped calls at once. An argument that
# is the same for all has an axis of length 1. Here, a "lane" is one of these calls.


def _lanes(args: Any, mapped: int) -> tuple[list[Any], tuple[int, ...]]:
    """The arguments of every lane, and how many lanes each mapped axis has."""
    sizes = np.broadcast_shapes(*(x.shape[:mapped] for x in jax.tree.leaves(args)))
    lanes = [jax.tree.map(lambda x, at=at: _lane(x, at), args) for at in np.ndindex(*sizes)]
    return lanes, sizes


def _lane(x: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    return x[tuple(i if size > 1 else 0 for i, size in zip(at, x.shape, strict=False))]


def _stacked(parts: Any, sizes: tuple[int, ...]) -> np.ndarray:
    return np.stack(parts).reshape((*sizes, *parts[0].shape)) if sizes else parts[0]


# A callback returns a 64-bit number as two 32-bit words: JAX converts the results of callbacks in
# another thread, where `jax.enable_x64` is not set (`test_wide_types_go_through_a_program`).


def _is_wide(x: Any) -> bool:
    return isinstance(x.dtype, np.dtype) and x.dtype.kind in "iuf" and x.dtype.itemsize == 8


def _words(spec: Any) -> Any:
    return jax.ShapeDtypeStruct((*spec.shape, 2), np.uint32) if _is_wide(spec) else spec


def _as_words(x: np.ndarray) -> np.ndarray:
    if not _is_wide(x):
        return x
    return np.ascontiguousarray(x).view(np.uint32).reshape((*x.shape, 2))


def _from_words(x: Any, spec: Any) -> Any:
    return jax.lax.bitcast_convert_type(x, spec.dtype) if _is_wide(spec) else x


def _as_promised(fetched: Rows, outputs: list[Any], structure: Any) -> list[np.ndarray]:
    found, found_structure = jax.tree.flatten(fetched)
    assert found_structure == structure, (found_structure, structure)
    return [np.asarray(x, s.dtype) for x, s in zip(found, outputs, strict=True)]
