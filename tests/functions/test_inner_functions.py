"""What JAX traces inside of a trace, and would keep, is as it is now too."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.compilations import compilations

from cereal import ArraySampleSource, BatchTransform, DataLoader, MapTransform
from cereal.functions.meaning import trace

RATE: Any = 1.0


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RATE", 1.0)


def rebind(value: Any) -> None:
    globals()["RATE"] = value


def added(carry: Any) -> Any:
    return carry + RATE


def step(carry: Any, x: Any) -> Any:
    return carry + RATE, x


def counted(loop: Any) -> Any:
    return loop[0] + 1, added(loop[1])


def once(loop: Any) -> Any:
    return loop[0] < 1


remembered = jax.checkpoint(added)

BODIES: dict[str, Any] = {
    "scan": lambda c, b, m: (lax.scan(step, c, b[:1])[0], None),
    "cond": lambda c, b, m: (lax.cond(m[0], added, added, c), None),
    "switch": lambda c, b, m: (lax.switch(0, [added, added], c), None),
    "while": lambda c, b, m: (lax.while_loop(once, counted, (0, c))[1], None),
    "fori": lambda c, b, m: (lax.fori_loop(0, 1, lambda i, c: added(c), c), None),
    "checkpoint": lambda c, b, m: (remembered(c), None),
    "a scan in a scan": lambda c, b, m: (
        lax.scan(lambda c, x: (lax.scan(step, c, b[:1])[0], x), c, b[:1])[0],
        None,
    ),
    "a gradient": lambda c, b, m: (
        c + jax.grad(lambda x: lax.scan(scaled, x, b[:1])[0])(1.0),
        None,
    ),
}


def scaled(carry: Any, x: Any) -> Any:
    return carry * RATE, x


@pytest.mark.parametrize("name", BODIES)
def test_an_inner_function_does_what_it_refers_to_now(name: str) -> None:
    source = ArraySampleSource(np.ones(4, np.float32), ordering="sequential")
    loader = DataLoader([source, BatchTransform(2)])
    for rate in (1.0, 10.0, 1.0):
        rebind(rate)
        ended = loader.scan_epoch(loader.init_state(0), jnp.float32(0), BODIES[name])[1]
        assert float(ended) == 2 * rate


def test_so_does_one_in_a_stage() -> None:
    source = ArraySampleSource(np.zeros(2, np.float32), ordering="sequential")
    stage = MapTransform(lambda batch: lax.cond(True, added, added, batch))
    loader = DataLoader([source, BatchTransform(2), stage])
    for rate in (1.0, 10.0):
        rebind(rate)
        assert loader.next_batch(loader.init_state(0))[0].tolist() == [rate] * 2


def test_bodies_with_inner_functions_are_compiled_once() -> None:
    source = ArraySampleSource(np.ones(4, np.float32), ordering="sequential")
    loader = DataLoader([source, BatchTransform(2)])
    history: list[Any] = []

    def epoch() -> None:
        def body(carry: Any, batch: Any, mask: Any) -> Any:
            return lax.scan(step, carry + len(history) * 0, batch)[0], None

        history.append(loader.scan_epoch(loader.init_state(0), jnp.float32(0), body)[1])

    epoch()
    with compilations() as made:
        for _ in range(5):
            epoch()
    assert made() == 0


def test_arrays_of_inner_functions_are_not_kept() -> None:
    def fn(x: Any) -> Any:
        return lax.scan(step, x, jnp.zeros(2))[0]

    sizes = []
    for _ in range(6):
        rebind(jnp.full((1000,), 2.0))
        trace(fn, jnp.zeros(1000))
        gc.collect()
        sizes.append(sum(x.shape == (1000,) for x in jax.live_arrays()))
    assert sizes[-1] == sizes[1]
