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

from ..base.errors import UsageError

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
    refuse_other_processes(getattr(axes, "device_assignment", None))
    mesh_size = getattr(getattr(axes, "mesh", None), "size", None)
    found = getattr(axes, "num_devices", None) or mesh_size
    return jax.device_count() if found is None else int(found)


def refuse_other_processes(devices: Any) -> None:
    """Refuses programs over several processes: JAX would call Python in the first one only, and
    send the results to the others."""
    here = jax.process_index()
    if any(device.process_index != here for device in devices or ()):
        raise UsageError(
            "a pipeline that Python reads cannot be part of a program over several processes: only "
            "one process would read, and send everything to the others. Take batches outside of "
            "`jit`, `DataLoader(..., sharding=...)` and `for batch, mask in "
            "loader.iterate(state):`, or use `loader.scan_epoch` outside of `jit`."
        )


_count.def_impl(lambda x: np.int32(len(x.devices()) if hasattr(x, "devices") else 1))
_count.def_abstract_eval(lambda value: jax.core.ShapedArray((), np.dtype(np.int32)))
mlir.register_lowering(_count, lambda context, _: [mlir.ir_constant(np.int32(_devices(context)))])
batching.primitive_batchers[_count] = lambda args, dims: (_count.bind(*args), None)
ad.primitive_jvps[_count] = lambda args, tangents: (
    _count.bind(*args),
    np.zeros((), jax.dtypes.float0),
)
