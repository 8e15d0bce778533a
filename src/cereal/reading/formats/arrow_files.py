"""Arrow files (IPC, Feather version 2): mapped into memory; a record batch is a piece.

not compressed    the columns are the file's own memory: nothing is read before a row is
compressed        a record batch is decoded when it is needed, and kept for a while
a stream          has no list of its record batches: it is read through when it is opened
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.errors import PipelineError, first_line
from ...base.extras import needs
from ..arrow.arranged import arranged_form, arranged_parts, names_in
from ..arrow.arrow_columns import checked_fill, form_of_pieces, parts_of, tree_of_parts
from ..arrow.dictionaries import Dictionaries, has_dictionary
from ..arrow.schemas import check_alike, chosen, pruned
from ..files.file_list import name_of, watched_files
from ..files.watched import WatchedFile
from ..leaves import OBJECT
from ..structure import flatten
from ..tables.columns import Numbers
from ..tables.packed import PackedTable

_ENDINGS = (".arrow", ".feather", ".ipc")
_LOOKED_AT = 8  # record batches from which lists take their lengths


class ArrowFilesTable(PackedTable):
    """The rows of Arrow files."""

    called = "record batches"

    def __init__(
        self,
        paths: Any,
        columns: Any,
        owner: str,
        *,
        fill: Mapping[str, Any] | None,
        most_bytes: int,
    ) -> None:
        needs("pyarrow", "arrow", owner)
        self._owner, self.most_bytes = owner, most_bytes
        watched = watched_files(paths, owner, _ENDINGS)
        self.name = name_of(watched)
        self.files = [ArrowFile(file, owner, most_bytes) for file in watched]
        self._arranged = columns if isinstance(columns, Mapping) else None
        self._schema = self._one_schema(names_in(columns, owner))
        self._fill = checked_fill(fill, self._schema, owner, self.name)
        found = [file.lengths(self._schema.names) for file in self.files]
        self._batches = [
            (file, at) for file, lengths in enumerate(found) for at, n in enumerate(lengths) if n
        ]
        self.lengths = [found[file][at] for file, at in self._batches]
        if not self.lengths:
            raise PipelineError(f"{owner}: {self.files[0].watched.path!r} has no rows.")
        self._known = Dictionaries(self._fill)
        if any(has_dictionary(field.type) for field in self._schema):
            for number in range(len(self._batches)):
                self._known.learn(self._batch(number))
        self.classes = self._known.classes
        first = map(self._batch, range(min(_LOOKED_AT, len(self._batches))))
        form = form_of_pieces(self._schema, (parts_of(b, self._fill, self._known) for b in first))
        self.form = arranged_form(form, self._arranged, owner)
        self.quick = self.files[self._batches[0][0]].holds(self._batch(0))
        self.packs = not self.quick
        self.sizes = None if self.quick else [n * self._row_size for n in self.lengths]

    def _one_schema(self, columns: Any) -> Any:
        owner, first, schema = self._owner, self.files[0].watched, None
        for file in self.files:
            own = chosen(file.schema, columns, owner, repr(file.watched.path))
            schema = own if schema is None else schema
            check_alike(schema, own, first, file.watched, owner)
        return schema

    @property
    def _row_size(self) -> int:
        """About how many bytes a row has."""
        return sum(
            16 if leaf.dtype == OBJECT else math.prod(leaf.shape) * leaf.dtype.itemsize
            for leaf in flatten(self.form)[0]
        )

    def _batch(self, number: int) -> Any:
        file, at = self._batches[number]
        return pruned(self.files[file].batch(at, self._schema.names), self._schema)

    def piece(self, number: int) -> Sequence[Any]:
        # Checked for every batch: reading a mapped file that has shrunk would end the process.
        self.files[self._batches[number][0]].watched.check()
        return super().piece(number)

    def load(self, number: int) -> tuple[Sequence[Any], int]:
        batch, file = self._batch(number), self.files[self._batches[number][0]]
        tree = tree_of_parts(batch, self._fill, self._known)
        parts = arranged_parts(tree, self._arranged, self._owner)
        if not file.holds(batch):
            return parts, batch.nbytes
        made = [p.values for p in parts if isinstance(p, Numbers) and not file.has(_address(p))]
        return parts, sum(values.nbytes for values in made)

    def digest(self) -> Any:
        files = [file.watched.digest() for file in self.files]
        return [files, str(self._schema), self._arranged, sorted(self._fill.items())]


class ArrowFile:
    """One Arrow file, mapped into memory; it is mapped again in another process."""

    def __init__(self, watched: WatchedFile, owner: str, most_bytes: int) -> None:
        self.watched, self._owner, self._most = watched, owner, most_bytes

    def __getstate__(self) -> Any:
        return {name: vars(self)[name] for name in ("watched", "_owner", "_most")}

    @cached_property
    def memory(self) -> Any:
        """The bytes of the file."""
        pa = needs("pyarrow", "arrow", self._owner)
        self.watched.check()
        return pa.memory_map(self.watched.path).read_buffer(self.watched.size)

    @property
    def is_stream(self) -> bool:
        return self.memory[:6].to_pybytes() != b"ARROW1"

    @cached_property
    def schema(self) -> Any:
        return self._opened().schema

    def _opened(self, names: Sequence[str] = ()) -> Any:
        """A reader of these columns (none: of all). Each thread has its own."""
        pa = needs("pyarrow", "arrow", self._owner)
        ipc = needs("pyarrow.ipc", "arrow", self._owner)
        included = [self.schema.names.index(name) for name in names]
        options = ipc.IpcReadOptions(included_fields=included)
        make = ipc.open_stream if self.is_stream else ipc.open_file
        try:
            return make(self.memory, options=options)
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(
                f"{self._owner}: {self.watched.path!r} is no whole Arrow file: "
                f"{first_line(error)}; if it should be one, it was cut off: write or copy it again."
            ) from error

    @cached_property
    def is_decoded(self) -> bool:
        """Whether its record batches are compressed, as the first one shows."""
        reader = self._opened()
        if self.is_stream or not reader.num_record_batches:
            return False
        return not self.holds(self._got(0, lambda: reader.get_batch(0)))

    def lengths(self, names: Sequence[str]) -> list[int]:
        """The number of rows in each record batch."""
        if self.is_stream:
            return [batch.num_rows for batch in self._stream(tuple(names))]
        # If they are compressed, only one column of them is decoded to see how long they are.
        reader = self._opened(names[:1] if self.is_decoded else ())
        return [
            self._got(at, lambda at=at: reader.get_batch(at)).num_rows
            for at in range(reader.num_record_batches)
        ]

    def batch(self, at: int, names: Sequence[str]) -> Any:
        """A record batch that has these columns, and perhaps others."""
        if self.is_stream:
            return self._stream(tuple(names))[at]
        # Given the names of columns, Arrow copies what is not compressed.
        wanted = names if self.is_decoded else ()
        return self._got(at, lambda: self._opened(wanted).get_batch(at))

    @cached_property
    def _streams(self) -> dict[tuple[str, ...], list[Any]]:
        return {}

    def _stream(self, names: tuple[str, ...]) -> list[Any]:
        """The record batches of a stream."""
        found = self._streams.get(names)
        if found is not None:
            return found
        reader, found, left = self._opened(), [], self._most
        while (batch := self._got(len(found), lambda: next(reader, None))) is not None:
            found.append(batch.select(names))
            left -= 0 if self.holds(batch) else found[-1].nbytes
            if left < 0:
                raise PipelineError(
                    f"{self._owner}: {self.watched.path!r} is a compressed stream of Arrow, which "
                    f"can only be read whole, and it takes more than `cache_bytes` ({self._most} "
                    f"bytes); write it as a file (`pyarrow.ipc.new_file`), or raise `cache_bytes`."
                )
        self._streams[names] = found
        return found

    def _got(self, at: int, read: Any) -> Any:
        pa = needs("pyarrow", "arrow", self._owner)
        try:
            return read()
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(
                f"{self._owner}: record batch {at} of {self.watched.path!r} cannot be read, the "
                f"file is damaged: {first_line(error)}; write or copy it again."
            ) from error

    def has(self, address: int) -> bool:
        """Whether this is an address in the file's memory."""
        return self.memory.address <= address < self.memory.address + self.memory.size

    def holds(self, batch: Any) -> bool:
        """Whether the columns of a record batch lie in the file's memory, and are not decoded."""
        buffers = [each for column in batch.columns for each in column.buffers() if each]
        return all(self.has(each.address) for each in buffers)


def _address(part: Numbers) -> int:
    return np.asarray(part.values).__array_interface__["data"][0]
