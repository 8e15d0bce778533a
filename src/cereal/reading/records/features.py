"""What a user says about the features of a `tf.train.Example`.

((28, 28), "uint8")        an array of this shape; raw bytes of it, or a list of so many numbers
((), "int64", -1)          the same; -1 where a record does not have the feature
((None, 3), "float32")     any number of rows, another one in each record
bytes, str                 one value, as it is; `((None,), bytes)` a list of values
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.fitting import is_numeric
from ..leaves import ArrayForm
from ..tables.columns import ragged_form
from ..tables.table import objects

_NO_DEFAULT: Any = object()
_WORDS = '`((28, 28), "uint8")`, `((), "int64")`, `bytes` or `str`'


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One feature: its name in the records, and what it becomes."""

    name: str
    shape: tuple[int | None, ...]
    dtype: Any  # of NumPy; or `bytes` or `str`
    default: Any = _NO_DEFAULT

    @property
    def is_text(self) -> bool:
        return self.dtype in (bytes, str)

    @property
    def is_fixed(self) -> bool:
        """Whether all records have an array of one shape."""
        return not self.is_text and None not in self.shape

    @property
    def size(self) -> int:
        """How many numbers it has; of one row, if their number is not known."""
        return math.prod(n for n in self.shape if n is not None)

    @property
    def has_default(self) -> bool:
        return self.default is not _NO_DEFAULT

    @property
    def form(self) -> ArrayForm:
        if self.is_fixed:
            return ArrayForm(self.shape, self.dtype)  # type: ignore[arg-type]
        if self.is_text:
            return objects(f"{self.dtype.__name__}, from a tf.train.Example")
        return ragged_form("any number of rows", 128)

    def __repr__(self) -> str:
        dtype = self.dtype.__name__ if self.is_text else str(self.dtype)
        default = f", {self.default!r}" if self.has_default else ""
        return f"{self.name}: ({self.shape}, {dtype}{default})"


def specs_of(features: Mapping[str, Any], owner: str, before: str = "") -> Any:
    """The same tree with a `FeatureSpec` for each feature; a dict inside it names `outer/inner`."""
    if not features:
        raise PipelineError(f"{owner}: `decode={{}}` names no feature; write {_WORDS} for each.")
    made = {}
    for key, value in features.items():
        if not isinstance(key, str):
            raise PipelineError(f"{owner}: names of features are strings, got {key!r}.")
        name = before + key
        if isinstance(value, Mapping):
            made[key] = specs_of(value, owner, f"{name}/")
        else:
            made[key] = _spec(name, value, owner)
    return made


def _spec(name: str, value: Any, owner: str) -> FeatureSpec:
    if value in (bytes, str):
        return FeatureSpec(name, (), value)
    if not isinstance(value, tuple) or len(value) not in (2, 3) or not _is_shape(value[0]):
        raise PipelineError(
            f"{owner}: the feature {name!r} must be {_WORDS}, got {value!r:.80}; `decode=` may "
            f"also be a function from bytes to an element."
        )
    shape, dtype, *default = value
    if dtype not in (bytes, str):
        dtype = _as_dtype(dtype, name, owner)
    elif shape not in ((), (None,)):
        raise PipelineError(f"{owner}: the feature {name!r}: text has the shape () or (None,).")
    return FeatureSpec(name, shape, dtype, *default)


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, tuple) or None in shape[1:]:
        return False
    return all(isinstance(n, int) and n >= 0 for n in shape if n is not None)


def _as_dtype(value: Any, name: str, owner: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(value)
    except TypeError:
        dtype = np.dtype(object)
    if not is_numeric(dtype):
        raise PipelineError(
            f'{owner}: the feature {name!r}: {value!r} is no type of numbers; write "uint8", '
            f'"int64" or "float32", or `bytes`.'
        )
    return dtype.newbyteorder("<")


def flat(specs: Any) -> Iterator[FeatureSpec]:
    """The specs of a tree, in the order of `jax.tree.leaves`."""
    for key in sorted(specs):
        each = specs[key]
        yield from (each,) if isinstance(each, FeatureSpec) else flat(each)


def form_of_specs(specs: Any) -> Any:
    """The tree of forms."""
    made = {}
    for key, each in specs.items():
        made[key] = each.form if isinstance(each, FeatureSpec) else form_of_specs(each)
    return made
