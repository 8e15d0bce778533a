"""ArrayRecord files, read by the library `array_record`: many records in one call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ...base.errors import DatasetError, in_one_line
from ...base.extras import needs
from ..files.watched import WatchedFile
from .record_table import RecordFiles

# For random access: nothing is read ahead, and small buffers.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER = 1 << 15
_MOST_OPEN = 256  # readers; an operating system may allow a process only 1,024 files


class ArrayRecordFiles(RecordFiles):
    """The records of ArrayRecord files, or parts of them (`parts`: begin and end in each file).

    One reader for each file serves all threads of a process: the library allows it.
    """

    def __init__(
        self,
        paths: Sequence[str],
        owner: str,
        parts: Sequence[tuple[int, int]] | None = None,
        options: str = "",
    ) -> None:
        self._files, self._owner = [WatchedFile(path, owner) for path in paths], owner
        self._options = f"{_OPTIONS},{options}" if options else _OPTIONS
        if parts is None:
            counts = [self._reader(number).num_records() for number in range(len(paths))]
            parts = [(0, count) for count in counts]
        self._parts = list(parts)
        self.lengths = [end - begin for begin, end in self._parts]

    def path(self, number: int) -> str:
        return self._files[number].path

    def digest(self) -> Any:
        return [
            [*file.digest(), *part] for file, part in zip(self._files, self._parts, strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        gone = ("_readers", "_lock")  # another process opens the files for itself
        return {name: value for name, value in vars(self).items() if name not in gone}

    @cached_property
    def _readers(self) -> OrderedDict[int, Any]:
        return OrderedDict()

    @cached_property
    def _lock(self) -> threading.Lock:
        return threading.Lock()

    def _reader(self, number: int) -> Any:
        with self._lock:
            found = self._readers.get(number)
            if found is not None:
                self._readers.move_to_end(number)
                return found
        found = self._opened(number)
        with self._lock:  # another thread may have opened it too: then the last one stays
            self._readers[number] = found
            while len(self._readers) > _MOST_OPEN:
                self._readers.popitem(last=False)  # closed when no thread reads by it any more
        return found

    def _opened(self, number: int) -> Any:
        module = needs("array_record.python.array_record_module", "array-record", self._owner)
        file = self._files[number]
        file.check()
        try:
            reader = module.ArrayRecordReader(
                file.path, options=self._options, file_reader_buffer_size=_BUFFER
            )
            if reader.ok():
                return reader
            words = "it cannot be read"
        except (RuntimeError, ValueError, OSError) as error:
            words = in_one_line(error)
        raise DatasetError(
            f"{self._owner}: {file.path!r} is damaged, or no ArrayRecord file ({words:.200}); get "
            f"the file again."
        )

    def read_file(self, number: int, records: list[int]) -> Sequence[bytes]:
        self._files[number].check()
        begin, reader = self._parts[number][0], self._reader(number)
        try:
            return reader.read([begin + each for each in records] if begin else records)
        except (RuntimeError, ValueError, IndexError) as error:
            which = (
                f"record {records[0]}" if len(records) == 1 else f"one of {len(records)} records"
            )
            raise DatasetError(
                f"{self._owner}: {which} of {self.path(number)!r} cannot be read "
                f"({in_one_line(error):.200}); get the file again, or leave such elements out: "
                f'`DataLoader(..., on_error="skip")`.'
            ) from error
