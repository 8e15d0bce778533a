"""CSV files, decoded block by block: types are found in the first block, and widened if they must.

block 0     1, 2, 3        int64
block 7     4, 2.5         no int64: everything is read again, as double
block 9     5, abc         no double: an error that names the file, the row and the column
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.errors import PipelineError, first_line
from ...base.extras import needs
from ..arrow.arranged import Arrangement, names_in
from ..arrow.arrow_columns import some_names
from ..arrow.schemas import chosen
from ..files.watched import WatchedFile

_BLOCK = 1 << 24
_WRONG_VALUE = re.compile(
    r"In CSV column #(?P<column>\d+): (Row #(?P<row>\d+): )?"
    r"CSV conversion error to (?P<type>.*?): invalid value '(?P<value>.*)'",
    re.DOTALL,
)
_WRONG_ROW = re.compile(r"CSV parse error: (Row #(?P<row>\d+): )?(?P<what>.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class CSVFormat:
    """How the files are written, and what of them is wanted."""

    columns: Any
    delimiter: str
    names: Sequence[str] | None  # of the columns, if the files have no header
    types: Mapping[str, Any]  # Arrow's types, by column
    owner: str

    @property
    def arranged(self) -> Arrangement:
        return self.columns if isinstance(self.columns, Mapping) else None

    def single(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The keys of elements that are one column, and its name."""
        if self.arranged is None:
            return [(name, name) for name in names]
        return [(key, name) for key, name in self.arranged.items() if isinstance(name, str)]

    def digest(self) -> Any:
        types = sorted((name, str(kind)) for name, kind in self.types.items())
        return [self.columns, self.delimiter, self.names and list(self.names), types]


def as_types(types: Any, owner: str) -> dict[str, Any]:
    """Arrow's types, from those that a user writes: NumPy's, `str`, "category", Arrow's own."""
    pa = needs("pyarrow", "arrow", owner)
    if types is None:
        return {}
    if not isinstance(types, Mapping):
        raise PipelineError(
            f"{owner}: `types` must be a dict from columns to types, such as {{'x': 'float32'}}, "
            f"got {types!r:.60}."
        )
    found: dict[str, Any] = {}
    for name, kind in types.items():
        try:
            if isinstance(kind, pa.DataType):
                found[name] = kind
            elif kind in (str, "str", "string"):
                found[name] = pa.string()
            elif kind == "category":
                found[name] = pa.dictionary(pa.int32(), pa.string())
            else:
                found[name] = pa.from_numpy_dtype(np.dtype(kind))
        except (TypeError, pa.ArrowException) as error:
            raise PipelineError(
                f"{owner}: `types={{{name!r}: {kind!r:.40}}}` is no type of a column; write a "
                f"dtype of NumPy, such as 'float32', `str`, or 'category'."
            ) from error
    return found


class _Narrow(Exception):  # noqa: N818 (it is no error: everything is read again)
    """A column needs a wider type."""


