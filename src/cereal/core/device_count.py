"""How many devices a compiled program runs on, as a number inside of it.

It is not known when a function is traced (where its arguments lie decides it), only when the trace
is lowered; so it is an operation that is lowered to a constant.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_count = Primitive("cereal_device_count")


def device_count_of_program(value: Any) -> Any:
    """A number of int32; `value` is anything that the program computes with.

    Without it, JAX would run the operation by itself while it traces a gradient, and say 1.
    """
    return _count.bind(value)


def _devices(context: Any) -> int:
    """How many devices this lowering is for; if JAX does not say, as many as there are."""
    # The bet: a lowering knows its devices by one of these private names, or its mesh
    # (`tests/core/test_device_count.py`).
    axes = context.module_context.axis_context
    mesh_size = getattr(getattr(axes, "mesh", None), "size", None)
    found = getattr(axes, "num_devices", None) or mesh_size
    return jax.device_count() if found is None else int(found)


_count.def_impl(lambda x: np.int32(len(x.devices()) if hasattr(x, "devices") else 1))
_count.def_abstract_eval(lambda value: jax.core.ShapedArray((), np.dtype(np.int32)))
mlir.register_lowering(_count, lambda context, _: [mlir.ir_constant(np.int32(_devices(context)))])
batching.primitive_batchers[_count] = lambda args, dims: (_count.bind(*args), None)
ad.primitive_jvps[_count] = lambda args, tangents: (
    _count.bind(*args),
    np.zeros((), jax.dtypes.float0),
)
