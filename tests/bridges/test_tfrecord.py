"""TFRecord files that TensorFlow has written; what TensorFlow reads from them is the oracle."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bridges.quiet_tensorflow import tf

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetError,
    HostMapTransform,
    TFRecordSource,
)
from cereal.reading.records import crc32c
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    rows,
)
from .decoders import by_function

pytestmark = pytest.mark.bridges

FEATURES = {
    "image": ((5, 6), "uint8"),
    "label": ((), "int64"),
    "scores": ((3,), "float32"),
}
SCORES = np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32)
WANTED = {"image": IMAGES, "label": LABELS, "scores": SCORES}


def feature(value: Any) -> Any:
    if isinstance(value, bytes | list) and (not value or isinstance(value[0], bytes | int)):
        values = value if isinstance(value, list) else [value]
        if values and isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=value))


def example(**values: Any) -> bytes:
    made = {name: feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write(path: Path, records: list[bytes], options: Any = None) -> Path:
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    some = [
        example(image=IMAGES[i].tobytes(), label=[i], scores=SCORES[i].tolist()) for i in range(N)
    ]
    return write(tmp_path_factory.mktemp("tfrecord") / "ten.tfrecord", some)


def source(path: Path, ordering: str = "sequential") -> TFRecordSource:
    return TFRecordSource(path, FEATURES, ordering)


def test_its_examples_are_read_by_every_road(path: Path) -> None:
    check_values(source(path), WANTED)
    check_resume(lambda: source(path), WANTED)
    check_in_jit(source(path), WANTED)
    shuffled = source(path, "shuffle")
    check_shuffled(shuffled, WANTED, lambda found: found["label"])
    check_source(shuffled)
    check_all_ways(DataLoader([shuffled, BatchTransform(3)]))


def test_a_function_decodes_them(path: Path) -> None:
    made = TFRecordSource(path, by_function, "sequential")
    check_values(made, WANTED)
    check_resume(lambda: TFRecordSource(path, by_function, "sequential"), WANTED)


@pytest.mark.parametrize("decode", [FEATURES, by_function])
def test_worker_processes_read_them(path: Path, decode: Any) -> None:
    made = TFRecordSource(path, decode, "sequential")
    with DataLoader([made, BatchTransform(5)], workers=2, worker_type="process") as loader:
        found = rows(loader)
    assert found["label"].tolist() == LABELS.tolist()
    np.testing.assert_array_equal(found["scores"], SCORES)


def test_every_kind_of_example_is_what_tensorflow_parses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    specs = {
        "bytes": tf.io.FixedLenFeature((), tf.string),
        "ints": tf.io.FixedLenFeature((3,), tf.int64),
        "floats": tf.io.FixedLenFeature((2, 2), tf.float32),
        "many": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
        "rare": tf.io.FixedLenFeature((), tf.int64, default_value=-7),
    }
    some = []
    for i in range(60):
        values = {
            "bytes": rng.bytes(int(rng.integers(0, 300))),
            "ints": [int(x) for x in rng.integers(-(2**63), 2**63, 3) >> int(rng.integers(64))],
            "floats": rng.normal(size=4).astype(np.float32).tolist(),
            "many": [int(x) for x in rng.integers(0, 50_000, int(rng.integers(0, 20)))],
            "ignored": [0.5],
        }
        some.append(example(**values, **({"rare": [i]} if i % 3 else {})))
    decode = {
        "bytes": bytes,
        "ints": ((3,), "int64"),
        "floats": ((2, 2), "float32"),
        "many": ((None,), "int64"),
        "rare": ((), "int64", -7),
    }
    table = TFRecordSource(write(tmp_path / "x", some), decode).data.table
    found = dict(zip(sorted(decode), table.take(np.arange(60)), strict=True))
    for i, record in enumerate(some):
        wanted = tf.io.parse_single_example(record, specs)
        for name, value in wanted.items():
            np.testing.assert_array_equal(np.asarray(found[name][i]), value.numpy(), name)


def test_the_same_records_come_in_the_same_order(path: Path) -> None:
    own = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    made = TFRecordSource(path, ordering="sequential")
    lengths = HostMapTransform(lambda record: np.array([len(record), sum(record)]))
    found = rows(DataLoader([made, lengths, BatchTransform(N)]))
    assert found.tolist() == [[len(record), sum(record)] for record in own]


def test_both_checksums_are_those_of_the_library() -> None:
    library = import_module("google_crc32c")
    rng = np.random.default_rng(0)
    some = [rng.bytes(int(n)) for n in rng.integers(0, 5000, 200)]
    wanted = [library.value(each) for each in some]
    assert crc32c.crc32c(some).tolist() == crc32c.by_numpy(some).tolist() == wanted


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_compressed_files_are_told_what_to_do(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "x", [b"a" * 100], tf.io.TFRecordOptions(compression_type=kind))
    with pytest.raises(DatasetError, match=r"gunzip|without `compression_type`"):
        TFRecordSource(path)
