"""Episodes of Minari in Arrow or Parquet files: a folder for each episode.

data/7/part-0.arrow     a row for each observation; the last row of other columns is padding
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.extras import needs
from .episode import NAMES, chosen_infos
from .minari_folder import MinariFolder, chosen, decoded, shape_of


def arrow_episodes(folder: MinariFolder, episodes: Any, infos: Any) -> Iterator[tuple[str, Any]]:
    """The episodes, each with its name for errors."""
    numbers = sorted(
        int(each.name) for each in folder.data.iterdir() if each.is_dir() and each.name.isdigit()
    )
    for number in chosen(numbers, episodes, folder):
        place = folder.data / str(number)
        where = f"episode {number} of '{place}'"
        yield where, _parts(_table(place, folder), folder, infos, f"{folder.owner}: {where}")


def _table(place: Path, folder: MinariFolder) -> Any:
    """All rows of an episode."""
    arrow = needs("pyarrow", "arrow", folder.owner)
    files = sorted(place.glob(f"*.{folder.format}"))
    if not files:
        raise PipelineError(f"{folder.owner}: '{place}' has no file '*.{folder.format}'.")
    tables = []
    for path in files:
        try:
            if folder.format == "arrow":
                ipc = needs("pyarrow.ipc", "arrow", folder.owner)
                tables.append(ipc.open_file(arrow.memory_map(str(path))).read_all())
            else:
                tables.append(needs("pyarrow.parquet", "arrow", folder.owner).read_table(path))
        except (OSError, arrow.ArrowInvalid) as error:
            raise PipelineError(f"{folder.owner}: '{path}' cannot be read: {error}.") from error
    return arrow.concat_tables(tables).combine_chunks()


def _parts(table: Any, folder: MinariFolder, infos: Any, owner: str) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name in NAMES:
        if name in table.column_names:
            whole = _decoded(_one(table, name), folder.space(name), owner, name)
            parts[name] = whole if name == "observations" else _without_last(whole)
    if infos and "infos" in table.column_names:
        column = _one(table, "infos")
        names = [column.type.field(at).name for at in range(column.type.num_fields)]
        parts["infos"] = {
            name: _decoded(column.field(name), _written_shape(column, name), owner, name)
            for name in chosen_infos(names, infos, owner)
        }
    return parts


def _one(table: Any, name: str) -> Any:
    chunked = table.column(name)
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _without_last(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_last(value) for key, value in tree.items()}
    return tuple(map(_without_last, tree)) if isinstance(tree, tuple) else tree[:-1]


def _written_shape(column: Any, name: str) -> Any:
    """The shape of an info, which Minari writes beside it, as a space."""
    shape = (column.type.field(name).metadata or {}).get(b"shape")
    if shape is None:
        return None
    return {"type": "Box", "shape": [int(n) for n in shape.split(b",") if n]}


def _decoded(array: Any, space: Any, owner: str, name: str) -> Any:
    """A column as arrays: structures as dicts and tuples, images decoded."""
    arrow = needs("pyarrow", "arrow", owner)
    kind, inner = array.type, (space or {}).get("subspaces")
    if arrow.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        if isinstance(inner, list):
            return tuple(
                _decoded(array.field(str(at)), each, owner, f"{name}[{at}]")
                for at, each in enumerate(inner)
            )
        return {
            field.name: _decoded(
                array.field(field.name),
                inner[field.name] if inner else _written_shape(array, field.name),
                owner,
                f"{name}[{field.name!r}]",
            )
            for field in fields
        }
    if arrow.types.is_binary(kind):
        return decoded(array.to_pylist(), owner, name)
    if arrow.types.is_fixed_size_list(kind):
        shape = shape_of(space)
        if array.null_count:
            raise PipelineError(f"{owner}: `{name}` has rows without a value.")
        flat = array.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(array), *((kind.list_size,) if shape is None else shape))
    return np.asarray(array.to_numpy(zero_copy_only=False))
