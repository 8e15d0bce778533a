"""Checks that what a user passes as data is a tree of arrays.

    {"image": uint8[60000,28,28], "label": int32[60000]}      an array, a dict, a tuple, ...

Some objects look like data and are not: loaders, sources and states are pytrees of arrays too, data
frames have columns, lists have rows. Each is refused, and the error says what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.spec import is_array_like, named_places
from ..pipeline.source import Source
from ..pipeline.stage import Transform
from ..reading.bridges.tensors import as_numpy, is_tensor

_GO_ON = (
    "write all stages into one list, or go on from its pipeline: `DataLoader([loader.source, ...])`"
)
_FRAMES = ("pandas", "polars", "pyarrow", "cudf", "modin")
_KINDS = {
    "U": "text; write `names, {it} = np.unique({it}, return_inverse=True)`",
    "M": "points in time; write `({it} - {it}[0]) / np.timedelta64(1, 's')`",
    "m": "spans of time; write `{it} / np.timedelta64(1, 's')`",
}


def leaves_of_tree(tree: Any, owner: str, name: str) -> list[tuple[str, Any]]:
    """The leaves of a tree, each with its name for errors; a source or a loader is one leaf."""
    try:
        return named_places(tree, name, is_leaf=_is_no_data)
    except (ValueError, TypeError) as error:  # its keys cannot be sorted
        raise PipelineError(
            f"{owner}: the keys of a dict in `{name}` cannot be sorted, since they are of several "
            f"types; make all of them strings."
        ) from error


def array_leaves(tree: Any, owner: str, name: str) -> list[tuple[str, Any]]:
    """The leaves of a tree, each with its name; raises if one of them is not an array."""
    found = leaves_of_tree(tree, owner, name)
    if not found:
        raise PipelineError(
            f"{owner}: `{name}` holds no arrays, got {tree!r:.60}; give it one, or a dict of them."
        )
    for place, leaf in found:
        if isinstance(leaf, bool | int | float | complex) or not is_array_like(leaf):
            raise PipelineError(f"{owner}: {place} {_no_array(leaf, place)}")
    return found


def without_tensors(tree: Any, owner: str, name: str) -> Any:
    """The tree with NumPy arrays in the places of torch tensors, which share their memory."""
    if isinstance(tree, list):  # of elements, and it may be long
        return tree
    places = leaves_of_tree(tree, owner, name)
    if not any(is_tensor(leaf) for _, leaf in places):
        return tree
    arrays = [
        as_numpy(leaf, f"{owner}: {place}") if is_tensor(leaf) else leaf for place, leaf in places
    ]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=_is_no_data), arrays)


def refuse_list(tree: Any, owner: str, name: str = "data") -> None:
    """Refuses a list if its items may be rows as well as columns, or are elements."""
    if type(tree) is not list or not tree:
        return
    whole = f"{owner}: `{name}` is a list of {len(tree)}"
    if all(isinstance(each, dict | tuple) for each in tree):
        raise PipelineError(
            f"{whole} {type(tree[0]).__name__}s, which are elements, but columns are needed; write "
            f"`dataset_to_jax({name})`, which stacks them."
        )
    if not all(isinstance(each, np.ndarray | jax.Array | list | int | float) for each in tree):
        return
    arrays = [each for each in tree if isinstance(each, np.ndarray | jax.Array)]
    if len({each.shape for each in arrays}) > 1 and len({each.shape[:1] for each in arrays}) == 1:
        return  # several shapes with the same length: these are columns
    try:
        shape = np.shape(tree)
    except ValueError:
        raise PipelineError(
            f"{whole}, of different shapes. If they are columns, write a tuple or a dict of them; "
            f"if they are elements, put the list first in the loader's list: `DataLoader([{name}, "
            f"BatchTransform(32, collate=pad_collate(max_length))])`."
        ) from None
    raise PipelineError(
        f"{whole}, of shape {shape} together, which may be elements or columns. For elements write "
        f"`np.stack({name})`, for columns a tuple or a dict of them."
    )


def refuse_no_data(value: Any, owner: str, name: str) -> None:
    """Refuses a pipeline or a data frame in the place of data."""
    if _is_no_data(value):
        raise PipelineError(f"{owner}: `{name}` {_no_array(value, name)}")


def refuse_running(value: Any, where: str) -> None:
    """Refuses a loader, its iterator or its state: they hold arrays, but they are not data."""
    said = _running(value)
    if said:
        raise PipelineError(f"{where} is {said}.")


def _is_no_data(node: Any) -> bool:
    return isinstance(node, Source | Transform) or bool(_running(node)) or is_frame(node)


def _running(node: Any) -> str:
    """If this runs a pipeline (a loader, ...): what it is, and what to write. Otherwise ""."""
    if type(node).__module__.partition(".")[0] != "cereal":
        return ""
    name = type(node).__name__
    if name.endswith("State"):  # streams have their own classes of states
        return (
            f"{_article(name)}, a position and not data; pass it to `loader.iterate(state)` or "
            f"`loader.next_batch(state)`"
        )
    if isinstance(node, Iterator) and hasattr(node, "state"):
        return f"an iterator over the batches of a loader and not data; {_GO_ON}"
    if isinstance(getattr(node, "source", None), Source) and not isinstance(node, Source):
        return f"{_article(name)}, which is the end of a pipeline and not data; {_GO_ON}"
    return ""


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def _library_of(node: Any) -> str:
    return type(node).__module__.partition(".")[0]


def is_frame(node: Any) -> bool:
    """Whether this is a table or a column of pandas, polars, ...; cereal imports none of them."""
    return _library_of(node) in _FRAMES and hasattr(node, "__len__")


def _no_array(leaf: Any, place: str) -> str:
    """The end of an error about a value that is not an array: what it is, and what to write."""
    kind = type(leaf).__name__
    if isinstance(leaf, Source | Transform):
        return f"is {_article(kind)}, not data; {_instead_of_stage(leaf)}."
    running = _running(leaf)
    if running:
        return f"is {running}."
    if is_frame(leaf):
        return f"is a {kind} of {_library_of(leaf)}; {_instead_of_frame(leaf)}."
    if isinstance(leaf, np.ndarray):
        return _no_numbers(leaf, place.strip("`"))
    return (
        f"must be an array, got {kind} ({leaf!r:.60}); write `np.asarray(...)` around lists, and "
        f"turn text into numbers first."
    )


def _instead_of_stage(node: Source[Any] | Transform[Any, Any]) -> str:
    if isinstance(node, Source):
        return "a source stands first in a loader's list: `DataLoader([source, ...])`"
    return "transforms stand behind the source: `DataLoader([source, transform])`"


def _instead_of_frame(node: Any) -> str:
    names = "table.column_names" if hasattr(node, "column_names") else "frame.columns"
    it = names.partition(".")[0]
    if not hasattr(node, "column_names") and not hasattr(node, "columns"):
        return "write `column.to_numpy()`"
    by_hand = f"`{{name: {it}[name].to_numpy() for name in {names}}}`"
    if _library_of(node) not in ("pandas", "polars", "pyarrow"):
        return f"write {by_hand}"
    return (
        f"put it first in a loader's list as it is, `DataLoader([{it}, ...])`, or write "
        f"`dataset_to_jax({it})` or {by_hand}"
    )


def _no_numbers(array: np.ndarray, it: str) -> str:
    """The end of an error about an array without numbers: what it holds, and how to convert it."""
    kind = "U" if array.dtype.kind in "USaT" else array.dtype.kind
    what = f"must be an array of numbers, got {array.dtype}[{','.join(map(str, array.shape))}]"
    if kind in _KINDS:
        return f"{what}: {_KINDS[kind].format(it=it)}."
    if array.dtype.names is not None:
        return f"{what}: records; write `{{name: {it}[name] for name in {it}.dtype.names}}`."
    if kind != "O" or not array.size:
        return f"{what}; turn it into numbers first."
    first = array.reshape(-1)[0]
    if isinstance(first, str):  # an array of strings, as from a data frame
        return f"{what}: {_KINDS['U'].format(it=it)}, after `{it} = {it}.astype(str)`."
    if hasattr(first, "__len__") and not isinstance(first, bytes):
        return (
            f"{what}: rows that are {type(first).__name__}s. If all have one length, write "
            f"`np.stack({it})`; else put `list({it})` first in the loader's list, and pad: "
            f"`BatchTransform(32, collate=pad_collate(max_length))`."
        )
    return (
        f"{what}: Python objects, the first a {type(first).__name__} ({first!r:.40}); turn text "
        f"and missing values into numbers, then write `{it}.astype(np.float32)`."
    )
