"""Puts batches onto devices."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..device.placement import check_layout, in_words
from ..device.storage import as_device
from ..pipeline.source import Source
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits

T = TypeVar("T")


@pytree_dataclass
class DevicePutTransform(Stage[Any, Any]):
    """Puts batches onto a device, or spreads them over several.

    `device` is a `jax.Device`, a name such as "gpu:1", a sharding, or None for the first device.
    If an array has fewer axes than the spec of a `NamedSharding`, the first entries of the spec
    apply: one for labels and the mask. A scalar for a whole batch is copied to all devices.

    In `scan_epoch`, `evaluate` and your own `jit`, this is a constraint on the batches: the program
    runs on these devices, so data and parameters must not be committed to others. Each call copies
    the loader's data to them; to copy it only once, write
    `jax.device_put(loader, NamedSharding(mesh, PartitionSpec()))`. In your own `jit`, the default
    device adds no constraint: the program runs where its arguments are.

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
        return StageTraits(light=True, hands_through=True, lane_wise=True, placement=self.device)

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
