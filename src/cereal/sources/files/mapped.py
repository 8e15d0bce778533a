"""A tree of arrays, some of them in files, as the data of sources that Python reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from ...host.host_data import HostData
from ...reading.readers.arrays import Arrays, as_file, digest_of_file
from ..array import leaf_name


class MappedArrays(HostData):
    """Arrays in files stay there; others are copied, so that a user's later writes do no harm."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        self.tree = jax.tree.map(lambda x: x if isinstance(x, np.memmap) else np.array(x), tree)
        paths, _ = jax.tree_util.tree_flatten_with_path(self.tree)
        self.arrays = Arrays([leaf for _, leaf in paths])
        self.names = [leaf_name(path) for path, _ in paths]

    def digest_of(self) -> Any:
        return jax.tree.map(digest_of_file, self.tree)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a file as its name, if it can be mapped again from it; other arrays as values."""
        tree = jax.tree.map(as_file, self.tree)
        return _restored, (type(self), tree, getattr(self, "where", None))


def _restored(cls: Any, tree: Any, where: Any) -> Any:
    made = jax.tree.map(lambda leaf: leaf() if isinstance(leaf, partial) else leaf, tree)
    return cls(made) if where is None else cls(made, where)
