"""ArrayRecord files, read by index."""

from __future__ import annotations

from typing import Any

from ...base.pytree import pytree_dataclass
from ...reading.files.file_list import listed_files
from ...reading.records.array_record import ArrayRecordFiles
from ...reading.records.record_table import RecordTable
from ..table import TableSource

_OWNER = "ArrayRecordSource"


@pytree_dataclass
class ArrayRecordSource(TableSource):
    """The records of ArrayRecord files, in any order; a batch is read in one call.

        train-00000.array_record ...  --records 7, 3, ...-->  bytes  --decode-->  elements

    It needs the library (`pip install 'cereal-jax[array-record]'`). `paths` is a path, a pattern
    (`"data/train-*"`), a folder of `.array_record` or `.arrayrecord` files, or a list of these.
    `decode` says what a record is: a function from bytes to an element, the shape and dtype of an
    array, or the features of a `tf.train.Example` (see `TFRecordSource`)::

        source = ArrayRecordSource("data/train-*", decode=((256,), "float32"))
        loader = DataLoader([source, BatchTransform(128)])

    Files should be written with `group_size:1`, the default of newer versions of the library: of
    larger groups, all records are decompressed to read one.
    """

    def __init__(
        self,
        paths: Any,
        decode: Any = None,
        ordering: Any = "shuffle",
        *,
        index_key: str | None = None,
    ) -> None:
        files = listed_files(paths, _OWNER, (".array_record", ".arrayrecord"))
        table = RecordTable(ArrayRecordFiles(files, _OWNER), decode, _OWNER)
        self._open(table, ordering, index_key)
