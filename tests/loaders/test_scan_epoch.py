"""`scan_epoch` is `next_batch` in a `lax.scan`, compiled once per body."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    HostCallbackTransform,
    RandomMapTransform,
    RangeSource,
)
from cereal.loaders.scan import epoch_scan
from cereal.testing import assert_same

pytestmark = pytest.mark.optimized

Body = Callable[[Any, Any, Any], tuple[Any, Any]]


def collect(count: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return count + 1, (batch, mask)


def make_loader(n: int = 26, batch: int = 4, **rule: Any) -> DataLoader[Any]:
    return DataLoader([RangeSource(n, ordering="shuffle"), BatchTransform(batch, **rule)])


def stacked(loader: DataLoader[Any], key: Any, steps: int) -> Any:
    pairs = list(loader.iterate(loader.init_state(key), steps=steps))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *pairs)


class Counted:
    """A body that counts how often it is traced."""

    def __init__(self, body: Body = collect) -> None:
        self.traces, self.body = 0, body

    def __call__(self, carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        self.traces += 1
        return self.body(carry, batch, mask)


# What it runs


@pytest.mark.parametrize("rule", [{}, {"pad_last_batch": True}, {"drop_last": True}])
@pytest.mark.parametrize("steps", [None, 1, 20])
def test_it_sees_what_iterate_gives(rule: dict[str, Any], steps: int | None) -> None:
    loader = make_loader(**rule)
    state, count, outputs = loader.scan_epoch(loader.init_state(3), 0, collect, steps=steps)
    ran = loader.steps_per_epoch if steps is None else steps
    assert int(count) == ran
    assert_same(outputs, stacked(loader, 3, ran), "scan_epoch")
    assert_same(state, loader.state_at(3, ran), "the state after it")


def test_it_runs_an_epoch_of_steps_from_the_middle_too() -> None:
    loader = make_loader(pad_last_batch=True)
    state, count, _ = loader.scan_epoch(loader.state_at(0, 5), 0, collect)
    assert int(count) == 7
    assert_same(state, loader.state_at(0, 12), "the state")


def test_no_steps_change_nothing() -> None:
    loader = make_loader()
    state, carry, outputs = loader.scan_epoch(loader.init_state(0), 5, collect, steps=0)
    assert_same(state, loader.init_state(0), "the state")
    assert int(carry) == 5
    assert outputs[0].shape == (0, 4)


@pytest.mark.parametrize("unroll", [1, 3, 100, True])
def test_unrolling_changes_nothing(unroll: int | bool) -> None:
    loader = make_loader()
    outputs = loader.scan_epoch(loader.init_state(1), 0, collect, unroll=unroll)[2]
    assert_same(outputs, stacked(loader, 1, 7), f"unroll={unroll}")


@pytest.mark.parametrize("rule", [{}, {"pad_last_batch": True}])
@pytest.mark.parametrize(
    ("most_lanes", "steps", "chunk"),
    [(8, 12, 2), (36, 13, 9), (1, 6, 1), (24, 12, 6), (1 << 22, 13, 13)],
)
def test_the_order_may_be_made_in_chunks(
    most_lanes: int, steps: int, chunk: int, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_scan, "_MOST_LANES", most_lanes)
    assert epoch_scan.chunk_steps(steps, max(1, most_lanes // 4)) == chunk
    loader = make_loader(**rule)
    state, count, outputs = loader.scan_epoch(loader.init_state(2), 0, collect, steps=steps)
    assert int(count) == steps
    assert_same(outputs, stacked(loader, 2, steps), f"in chunks of {chunk}")
    assert_same(state, loader.state_at(2, steps), "the state")


def test_outputs_may_be_none_also_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        return total + jnp.where(mask, batch, 0).sum(), None

    loader = make_loader(pad_last_batch=True)
    for lanes in (1 << 22, 20):
        monkeypatch.setattr(epoch_scan, "_MOST_LANES", lanes)
        twin = jax.tree.map(lambda x: x, loader)
        _, total, outputs = twin.scan_epoch(twin.init_state(0), 0, body)
        assert outputs is None
        assert int(total) == sum(range(26))


def test_random_stages_and_callbacks_run_as_in_iterate() -> None:
    seen: list[int] = []

    def watch(batch: Any, mask: Any) -> None:
        del mask
        seen.append(int(batch[0]))

    def add(x: Any, key: Any) -> Any:
        return x + 100 * jax.random.randint(key, (), 0, 9)

    jitter = RandomMapTransform(add)
    random = DataLoader([RangeSource(10), BatchTransform(4), jitter])
    watched = DataLoader([RangeSource(10), BatchTransform(4), jitter, HostCallbackTransform(watch)])
    expected = stacked(random, 0, 3)
    assert_same(random.scan_epoch(random.init_state(0), 0, collect)[2], expected, "random")
    assert_same(watched.scan_epoch(watched.init_state(0), 0, collect)[2], expected, "watched")
    assert seen == expected[0][:, 0].tolist()


# Compilation


def test_in_the_users_jit_it_is_traced_once() -> None:
    loader, body = make_loader(), Counted()

    @jax.jit
    def epoch(loader: DataLoader[Any], state: Any) -> Any:
        return loader.scan_epoch(state, 0, body)

    expected = loader.scan_epoch(loader.init_state(0), 0, collect)
    assert_same(epoch(loader, loader.init_state(0)), expected, "under jit")
    traces = body.traces
    epoch(loader, loader.state_at(1, 3))
    assert body.traces == traces


def test_a_body_may_be_a_method_a_partial_or_a_callable_that_cannot_be_hashed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        scale: jax.Array

        def body(self, total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
            del mask
            return total + self.scale * batch.sum(), None

        def __call__(self, total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
            return self.body(total, batch, mask)

    def scaled(scale: Any, total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        del mask
        return total + scale * batch.sum(), None

    loader = make_loader(24)
    two = Scaled(jnp.float32(2))
    for body in (two, two.body, functools.partial(scaled, 2)):
        _, total, _ = loader.scan_epoch(loader.init_state(0), 0.0, body)
        assert float(total) == 2 * sum(range(24))


# Gradients


def regression() -> DataLoader[Any]:
    data = {"x": np.linspace(-1, 1, 24, dtype=np.float32), "y": np.ones(24, np.float32)}
    return DataLoader([ArraySampleSource(data, "sequential"), BatchTransform(4)])


def by_hand(weight: float) -> float:
    """The sum of squared errors over an epoch, in one expression."""
    x = np.linspace(-1, 1, 24)
    return float(2 * np.sum((weight * x - 1) * x))


def test_gradients_flow_through_the_carry() -> None:
    loader = regression()

    def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        del mask
        weight, loss = carry
        return (weight, loss + jnp.sum((weight * batch["x"] - batch["y"]) ** 2)), None

    def loss(weight: Any) -> Any:
        return loader.scan_epoch(loader.init_state(0), (weight, 0.0), body)[1][1]

    assert jax.grad(loss)(0.5) == pytest.approx(by_hand(0.5), rel=1e-4)
    assert jax.jit(jax.grad(loss))(0.5) == pytest.approx(by_hand(0.5), rel=1e-4)


def closed_over(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    def loss(weight: Any) -> Any:
        def body(loss: Any, batch: Any, mask: Any) -> tuple[Any, None]:
            del mask
            return loss + jnp.sum((weight * batch["x"] - batch["y"]) ** 2), None

        return loader.scan_epoch(loader.init_state(0), 0.0, body)[1]

    return loss


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, cereal.jit])
def test_gradients_flow_through_what_the_body_closes_over(wrap: Any) -> None:
    gradient = wrap(jax.grad(closed_over(regression())))
    for weight in (0.5, 2.0):
        assert gradient(weight) == pytest.approx(by_hand(weight), rel=1e-4)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, cereal.jit])
def test_bodies_that_close_over_tracers_leak_none(wrap: Any) -> None:
    loader = regression()
    with jax.checking_leaks():
        for _ in range(2):
            assert wrap(closed_over(loader))(0.0) == pytest.approx(24.0)
            assert wrap(jax.grad(closed_over(loader)))(0.5) == pytest.approx(by_hand(0.5), rel=1e-4)
            losses = wrap(jax.vmap(closed_over(loader)))(jnp.zeros(3))
            assert losses == pytest.approx([24.0] * 3)


# Bad input


def test_a_body_of_two_arguments_is_refused_with_the_line_to_write() -> None:
    def body(carry: Any, batch: Any) -> tuple[Any, None]:
        del batch
        return carry, None

    loader = make_loader()
    state = loader.init_state(0)
    match = (
        r"called with \(carry, batch, mask\), which `body\(.*\).*` does not take; "
        r"write `def body_fn\(carry, batch, mask\)"
    )
    with pytest.raises(cereal.UsageError, match=match):
        loader.scan_epoch(state, 0, body)  # type: ignore[arg-type]
    with pytest.raises(cereal.UsageError, match=match):
        jax.jit(lambda loader, state: loader.scan_epoch(state, 0, body))(loader, state)


@pytest.mark.parametrize("result", [1, (1, 2, 3), [1, 2]])
def test_a_body_that_returns_no_pair_is_refused(result: Any) -> None:
    loader = make_loader()
    match = rf"must return \(carry, output\), returned {type(result).__name__}; write `def body_fn"
    with pytest.raises(cereal.UsageError, match=match):
        loader.scan_epoch(loader.init_state(0), 0, lambda carry, batch, mask: result)


def test_a_body_that_is_no_function_is_refused() -> None:
    loader = make_loader()
    with pytest.raises(cereal.UsageError, match="`body_fn` must be callable, got int"):
        loader.scan_epoch(loader.init_state(0), 0, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [-1, 1.5, "2"])
def test_wrong_steps_are_refused(steps: Any) -> None:
    loader = make_loader()
    with pytest.raises(cereal.PipelineError, match=f"`steps` must be an integer .* got {steps!r}"):
        loader.scan_epoch(loader.init_state(0), 0, collect, steps=steps)


def test_a_state_of_another_pipeline_is_refused() -> None:
    state = make_loader(5).init_state(0)
    with pytest.raises(cereal.StateError, match="it has length=5, this one has length=26"):
        make_loader().scan_epoch(state, 0, collect)


def test_bodies_over_equal_but_different_objects_are_not_confused() -> None:
    loader = cereal.DataLoader([cereal.RangeSource(8), cereal.BatchTransform(4)])

    def run(weights: Any) -> float:
        def body(carry: Any, batch: Any, mask: Any) -> tuple[Any, None]:
            return carry + (weights[0] * batch).sum(), None

        return float(loader.scan_epoch(loader.init_state(0), 0.0, body)[1])

    assert [run([1.0]), run([2.0]), run([3.0])] == [28.0, 56.0, 84.0]
