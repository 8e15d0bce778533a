"""Captured datasets: what warns, and what `cereal.jit` does about them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import ArraySampleSource, BatchTransform, CaptureWarning, DataLoader
from cereal.base import capture
from cereal.testing import assert_same

Loader = DataLoader[Any]
LARGE = 2**16


def make_loader(n: int = 10, batch: int = 4, scale: float = 1.0) -> Loader:
    source = ArraySampleSource(scale * np.arange(n, dtype=np.float32), ordering="sequential")
    return DataLoader([source, BatchTransform(batch)])


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "WARN_BYTES", LARGE)


@pytest.fixture
def large(low_limit: None) -> Loader:
    return make_loader(LARGE // 4)


def count(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
    del mask
    return total + batch.sum(), None


# The warning

CAPTURING: dict[str, Callable[[Loader, Any], Any]] = {
    "next_batch": lambda loader, state: jax.jit(loader.next_batch)(state),
    "scan_epoch": lambda loader, state: jax.jit(lambda s: loader.scan_epoch(s, 0.0, count))(state),
    "source.next": lambda loader, state: jax.jit(lambda s: loader.source.next(s))(state),
    "cereal.jit inside": lambda loader, state: jax.jit(cereal.jit(lambda s: loader.next_batch(s)))(
        state
    ),
}


@pytest.mark.parametrize("use", CAPTURING)
def test_a_large_captured_loader_warns_once_with_the_line_to_write(use: str, large: Loader) -> None:
    match = r"(?s)captured by .*`jax\.jit`.*loader\.next_batch\(state\).*write `@cereal\.jit`"
    with pytest.warns(CaptureWarning, match=match) as caught:
        CAPTURING[use](large, large.init_state(0))
    assert [warning.filename for warning in caught] == [__file__]
    CAPTURING[use](large, large.state_at(0, 2))  # a second warning would be an error
    jax.jit(lambda state: large.next_batch(state))(large.init_state(0))


def test_each_large_dataset_warns(large: Loader) -> None:
    for loader in (large, make_loader(LARGE // 4)):
        with pytest.warns(CaptureWarning, match="captured"):
            jax.jit(loader.next_batch)(loader.init_state(0))


def test_the_limit_is_64_megabytes() -> None:
    assert capture.WARN_BYTES == 64 * 2**20


# Warnings are errors here, so these need no assertion.


def test_a_small_captured_loader_does_not_warn(low_limit: None) -> None:
    loader = make_loader(LARGE // 8)
    jax.jit(loader.next_batch)(loader.init_state(0))


def test_a_passed_loader_does_not_warn(large: Loader) -> None:
    jax.jit(lambda loader, state: loader.next_batch(state))(large, large.init_state(0))
    jax.jit(lambda loader, state: loader.scan_epoch(state, 0.0, count))(large, large.init_state(0))


def test_a_loader_used_outside_of_jit_does_not_warn(large: Loader) -> None:
    large.next_batch(large.init_state(0))
    large.scan_epoch(large.init_state(0), 0.0, count, steps=3)
    list(large.iterate(large.init_state(0), steps=3))
    jax.grad(lambda w: (w * large.next_batch(large.init_state(0))[0]).sum())(1.0)


def test_vmap_outside_of_jit_does_not_warn(large: Loader) -> None:
    states = jax.vmap(large.init_state)(jax.random.split(jax.random.key(0), 2))
    jax.vmap(large.next_batch)(states)


def test_cereal_jit_does_not_warn(large: Loader) -> None:
    @cereal.jit
    def step(state: Any) -> Any:
        return large.next_batch(state), large.scan_epoch(state, 0.0, count)

    step(large.init_state(0))
    cereal.jit(jax.grad(lambda w, s: (w * large.next_batch(s)[0]).sum()))(1.0, large.init_state(0))


# cereal.jit gives what jax.jit gives


@pytest.fixture
def loader() -> Loader:
    return make_loader()


def test_results_are_those_of_jax_jit(loader: Loader) -> None:
    def step(state: Any, scale: Any) -> Any:
        batch, state, mask = loader.next_batch(state)
        return scale * batch, state, mask

    ours, theirs = cereal.jit(step), jax.jit(step)
    for number in range(4):
        state = loader.state_at(0, number)
        assert_same(ours(state, 2.0), theirs(state, 2.0), f"step {number}")
        assert_same(ours(state, scale=2.0), theirs(state, 2.0), f"step {number}, by keyword")


def test_it_is_traced_once_per_shape(loader: Loader) -> None:
    shapes = []

    @cereal.jit
    def step(state: Any, x: Any) -> Any:
        batch, state, _ = loader.next_batch(state)
        shapes.append(x.shape)
        return batch.sum() + x.sum(), state

    state = loader.init_state(0)
    for size in (3, 3, 5, 3, 5):
        total, state = step(state, jnp.ones(size))
        assert total.shape == ()
    assert shapes == [(3,), (5,)]


def test_static_arguments(loader: Loader) -> None:
    @cereal.jit(static_argnums=1)
    def by_number(state: Any, steps: int) -> Any:
        assert isinstance(steps, int)
        return loader.scan_epoch(state, 0.0, count, steps=steps)[1]

    @cereal.jit(static_argnames=("steps",))
    def by_name(state: Any, *, steps: int) -> Any:
        assert isinstance(steps, int)
        return loader.scan_epoch(state, 0.0, count, steps=steps)[1]

    state = loader.init_state(0)
    assert float(by_number(state, 2)) == float(by_name(state, steps=2)) == sum(range(8))
    assert float(by_number(state, 1)) == float(by_name(state, steps=1)) == sum(range(4))


def test_donated_arguments_are_donated_and_the_dataset_is_not(loader: Loader) -> None:
    @partial(cereal.jit, donate_argnums=(0, 1))
    def step(weight: Any, state: Any) -> Any:
        batch, state, _ = loader.next_batch(state)
        return weight + batch, state

    weight, state = jnp.zeros(4), loader.init_state(0)
    for _ in range(3):
        before = weight
        weight, state = step(weight, state)
        assert before.is_deleted()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(loader))
    assert weight.tolist() == [12.0, 15.0, 8.0, 11.0]


def test_it_works_in_grad_and_vmap_and_around_them(loader: Loader) -> None:
    def loss(weight: Any, state: Any) -> Any:
        return (weight * loader.next_batch(state)[0]).sum()

    state = loader.init_state(0)
    for gradient in (jax.grad(cereal.jit(loss)), cereal.jit(jax.grad(loss))):
        assert float(gradient(2.0, state)) == 6.0
    states = jax.tree.map(lambda *x: jnp.stack(x), state, loader.state_at(0, 1))
    for mapped in (jax.vmap(cereal.jit(loss), (None, 0)), cereal.jit(jax.vmap(loss, (None, 0)))):
        assert mapped(2.0, states).tolist() == [12.0, 44.0]


def test_it_nests(loader: Loader) -> None:
    other = make_loader(scale=10.0)
    inner = cereal.jit(lambda state: loader.next_batch(state)[0].sum())

    @cereal.jit
    def outer(state: Any) -> Any:
        return inner(state), other.next_batch(state)[0].sum(), loader.next_batch(state)[0].sum()

    for number, total in enumerate((6.0, 22.0)):
        state = loader.state_at(0, number)
        assert [float(x) for x in outer(state)] == [total, 10 * total, total]
        assert float(inner(state)) == total


def test_it_is_a_decorator_for_functions_and_methods(loader: Loader) -> None:
    @cereal.pytree_dataclass
    class Model:
        weight: jax.Array

        @cereal.jit
        def loss(self, state: Any) -> Any:
            """The loss."""
            return (self.weight * loader.next_batch(state)[0]).sum()

        @cereal.jit(static_argnames="power")
        def power(self, state: Any, power: int) -> Any:
            return (loader.next_batch(state)[0] ** power).sum()

    model = Model(jnp.float32(2))
    assert float(model.loss(loader.init_state(0))) == 12.0
    assert float(model.power(loader.init_state(0), power=2)) == 14.0
    assert Model.loss.__name__ == "loss"
    assert Model.loss.__doc__ == "The loss."


def test_it_leaves_functions_without_loaders_alone() -> None:
    assert float(cereal.jit(lambda x: x + 1)(1.0)) == 2.0


def test_errors_of_the_function_come_through_and_it_works_afterwards(loader: Loader) -> None:
    broken = [True]

    @cereal.jit
    def step(state: Any) -> Any:
        batch = loader.next_batch(state)[0]
        if broken[0]:
            raise KeyError("broken")
        return batch.sum()

    with pytest.raises(KeyError, match="broken"):
        step(loader.init_state(0))
    broken[0] = False
    assert float(step(loader.init_state(0))) == 6.0
    assert not capture._stack.frames


def test_a_broad_except_does_not_swallow_the_discovery(loader: Loader) -> None:
    @cereal.jit
    def step(state: Any) -> Any:
        try:
            return loader.next_batch(state)[0].sum()
        except Exception:
            return jnp.float32(-1)

    assert float(step(loader.init_state(0))) == 6.0


# Helpers that are jitted elsewhere


def test_jitted_helpers_are_not_stale_in_other_programs(loader: Loader) -> None:
    @jax.jit
    def helper(state: Any, x: Any) -> Any:
        return loader.next_batch(state)[0].sum() + x.sum()

    one = cereal.jit(lambda state, x: helper(state, x) * 2)
    two = cereal.jit(lambda state, x: helper(state, x) * 3 + loader.next_batch(state)[0].sum())
    state = loader.init_state(0)
    for _ in range(2):
        for size in (2, 3):
            x = jnp.ones(size)
            assert float(one(state, x)) == 2 * (6 + size)
            assert float(helper(state, x)) == 6 + size
            assert float(two(state, x)) == 3 * (6 + size) + 6
            assert float(jax.jit(one)(state, x)) == 2 * (6 + size)
            assert float(jax.grad(lambda x: one(state, x))(x)[0]) == 2.0


def test_a_helper_first_met_by_jax_jit_is_not_stale_either(loader: Loader) -> None:
    helper = jax.jit(lambda state: loader.next_batch(state)[0].sum())
    state = loader.init_state(0)
    assert float(jax.jit(lambda state: helper(state) + 1)(state)) == 7.0
    step = cereal.jit(lambda state: helper(state) + 2)
    assert float(step(state)) == 8.0
    assert len(step._arrays) == 1  # type: ignore[attr-defined]


def test_no_tracers_leak(loader: Loader) -> None:
    def loss(weight: Any, state: Any) -> Any:
        return (weight * loader.next_batch(state)[0]).sum()

    with jax.checking_leaks():
        for size in (1, 2):
            weight, state = jnp.ones((size, 1)), loader.init_state(0)
            assert float(cereal.jit(loss)(weight, state)) == 6.0 * size
            assert cereal.jit(jax.grad(loss))(weight, state).shape == (size, 1)
            cereal.jit(jax.vmap(loss, (0, None)))(weight, state)
            cereal.jit(lambda s: loader.scan_epoch(s, 0.0, count))(state)


def test_two_loaders_of_one_shape_are_not_confused() -> None:
    first, second = make_loader(scale=1.0), make_loader(scale=100.0)

    @jax.jit
    def read(loader: Loader, state: Any) -> Any:
        return loader.next_batch(state)[0].sum()

    @cereal.jit
    def both(state: Any) -> Any:
        return read(first, state), read(second, state), first.next_batch(state)[0].sum()

    assert [float(x) for x in both(first.init_state(0))] == [6.0, 600.0, 6.0]


def test_a_captured_and_a_passed_loader_in_one_call(loader: Loader) -> None:
    @cereal.jit
    def both(passed: Loader, state: Any) -> Any:
        return passed.next_batch(state)[0].sum(), loader.next_batch(state)[0].sum()

    for passed, total in ((loader, 6.0), (make_loader(scale=10.0), 60.0)):
        assert [float(x) for x in both(passed, loader.init_state(0))] == [total, 6.0]


def test_a_loader_that_only_a_later_trace_meets(loader: Loader) -> None:
    second = make_loader(scale=10.0)

    @cereal.jit
    def step(state: Any, x: Any) -> Any:
        chosen = loader if x.ndim == 0 else second
        return chosen.next_batch(state)[0].sum()

    state = loader.init_state(0)
    for _ in range(2):
        assert float(step(state, jnp.ones(()))) == 6.0
        assert float(step(state, jnp.ones(1))) == 60.0


# Threads


def test_eight_threads_may_make_the_first_call(loader: Loader) -> None:
    other = make_loader(scale=10.0)
    together = threading.Barrier(8)

    @cereal.jit
    def step(state: Any) -> Any:
        return loader.next_batch(state)[0].sum() + other.next_batch(state)[0].sum()

    def run(number: int) -> float:
        state = loader.state_at(0, number % 2)
        together.wait()
        return float(step(state))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [66.0, 242.0] * 4


# Nothing is written into the program


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        yield


def test_the_program_holds_no_dataset(quiet: None) -> None:
    loader = make_loader(250_000)
    state = loader.init_state(0)
    ours = cereal.jit(loader.next_batch).lower(state).as_text()  # type: ignore[attr-defined]
    theirs = jax.jit(loader.next_batch).lower(state).as_text()
    assert len(ours) < 30_000
    assert "tensor<250000xf32>" in ours
    assert len(theirs) > 1_000_000


def test_captured_arrays_are_not_copied() -> None:
    loader = make_loader(12_345)
    (data,) = jax.tree.leaves(loader)
    step = cereal.jit(lambda state: loader.next_batch(state))

    def copies() -> int:
        return sum(array.shape == data.shape for array in jax.live_arrays())

    before = copies()
    step(loader.init_state(0))
    assert copies() == before
    assert [array is data for array in step._arrays] == [True]  # type: ignore[attr-defined]
