"""Parquet files: a row group is read whole, and kept decoded for a while.

a.parquet    b.parquet
groups       groups         pieces, in this order; their lengths are in the footers
0 1 2        0 1       ->   0 1 2 3 4
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

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
from ..tables.packed import PackedTable

_ENDINGS = (".parquet", ".parq", ".pq")
_SIZED = 16  # row groups from which the sizes of all are estimated, if there is text in them
_LOOKED_AT = 1 << 26  # bytes of row groups that are read if only the data says how long lists are


class ParquetTable(PackedTable):
    """The rows of Parquet files. Only their footers are read when it is made.

    (If there are columns of categories, these columns are read too, to number all categories.)
    """

    called = "row groups"
    _reopened = ("_footers",)

    def __init__(
        self,
        paths: Any,
        columns: Any,
        owner: str,
        *,
        fill: Mapping[str, Any] | None,
        most_bytes: int,
    ) -> None:
        needs("pyarrow.parquet", "arrow", owner)
        self._owner, self.most_bytes = owner, most_bytes
        self.files = watched_files(paths, owner, _ENDINGS)
        self.name = name_of(self.files)
        self._arranged = columns if isinstance(columns, Mapping) else None
        self._schema = self._one_schema(names_in(columns, owner))
        self._names = list(_paths_of(self._schema))
        self._fill = checked_fill(fill, self._schema, owner, self.name)
        self._groups = [
            (file, group)
            for file in range(len(self.files))
            for group in range(self._footer(file).num_row_groups)
            if self._footer(file).row_group(group).num_rows
        ]
        self.lengths = [self._group(number).num_rows for number in range(len(self._groups))]
        if not self.lengths:
            raise PipelineError(f"{owner}: {self.files[0].path!r} has no rows.")
        self._known = Dictionaries(self._fill)
        self._learn()
        self.classes = self._known.classes
        form = form_of_pieces(self._schema, self._first_pieces())
        self.form = arranged_form(form, self._arranged, owner)
        self.sizes = self._sizes()
        numbers = all(form.dtype != OBJECT for form in flatten(self.form)[0])
        self.quick = numbers and sum(self.sizes) <= most_bytes  # after the first epoch

    def _one_schema(self, columns: Any) -> Any:
        """The schema of the chosen columns, which all files must have."""
        owner, first, schema = self._owner, self.files[0], None
        for number, file in enumerate(self.files):
            with _opened(file, owner) as opened:
                self._footers[number] = opened.metadata
                own = chosen(opened.schema_arrow, columns, owner, repr(file.path))
            if schema is None:
                schema = own
            check_alike(schema, own, first, file, owner)
        return schema

    def _learn(self) -> None:
        """Numbers the categories of all row groups, in the order in which they come first."""
        fields = [field.name for field in self._schema if has_dictionary(field.type)]
        names = [name for name in self._names if name.partition(".")[0] in fields or name in fields]
        for number in range(len(self._groups) if names else 0):
            for batch in self._read(number, names).to_batches():
                self._known.learn(batch)

    def _first_pieces(self) -> Iterator[Sequence[Any]]:
        """Some row groups, from which lists take their lengths."""
        left = _LOOKED_AT
        for number in range(len(self._groups)):
            table = self._read(number, self._names)
            yield parts_of(table, self._fill, self._known)
            left -= self._group(number).total_byte_size
            if left < 0:
                return

    @cached_property
    def _footers(self) -> dict[int, Any]:
        return {}

    def _footer(self, file: int) -> Any:
        """What the footer of a file says; read once in every process."""
        found = self._footers.get(file)
        if found is None:
            self.files[file].check()
            with _opened(self.files[file], self._owner) as opened:
                found = self._footers[file] = opened.metadata
        return found

    def _group(self, number: int) -> Any:
        file, group = self._groups[number]
        return self._footer(file).row_group(group)

    def _sizes(self) -> list[int]:
        """About how many bytes each row group has when it is decoded."""
        leaves = flatten(self.form)[0]
        plain = [leaf for leaf in leaves if leaf.dtype != OBJECT]
        row = float(sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in plain))
        if len(plain) < len(leaves):  # of text: the offsets, and what it takes in the file
            seen = range(min(_SIZED, len(self._groups)))
            encoded = sum(self._encoded(number) for number in seen)
            rows = sum(self.lengths[number] for number in seen)
            row += 8 * (len(leaves) - len(plain)) + encoded / rows
        return [int(row * n) for n in self.lengths]

    def _encoded(self, number: int) -> int:
        """How many bytes the chosen columns of a row group have, before they are decoded."""
        group = self._group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        names = tuple(f"{name}." for name in self._names)
        return sum(
            each.total_uncompressed_size
            for each in chunks
            if f"{each.path_in_schema}.".startswith(names)
        )

    def _read(self, number: int, names: Sequence[str]) -> Any:
        file, group = self._groups[number]
        watched, footer = self.files[file], self._footer(file)
        watched.check()
        pa = needs("pyarrow", "arrow", self._owner)
        try:
            # Each read opens the file anew (70 us): pyarrow does not say that threads may share it.
            with _opened(watched, self._owner, metadata=footer) as opened:
                found = opened.read_row_group(group, columns=list(names))
        except (OSError, pa.ArrowException) as error:
            watched.check()
            raise PipelineError(
                f"{self._owner}: row group {group} of {watched.path!r} cannot be read, the file is "
                f"damaged: {first_line(error)}; write or copy it again."
            ) from error
        if list(names) == self._names:
            found = pruned(found, self._schema)  # "x.y" is a column, and a field of `x`
        if found.num_rows != footer.row_group(group).num_rows:
            raise PipelineError(
                f"{self._owner}: row group {group} of {watched.path!r} has {found.num_rows} rows, "
                f"and its footer says {footer.row_group(group).num_rows}; write the file again."
            )
        return found.combine_chunks()

    def load(self, number: int) -> tuple[Sequence[Any], int]:
        table = self._read(number, self._names)
        tree = tree_of_parts(table, self._fill, self._known)
        return arranged_parts(tree, self._arranged, self._owner), table.nbytes

    def digest(self) -> Any:
        files = [file.digest() for file in self.files]
        return [files, self._names, self._arranged, sorted(self._fill.items())]


def _opened(file: WatchedFile, owner: str, **known: Any) -> Any:
    """An open Parquet file. It is not mapped: a mapped file that shrinks would end the process."""
    pa, pq = needs("pyarrow", "arrow", owner), needs("pyarrow.parquet", "arrow", owner)
    try:
        return pq.ParquetFile(file.path, **known)
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(
            f"{owner}: {file.path!r} is no whole Parquet file: {first_line(error)} If it should be "
            f"one, it was cut off: write or copy it again."
        ) from error


def _paths_of(schema: Any, above: str = "") -> Any:
    """The names by which pyarrow finds the columns of a schema, inside of structs with a dot."""
    types = needs("pyarrow", "arrow", "a schema").types
    for field in schema:
        if types.is_struct(field.type) and field.type.num_fields:
            yield from _paths_of(field.type, f"{above}{field.name}.")
        else:
            yield above + field.name
