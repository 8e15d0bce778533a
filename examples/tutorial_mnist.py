"""One network, four data libraries: each through its own loader, and through cereal.

    python examples/tutorial_mnist.py --epochs 8

The network and its numbers are those of the tutorial "Introduction to Data Loaders on CPU with
JAX": 784-512-512-10, gradient descent, batches of 128, the images in their order. What differs is
who makes the batches:

    its own            as the tutorial has it
    cereal, streamed   DataLoader([dataset, BatchTransform(128)]): read ahead by threads
    cereal, read once  CacheTransform("device") after the dataset: an epoch is one program

A dataset that stands bare in the list is read in its own order, as the tutorial has it. To train on
it shuffled, write `DataLoader([DatasetSource(dataset, ordering="shuffle"), BatchTransform(128)])`
where torch has `DataLoader(dataset, batch_size=128, shuffle=True)`, and go through epochs from one
state: `loader.iterate(loader.init_state(key), epochs=8)`.

A library that is not installed is left out. Nothing is downloaded but MNIST itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import trange

from cereal import BatchTransform, CacheTransform, DataLoader, MNISTDataset, masked_mean

LAYERS, STEP_SIZE, BATCH = [784, 512, 512, 10], 0.01, 128
Arrays = dict[str, np.ndarray]
Epoch = Callable[[Any], Any]  # of parameters, to parameters
Library = tuple[Any, Callable[[], Iterable[Any]]]  # a dataset, and the batches of its own loader


def init_params(key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(key, len(LAYERS))
    pairs = [jax.random.split(k) for k in keys[:-1]]
    sizes = zip(LAYERS[:-1], LAYERS[1:], pairs, strict=True)
    normal = jax.random.normal
    return [(1e-2 * normal(w, (n, m)), 1e-2 * normal(b, (n,))) for m, n, (w, b) in sizes]


def predict(params: Any, images: jax.Array) -> jax.Array:
    x = images.reshape(len(images), -1).astype(jnp.float32)
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w.T + b)
    return jax.nn.log_softmax(x @ params[-1][0].T + params[-1][1])


@jax.jit
def update(params: Any, images: jax.Array, labels: jax.Array, mask: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        products = predict(params, images) * jax.nn.one_hot(labels, LAYERS[-1])
        return -masked_mean(products.mean(axis=1), mask)  # padding does not count

    return jax.tree.map(lambda p, g: p - STEP_SIZE * g, params, jax.grad(loss)(params))


@jax.jit
def accuracy(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(predict(params, images).argmax(axis=1) == labels)


def pair(batch: Any) -> tuple[Any, Any]:
    return (batch["image"], batch["label"]) if isinstance(batch, dict) else tuple(batch)


# An epoch, three ways


def own(batches: Callable[[], Iterable[Any]]) -> Epoch:
    def epoch(params: Any) -> Any:
        for batch in batches():
            images, labels = pair(batch)
            params = update(params, images, labels, np.ones(len(labels), bool))
        return params

    return epoch


def streamed(dataset: Any) -> Epoch:
    loader = DataLoader([dataset, BatchTransform(BATCH, pad_last_batch=True)])

    def epoch(params: Any) -> Any:
        for batch, mask in loader:
            params = update(params, *pair(batch), mask)
        return params

    return epoch


def read_once(dataset: Any) -> Epoch:
    batches = BatchTransform(BATCH, pad_last_batch=True)
    loader = DataLoader([dataset, CacheTransform("device"), batches])

    def step(params: Any, batch: Any, mask: jax.Array) -> tuple[Any, None]:
        return update(params, *pair(batch), mask), None

    return lambda params: loader.scan_epoch(loader.init_state(0), params, step)[1]


# The datasets, and their own loaders


class FlatRows:
    """A map-style dataset, as the tutorial writes one: flat float images and their labels."""

    def __init__(self, data: Arrays) -> None:
        self.images, self.labels = data["image"], data["label"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.ravel(np.array(self.images[index], np.float32)), int(self.labels[index])


def torch_mnist(data: Arrays, folder: str) -> Library:
    from torch.utils.data import DataLoader, Dataset, default_collate

    class Rows(FlatRows, Dataset):
        pass

    def numpy_collate(batch: Any) -> Any:
        return jax.tree.map(np.asarray, default_collate(batch))

    dataset = Rows(data)
    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=numpy_collate)
    return dataset, lambda: loader


def tfds_mnist(data: Arrays, folder: str) -> Library:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else it talks
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from absl import logging

    logging.set_verbosity("error")
    tfds.disable_progress_bar()
    image, label = tfds.features.Image(shape=(28, 28, 1)), tfds.features.ClassLabel(num_classes=10)

    def stored(name: str) -> Any:  # tf.data reads another format than random access
        with contextlib.redirect_stdout(io.StringIO()):
            return tfds.dataset_builders.store_as_tfds_dataset(
                name=name,
                version="1.0.0",
                features=tfds.features.FeaturesDict({"image": image, "label": label}),
                split_datasets={"train": tf.data.Dataset.from_tensor_slices(data)},
                data_dir=folder,
                file_format=name,
                disable_shuffling=True,
            )

    records = stored("tfrecord")

    def batches() -> Iterable[Any]:
        return tfds.as_numpy(records.as_dataset(split="train").batch(BATCH).prefetch(1))

    return stored("array_record").as_data_source(split="train"), batches


def grain_mnist(data: Arrays, folder: str) -> Library:
    import grain

    dataset = FlatRows(data)
    sampler = grain.samplers.SequentialSampler(len(dataset), grain.sharding.NoSharding())
    operations = [grain.transforms.Batch(BATCH)]
    return dataset, partial(
        grain.DataLoader, data_source=dataset, sampler=sampler, operations=operations
    )


def huggingface_mnist(data: Arrays, folder: str) -> Library:
    from datasets import ClassLabel, Dataset, Features, Image

    features = Features({"image": Image(), "label": ClassLabel(num_classes=10)})
    columns = {"image": list(data["image"][..., 0]), "label": data["label"]}
    dataset = Dataset.from_dict(columns, features=features).with_format("numpy")
    return dataset, lambda: dataset.iter(BATCH)


LIBRARIES: dict[str, tuple[str, Callable[[Arrays, str], Library]]] = {
    "torch": ("torch", torch_mnist),
    "TFDS": ("tensorflow tensorflow_datasets array_record", tfds_mnist),
    "Grain": ("grain", grain_mnist),
    "Hugging Face": ("datasets PIL", huggingface_mnist),
}


class Row(NamedTuple):
    dataset: str
    loader: str
    epoch: float  # seconds; the median, without the first, which compiles
    first: float
    reading: float | None
    train: float
    test: float


def measure(make: Callable[[], Epoch], name: tuple[str, str], epochs: int, *data: Arrays) -> Row:
    begin = time.perf_counter()
    epoch, params, taken = make(), init_params(jax.random.key(0)), []
    reading = time.perf_counter() - begin if "once" in name[1] else None
    for _ in trange(epochs, desc=f"{name[0]:12}  {name[1]:17}", unit="epoch"):
        begin = time.perf_counter()
        params = jax.block_until_ready(epoch(params))
        taken.append(time.perf_counter() - begin)
    train, test = (float(accuracy(params, *pair(each))) for each in data)
    return Row(*name, statistics.median(taken[1:] or taken), taken[0], reading, train, test)


def main(train: Arrays, test: Arrays, epochs: int = 8) -> list[Row]:
    ways: dict[tuple[str, str], Callable[[], Epoch]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (modules, make_dataset) in LIBRARIES.items():
            missing = [each for each in modules.split() if importlib.util.find_spec(each) is None]
            if missing:
                print(f"{name} is left out: {', '.join(missing)} not installed")
                continue
            dataset, batches = make_dataset(train, folder)
            ways[name, "its own"] = partial(own, batches)
            ways[name, "cereal, streamed"] = partial(streamed, dataset)
            ways[name, "cereal, read once"] = partial(read_once, dataset)
        ways["arrays", "cereal, read once"] = partial(read_once, train)
        rows = [measure(make, name, epochs, train, test) for name, make in ways.items()]
    print("\ndataset       loader             epoch s  first s   read s    train     test")
    for dataset, loader, epoch, first, reading, *scores in rows:
        times = f"{epoch:7.2f}  {first:7.2f}  {'' if reading is None else f'{reading:.2f}':>7}"
        print(f"{dataset:12}  {loader:17}  {times}  {scores[0]:7.2%}  {scores[1]:7.2%}")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    splits = [MNISTDataset(split=split).as_array_dict() for split in ("train", "test")]
    main(*splits, epochs=options.epochs)
