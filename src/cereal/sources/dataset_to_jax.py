"""A dataset as JAX arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError, first_line
from ..base.fitting import check_fits
from ..device.storage import as_device, native
from ..reading.bridges.recognise import recognised
from ..reading.leaves import NO_ARRAY, OBJECT, is_leaf
from ..reading.tables.table import Table, TableReader
from .array_trees import array_leaves, leaves_of_tree, refuse_no_data, without_tensors
from .length import check_length


def dataset_to_jax(dataset: Any, storage_device: Any = "cpu") -> Any:
    """Loads a whole dataset into JAX arrays, committed to a device.

    `dataset` is a tree of arrays (a dict, a tuple, ...), an object with `as_array_dict()`, a frame
    or table (pandas, Polars, Arrow), which becomes a dict of its columns, or anything with a length
    and elements by index (a list, for example): its elements are stacked.
    `storage_device=None` is the default device. On a machine with a GPU, `"cpu"` keeps the data in
    the memory of the host, and only batches go to the GPU.

    >>> import cereal
    >>> data = cereal.dataset_to_jax(cereal.DigitsDataset("test"))
    >>> data["image"].shape
    (297, 8, 8, 1)
    """
    owner = "dataset_to_jax"
    device = as_device(storage_device, owner)
    table = None if isinstance(dataset, type) else recognised(dataset, owner)
    made = _arrays_of_table(table, owner) if isinstance(table, Table) else None
    if made is not None:
        return jax.tree.map(lambda x: jax.device_put(x, device), made)
    refuse_no_data(dataset, owner, "dataset")
    arrays = _arrays_of(without_tensors(dataset, owner, "dataset"), owner)
    for name, leaf in array_leaves(arrays, owner, "dataset"):
        if isinstance(leaf, np.ndarray | np.generic):
            check_fits(leaf, f"{owner}: {name}")
    return jax.tree.map(lambda x: jax.device_put(_own(x), device), arrays)


def _own(array: Any) -> Any:
    """A copy, since JAX may keep using a NumPy array's memory, into which the user may write.

    The copy is made on the host, not on the default device.
    """
    return array if isinstance(array, jax.Array) else np.array(native(array), copy=True)


def _arrays_of_table(table: Table, owner: str) -> Any:
    """All rows of a table, as fresh arrays; an error if a column has none.

    None if only its elements, one by one, will say what is wrong.
    """
    check_length(len(table), "`dataset`", owner)
    reader = TableReader(owner, table)
    leaves, form = reader.all_rows(), reader.form
    if leaves is not None:
        return form.structure.unflatten(leaves)
    for at, column in enumerate(reader.take(np.arange(len(table)))):
        name = form.name(at).replace("element", "dataset")
        if not isinstance(column, np.ndarray):
            words = (form.leaves[at].dtype.metadata or {}).get("words", "")
            if words or form.leaves[at].dtype == OBJECT:
                raise PipelineError(f"{owner}: {name}{(words or NO_ARRAY).rstrip('.')}.")
            missing = next((row for row, value in enumerate(column) if value is None), None)
            if missing is not None:
                raise PipelineError(
                    f"{owner}: {name} has no value in row {missing}; replace what is missing first."
                )
            check_fits(np.asarray(column), f"{owner}: {name}")
    return None


def _elements_of(dataset: Any) -> list[Any]:
    many, n = getattr(dataset, "__getitems__", None), len(dataset)
    if many is None:
        return [dataset[i] for i in range(n)]
    chunks = [many(list(range(i, min(i + 1024, n)))) for i in range(0, n, 1024)]
    return [element for chunk in chunks for element in chunk]


def _arrays_of(dataset: Any, owner: str) -> Any:
    if hasattr(dataset, "as_array_dict"):
        return dataset.as_array_dict()
    if isinstance(dataset, Mapping):
        return dataset
    # A list holds elements, and may be long: its items are not looked at.
    leaves = [] if isinstance(dataset, list) else leaves_of_tree(dataset, owner, "dataset")
    if leaves and all(isinstance(leaf, jax.Array | np.ndarray) for _, leaf in leaves):
        return dataset
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise PipelineError(
            f"{owner}: `dataset` must be a tree of arrays or have `__len__` and `__getitem__`, "
            f"got {type(dataset).__name__}."
        )
    if len(dataset) == 0:
        raise PipelineError(f"{owner}: `dataset` is empty.")
    elements = _elements_of(dataset)
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *elements, is_leaf=is_leaf)
    except ValueError as error:
        raise PipelineError(
            f"{owner}: the elements do not stack into arrays ({first_line(error)}); they must all "
            f"have one structure and one shape. (A list is a list of elements; for whole arrays "
            f"write a tuple or a dict of them.)"
        ) from error