class CSVReading:
    """Decodes CSV files, block by block; all of them have the columns and types of the first."""

    def __init__(self, files: Sequence[WatchedFile], form: CSVFormat) -> None:
        self._files, self._form = files, form
        self._types = dict(form.types)
        self._empty_at_first: set[str] = set()  # columns whose type nobody could know at first

    def run(self, begin: Callable[[], Callable[[int, Any], None]]) -> Any:
        """Decodes all files, and returns their schema.

        `begin()` gives a function that takes the number of a file and a record batch of it. It is
        called again, for a new beginning, if a column turns out to need a wider type.
        """
        while True:
            add, schema = begin(), None
            try:
                for number, file in enumerate(self._files):
                    schema = self._read(number, file, schema, add)
            except _Narrow:
                continue
            return schema

    def _read(self, number: int, file: WatchedFile, schema: Any, add: Any) -> Any:
        pa, form = needs("pyarrow", "arrow", self._form.owner), self._form
        file.check()
        header = self._header(file)
        columns = names_in(form.columns, form.owner)
        wanted = chosen(header, columns, form.owner, repr(file.path)).names
        if schema is None:
            self._check_types(header.names, file)
        elif schema.names != wanted:
            differ = sorted({*schema.names} ^ {*wanted}) or wanted
            raise PipelineError(
                f"{form.owner}: {file.path!r} does not have the columns of "
                f"{self._files[0].path!r}: {differ[0]!r} differs; choose some with "
                f"`columns=[...]`, or read the files apart."
            )
        try:
            with self._opened(file, wanted, threads=True) as reader:
                for field in reader.schema:
                    if pa.types.is_binary(field.type) and field.name not in self._types:
                        raise PipelineError(
                            f"{form.owner}: the column {field.name!r} of {file.path!r} has text "
                            f"that is no UTF-8; write the file in UTF-8, or pass `types="
                            f"{{{field.name!r}: pyarrow.binary()}}` to get bytes."
                        )
                    self._types.setdefault(field.name, field.type)
                for batch in reader:
                    add(number, batch)
                return reader.schema
        except (OSError, pa.ArrowException) as error:
            raise self._why(error, file, wanted, header.names) from error

    def _header(self, file: WatchedFile) -> Any:
        """The names of all columns, as a schema."""
        pa, error = needs("pyarrow", "arrow", self._form.owner), None
        for block in (1 << 16, _BLOCK):  # a row may be longer than the first
            try:
                with self._opened(file, None, threads=False, block=block) as reader:
                    return pa.schema([(name, pa.null()) for name in reader.schema.names])
            except UnicodeDecodeError as failed:
                raise PipelineError(
                    f"{self._form.owner}: the first row of {file.path!r} is no UTF-8 ({failed}); "
                    f"write the file in UTF-8: `iconv --from-code=LATIN1 --to-code=UTF-8`."
                ) from failed
            except (OSError, pa.ArrowException) as failed:
                error = failed
        raise self._why(error, file, None, []) from error

    def _check_types(self, names: Sequence[str], file: WatchedFile) -> None:
        for name in self._form.types:
            if name not in names:
                raise PipelineError(
                    f"{self._form.owner}: `types` names {name!r}, and {file.path!r} has no such "
                    f"column; it has {some_names(names)}."
                )

    def _opened(self, file: WatchedFile, wanted: Any, *, threads: bool, block: int = _BLOCK) -> Any:
        form = self._form
        csv = needs("pyarrow.csv", "arrow", form.owner)
        types = {} if wanted is None else {n: t for n, t in self._types.items() if n in wanted}
        return csv.open_csv(
            file.path,
            read_options=csv.ReadOptions(
                use_threads=threads, block_size=block, column_names=form.names and list(form.names)
            ),
            # Otherwise text with a newline in it would be cut at the end of a block.
            parse_options=csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=types, include_columns=wanted),
        )

    def _why(self, error: Any, file: WatchedFile, wanted: Any, header: Sequence[str]) -> Exception:
        """What was wrong with a file; `_Narrow` if a wider type may help."""
        form, said = self._form, self._said_by_one_thread(file, wanted) or str(error)
        place = f"of {file.path!r}" + ("" if form.names else " (the header is row 1)")
        found = _WRONG_VALUE.search(said)
        if found is not None and header:
            name = header[int(found["column"])]
            if self._widen(name):
                return _Narrow()
            before = "" if name in form.types else ", as the rows before it have"
            return PipelineError(
                f"{form.owner}: row {found['row']} {place}: the column {name!r} has "
                f"{found['value']!r:.60}, which is no {found['type']}{before}; correct it, or read "
                f"the column as text: `types={{{name!r}: str}}`."
            )
        found = _WRONG_ROW.search(said)
        if found is not None and found["row"]:
            return PipelineError(
                f"{form.owner}: row {found['row']} {place} cannot be read: "
                f"{first_line(ValueError(found['what']))}; correct it, or say which sign stands "
                f"between values: `delimiter=`."
            )
        return PipelineError(
            f"{form.owner}: {file.path!r} cannot be read as CSV: {first_line(ValueError(said))}."
        )

    def _said_by_one_thread(self, file: WatchedFile, wanted: Any) -> str:
        """Reads a file again, up to its error: one thread alone counts the rows."""
        pa = needs("pyarrow", "arrow", self._form.owner)
        try:
            with self._opened(file, wanted, threads=False) as reader:
                for _ in reader:
                    pass
        except (OSError, pa.ArrowException) as error:
            return str(error)
        return ""

    def _widen(self, name: str) -> bool:
        """Gives a column the next wider type. If its first values were all missing, that may be
        text; other columns of numbers stay numbers."""
        pa, kind = needs("pyarrow", "arrow", self._form.owner), self._types.get(name)
        if kind is None or name in self._form.types:
            return False
        if pa.types.is_null(kind):
            self._empty_at_first.add(name)
            self._types[name] = pa.int64()
        elif pa.types.is_integer(kind):
            self._types[name] = pa.float64()
        elif name in self._empty_at_first and not pa.types.is_string(kind):
            self._types[name] = pa.string()
        else:
            return False
        return True
