"""pandas' frames, column by column.

int64, float32, bool ...     Numbers, the frame's own memory
Int64, boolean ...           Numbers, with what is missing
category                     Numbers, with `classes`
int32[pyarrow] ...           as in an Arrow table
str, datetime64, object ...  Python objects: str, pandas.Timestamp, what is in the column
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError, said
from ...base.extras import needs
from ...base.fitting import is_numeric
from ..arrow.arrow_columns import form_of_pieces, tree_of_parts
from ..arrow.dictionaries import Dictionaries
from ..structure import flatten
from ..tables.columns import Numbers, Objects, with_gaps
from ..tables.table import Table, objects


def recognise(value: Any, owner: str) -> Table | None:
    """A frame, as rows; its index is left out."""
    if type(value).__name__ != "DataFrame" or not hasattr(value, "dtypes"):
        return None
    return PandasTable(value, owner)


class PandasTable(Table):
    """The rows of a frame of pandas."""

    name = "DataFrame"
    quick = True
    _reopened = ("_columns", "_parts")

    def __init__(self, frame: Any, owner: str) -> None:
        # A shallow copy: if the user writes into the frame, pandas copies it first.
        self._frame = frame.copy(deep=False)
        _check_names(list(frame.columns), owner)
        self.form = {name: form for name, (_, form, _) in self._columns.items()}
        self.classes = {
            key: names for _, _, classes in self._columns.values() for key, names in classes.items()
        }

    @cached_property
    def _columns(self) -> dict[Any, tuple[Any, Any, dict[Any, tuple[Any, ...]]]]:
        """For every column its part, its form, and what its numbers stand for."""
        frame = self._frame
        return {name: _read(frame.iloc[:, at], name) for at, name in enumerate(frame.columns)}

    @cached_property
    def _parts(self) -> list[Any]:
        return flatten({name: part for name, (part, _, _) in self._columns.items()})[0]

    def __len__(self) -> int:
        return len(self._frame)

    def take(self, indices: np.ndarray) -> list[Any]:
        return [part.take(indices) for part in self._parts]

    def digest(self) -> Any:
        pd, frame = needs("pandas", "pandas", "a frame"), self._frame
        try:
            values = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
        except TypeError:  # objects that have no hash, such as lists
            values = pickle.dumps(frame.reset_index(drop=True))
        kinds = [[str(name), str(dtype)] for name, dtype in frame.dtypes.items()]
        return [hashlib.blake2b(values, digest_size=16).hexdigest(), kinds, len(frame)]


def _check_names(names: list[Any], owner: str) -> None:
    if not names:
        raise PipelineError(f"{owner}: the frame has no columns.")
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(
                f"{owner}: the frame has two columns called {name!r}; rename one, or choose "
                f"others: `frame[[...]]`."
            )
        if type(name) is not type(names[0]):
            raise PipelineError(
                f"{owner}: the names of the columns are of several types, {names[0]!r} and "
                f"{name!r}; make all of them text: `frame.columns = frame.columns.astype(str)`."
            )


def _read(column: Any, name: Any) -> tuple[Any, Any, dict[Any, tuple[Any, ...]]]:
    dtype: Any = column.dtype
    classes: dict[Any, tuple[Any, ...]] = {}
    if hasattr(dtype, "pyarrow_dtype"):
        return _read_arrow(column, name)
    if type(dtype).__name__ == "CategoricalDtype":
        codes = column.cat.codes.to_numpy().astype(np.int32)
        part = Numbers(codes, codes < 0 if (codes < 0).any() else None, str(name))
        classes = {name: tuple(dtype.categories)}
    elif isinstance(dtype, np.dtype) and is_numeric(dtype):
        part = Numbers(column.to_numpy(), None, str(name))
    elif type(dtype).__name__ == "SparseDtype" and is_numeric(np.asarray(column).dtype):
        part = Numbers(np.asarray(column), None, str(name))
    elif (plain := getattr(dtype, "numpy_dtype", None)) is not None and is_numeric(plain):
        gone = column.isna().to_numpy()
        values = column.to_numpy(dtype=plain, na_value=plain.type(0))
        part = Numbers(values, gone if gone.any() else None, str(name))
    else:
        return Objects(_taking(column)), objects(_what(column)), {}
    return part, part.form, classes


def _read_arrow(column: Any, name: Any) -> tuple[Any, Any, dict[Any, tuple[Any, ...]]]:
    """The same for a column that is Arrow's already."""
    pa = needs("pyarrow", "pandas", "a column of Arrow's type")
    table = pa.table({str(name): column.array.__arrow_array__()}).combine_chunks()
    known = Dictionaries()
    for batch in table.to_batches():
        known.learn(batch)
    tree = tree_of_parts(table, {}, known)
    form = form_of_pieces(table.schema, [flatten(tree)[0]])
    return tree[str(name)], form[str(name)], known.classes


def _taking(column: Any) -> Callable[[np.ndarray], list[Any]]:
    """Reads rows of a column as Python objects; None where one is missing."""
    values = column.array

    def take(rows: np.ndarray) -> list[Any]:
        found = values.take(rows)
        gone = np.asarray(found.isna())
        return with_gaps(found, gone) if gone.any() else list(found)

    return take


def _what(column: Any) -> str:
    """What a column of Python objects holds, and what to do with it, for an error."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind != "O":
        if column.dtype.kind in "mM":
            return f"a time ({column.dtype})"
        return f"pandas' type {column.dtype}"
    there = column[column.notna().to_numpy()]
    if not len(there):
        return "a column of objects in which all values are missing"
    first = there.iloc[0]
    holds = said(
        lambda: f"a column of objects, the first a {type(first).__name__} ({first!r:.40})",
        f"a column of objects, the first a {type(first).__name__}",
    )
    if isinstance(first, int | float):
        return f"{holds}; write `frame[{column.name!r}] = pandas.to_numeric(...)`"
    return holds
