from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.core import capture
from cereal.core.capture import (
    Discovered,
    any_traced,
    eager,
    is_concrete,
    is_traced,
    resolve,
    staging,
    substitution,
)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> cereal.DataLoader[Any]:
    """A loader that counts as large."""
    monkeypatch.setattr(capture, "WARN_BYTES", 1_000)
    source = cereal.ArraySampleSource(np.arange(1_000, dtype=np.float32), ordering="sequential")
    return cereal.DataLoader([source, cereal.BatchTransform(4)])


def test_nothing_is_staged_outside_of_jit_and_under_vmap_or_grad() -> None:
    seen = [staging()]

    def look(x: Any) -> Any:
        seen.append(staging())
        return x

    jax.vmap(look)(jnp.zeros(2))
    jax.grad(look)(0.0)
    assert seen == [False, False, False]


def test_programs_are_staged_under_jit_scan_and_eval_shape() -> None:
    seen = []

    def look(x: Any) -> Any:
        seen.append(staging())
        return x

    jax.jit(look)(0.0)
    jax.lax.scan(lambda carry, _: (look(carry), None), 0.0, length=2)
    jax.eval_shape(look, 0.0)
    jax.jit(jax.vmap(look))(jnp.zeros(2))
    assert seen
    assert all(seen)
    assert not staging()


def test_tracers_and_numpy_arrays_are_not_concrete_jax_arrays() -> None:
    assert is_concrete(jnp.zeros(2))
    assert not is_concrete(np.zeros(2))
    assert not is_concrete(3.0)
    jax.jit(lambda x: pytest.fail("concrete") if is_concrete(x) else x)(0.0)


def test_what_jit_vmap_and_grad_pass_is_traced_and_arrays_are_not() -> None:
    seen = []

    def look(x: Any) -> Any:
        seen.append((is_traced(x), any_traced({"a": np.zeros(2), "b": x})))
        return x

    jax.jit(look)(0.0)
    jax.vmap(look)(jnp.zeros(2))
    jax.grad(look)(0.0)
    assert seen == [(True, True)] * 3
    assert not any(map(is_traced, (jnp.zeros(2), np.zeros(2), 3.0, None, "x")))
    assert not any_traced({"a": np.zeros(2), "b": jnp.zeros(2), "c": None})


def test_a_large_loader_captured_by_jit_warns_once_with_the_line_to_write(
    loader: cereal.DataLoader[Any],
) -> None:
    state = loader.init_state(0)
    message = r"captured by a function under `jax.jit`.*\(loader, state\)`, or write `@cereal.jit`"
    with pytest.warns(cereal.CaptureWarning, match=message):
        jax.jit(loader.next_batch)(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda state: loader.next_batch(state))(state)


def test_a_large_loader_captured_in_a_scan_of_the_user_warns(
    loader: cereal.DataLoader[Any],
) -> None:
    def body(state: Any, _: None) -> Any:
        batch, state, mask = loader.next_batch(state)
        return state, (batch * mask).sum()

    with pytest.warns(cereal.CaptureWarning, match="is captured by a function under `jax.jit`"):
        jax.lax.scan(body, loader.init_state(0), length=2)


def test_the_warning_points_at_the_line_of_the_user(loader: cereal.DataLoader[Any]) -> None:
    def step(state: Any) -> Any:
        return loader.next_batch(state)[1]

    with pytest.warns(cereal.CaptureWarning, match="captured") as caught:
        jax.jit(step)(loader.init_state(0))
    assert caught[0].filename == __file__


def test_nothing_warns_where_nothing_is_captured(loader: cereal.DataLoader[Any]) -> None:
    state = loader.init_state(0)
    loader.next_batch(state)
    next(loader.iterate(state))
    loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, None), steps=2)
    jax.jit(lambda loader, state: loader.next_batch(state))(loader, state)
    jax.vmap(loader.next_batch)(jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 2)))
    cereal.jit(loader.next_batch)(state)


def test_small_loaders_may_be_captured() -> None:
    loader = cereal.DataLoader(cereal.ArraySampleSource(np.arange(10)))
    jax.jit(loader.next_batch)(loader.init_state(0))


def test_substitution_replaces_known_arrays_and_ends_a_trace_that_meets_others() -> None:
    known, other = jnp.arange(3), jnp.arange(4)

    def fn(tracer: Any) -> Any:
        with substitution([known], [tracer]):
            assert resolve({"a": known})["a"] is tracer
            with pytest.raises(Discovered, match="a new captured loader") as found:
                resolve({"a": known, "b": other, "c": other})
            assert [a is other for a in found.value.arrays] == [True]
        assert resolve({"a": known})["a"] is known
        return tracer

    jax.jit(fn)(jnp.arange(3))


def test_nothing_is_traced_only_outside_of_all_transformations_on_any_thread() -> None:
    """The bet on JAX's trace state: if this fails, `eager` must find out in another way."""
    seen: list[bool] = []

    def look(x: Any) -> Any:
        seen.append(eager())
        return x

    jax.jit(look)(0.0)
    jax.grad(look)(0.0)
    jax.vmap(look)(jnp.zeros(2))
    assert seen == [False, False, False]
    seen.clear()
    look(0.0)
    thread = threading.Thread(target=look, args=(0.0,))
    thread.start()
    thread.join()
    with jax.disable_jit():
        look(0.0)

    def within(x: Any) -> Any:
        thread = threading.Thread(target=look, args=(0.0,))
        thread.start()
        thread.join()
        return x

    jax.jit(within)(0.0)
    assert seen == [True, True, True, True]


FIRST_IMPORT = """
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    import cereal
    loader = cereal.DataLoader([cereal.RangeSource(8), cereal.BatchTransform(4)])
    return x + loader.next_batch(loader.init_state(0))[0]

assert step(1).tolist() == [1, 2, 3, 4]
from cereal import BatchTransform, DataLoader, DiskSampleSource, RangeSource, evaluate
from cereal.core import capture
assert capture.eager() and not capture.staging()
for source in (RangeSource(8), DiskSampleSource(8, lambda i: i, ordering="sequential")):
    loader = DataLoader([source, BatchTransform(4)])
    state = loader.init_state(0)
    assert [b.tolist() for b, _ in loader.iterate(state)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert float(evaluate(loader, lambda b: b * 1.0)) == 3.5
    assert int(loader.scan_epoch(state, 0, lambda c, b, m: (c + b.sum(), None))[1]) == 28
"""


@pytest.mark.slow
def test_cereal_may_be_imported_for_the_first_time_in_a_function_that_is_being_traced() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_IMPORT], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
