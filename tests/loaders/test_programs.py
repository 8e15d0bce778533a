"""Functions are traced again unless proved unchanged, and compiled once for what they trace to."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations

from cereal import BatchTransform, CacheTransform, DataLoader, RangeSource, evaluate
from cereal.functions.compiled import Latest
from cereal.loaders.scan import programs

Fn = Callable[..., Any]

# Globals that tests bind anew.
WEIGHT: Any = jnp.float32(1)
MIXED: Any = {1: "one", "two": 2, None: 3}

STAGES: list[list[Any]] = [[], [CacheTransform("host")]]
everywhere = pytest.mark.parametrize("stages", STAGES, ids=["compiled", "host"])


@pytest.fixture(autouse=True)
def globals_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WEIGHT", WEIGHT)


def bind_weight(value: Any) -> None:
    globals()["WEIGHT"] = value


def make_loader(stages: list[Any]) -> DataLoader[Any]:
    return DataLoader([RangeSource(6), *stages, BatchTransform(4)])


def scanned(loader: DataLoader[Any], body: Fn) -> Any:
    return loader.scan_epoch(loader.init_state(0), 0.0, body)[1]


# New parameters


@everywhere
def test_evaluate_compiles_once_over_epochs_of_new_parameters(stages: list[Any]) -> None:
    loader = make_loader(stages)
    params = [{"w": jnp.full(3, float(epoch))} for epoch in range(6)]

    def run(params: Any) -> float:
        def metric(batch: Any) -> Any:
            return batch * params["w"][0]

        return float(evaluate(loader, metric))

    assert run(params[0]) == 0
    with compilations() as made:
        assert [run(each) for each in params[1:]] == [2.5 * epoch for epoch in range(1, 6)]
    assert made() == 0


@everywhere
def test_old_parameters_are_freed(stages: list[Any]) -> None:
    loader, alive = make_loader(stages), []

    def run(weight: Any) -> Any:
        alive.append(weakref.ref(weight))
        return evaluate(loader, lambda batch: batch * weight[0])

    assert [float(run(jnp.full(3, float(epoch)))) for epoch in range(3)] == [0, 2.5, 5]
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def test_evaluate_sees_parameters_in_a_global_that_is_bound_anew() -> None:
    loader = make_loader([])

    def metric(batch: Any) -> Any:
        return batch * WEIGHT

    for epoch in range(3):
        bind_weight(jnp.float32(epoch))
        assert evaluate(loader, metric) == 2.5 * epoch


def test_evaluate_sees_parameters_that_a_helper_closes_over() -> None:
    loader = make_loader([])

    def run(weight: Any) -> Any:
        def model(batch: Any) -> Any:
            return batch * weight

        return evaluate(loader, lambda batch: model(batch))

    assert [float(run(jnp.float32(epoch))) for epoch in range(3)] == [0, 2.5, 5]


def test_evaluate_takes_new_shapes_and_dtypes_of_parameters() -> None:
    loader = make_loader([])

    def run(weight: Any) -> Any:
        return evaluate(loader, lambda batch: batch * weight.sum())

    weights = [jnp.ones(2), jnp.ones(3), jnp.ones(3, jnp.int32), jnp.ones((2, 2))]
    assert [float(run(weight)) for weight in weights] == [5, 7.5, 7.5, 10]


@everywhere
def test_scan_epoch_sees_a_global_array_that_is_bound_anew(stages: list[Any]) -> None:
    loader = make_loader(stages)

    def body(total: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        return total + (batch * WEIGHT).sum(), None

    for epoch in range(3):
        bind_weight(jnp.float32(epoch))
        assert scanned(loader, body) == (15 + 1) * epoch


# Things that are changed in place


class Trainer:
    """Keeps its parameters, as many programs do."""

    weight: Any = None

    def metric(self, batch: Any) -> Any:
        return batch * self.weight


class Changing:
    """Metrics over things that are changed between epochs, written anew in every epoch."""

    def __init__(self) -> None:
        self.trainer, self.buffer = Trainer(), np.zeros(1, np.float32)
        self.module = types.ModuleType("settings")

    def change(self, weight: float) -> None:
        self.trainer.weight = jnp.float32(weight)
        self.buffer[0] = weight
        self.module.__dict__["weight"] = weight

    def metric(self, kind: str) -> Fn:
        trainer, buffer, module = self.trainer, self.buffer, self.module
        metrics: dict[str, Fn] = {
            "an object": lambda batch: batch * trainer.weight,
            "a method": trainer.metric,
            "a NumPy array": lambda batch: batch * buffer[0],
            "a module": lambda batch: batch * module.weight,
        }
        return metrics[kind]


KINDS = ["an object", "a method", "a NumPy array", "a module"]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_sees_what_was_changed_in_place(kind: str) -> None:
    loader, changing = make_loader([]), Changing()
    for weight in (1.0, 2.0):
        changing.change(weight)
        assert evaluate(loader, changing.metric(kind)) == 2.5 * weight


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_written_anew_sees_what_was_changed_in_place(kind: str) -> None:
    loader, changing = make_loader([]), Changing()
    for weight in (1.0, 2.0):
        changing.change(weight)
        metric = changing.metric(kind)
        assert (
            scanned(loader, lambda c, b, m, metric=metric: (c + metric(b)[0], None)) == 4 * weight
        )


# One program for one function


def test_bodies_over_other_numbers_are_other_programs() -> None:
    loader = make_loader([])

    def times(number: Any) -> Fn:
        return lambda total, batch, mask: (total + batch.sum() * number, None)

    for number in (1, 2, 1.5, True, 2):
        assert scanned(loader, times(number)) == 16 * number


def test_chains_of_functions_run_as_they_are() -> None:
    def chain(a: Fn, b: Fn, c: Fn) -> Fn:
        return lambda total, batch, mask: (total + a(b(c(batch)))[0], None)

    def add(x: Any) -> Any:
        return x + 1

    def double(x: Any) -> Any:
        return x * 2

    loader = make_loader([])
    assert scanned(loader, chain(add, double, add)) == (2 * 1 + 1) + (2 * 5 + 1)
    assert scanned(loader, chain(add, double, double)) == (4 * 0 + 1) + (4 * 4 + 1)


def test_a_global_dict_of_mixed_keys_may_be_used() -> None:
    loader = make_loader([])
    assert evaluate(loader, lambda batch: batch * MIXED["two"]) == 5
    assert scanned(loader, lambda total, b, m: (total + b.sum() * MIXED[None], None)) == 16 * 3


def test_the_latest_programs_are_kept_and_the_oldest_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Latest, "most", 4)
    loader = make_loader([])

    def times(number: int) -> Fn:
        return lambda total, batch, mask: (total + batch.sum() * number, None)

    def compiled_for(number: int) -> int:
        with compilations() as made:
            assert scanned(loader, times(number)) == 16 * number
        return made()

    programs.forget_programs()
    assert all(compiled_for(number) > 0 for number in range(Latest.most + 1))
    assert compiled_for(Latest.most) == 0
    assert compiled_for(0) > 0


class Thing:
    """An object that can be watched."""

    number = 1


def test_programs_go_with_their_loader() -> None:
    loader, thing = make_loader([]), Thing()
    gone = weakref.ref(thing)
    evaluate(loader, lambda batch, thing=thing: batch + thing.number)
    scanned(loader, lambda total, batch, mask, thing=thing: (total + thing.number, None))
    del loader, thing
    gc.collect()
    assert gone() is None


def test_functions_that_a_loop_makes_are_not_kept() -> None:
    loader = DataLoader([RangeSource(4), BatchTransform(2)])
    made: list[weakref.ref[Any]] = []
    for _ in range(3 * Latest.most):
        fn: Any = lambda c, b, m: (c + b.sum(), None)  # noqa: E731
        made.append(weakref.ref(fn))
        loader.scan_epoch(loader.init_state(0), 0, fn)
    gc.collect()
    assert sum(ref() is not None for ref in made) <= 2 * Latest.most
