"""An Arrow table whose pieces lie in memory, or in mapped files that another process opens again.

Hugging Face's tables    a mapped file, and what was done to it since: columns chosen, renamed
                         pickled as the name of the file, and these steps
others                   pickled with their data
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ...base.errors import PipelineError
from ...base.extras import needs
from ..files.watched import WatchedFile
from ..tables.pieces import PiecedTable
from .arrow_columns import content_digest, parts_of

_AT_ONCE = 16  # files that are looked at before each batch
# What may have been done to a mapped table that pyarrow alone can do again.
_STEPS = {"slice", "select", "drop", "rename_columns", "remove_column", "replace_schema_metadata"}


class ArrowStorage(PiecedTable):
    """Some columns of a table of `datasets`, with a part for every leaf of Arrow's structs."""

    _reopened = ("_batches", "_parts", "_turn")
    quick = stays = True

    def __init__(self, table: Any, columns: Sequence[str], owner: str) -> None:
        blocks = [each for row in getattr(table, "blocks", [[table]]) for each in row]
        self._owner, self._columns = owner, list(columns)
        self._files = [WatchedFile(b.path, owner) for b in blocks if hasattr(b, "path")]
        self._in_files = len(self._files) == len(blocks)
        self._table = _Mapped.of(table) or table
        self._batches = self._batches_of(table.table)
        self.lengths = [batch.num_rows for batch in self._batches]

    def _batches_of(self, table: Any) -> list[Any]:
        return [batch for batch in table.select(self._columns).to_batches() if batch.num_rows]

    @cached_property
    def _batches(self) -> list[Any]:  # in another process
        for file in self._files:
            file.check()
        return self._batches_of(self._table.table)

    @cached_property
    def _parts(self) -> dict[int, Sequence[Any]]:
        return {}

    @cached_property
    def _turn(self) -> list[int]:
        return [0]

    @property
    def batches(self) -> list[Any]:
        return self._batches

    def piece(self, number: int) -> Sequence[Any]:
        found = self._parts.get(number)
        if found is None:
            found = self._parts[number] = parts_of(self._batches[number])
        return found

    def load(self, number: int) -> tuple[Sequence[Any], int]:
        return self.piece(number), self._batches[number].nbytes

    def check(self) -> None:
        """Raises if a file has changed; of many files, it looks at some every time."""
        files = self._files
        if len(files) > _AT_ONCE:
            begin, turn = self._turn[0], self._turn
            turn[0] = (begin + _AT_ONCE) % len(files)
            files = (files + files)[begin : begin + _AT_ONCE]
        for file in files:
            file.check()

    def digest(self) -> Any:
        if self._in_files:
            steps = getattr(self._table, "steps", None)
            if steps is not None:
                return [self._columns, [file.digest() for file in self._files], steps]
        batches = self._batches
        return [self._columns, content_digest(batches[0].schema, batches)]


class _Mapped:
    """Mapped files, one after another, each with the steps that were done to its table."""

    def __init__(self, steps: list[tuple[str, Any]]) -> None:
        self.steps = steps

    @staticmethod
    def of(table: Any) -> _Mapped | None:
        """None if only the library itself can make the table again."""
        blocks = getattr(table, "blocks", [[table]])
        if any(len(row) != 1 or not hasattr(row[0], "replays") for row in blocks):
            return None
        found = [(row[0].path, row[0].replays) for row in blocks]
        return _Mapped(found) if all(s[0] in _STEPS for _, all_ in found for s in all_) else None

    @property
    def table(self) -> Any:
        pa = needs("pyarrow", "arrow", "an Arrow file")
        tables = []
        for path, steps in self.steps:
            try:
                table = pa.ipc.open_stream(pa.memory_map(path)).read_all()
            except (pa.ArrowInvalid, OSError) as error:
                raise PipelineError(f"the Arrow file {path!r} cannot be read: {error}.") from error
            for name, args, options in steps:
                table = getattr(table, name)(*args, **options)
            tables.append(table)
        return pa.concat_tables(tables, promote_options="default")
