"""tf.data: datasets of TensorFlow are streams of NumPy arrays.

    tf.data.Dataset  --as_numpy_iterator-->  elements, in its own order

TensorFlow takes the memory of all GPUs when it first uses one, and JAX then has none. So cereal
hides the GPUs from it, if it has not looked at them yet.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from ...base.errors import OptionWarning, PipelineError
from ..tables.table import Stream

_HIDE = '`tf.config.set_visible_devices([], "GPU")`'
_NO_ARRAYS = {
    "RaggedTensorSpec": "`dataset.map(lambda x: x.to_tensor())`, or `.padded_batch(...)`",
    "SparseTensorSpec": "`dataset.map(lambda x: tf.sparse.to_dense(x))`",
    "DatasetSpec": "`dataset.flat_map(lambda x: x)`",
}


def recognise(value: Any, owner: str) -> Stream | None:
    """A `tf.data.Dataset`, as a stream."""
    if "DatasetV2" not in {cls.__name__ for cls in type(value).__mro__}:
        return None
    return Stream(NumpyIterations(value), length_of(value, owner))


class NumpyIterations:
    """Makes a new iterator over a dataset; its state is its position, to which tf.data skips."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @property
    def __name__(self) -> str:  # in drawings and errors
        return "tf.data.Dataset"

    def __call__(self) -> Any:
        return _Elements(self.dataset)


class _Elements:
    """An iterator over a dataset."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._iterator, self._position = dataset, None, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            left = self._dataset.skip(self._position) if self._position else self._dataset
            self._iterator = left.as_numpy_iterator()
        element = next(self._iterator)
        self._position += 1
        return element

    def get_state(self) -> Any:
        return {"position": self._position}

    def set_state(self, state: Any) -> None:
        self._position, self._iterator = state["position"], None


def length_of(dataset: Any, owner: str) -> int | None:
    """The length of a `tf.data.Dataset`, None if it is not known; refuses what has no arrays."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(dataset, "element_spec"):
        return None
    hide_gpus(tf)
    for path, spec in _leaves(dataset.element_spec, ""):
        fix = _NO_ARRAYS.get(type(spec).__name__)
        if fix is not None:
            kind = type(spec).__name__.removesuffix("Spec")
            raise PipelineError(
                f"{owner}: `element{path}` of a tf.data.Dataset is a {kind}, which is no array; "
                f"make it one: {fix}."
            )
    if _reshuffles(dataset):
        warnings.warn(
            f"{owner}: this tf.data.Dataset shuffles anew whenever it is iterated, so a run that "
            f"goes on after a restart sees other elements; write `.shuffle(..., seed=0, "
            f"reshuffle_each_iteration=False)`, or read by index: `tfds.data_source(...)`, "
            f'`TFRecordSource(...)`, `DatasetSource(..., ordering="shuffle")`.',
            OptionWarning,
            stacklevel=4,
        )
    length = int(dataset.cardinality())
    return length if length >= 0 else None


def _leaves(spec: Any, path: str) -> Any:
    if isinstance(spec, dict):
        for key, inner in spec.items():
            yield from _leaves(inner, f"{path}[{key!r}]")
    elif isinstance(spec, tuple | list):
        for at, inner in enumerate(spec):
            yield from _leaves(inner, f"{path}[{at}]")
    else:
        yield path, spec


def _reshuffles(dataset: Any) -> bool:
    """Whether an iteration may have another order than the one before.

    The bet: tf.data has its shuffles as `_ShuffleDataset`, with `_reshuffle_each_iteration`. If it
    does not, there is no warning. The test of this bet is
    `test_a_stream_that_shuffles_anew_warns` in `tests/bridges/test_tfds.py`.
    """
    if dataset.options().deterministic is False:
        return True
    left: list[Any] = [dataset]
    while left:
        each: Any = left.pop()
        if getattr(each, "_reshuffle_each_iteration", False):
            return True
        left += each._inputs() if hasattr(each, "_inputs") else []
    return False


def hide_gpus(tf: Any) -> None:
    """Keeps TensorFlow from taking the memory of GPUs; if it has them already, warns."""
    config = tf.config
    if not config.list_physical_devices("GPU"):
        return
    try:
        config.set_visible_devices([], "GPU")
    except RuntimeError:  # it has looked at them already
        if config.get_visible_devices("GPU"):
            warnings.warn(
                f"TensorFlow uses the GPU, and may take all of its memory from JAX; write {_HIDE} "
                f"right after `import tensorflow as tf`.",
                OptionWarning,
                stacklevel=5,
            )
