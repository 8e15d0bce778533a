"""Batches of sequences, in the shape that a model needs."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, format_spec
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits

_OWNER = "TimeSeriesBatchTransform"


@pytree_dataclass
class TimeSeriesBatchTransform(Stage[Any, Any]):
    """Reshapes sequences to one axis of features; in packed mode, also to one long sequence.

        {"context": [B, T, ...]}
        mode="batched"   {"context": [B, T, F]}
        mode="packed"    {"context": [B * T, F], "sequence_start": [B * T]}, mask [B * T]

    In packed mode sequences follow each other. `sequence_start` is True at the first moment of each
    sequence: there a recurrent model resets its state. The mask has one value for each moment; in a
    sequence that is padding, mask and `sequence_start` are False. Other keys of the batch stay
    [B, ...]; their mask is `mask.reshape(B, T)[:, 0]`.

    >>> import cereal, numpy as np
    >>> windows = cereal.WindowSource(np.arange(9.0), 3, predict=1, ordering="sequential")
    >>> packed = cereal.TimeSeriesBatchTransform(mode="packed")
    >>> batch, mask = cereal.DataLoader([windows, cereal.BatchTransform(2), packed]).batch_at(0, 0)
    >>> batch["context"].ravel().tolist(), batch["sequence_start"].tolist()
    ([0.0, 1.0, 2.0, 1.0, 2.0, 3.0], [True, False, False, True, False, False])
    """

    sequence_key: str = static_field(default="context")
    mode: str = static_field(default="batched")
    sequence_start_key: str = static_field(default="sequence_start")

    def __init__(
        self,
        sequence_key: str = "context",
        *,
        mode: Literal["batched", "packed"] = "batched",
        sequence_start_key: str = "sequence_start",
    ) -> None:
        if mode not in ("batched", "packed"):
            raise PipelineError(f'{_OWNER}: `mode` must be "batched" or "packed", got {mode!r}.')
        set_fields(
            self, sequence_key=sequence_key, mode=mode, sequence_start_key=sequence_start_key
        )

    @property
    def traits(self) -> StageTraits:  # type: ignore[override]
        return StageTraits(changes_mask=self.mode == "packed", lane_wise=True)

    def mask_shape(self, before: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        return before if self.mode == "batched" else spec.tree[self.sequence_key].shape[:1]

    @property
    def _label(self) -> str:
        return f"{_OWNER}({self.sequence_key!r}, mode={self.mode!r})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys
        if not lanes:
            raise PipelineError(f"{self._label} works on batches; put it after the BatchTransform.")
        if not isinstance(values, dict) or self.sequence_key not in values:
            has = list(values) if isinstance(values, dict) else type(values).__name__
            raise PipelineError(
                f"{self._label}: batches have no key {self.sequence_key!r}, they have {has}; name "
                f"the sequences with `sequence_key=`."
            )
        sequence = values[self.sequence_key]
        if not isinstance(sequence, jax.Array):
            raise PipelineError(
                f"{self._label}: {self.sequence_key!r} is {format_spec(sequence)}, not one array; "
                f"join its arrays with a MapTransform first."
            )
        if sequence.ndim <= len(lanes):
            raise PipelineError(
                f"{self._label}: {self.sequence_key!r} of shape {sequence.shape} has no axis of "
                f"time after the batch's {lanes}; cut windows with WindowSource first."
            )
        moments = sequence.shape[len(lanes)]
        features = math.prod(sequence.shape[len(lanes) + 1 :])
        if self.mode == "batched":
            shaped = sequence.reshape(*lanes, moments, features)
            return {**values, self.sequence_key: shaped}, mask
        if self.sequence_start_key in values:
            raise PipelineError(
                f"{self._label}: batches have a key {self.sequence_start_key!r} already; choose "
                f"another `sequence_start_key`."
            )
        if mask.shape not in (lanes, (*lanes, moments)):
            raise PipelineError(
                f"{self._label}: the mask is one of moments already, of shape {mask.shape}; pack "
                f"once."
            )
        count = math.prod(lanes)
        real = jnp.repeat(mask.reshape(count), moments) if mask.shape == lanes else mask.reshape(-1)
        starts = real & jnp.asarray(np.arange(count * moments) % moments == 0)
        packed = sequence.reshape(count * moments, features)
        return {**values, self.sequence_key: packed, self.sequence_start_key: starts}, real
