"""The checksum of TFRecord files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.sources.record_files import masked as slow_masked
from tests.sources.record_files import slow_crc32c

from cereal.reading.records.crc32c import by_numpy, crc32c, masked, of_rows

KNOWN = {  # of RFC 3720
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    b"": 0,
}


@pytest.mark.parametrize("checksums", [by_numpy, crc32c])
def test_known_checksums_are_found(checksums: Any) -> None:
    assert checksums(list(KNOWN)).tolist() == list(KNOWN.values())


def test_any_lengths_may_come_together() -> None:
    rng = np.random.default_rng(0)
    lengths = [0, 1, 7, 8, 9, 63, 64, 511, 512, 513, 1024, 1500, 3000]
    records = [rng.integers(0, 256, n, np.uint8).tobytes() for n in lengths]
    assert by_numpy(records).tolist() == [slow_crc32c(each) for each in records]
    for record in records:  # and alone, where blocks have other sizes
        assert by_numpy([record]).tolist() == [slow_crc32c(record)]
    assert by_numpy([]).tolist() == []


def test_a_changed_bit_anywhere_changes_it() -> None:
    record = bytearray(range(200))
    whole = int(by_numpy([bytes(record)])[0])
    for place in range(len(record)):
        record[place] ^= 4
        assert int(by_numpy([bytes(record)])[0]) != whole
        record[place] ^= 4


def test_rows_of_one_size_are_the_same() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (50, 8), np.uint8)
    assert of_rows(rows).tolist() == [slow_crc32c(row.tobytes()) for row in rows]
    assert masked(of_rows(rows[:1])).astype("<u4").tobytes() == slow_masked(rows[0].tobytes())
