"""TFRecord files and TFDS: cereal against TensorFlow's own readers.

    python benchmarks/records.py [--records 20000] [--rounds 7]

Examples of a 28 x 28 image and a label, batches of 128. TensorFlow reads as its users write it:
`TFRecordDataset`, a shuffle buffer of 10,000, `parse_example` over batches, `prefetch`; TFDS
`as_dataset().batch().prefetch()`, in the order of its files, where images are PNG. Ours are
shuffled over all records. Their batches become NumPy arrays, ours arrays of JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import compare, inverse, machine, mnist_shaped, report, report_ratio, seconds

from cereal import (
    BatchTransform,
    CerealError,
    DataLoader,
    DatasetSource,
    MNISTDataset,
    TFRecordSource,
)
from cereal.reading.images.png_batch import decode_pngs
from cereal.reading.records import crc32c

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else it talks
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # pyright: ignore[reportMissingImports]

BATCH = 128
FEATURES = {"image": ((28, 28), "uint8"), "label": ((), "int64")}


def digits(n: int) -> dict[str, np.ndarray]:
    try:
        found = MNISTDataset(split="train").as_array_dict()
    except CerealError:
        found = mnist_shaped()
        found["image"] = found["image"] * (found["image"] > 200)  # mostly empty, as digits are
    return {"image": found["image"].reshape(-1, 28, 28)[:n], "label": found["label"][:n]}


def written(path: Path, data: dict[str, np.ndarray]) -> Path:
    train = tf.train
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(data["image"], data["label"].tolist(), strict=True):
            image_list = train.BytesList(value=[image.tobytes()])
            features = {
                "image": train.Feature(bytes_list=image_list),
                "label": train.Feature(int64_list=train.Int64List(value=[label])),
            }
            made = train.Example(features=train.Features(feature=features))
            writer.write(made.SerializeToString())
    return path


def tf_batches(path: Path) -> Any:
    specs = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }

    def parsed(records: Any) -> Any:
        found = tf.io.parse_example(records, specs)
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (-1, 28, 28))
        return {**found, "image": image}

    dataset = tf.data.TFRecordDataset(str(path)).shuffle(10_000).batch(BATCH)
    return dataset.map(parsed, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def all_of(loader: DataLoader[Any]) -> Any:
    keys = iter(range(1, 10**6))

    def run() -> None:
        for _ in loader.iterate(loader.init_state(next(keys))):
            pass

    return run


def iterated(dataset: Any) -> Any:
    def run() -> None:
        for _ in dataset.as_numpy_iterator():
            pass

    return run


def loader_of(first: Any) -> DataLoader[Any]:
    return DataLoader([first, BatchTransform(BATCH, pad_last_batch=True)])


def tfrecords(folder: Path, data: dict[str, np.ndarray], rounds: int) -> None:
    path, n = written(folder / "digits.tfrecord", data), len(data["label"])
    first = seconds(lambda: TFRecordSource(path, FEATURES))
    again = seconds(lambda: TFRecordSource(path, FEATURES))
    value = f"{1e6 * first / n:.1f} us a record; later {1e3 * again:.1f} ms in all"
    report("TFRecord: the index", value, "reported", True)
    theirs = iterated(tf_batches(path))
    for library in (True, False):
        known = crc32c._library
        if not library:
            crc32c._library = lambda: None  # type: ignore[assignment]
        with loader_of(TFRecordSource(path, FEATURES)) as loader:
            result = inverse(compare(all_of(loader), theirs, rounds))
            checks = "google-crc32c" if library else "NumPy"
            title = f"TFRecord, shuffled, checksums by {checks}: epoch / tf.data's"
            report_ratio(title, result, "reported", True)
        crc32c._library = known


def tfds_source(folder: Path, data: dict[str, np.ndarray], rounds: int) -> None:
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]
    from absl import logging  # pyright: ignore[reportMissingImports]

    logging.set_verbosity("error")
    tfds.disable_progress_bar()
    image, label = tfds.features.Image(shape=(28, 28, 1)), tfds.features.ClassLabel(num_classes=10)
    rows = {"image": data["image"][..., None], "label": data["label"]}

    def stored(name: str) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return tfds.dataset_builders.store_as_tfds_dataset(
                name=name,
                version="1.0.0",
                features=tfds.features.FeaturesDict({"image": image, "label": label}),
                split_datasets={"train": tf.data.Dataset.from_tensor_slices(rows)},
                data_dir=folder,
                file_format=name,
            )

    source, records = stored("array_record").as_data_source("train"), stored("tfrecord")

    def theirs() -> None:  # anew, as for every epoch: TFDS keeps a small dataset in memory
        iterated(records.as_dataset(split="train").batch(BATCH).prefetch(1))()

    with loader_of(DatasetSource(source, ordering="shuffle")) as loader:
        result = inverse(compare(all_of(loader), theirs, rounds))
    report_ratio("TFDS, PNG, shuffled: epoch / its own", result, "at most 1", result["ratio"] <= 1)


def parts(data: dict[str, np.ndarray]) -> None:
    records = [row.tobytes() for row in np.zeros((BATCH, 1024), np.uint8)]
    for name, run in (("google-crc32c", crc32c.crc32c), ("NumPy", crc32c.by_numpy)):
        taken = min(seconds(lambda run=run: run(records)) for _ in range(50))
        report(f"checksum of 1 KB, {name}", f"{1e6 * taken / BATCH:.2f} us", "reported", True)
    from PIL import Image

    files = []
    for pixels in data["image"][:BATCH]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    many = min(seconds(lambda: decode_pngs(files, (28, 28, 1), "")) for _ in range(50))
    one = min(
        seconds(lambda: [np.asarray(Image.open(io.BytesIO(file))) for file in files])
        for _ in range(20)
    )
    value = f"{1e6 * many / BATCH:.1f} us; by Pillow one by one {1e6 * one / BATCH:.1f}"
    report("a PNG of 28 x 28, 128 at once", value, "reported", True)


def main(options: argparse.Namespace) -> None:
    data = digits(options.records)
    parts(data)
    with tempfile.TemporaryDirectory() as folder:
        tfrecords(Path(folder), data, options.rounds)
        tfds_source(Path(folder), data, options.rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    print(machine())
    main(parser.parse_args())
