"""Episodes of Minari in Arrow or Parquet files: a folder for each episode.

data/7/part-0.arrow     a row for each observation; the last row of other columns is padding
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs
from .episode import NAMES, chosen_infos
from .minari_folder import (
    MinariFolder,
    by_number,
    check_parts,
    chosen,
    decoded,
    reading,
    shape_of,
    unlike_space,
)


def arrow_episodes(folder: MinariFolder, episodes: Any, infos: Any) -> Iterator[tuple[str, Any]]:
    """The episodes, each with its name for errors."""
    folders = (each.name for each in folder.data.iterdir() if each.is_dir())
    names = by_number([name for name in folders if name.isdecimal()], "", folder)
    for number in chosen(list(names), episodes, folder):
        place = folder.data / names[number]
        where = f"episode {number} of '{place}'"
        with reading(where, folder):
            parts = _parts(_table(place, folder), folder, infos, f"{folder.owner}: {where}")
        yield where, parts


def _table(place: Path, folder: MinariFolder) -> Any:
    """All rows of an episode."""
    arrow = needs("pyarrow", "arrow", folder.owner)
    files = sorted(place.glob(f"*.{folder.format}"), key=_in_order)
    if not files:
        raise PipelineError(f"{folder.owner}: '{place}' has no file '*.{folder.format}'.")
    tables = []
    for path in files:
        with reading(f"episode {int(place.name)} of '{path}'", folder):
            if folder.format == "arrow":
                ipc = needs("pyarrow.ipc", "arrow", folder.owner)
                with arrow.OSFile(str(path)) as file:  # no memory map: a process may have 65,530
                    tables.append(ipc.open_file(file).read_all())
            else:
                tables.append(needs("pyarrow.parquet", "arrow", folder.owner).read_table(path))
    return tables[0] if len(tables) == 1 else arrow.concat_tables(tables)


def _in_order(path: Path) -> list[Any]:
    """The words and numbers of a name: 'part-10' is after 'part-2'."""
    words = re.split(r"([0-9]+)", path.name)
    return [int(word) if at % 2 else word for at, word in enumerate(words)]


def _parts(table: Any, folder: MinariFolder, infos: Any, owner: str) -> dict[str, Any]:
    """The arrays of an episode, copied: a view would keep all columns, even infos, in memory."""
    parts: dict[str, Any] = {}
    for name in NAMES:
        if name in table.column_names:
            column = _one(table, name)
            if name != "observations":
                column = column.slice(0, max(len(column) - 1, 0))  # the last may have no value
            parts[name] = _decoded(column, folder.space(name), owner, name, False)
    if infos and "infos" in table.column_names:
        parts["infos"] = _infos_of(_one(table, "infos"), infos, owner)
    return parts


def _infos_of(column: Any, infos: Any, owner: str) -> dict[str, Any]:
    if not needs("pyarrow", "arrow", owner).types.is_struct(column.type):
        raise PipelineError(
            f"{owner}: `infos` is no column of structs, but of {column.type}; leave it out, "
            f"`infos=False`."
        )
    fields = _fields(column)
    return {
        name: _decoded(fields[name], _written_shape(column, name), owner, f"infos[{name!r}]", True)
        for name in chosen_infos(list(fields), infos, owner)
    }


def _one(table: Any, name: str) -> Any:
    chunked = table.column(name)
    chunked.validate(full=True)  # damaged offsets would lead out of the memory
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _fields(column: Any) -> dict[str, Any]:
    """The columns of a structure; where it has no value, they have none."""
    names = [column.type.field(at).name for at in range(column.type.num_fields)]
    return dict(zip(names, column.flatten(), strict=True))


def _written_shape(column: Any, name: str) -> Any:
    """The shape of an info, which Minari writes beside it, as a space."""
    shape = (column.type.field(name).metadata or {}).get(b"shape")
    if shape is None:
        return None
    return {"type": "Box", "shape": [int(n) for n in shape.split(b",") if n]}


def _decoded(array: Any, space: Any, owner: str, name: str, nulls: bool) -> Any:
    """A column as arrays: structures as dicts and tuples, images decoded.

    `nulls`: numbers that are missing are NaN, as Minari has it in infos.
    """
    types, kind = needs("pyarrow", "arrow", owner).types, array.type
    image, struct = types.is_binary(kind), types.is_struct(kind)
    lists = not struct and types.is_nested(kind)
    if array.null_count and (not nulls or lists or image):
        raise _no_value(array, owner, name)
    if struct:
        return _of_struct(array, space, owner, name, nulls)
    if lists:
        return _of_lists(array, space, owner, name)
    if image:
        return decoded(array.to_pylist(), owner, name)
    return np.array(array.to_numpy(zero_copy_only=False))


def _no_value(array: Any, owner: str, name: str, per_row: int = 1) -> PipelineError:
    row = array.is_null().index(True).as_py() // per_row
    return PipelineError(
        f"{owner}: row {row} of `{name}` has no value (it is null); put one there, or leave "
        f"{_out(name)}."
    )


def _out(name: str) -> str:
    if name.startswith("infos"):
        return "it out: name the infos that you want, `infos=[...]`"
    return "the episode out: name those that you want, `episodes=[...]`"


def _of_struct(array: Any, space: Any, owner: str, name: str, nulls: bool) -> Any:
    fields, inner = _fields(array), (space or {}).get("subspaces")
    if isinstance(inner, list):
        check_parts(fields, [str(at) for at in range(len(inner))], owner, name)
        return tuple(
            _decoded(fields[str(at)], each, owner, f"{name}[{at}]", nulls)
            for at, each in enumerate(inner)
        )
    if inner is None:
        inner = {key: _written_shape(array, key) for key in fields}
    check_parts(fields, inner, owner, name)
    return {
        key: _decoded(each, inner[key], owner, f"{name}[{key!r}]", nulls)
        for key, each in fields.items()
    }


def _of_lists(array: Any, space: Any, owner: str, name: str) -> np.ndarray:
    """Lists of one length as an array, in the shape of the space."""
    size, values = _length(array, owner, name), array.flatten()
    if values.null_count:
        raise _no_value(values, owner, name, size)
    flat = _decoded(values, None, owner, name, False)
    if not isinstance(flat, np.ndarray):
        raise PipelineError(f"{owner}: `{name}` has lists of structs; leave {_out(name)}.")
    found, shape = (size, *flat.shape[1:]), shape_of(space)
    if shape is None:
        return flat.reshape(len(array), *found)
    if math.prod(shape) != math.prod(found):
        raise unlike_space(found, shape, owner, name)
    return flat.reshape(len(array), *shape)


def _length(array: Any, owner: str, name: str) -> int:
    """The length that all lists have."""
    size = getattr(array.type, "list_size", None)
    if size is not None:
        return size
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    least, most = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    if least == most:
        return least
    raise PipelineError(
        f"{owner}: the rows of `{name}` are lists of {least} to {most} values, and make no array; "
        f"give them one length, or leave {_out(name)}."
    )
