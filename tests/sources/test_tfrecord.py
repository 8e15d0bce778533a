"""TFRecord files: their index, their checksums, what is in them."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cereal
from cereal import BatchTransform, DataLoader, DatasetError, PipelineError, TFRecordSource
from cereal.reading.files import kept_index
from cereal.reading.records import tfrecord

from .record_files import example, masked, write_tfrecord

N = 10
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 4, 3), np.uint8)
FEATURES = {"image": ((4, 3), "uint8"), "label": ((), "int64")}
RECORDS = [example({"image": IMAGES[i].tobytes(), "label": 100 * i}) for i in range(N)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tfrecord(tmp_path / "ten.tfrecord", RECORDS)


def index_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.index.npz")


def read(source: Any, batch: int = 4, **options: Any) -> Any:
    loader = DataLoader([source, BatchTransform(batch, pad_last_batch=True)], workers=0, **options)
    found = [
        (np.asarray(batch["label"])[np.asarray(mask)])
        for batch, mask in loader.iterate(loader.init_state(0))
    ]
    return np.concatenate(found).tolist()


def test_features_are_read_in_order_and_shuffled(path: Path) -> None:
    source = TFRecordSource(path, FEATURES, "sequential", index_key="i")
    ((batch, _),) = DataLoader([source, BatchTransform(N)], workers=0)
    np.testing.assert_array_equal(batch["image"], IMAGES)
    assert batch["label"].tolist() == [100 * i for i in range(N)]
    assert batch["i"].tolist() == list(range(N))
    shuffled = read(TFRecordSource(path, FEATURES))
    assert sorted(shuffled) == [100 * i for i in range(N)] != shuffled
    assert "ten.tfrecord" in repr(source)


def test_a_function_decodes_or_a_shape_or_nothing(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x", [np.array([i, -i], "f4").tobytes() for i in range(5)])
    wanted = [[i, -i] for i in range(5)]
    by_function = TFRecordSource(path, lambda record: np.frombuffer(record, np.float32))
    by_shape = TFRecordSource(path, ((2,), "float32"))
    plain = TFRecordSource(path)
    stage = cereal.HostMapTransform(lambda record: np.frombuffer(record, np.float32))
    for stages in ([by_function], [by_shape], [plain, stage]):
        loader = DataLoader([*stages, BatchTransform(5)], workers=0)
        batch, _ = next(loader.iterate(loader.init_state(0)))
        assert sorted(batch.tolist()) == wanted
    with pytest.raises(PipelineError, match="bytes of a record; pass `decode=`"):
        DataLoader([plain, BatchTransform(5)])


def test_several_files_are_numbered_through(tmp_path: Path) -> None:
    for part, records in enumerate((RECORDS[:3], [], RECORDS[3:4], RECORDS[4:])):
        write_tfrecord(tmp_path / f"train-{part}", records)
    pattern = TFRecordSource(tmp_path / "train-*", FEATURES, "sequential")
    assert read(pattern) == [100 * i for i in range(N)]
    assert read(TFRecordSource(str(tmp_path / "train-*"), FEATURES, "sequential")) == read(pattern)
    turned = [tmp_path / "train-3", tmp_path / "train-0"]
    assert read(TFRecordSource(turned, FEATURES, "sequential")) == [
        *(100 * i for i in range(4, N)), 0, 100, 200,
    ]  # fmt: skip


# The index


def test_the_index_is_made_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TFRecordSource(path, FEATURES)
    assert index_of(path).exists()
    monkeypatch.setattr(tfrecord, "find_records", lambda *_: pytest.fail("made again"))
    assert len(TFRecordSource(path, FEATURES)) == N


def test_a_stale_or_damaged_index_is_made_again(path: Path, tmp_path: Path) -> None:
    TFRecordSource(path, FEATURES)
    other = write_tfrecord(tmp_path / "other", RECORDS[:4])
    shutil.move(other, path)
    assert len(TFRecordSource(path, FEATURES)) == 4
    content = bytearray(index_of(path).read_bytes())
    for damaged in (b"", bytes(content[:100]), bytes(len(content)), b"\x80\x04."):
        index_of(path).write_bytes(damaged)
        assert len(TFRecordSource(path, FEATURES)) == 4
    content[len(content) // 2] ^= 255
    index_of(path).write_bytes(bytes(content))
    assert read(TFRecordSource(path, FEATURES, "sequential")) == [0, 100, 200, 300]


@pytest.mark.parametrize("starts", [[], [0], [0, 5, 9], [[0]], [0.5]])
def test_an_index_that_somebody_else_wrote_is_not_believed(path: Path, starts: Any) -> None:
    TFRecordSource(path, FEATURES)
    with np.load(index_of(path)) as entries:
        kept = {**entries, "starts": np.array(starts)}
    np.savez(index_of(path), **kept)
    assert len(TFRecordSource(path, FEATURES)) == N


def test_where_nobody_may_write_it_is_kept_elsewhere(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, refused = kept_index.write_atomically, [path.parent]
    monkeypatch.setattr(kept_index, "user_cache", lambda: tmp_path / "cache")

    def guarded(place: Path, fill: Any) -> None:
        if place.parent in refused:
            raise PermissionError(13, "no")
        write(place, fill)

    monkeypatch.setattr(kept_index, "write_atomically", guarded)
    assert len(TFRecordSource(path, FEATURES)) == N
    assert not index_of(path).exists()
    (kept,) = (tmp_path / "cache" / "indices").iterdir()
    kept.unlink()
    refused.append(kept.parent)
    assert len(TFRecordSource(path, FEATURES)) == N  # it is kept nowhere
    assert "is not kept" in caplog.text


def test_records_of_any_size_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "_AT_ONCE", 3)
    monkeypatch.setattr(tfrecord, "_WINDOW", 100)
    sizes = [0, 1, 5000, 3, 90, 20000, 0, 7]
    path = write_tfrecord(tmp_path / "x", [bytes(n) for n in sizes])
    source = TFRecordSource(path, len, "sequential")
    loader = DataLoader([source, BatchTransform(8)], workers=0)
    assert [batch.tolist() for batch, _ in loader] == [sizes]


# What is wrong


def test_a_truncated_file_is_refused_when_the_source_is_built(path: Path) -> None:
    content = path.read_bytes()
    size = len(content) // N
    for cut in (len(content) - 1, len(content) - size + 5, len(content) - 6):
        path.write_bytes(content[:cut])
        with pytest.raises(DatasetError, match=r"tfrecord' is truncated: record 9, at byte \d"):
            TFRecordSource(path, FEATURES)


@pytest.mark.parametrize("place", [0, 9])  # of a head: the length, its checksum
def test_a_damaged_length_is_refused_when_the_source_is_built(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[_starts_of(RECORDS)[3] + place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"record 3, at byte {_starts_of(RECORDS)[3]}, has a"):
        TFRecordSource(path, FEATURES)


def _starts_of(records: list[bytes]) -> list[int]:
    return np.cumsum([0, *(len(each) + 16 for each in records)]).tolist()


@pytest.mark.parametrize("library", [True, False])
def test_damaged_data_is_an_error_of_its_element(
    path: Path, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setattr("cereal.reading.records.crc32c._library", lambda: None)
    content, start = bytearray(path.read_bytes()), _starts_of(RECORDS)[6]
    content[start + 12 + 30] ^= 16
    path.write_bytes(content)
    source = TFRecordSource(path, FEATURES, "sequential")
    words = rf"record 6 of '.*ten\.tfrecord', at byte {start}, is damaged"
    with pytest.raises(DatasetError, match=words) as caught:
        read(source)
    assert caught.value.element.index == 6  # type: ignore[attr-defined]
    left = read(source, on_error="skip")
    assert left == [100 * i for i in range(N) if i != 6]


def test_compressed_files_are_told_what_to_do(path: Path) -> None:
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DatasetError, match=r"compressed by gzip.*gunzip"):
        TFRecordSource(packed, FEATURES)


def test_what_is_no_tfrecord_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("some text that is long enough to have a head")
    with pytest.raises(DatasetError, match="damaged, or no TFRecord file: record 0"):
        TFRecordSource(path)
    path.write_bytes(b"")
    with pytest.raises(PipelineError, match="has 0 elements"):
        TFRecordSource(path)
    with pytest.raises(PipelineError, match="does not exist"):
        TFRecordSource(tmp_path / "nothing")
    with pytest.raises(PipelineError, match="no file matches"):
        TFRecordSource(tmp_path / "*.tfrecord")


def test_a_file_that_changes_is_refused(path: Path) -> None:
    source = TFRecordSource(path, FEATURES)
    os.utime(path, ns=(1, 1))
    with pytest.raises(PipelineError, match=r"ten\.tfrecord' has changed since"):
        read(source)


def test_wrong_features_are_told_when_the_source_is_built(path: Path) -> None:
    with pytest.raises(DatasetError, match=r"record 0 of .* the feature 'x'; it has \['im"):
        TFRecordSource(path, {"x": ((), "int64")})
    with pytest.raises(DatasetError, match=r"has 12 bytes in 'image', where uint8\[28, 28\] has"):
        TFRecordSource(path, {"image": ((28, 28), "uint8")})
    with pytest.raises(DatasetError, match=r"record 0 of .* bytes, where uint8\[3\] has 3"):
        TFRecordSource(path, ((3,), "uint8"))
    for wrong in (3, "uint8", [1], ((None,), "uint8"), (3, "uint8")):
        with pytest.raises(PipelineError, match="decode"):
            TFRecordSource(path, wrong)
    with pytest.raises(PipelineError, match="failed on its first elements: KeyError"):
        TFRecordSource(path, lambda record: {}["x"])


def test_a_feature_that_a_later_record_lacks_is_an_error_of_its_element(tmp_path: Path) -> None:
    records = [*RECORDS[:5], example({"label": 3}), *RECORDS[5:]]
    source = TFRecordSource(write_tfrecord(tmp_path / "x", records), FEATURES, "sequential")
    with pytest.raises(DatasetError, match=r"record 5 of '.*x' does not have .*'image'") as caught:
        read(source)
    assert caught.value.element.index == 5  # type: ignore[attr-defined]


def test_numbers_that_jax_cannot_hold_are_refused(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x", [example({"label": i}) for i in (1, 2**40)])
    with pytest.raises(PipelineError, match=rf"{2**40} does not fit int32"):
        read(TFRecordSource(path, {"label": ((), "int64")}))


def test_rows_of_different_lengths_need_a_collate(tmp_path: Path) -> None:
    some = [example({"t": list(range(n))}) for n in (1, 3, 2)]
    path = write_tfrecord(tmp_path / "x", some)
    source = TFRecordSource(path, {"t": ((None,), "int64")}, "sequential")
    with pytest.raises(PipelineError, match=r"different lengths.*pad_collate"):
        DataLoader([source, BatchTransform(3)])
    padded = BatchTransform(3, collate=cereal.pad_collate(3))
    ((batch, _),) = DataLoader([source, padded], workers=0)
    assert batch["t"].tolist() == [[0, 0, 0], [0, 1, 2], [0, 1, 0]]


def test_a_checksum_of_the_test_is_that_of_the_file() -> None:
    assert masked(b"\x07").hex() == "46f8f711"
