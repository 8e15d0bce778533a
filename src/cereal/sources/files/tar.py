"""WebDataset tars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.errors import PipelineError
from ...base.numbers import as_count
from ...base.pytree import pytree_dataclass
from ...reading.files.file_list import listed_files
from ...reading.formats.tar import KEY, Columns, TarTable
from ..table import TableSource

_OWNER = "TarSource"


@pytree_dataclass
class TarSource(TableSource):
    """Samples of WebDataset tars, read in any order.

        shard-000.tar     n01/7.jpg n01/7.cls n01/8.jpg n01/8.cls ...
        an element        {"__key__": "n01/7", "jpg": b"...", "cls": 3}

    The name of a member up to the first dot is the key of its sample; the rest is its extension. A
    first pass over each tar finds where its members begin. This index is kept beside the tar (or in
    the user's cache folder), so any sample can be read at once afterwards, by any worker.

        source = TarSource("shards/{000..009}.tar", columns={"image": "jpg;png", "label": "cls"})
        decode = DecodeImageTransform(size=(224, 224), crop="random")
        loader = DataLoader([source, decode, BatchTransform(128)])

    Args:
        paths: A file, a pattern ("shards/*.tar", "shards/{000..009}.tar"), or a list of these.
        decode: "auto" (default) turns `cls`, `id`, `index` and the like into integers, `txt` into
            text, `json` into objects and `npy` into arrays; all else, images too, stays bytes.
            Nothing is unpickled. None: everything stays bytes. Or a function from an element of
            bytes to an element.
        ordering: "shuffle" (default), "sequential", or any other order. `BlockShuffle(1000)` reads
            neighbours together, for disks that turn and for files over a network.
        columns: The extensions to read, such as ("jpg", "cls"); or names for them, as above.
            "jpg;png" is the first of these that a sample has. Default: all, and "__key__".
        index_key: The name under which the index of each element is added. Default: it is not.

    Tars must not be compressed. Links, devices and paths that lead outside are refused. Members
    without an extension are ignored, and counted in the drawing. If an element fails, the error
    names its index, and `source.key(index)` is the key of its sample.
    """

    def __init__(
        self,
        paths: Any,
        decode: Any = "auto",
        ordering: Any = "shuffle",
        *,
        columns: Any = None,
        index_key: str | None = None,
    ) -> None:
        if decode is not None and not callable(decode) and not _is_auto(decode):
            raise PipelineError(
                f'{_OWNER}: `decode` must be "auto", None, or a function from an element to an '
                f"element, got {decode!r:.60}."
            )
        files = listed_files(paths, _OWNER, (".tar",))
        table = TarTable(files, _as_columns(columns), _is_auto(decode), _OWNER)
        self._open(table, ordering, index_key, decode if callable(decode) else None)

    def key(self, index: int) -> str:
        """The key of the sample at an index: "n01/7"."""
        return self.data.table.key(as_count(index, "index", _OWNER, 0, len(self) - 1))


def _is_auto(decode: Any) -> bool:
    return isinstance(decode, str) and decode == "auto"


def _as_columns(columns: Any) -> Columns | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = (columns,)
    if isinstance(columns, list | tuple):
        columns = {each: each for each in columns}
    if not isinstance(columns, Mapping) or not columns or not _all_text(columns):
        raise PipelineError(
            f'{_OWNER}: `columns` must be extensions, such as ("jpg", "cls"), or a dict from names '
            f'to extensions, such as {{"image": "jpg;png"}}, got {columns!r:.80}.'
        )
    return {name: _alternatives(name, each) for name, each in columns.items()}


def _all_text(columns: Mapping[Any, Any]) -> bool:
    return all(isinstance(each, str) and each for pair in columns.items() for each in pair)


def _alternatives(name: str, extensions: str) -> tuple[str, ...]:
    if (name == KEY) != (extensions == KEY):
        raise PipelineError(
            f"{_OWNER}: the key of a sample is called {KEY!r}, and nothing else is."
        )
    return tuple(each.strip().lstrip(".").lower() for each in extensions.split(";"))
