"""Which library made an object; the file of that library says how it is read.

cereal imports none of these libraries: an object that exists has imported its own.
"""

from __future__ import annotations

import importlib
from typing import Any

from ...base.errors import PipelineError
from ..tables.table import Stream, Table

# By the first part of the name of a class's module: the file here that knows its objects. It has
# a function `recognise(value, owner)`, which gives a `Table`, a `Stream`, another dataset to be
# read in its place (with `__len__` and `__getitem__`), or None.
_FILES = {
    "array_record": "grain",
    "datasets": "huggingface",
    "grain": "grain",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "arrow",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tfds",
    "torch": "torch",
}
# The names of their classes of datasets: a dict of such objects is a dict of splits.
_DATASETS = {"BaseDataSource", "DatasetV2", "MapDataset", "IterDataset", "_IterableDataset"}


def recognised(value: Any, owner: str) -> Table | Stream | Any:
    """How to read this object; None if it is of no library that cereal knows."""
    if type(value) in (dict, list, tuple):
        _refuse_splits(value, owner)
        return None
    for bridge in _bridges(value):
        found = bridge.recognise(value, owner)
        if found is not None:
            return found
    return None


def resumes_exactly(value: Any) -> bool:
    """Whether the state that an iterable gives of itself has all that it needs to go on."""
    checks = [getattr(bridge, "resumes_exactly", None) for bridge in _bridges(value)]
    return all(check(value) for check in checks if check is not None)


def _bridges(value: Any) -> list[Any]:
    """The files that may know this object, that of its own class first."""
    modules = [cls.__module__.partition(".")[0] for cls in type(value).__mro__]
    files = dict.fromkeys(_FILES[name] for name in modules if name in _FILES)
    return [importlib.import_module(f".{file}", __package__) for file in files]


def _refuse_splits(value: Any, owner: str) -> None:
    """Refuses a dict or list of datasets: a loader reads one of them."""
    named = list(value.items()) if isinstance(value, dict) else list(enumerate(value[:16]))
    if not named or not all(_is_dataset(each) for _, each in named):
        return
    names = ", ".join(repr(name) for name, _ in named)
    raise PipelineError(
        f"{owner}: this is a {type(value).__name__} of datasets, not one of them: it has {names}; "
        f"write `splits[{named[0][0]!r}]` for one, or `ConcatSource([...])` for all."
    )


def _is_dataset(value: Any) -> bool:
    return any(
        cls.__name__ in _DATASETS and cls.__module__.partition(".")[0] in _FILES
        for cls in type(value).__mro__
    )
