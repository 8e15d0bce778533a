"""The ways to run a loader. Each gives the same batches, and ends in the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.fuzz.reference import DifferenceError

import cereal
from cereal.pipeline.positional import Positional

Batch = tuple[dict[str, np.ndarray], np.ndarray]
Run = tuple[list[Batch], Any]


def on_host(batch: Any, mask: Any) -> Batch:
    """Copies: a way that hands out a buffer and writes into it later is found out."""
    return jax.tree.map(lambda x: np.array(x), batch), np.array(mask)


def by_next_batch(loader: Any, state: Any, steps: int, step: Any = None) -> Run:
    found = []
    for _ in range(steps):
        batch, state, mask = (step or loader.next_batch)(state)
        found.append(on_host(batch, mask))
    return found, state


def by_iterate(loader: Any, state: Any, steps: int) -> Run:
    iterator = loader.iterate(state, steps=steps)
    found = [on_host(batch, mask) for batch, mask in iterator]
    return found, iterator.state


def by_epochs(loader: Any, state: Any, steps: int) -> Run:
    """Epoch by epoch, each by an iterator of its own, as a training loop has it."""
    found: list[Batch] = []
    while len(found) < steps:
        iterator = loader.iterate(state)
        for batch, mask in iterator:
            found.append(on_host(batch, mask))
            if len(found) == steps:
                break
        state = iterator.state
        iterator.close()
    return found, state


def by_scan(loader: Any, state: Any, steps: int) -> Run:
    state, count, (batches, masks) = loader.scan_epoch(state, 0, _collect, steps=steps)
    if int(count) != steps:
        raise DifferenceError(f"scan_epoch ran {int(count)} of {steps} steps")
    return _unstacked(batches, masks, steps), state


def _collect(count: Any, batch: Any, mask: Any) -> Any:
    return count + 1, (batch, mask)


def by_scans(loader: Any, state: Any, steps: int) -> Run:
    """Two scans, one after the other."""
    first = max(steps // 3, 1)
    one, state = by_scan(loader, state, first)
    two, state = by_scan(loader, state, steps - first) if steps > first else ([], state)
    return one + two, state


def by_own_jit(loader: Any, state: Any, steps: int) -> Run:
    compiled = jax.jit(lambda loader, state: loader.next_batch(state))
    return by_next_batch(loader, state, steps, lambda state: compiled(loader, state))


def by_own_scan(loader: Any, state: Any, steps: int) -> Run:
    """`scan_epoch` inside the user's own `jit`."""

    @jax.jit
    def run(loader: Any, state: Any) -> Any:
        return loader.scan_epoch(state, 0, _collect, steps=steps)

    state, _, (batches, masks) = run(loader, state)
    return _unstacked(batches, masks, steps), state


def by_captured(loader: Any, state: Any, steps: int) -> Run:
    @cereal.jit
    def step(state: Any) -> Any:
        return loader.next_batch(state)

    return by_next_batch(loader, state, steps, step)


def by_vmap(loader: Any, state: Any, steps: int) -> Run:
    """All steps at once: their states, and `vmap` over them."""
    states = [state]
    for _ in range(steps):
        states.append(loader.next_batch(states[-1])[1])
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states[:-1])
    batches, _, masks = jax.vmap(loader.next_batch)(many)
    return _unstacked(batches, masks, steps), states[-1]


def by_batch_at(loader: Any, state: Any, steps: int) -> Run:
    """Any step at once, here from the last to the first; `state` is the first of a run."""
    key = jax.random.wrap_key_data(jnp.asarray(state.key))
    found = [on_host(*loader.batch_at(key, step)) for step in reversed(range(steps))]
    return found[::-1], loader.state_at(key, steps)


def _unstacked(batches: Any, masks: Any, steps: int) -> list[Batch]:
    return [on_host(jax.tree.map(lambda x, k=k: x[k], batches), masks[k]) for k in range(steps)]


Way = Callable[[Any, Any, int], Run]
ANY: list[Way] = [
    by_iterate,
    by_epochs,
    by_scan,
    by_scans,
    by_own_jit,
    by_own_scan,
    by_captured,
    by_vmap,
]


def ways_for(loader: Any) -> list[Way]:
    """The ways that a pipeline has."""
    return [*ANY, by_batch_at] if isinstance(loader.source, Positional) else ANY


def saved(state: Any) -> Any:
    """A state through host memory, as a checkpoint takes it."""
    return jax.tree.map(lambda x: jnp.asarray(np.array(x)), state)


def compare(one: list[Batch], other: list[Batch], what: str) -> None:
    """Two runs are the same to the bit; floats of images to the last bits."""
    if len(one) != len(other):
        raise DifferenceError(f"{what}: {len(other)} batches, not {len(one)}")
    for step, ((a, mask_a), (b, mask_b)) in enumerate(zip(one, other, strict=True)):
        _same(mask_a, mask_b, f"{what}, step {step}, mask")
        if sorted(a) != sorted(b):
            raise DifferenceError(f"{what}, step {step}: {sorted(b)} is not {sorted(a)}")
        for name in a:
            _same(a[name], b[name], f"{what}, step {step}, {name!r}")


def _same(a: np.ndarray, b: np.ndarray, what: str) -> None:
    if a.dtype != b.dtype or a.shape != b.shape:
        raise DifferenceError(f"{what}: {b.dtype}{list(b.shape)} is not {a.dtype}{list(a.shape)}")
    image = a.dtype == np.float32 and "image" in what
    if not (np.allclose(a, b, atol=1e-6) if image else np.array_equal(a, b)):
        raise DifferenceError(f"{what}: {b.tolist()} is not {a.tolist()}")


def compare_states(one: Any, other: Any, what: str) -> None:
    """Two states are at the same place; bookmarks are hints, and may differ."""
    words = [getattr(state, "words", state) for state in (one, other)]
    for a, b in zip(*map(jax.tree.leaves, words), strict=True):
        _same(np.asarray(a), np.asarray(b), f"the state after {what}")
