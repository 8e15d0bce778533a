"""Where batches go."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from ..core.placement import check_layout, in_words
from ..core.pytree import pytree_dataclass, set_fields, static_field
from ..core.source import Source
from ..core.stage import Stage
from ..core.traits import StageTraits
from ..device.storage import as_device

T = TypeVar("T")


@pytree_dataclass
class DevicePutTransform(Stage[Any, Any]):
    """Hands batches out on a device, or spread over devices.

    `device` is a `jax.Device`, a name such as "gpu:1", a sharding, or None for the first device.
    Of a `NamedSharding`, an array with fewer axes takes the leading part of the spec: labels and
    the mask that of their one axis, one number for a whole batch lies everywhere.

    In `scan_epoch`, `evaluate` and your own `jit`, batches are constrained to it, so the program
    runs there: data and parameters must not have been put elsewhere. The data of a loader travels
    there with every call; `jax.device_put(loader, NamedSharding(mesh, PartitionSpec()))` puts it
    there once. The default device asks for nothing in your own `jit`: that runs where its
    arguments are.

    >>> import cereal, jax
    >>> put = cereal.DevicePutTransform("cpu:0")
    >>> loader = cereal.DataLoader([cereal.RangeSource(8), cereal.BatchTransform(4), put])
    >>> batch, mask = next(iter(loader))
    >>> batch.devices() == {jax.devices("cpu")[0]}
    True
    """

    device: Any = static_field(default=None)

    def __init__(self, device: Any = None) -> None:
        set_fields(self, device=as_device(device, "DevicePutTransform"))

    @property
    def traits(self) -> StageTraits:  # type: ignore[override]
        return StageTraits(light=True, hands_through=True, placement=self.device)

    @property
    def _label(self) -> str:
        return f"DevicePutTransform({in_words(self.device)})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        return values, mask

    def __call__(self, source: Source[T]) -> Source[T]:
        if isinstance(source, Source) and isinstance(self.device, jax.sharding.Sharding):
            check_layout(self.device, source.element_spec(), source.traits.lanes, self._label)
        return super().__call__(source)
