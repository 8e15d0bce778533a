"""Where batches go."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import jax

from ..core.errors import PipelineError
from ..core.pytree import pytree_dataclass, set_fields, static_field
from ..core.source import Source
from ..core.spec import format_spec
from ..core.stage import Stage
from ..device.storage import as_device

T = TypeVar("T")


@pytree_dataclass
class DevicePutTransform(Stage[Any, Any]):
    """Hands batches out on a device, or spread over devices.

    `device` is a `jax.Device`, a name such as "gpu:1", a sharding, or None for the first device.
    It acts where batches leave the loader; inside your own `jit` it is the identity, since there
    the program decides.

    >>> import cereal, jax
    >>> put = cereal.DevicePutTransform("cpu:0")
    >>> loader = cereal.DataLoader([cereal.RangeSource(8), cereal.BatchTransform(4), put])
    >>> batch, mask = next(iter(loader))
    >>> batch.devices() == {jax.devices("cpu")[0]}
    True
    """

    light: ClassVar[bool] = True
    hands_through: ClassVar[bool] = True

    device: Any = static_field(default=None)

    def __init__(self, device: Any = None) -> None:
        set_fields(self, device=as_device(device, "DevicePutTransform"))

    @property
    def placement(self) -> Any:
        return self.device

    @property
    def label(self) -> str:
        return f"DevicePutTransform({self.device})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        return values, mask

    def __call__(self, source: Source[T]) -> Source[T]:
        if isinstance(self.device, jax.sharding.Sharding):
            for spec in jax.tree.leaves(source.element_spec()):
                try:
                    self.device.shard_shape(spec.shape)
                except (ValueError, IndexError) as error:
                    reason = str(error).strip().partition("\n")[0]
                    raise PipelineError(
                        f"{self.label}: {format_spec(spec)} cannot be laid out so: {reason}; "
                        f"choose a batch size that the devices divide, and put this stage after "
                        f"the BatchTransform."
                    ) from error
        return super().__call__(source)
