"""tf.data: its datasets first in a loader's list, and through `IterableSource`."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.bridges.quiet_tensorflow import tf, tfds

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, IterableSource, PipelineError
from cereal.reading.bridges.tensorflow import NumpyIterations, hide_gpus

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_values,
    loader_of,
    rows,
)

pytestmark = pytest.mark.bridges

WANTED = {"image": IMAGES[..., None], "label": LABELS}


def examples() -> Iterator[tuple[int, Any]]:
    for i in range(N):
        yield i, {"image": IMAGES[i][..., None], "label": i}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A dataset in files."""
    tfds.disable_progress_bar()
    image, label = tfds.features.Image(shape=(5, 6, 1)), tfds.features.ClassLabel(num_classes=N)
    return tfds.dataset_builders.store_as_tfds_dataset(
        name="stream",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"image": image, "label": label}),
        split_datasets={"train": examples()},
        data_dir=tmp_path_factory.mktemp("tfds"),
        disable_shuffling=True,
    )


@pytest.fixture
def stream(stored: Any) -> Any:
    return stored.as_dataset(split="train")


@pytest.mark.parametrize("length", [None, N])
def test_a_stream_as_numpy_is_read_and_resumes(stream: Any, length: int | None) -> None:
    def source() -> Any:
        return IterableSource(lambda: tfds.as_numpy(stream), length=length)

    check_values(source(), WANTED)
    check_resume(source, WANTED)
    check_in_jit(source(), WANTED)


@pytest.mark.parametrize("method", ["as_numpy_iterator", "__iter__"])
def test_tf_data_is_read_without_tfds(stream: Any, method: str) -> None:
    check_values(IterableSource(lambda: getattr(stream, method)()), WANTED)


def test_its_own_batches_are_batched_again(stream: Any) -> None:
    pairs = IterableSource(lambda: tfds.as_numpy(stream.batch(2)), length=N // 2)
    loader = DataLoader([pairs, BatchTransform(5)])
    ((batch, _),) = loader
    np.testing.assert_array_equal(batch["label"], LABELS.reshape(5, 2))


@pytest.mark.parametrize("as_numpy", [False, True])
def test_a_bare_stream_stands_first_in_the_list(stream: Any, as_numpy: bool) -> None:
    def dataset() -> Any:
        return tfds.as_numpy(stream) if as_numpy else stream

    check_values(dataset(), WANTED)
    check_resume(dataset, WANTED)
    check_in_jit(dataset(), WANTED)
    assert f"length={N}" in repr(loader_of(dataset()))
    with pytest.raises(PipelineError, match="can only be iterated"):
        DatasetSource(dataset())


def test_a_stream_without_a_known_length_ends_where_it_ends(stream: Any) -> None:
    odd = stream.filter(lambda element: element["label"] % 2 == 1)
    found = rows(loader_of(odd))
    assert found["label"].tolist() == LABELS[1::2].tolist()


def test_a_stream_of_pairs_is_a_stream_of_tuples(stream: Any) -> None:
    pairs = stream.map(lambda element: (element["image"], element["label"]))
    check_values(pairs, (WANTED["image"], WANTED["label"]))


def numbers() -> Any:
    return tf.data.Dataset.range(N).map(lambda x: tf.cast(x, tf.int32))


class Watched:
    """A dataset that can be read from its ninth element on, and its first."""

    def skip(self, n: int) -> Any:
        assert n == 8
        return numbers().skip(n)

    def as_numpy_iterator(self) -> Any:
        return iter([np.int32(0)])


def test_after_a_restart_tf_data_itself_skips() -> None:
    pairs = BatchTransform(2)
    with DataLoader([numbers(), pairs], workers=0) as loader:
        batches = loader.iterate()
        assert [next(batches)[0].tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        state = batches.state
        batches.close()
    watched = IterableSource(NumpyIterations(Watched()), length=N)
    with DataLoader([watched, pairs], workers=0) as loader:
        assert rows(loader, state).tolist() == [8, 9]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: tf.ragged.constant([[1], [2, 3]]), r"`element\['x'\]` .* RaggedTensor.*to_tensor"),
        (lambda: tf.sparse.from_dense([[1, 0], [0, 2]]), r"SparseTensor.*to_dense"),
    ],
)
def test_what_is_no_array_is_refused_by_name(make: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        loader_of(tf.data.Dataset.from_tensor_slices({"x": make()}))


def test_a_stream_that_shuffles_anew_warns() -> None:
    with pytest.warns(cereal.OptionWarning, match="reshuffle_each_iteration=False"):
        loader_of(numbers().shuffle(N).map(lambda x: x))
    with pytest.warns(cereal.OptionWarning, match="seed=0, "):  # another order in every process
        loader_of(numbers().shuffle(N, reshuffle_each_iteration=False))
    options = tf.data.Options()
    options.deterministic = False
    with pytest.warns(cereal.OptionWarning, match="sees other elements"):
        loader_of(numbers().with_options(options))
    fixed = numbers().shuffle(N, seed=3, reshuffle_each_iteration=False)
    assert sorted(rows(loader_of(fixed)).tolist()) == list(range(N))


class Config:
    """TensorFlow's settings on a machine with a GPU, as far as they are asked for."""

    def __init__(self, *, used: bool) -> None:
        self.visible, self._used = ["GPU:0"], used

    def list_physical_devices(self, kind: str) -> list[str]:
        return [f"{kind}:0"]

    def get_visible_devices(self, kind: str) -> list[str]:
        del kind
        return self.visible

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        del kind
        if self._used:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = devices


def test_gpus_are_hidden_from_tensorflow_or_there_is_a_warning() -> None:
    fresh, used = Config(used=False), Config(used=True)
    hide_gpus(SimpleNamespace(config=fresh))
    assert fresh.visible == []
    with pytest.warns(cereal.OptionWarning, match="right after `import tensorflow as tf`"):
        hide_gpus(SimpleNamespace(config=used))


def test_text_is_refused_by_name() -> None:
    words = tf.data.Dataset.from_tensor_slices({"text": ["a", "bb"], "label": [0, 1]})
    with pytest.raises(PipelineError, match=r"element\['text'\]` is a Python object"):
        loader_of(IterableSource(words.as_numpy_iterator))
