"""How many devices a compiled program runs on, as a number inside of it.

JAX does not know this number when it traces a function, because it depends on where the arguments
lie. It knows it when it lowers the trace. So this is an operation that is lowered to a constant.
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
    """The number, an int32; `value` is any value of the program.

    An operation without an argument would run at once while JAX traces a gradient, and give 1.
    """
    return _count.bind(value)


def _devices(context: Any) -> int:
    """How many devices this lowering is for; if JAX does not say, the number of all devices."""
    # The bet: a lowering has its number of devices, or its mesh, under these private names. If it
    # is lost, `tests/device/test_device_count.py` fails first.
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
