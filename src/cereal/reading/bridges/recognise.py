"""Which library made an object; the file of that library says how it is read.

cereal imports none of these libraries: an object that exists has imported its own.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..tables.table import Stream, Table

# By the first part of the name of a class's module: the file here that knows its objects. It has
# a function `recognise(value, owner)`, which gives a `Table`, a `Stream`, another dataset to be
# read in its place (with `__len__` and `__getitem__`), or None.
_FILES = {
    "datasets": "huggingface",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "arrow",
    "torch": "torch",
}


def recognised(value: Any, owner: str) -> Table | Stream | Any:
    """How to read this object; None if it is of no library that cereal knows."""
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
