"""CSV files: decoded once, into memory or into an Arrow file that is mapped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.atomic import write_atomically
from ...base.errors import PipelineError
from ...base.extras import needs
from ...base.paths import as_path
from ..arrow.arrow_columns import ArrowTable
from ..arrow.dictionaries import Dictionaries
from ..files.file_list import name_of, watched_files
from ..files.watched import WatchedFile
from ..tables.table import Table, objects
from .arrow_files import ArrowFilesTable
from .csv_blocks import CSVFormat, CSVReading

_ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".csv.bz2")
_VERSION = 1  # of the files in the cache
_LOOKED_AT = 1 << 20
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def csv_table(
    paths: Any,
    form: CSVFormat,
    *,
    fill: Mapping[str, Any] | None,
    most_bytes: int,
    cache_dir: str | os.PathLike[str] | None,
) -> Table:
    """The rows of CSV files."""
    needs("pyarrow.csv", "arrow", form.owner)
    files = watched_files(paths, form.owner, _ENDINGS)
    if cache_dir is None:
        return CSVTable(files, form, fill, most_bytes)
    path = _cached(files, form, as_path(cache_dir, "cache_dir", form.owner))
    columns = form.arranged
    found = ArrowFilesTable(str(path), columns, form.owner, fill=fill, most_bytes=most_bytes)
    found.name = name_of(files)
    return found


class CSVTable(ArrowTable):
    """The rows of CSV files, in memory."""

    def __init__(
        self,
        files: Sequence[WatchedFile],
        form: CSVFormat,
        fill: Mapping[str, Any] | None,
        most_bytes: int,
    ) -> None:
        pa = needs("pyarrow", "arrow", form.owner)
        batches: list[Any] = []
        lengths = [0] * len(files)

        def begin() -> Any:
            batches.clear()
            lengths[:] = [0] * len(files)
            left = most_bytes

            def add(number: int, batch: Any) -> None:
                nonlocal left
                left -= batch.nbytes
                if left < 0:
                    raise _too_large(files, most_bytes, form.owner)
                batches.append(batch)
                lengths[number] += batch.num_rows

            return add

        schema = CSVReading(files, form).run(begin)
        whole = pa.Table.from_batches(batches, schema)
        batches.clear()
        super().__init__(whole.combine_chunks(), form.owner, name_of(files), fill, form.arranged)
        self._files = [file.digest() for file in files]
        self._format = form.digest()
        for key, name in form.single(whole.schema.names):
            why = _why_text(whole.column(name), files, lengths)
            if why and name not in form.types:
                self.form = {**self.form, key: objects(why)}

    def digest(self) -> Any:
        return [self._files, self._format, sorted(self._fill.items())]


def _why_text(column: Any, files: Sequence[WatchedFile], lengths: Sequence[int]) -> str:
    """For a column of text that begins with a number: where the first value is that is none."""
    types = needs("pyarrow", "arrow", "a CSV file").types
    pc = needs("pyarrow.compute", "arrow", "a CSV file")
    if not types.is_string(column.type) or not len(column):
        return ""
    looked = column.slice(0, _LOOKED_AT)
    wrong = pc.index(pc.match_substring_regex(looked, _NUMBER), False).as_py()
    if wrong < 1:
        return ""
    ends = np.cumsum(lengths)
    file = int(np.searchsorted(ends, wrong, side="right"))
    row = wrong - int(ends[file] - lengths[file])
    return (
        f"text, since row {row} of {files[file].name} (the first one is 0) is "
        f"{column[wrong].as_py()!r:.40}, and rows before it are numbers"
    )


def _too_large(files: Sequence[WatchedFile], most: int, owner: str) -> PipelineError:
    size = sum(file.size for file in files)
    return PipelineError(
        f"{owner}: {name_of(files)} ({size / 1e9:.2f} GB of text) takes more than `cache_bytes` "
        f"({most / 1e9:.2f} GB) when it is decoded. Give a folder, `cache_dir=...`: the rows are "
        f"written there once, as an Arrow file, which is mapped and may be larger than memory; or "
        f"raise `cache_bytes`."
    )


def _cached(files: Sequence[WatchedFile], form: CSVFormat, folder: Path) -> Path:
    """An Arrow file of these rows in a folder; written now, if it is not there."""
    pa = needs("pyarrow", "arrow", form.owner)
    ipc = needs("pyarrow.ipc", "arrow", form.owner)
    known = json.dumps([_VERSION, [file.digest() for file in files], form.digest()])
    letters = hashlib.blake2b(known.encode(), digest_size=8).hexdigest()
    path = folder / f"{files[0].name.partition('.')[0]}-{letters}.arrow"
    if path.exists():
        return path

    def write(file: Any) -> None:
        # A new beginning writes over the old one. Dictionaries only grow, which Arrow can write.
        options = ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        writer, known = None, Dictionaries()

        def begin() -> Any:
            nonlocal writer, known
            file.seek(0)
            file.truncate()
            writer, known = None, Dictionaries()
            return add

        def add(number: int, batch: Any) -> None:
            nonlocal writer
            del number
            known.learn(batch)
            batch = known.recoded(batch)
            if writer is None:
                writer = ipc.new_file(pa.PythonFile(file, "w"), batch.schema, options=options)
            writer.write_batch(batch)

        schema = CSVReading(files, form).run(begin)
        (writer or ipc.new_file(pa.PythonFile(file, "w"), schema)).close()

    write_atomically(path, write)
    return path
