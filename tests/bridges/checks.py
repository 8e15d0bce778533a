"""What every bridge is asked: the right values, by every road that a user would take."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from cereal import BatchTransform, DataLoader

N, BATCH = 10, 4
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 5, 6), np.uint8)
LABELS = np.arange(N, dtype=np.int32)


def rows(loader: DataLoader[Any], state: Any = None, epochs: int = 1) -> Any:
    """All that an iteration gives, without padding, stacked."""
    parts, state = [], loader.init_state(0) if state is None else state
    for batch, mask in loader.iterate(state, epochs=epochs):
        parts.append(jax.tree.map(lambda x, mask=mask: np.asarray(x)[np.asarray(mask)], batch))
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def equal(found: Any, wanted: Any) -> None:
    """The same tree, of the same shapes, dtypes and values."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), b)


def part(wanted: Any, begin: int, end: int | None = None) -> Any:
    return jax.tree.map(lambda x: x[begin:end], wanted)


def loader_of(first: Any, workers: int | None = 2) -> DataLoader[Any]:
    return DataLoader([first, BatchTransform(BATCH, pad_last_batch=True)], workers=workers)


def check_values(first: Any, wanted: Any) -> None:
    """The elements in their order, read by the caller and by threads."""
    for workers in (0, 2):
        with loader_of(first, workers) as loader:
            equal(rows(loader), wanted)
            equal(rows(loader), wanted)  # a second iteration begins at the beginning


def check_resume(make: Any, wanted: Any) -> None:
    """After a batch, a new loader over new data gives the rest; then comes a whole epoch."""
    with loader_of(make()) as loader:
        batches = loader.iterate(epochs=2)
        next(batches)
        state = batches.state
        batches.close()
    with loader_of(make()) as loader:
        equal(rows(loader, state), part(wanted, BATCH))
        both = jax.tree.map(lambda x: np.concatenate([x[BATCH:], x]), wanted)
        equal(rows(loader, state, epochs=2), both)


def check_in_jit(first: Any, wanted: Any) -> None:
    """`next_batch` in the user's own compiled function."""
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    with loader_of(first) as loader:
        state = loader.init_state(0)
        for begin in (0, BATCH):
            batch, state, mask = step(loader, state)
            assert np.asarray(mask).all()
            equal(batch, part(wanted, begin, begin + BATCH))


def check_shuffled(source: Any, wanted: Any, label: Any) -> None:
    """Each element once in every epoch, in orders that differ; `label(tree)` numbers the rows."""
    orders = []
    with loader_of(source) as loader:
        for key in (0, 1):
            found = rows(loader, loader.init_state(key))
            order = label(found)
            assert sorted(order.tolist()) == list(range(N))
            equal(found, jax.tree.map(lambda x, order=order: x[order], wanted))
            orders.append(order.tolist())
    assert orders[0] != orders[1]
    assert list(range(N)) not in orders


def loaded(module: str, element: Any) -> Any:
    """For a host stage: whether the process that runs it has imported a module."""
    return {"loaded": module in sys.modules, "label": element["label"]}
