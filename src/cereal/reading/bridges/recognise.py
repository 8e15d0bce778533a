"""Which library made an object; the file of that library says how it is read.

cereal imports none of these libraries: an object that exists has imported its own.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..tables.table import Stream, Table

# By the first part of the name of a class's module: the file here that knows its objects. It has
# a function `recognise(value, owner)`, which gives a `Table`, a `Stream`, or None.
_FILES = {
    "array_record": "grain",
    "grain": "grain",
    "pyarrow": "arrow",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tfds",
}


def recognised(value: Any, owner: str) -> Table | Stream | None:
    """How to read this object; None if it is of no library that cereal knows."""
    for cls in type(value).__mro__:
        file = _FILES.get(cls.__module__.partition(".")[0])
        if file is not None:
            found = importlib.import_module(f".{file}", __package__).recognise(value, owner)
            if found is not None:
                return found
    return None
