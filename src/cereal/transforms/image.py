"""Images: from bytes to numbers, from pixels to vectors."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import at_least_float32
from ..pipeline.source import Source
from ..pipeline.stage import Stage
from ..pipeline.traits import StageTraits

T = TypeVar("T")


def _image(values: Any, image_key: str, label: str) -> Any:
    if not isinstance(values, dict):
        raise PipelineError(
            f"{label} needs elements that are dicts, got {type(values).__name__}; give the data as "
            f'`{{"{image_key}": images, "label": labels}}`.'
        )
    if image_key not in values:
        raise PipelineError(
            f"{label}: there is no key {image_key!r}; the element has {sorted(values)}; pass "
            f"`image_key=` or rename it."
        )
    return values[image_key]


def check_image_key(image_key: Any, owner: str) -> None:
    """Refuses what cannot name the image in an element."""
    if isinstance(image_key, Source):
        raise PipelineError(
            f"{owner}: the first argument is the name of the image, got a source; write "
            f"`{owner}()(source)`, or put `{owner}()` into the loader's list."
        )
    if not isinstance(image_key, str):
        raise PipelineError(
            f"{owner}: `image_key` must be the name of the image in an element, got "
            f'{type(image_key).__name__} ({image_key!r:.60}); write `image_key="image"`.'
        )


def _float_type(dtype: Any) -> np.dtype:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise PipelineError(
            f"NormalizeImageTransform: `dtype` must be a float type, got {dtype!r:.60}; write, for "
            f"example, `dtype=jnp.bfloat16`."
        )
    return found


@pytree_dataclass
class NormalizeImageTransform(Stage[Any, Any]):
    """Turns integer images into floats in [0, 1]: divides by the largest value of their dtype.

    Float images keep their values; only their dtype changes. Works before and after batching.

    >>> import cereal, numpy as np
    >>> source = cereal.ArraySampleSource({"image": np.full((2, 4, 4), 255, np.uint8)})
    >>> image = cereal.NormalizeImageTransform()(source).next(source.init_state(0))[0]["image"]
    >>> str(image.dtype), float(image.max())
    ('float32', 1.0)
    """

    traits: ClassVar[StageTraits] = StageTraits(light=True, lane_wise=True)

    image_key: str = static_field(default="image")
    dtype: Any = static_field(default=np.dtype(np.float32))

    def __init__(self, image_key: str = "image", *, dtype: Any = jnp.float32) -> None:
        check_image_key(image_key, "NormalizeImageTransform")
        set_fields(self, image_key=image_key, dtype=_float_type(dtype))

    @property
    def _label(self) -> str:
        return f"NormalizeImageTransform({self.image_key!r}, dtype={self.dtype})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys, lanes
        image = _image(values, self.image_key, self._label)
        if jnp.issubdtype(image.dtype, jnp.integer):
            # Divide in float32 at least: bfloat16 has too few digits for 255 values.
            wide = at_least_float32(self.dtype)
            image = image.astype(wide) / jnp.asarray(jnp.iinfo(image.dtype).max, wide)
        return {**values, self.image_key: image.astype(self.dtype)}, mask

    def __call__(self, source: Source[T]) -> Source[T]:
        return super().__call__(source)


@pytree_dataclass
class FlattenImageTransform(Stage[Any, Any]):
    """Turns images into vectors: [28, 28] to [784], [B, 28, 28] to [B, 784].

    >>> import cereal, numpy as np
    >>> source = cereal.ArraySampleSource({"image": np.zeros((2, 4, 4), np.uint8)})
    >>> cereal.FlattenImageTransform()(source).element_spec()["image"].shape
    (16,)
    """

    traits: ClassVar[StageTraits] = StageTraits(light=True, lane_wise=True)

    image_key: str = static_field(default="image")

    def __post_init__(self) -> None:
        check_image_key(self.image_key, "FlattenImageTransform")

    @property
    def _label(self) -> str:
        return f"FlattenImageTransform({self.image_key!r})"

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys
        image = _image(values, self.image_key, self._label)
        flat = image.reshape(*image.shape[: len(lanes)], -1)
        return {**values, self.image_key: flat}, mask

    def __call__(self, source: Source[T]) -> Source[T]:
        return super().__call__(source)
