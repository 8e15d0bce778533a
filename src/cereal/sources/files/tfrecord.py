"""TFRecord files, read by index."""

from __future__ import annotations

from typing import Any

from ...base.pytree import pytree_dataclass
from ...reading.files.file_list import listed_files
from ...reading.records.record_table import RecordTable
from ...reading.records.tfrecord import TFRecordFiles
from ..table import TableSource

_OWNER = "TFRecordSource"


@pytree_dataclass
class TFRecordSource(TableSource):
    """The records of TFRecord files, in any order, without TensorFlow.

        train-00000.tfrecord ...  --index, made once-->  record 7, record 3, ...  --decode-->

    `paths` is a path, a pattern (`"data/train-*"`, `"train-{00..09}"`), or a list of
    these. The first time, cereal looks where the records of a file are, and keeps the answer in a
    hidden file beside it (in the user's cache folder, if it cannot write there). Every record is
    checked against its checksums when it is read: install `google-crc32c` for that (`pip install
    'cereal-jax[tfrecord]'`); without it, NumPy does it, in 5 us for a record of 1 KB.

    `decode` says what a record is:

        decode=lambda record: ...                   a function from bytes to an element
        decode={"image": ((28, 28), "uint8"),       features of a tf.train.Example: shape and dtype,
                "label": ((), "int64", -1),         and what stands for one that is missing;
                "tokens": ((None,), "int64"),       any number of values;
                "name": str}                        text, or `bytes`
        decode=((28, 28), "uint8")                  the bytes of an array
        decode=None                                 bytes, for the stages that come after

    Features of one size are read for the whole batch at once. An image that is encoded (JPEG, PNG)
    is `bytes`; `DecodeImageTransform` decodes it.

    >>> import cereal, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "two.tfrecord")
    >>> _ = path.write_bytes(bytes.fromhex(
    ...     "0100000000000000" "0175de41" "07" "46f8f711"      # length, checksum; data, checksum
    ...     "0100000000000000" "0175de41" "09" "7740bdb3"))
    >>> source = cereal.TFRecordSource(path, decode=((), "uint8"), ordering="sequential")
    >>> loader = cereal.DataLoader([source, cereal.BatchTransform(2)])
    >>> [batch.tolist() for batch, mask in loader]
    [[7, 9]]
    """

    def __init__(
        self,
        paths: Any,
        decode: Any = None,
        ordering: Any = "shuffle",
        *,
        index_key: str | None = None,
    ) -> None:
        files = listed_files(paths, _OWNER, (".tfrecord", ".tfrecords"))
        table = RecordTable(TFRecordFiles(files, _OWNER), decode, _OWNER)
        self._open(table, ordering, index_key)
