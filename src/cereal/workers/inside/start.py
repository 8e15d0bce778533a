"""The script that a worker process runs: `python start.py SOCKET LIFE MEMORY`, three descriptors.

It lets the files of cereal be imported without running `cereal/__init__.py`, which imports JAX. If
a function of the user needs cereal itself, the package is run then.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """The package cereal; its `__init__.py` runs when a name of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def package_without_jax(folder: Path) -> ModuleType:
    """A module `cereal` that has the folder's files as its parts, and has not been run."""
    where = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "cereal", where, submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Package
    return package


if __name__ == "__main__":
    sys.modules["cereal"] = package_without_jax(Path(__file__).resolve().parents[2])
    from cereal.workers.inside.serve import serve

    serve(*map(int, sys.argv[1:]))
