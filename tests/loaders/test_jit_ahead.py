"""`cereal.jit` ahead of time: trace, lower, compile, and the shapes alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal import ArraySampleSource, BatchTransform, DataLoader

DATA = np.arange(20, dtype=np.float32)


@pytest.fixture
def loader() -> DataLoader[Any]:
    return DataLoader([ArraySampleSource(DATA, ordering="sequential"), BatchTransform(4)])


def test_what_was_lowered_and_compiled_is_called_as_the_function(loader: Any) -> None:
    compiled: Any = cereal.jit(lambda state: loader.next_batch(state))
    state = loader.init_state(0)
    ahead = compiled.lower(state).compile()
    for step in range(6):
        batch, state, mask = ahead(state)
        assert batch.tolist() == DATA.take(range(4 * step, 4 * step + 4), mode="wrap").tolist()
        assert mask.all()


def test_options_and_keywords_go_through(loader: Any) -> None:
    def scaled(state: Any, factor: Any, times: int) -> Any:
        return loader.next_batch(state)[0] * factor * times

    compiled: Any = cereal.jit(scaled, static_argnames="times")
    state = loader.init_state(0)
    ahead = compiled.lower(state, factor=2.0, times=3).compile()
    assert ahead(state, factor=2.0).tolist() == (6 * DATA[:4]).tolist()
    with pytest.raises(TypeError, match="input pytree"):
        ahead(state)


def test_the_stages_on_the_way_are_those_of_jax(loader: Any) -> None:
    compiled: Any = cereal.jit(lambda state: loader.next_batch(state)[0])
    state = loader.init_state(0)
    traced = compiled.trace(state)
    arrays = [v.aval.shape for v in traced.jaxpr.jaxpr.invars]
    assert sorted(arrays) == [(5,), (20,)]
    lowered = traced.lower()
    assert "func" in lowered.as_text()
    assert lowered.out_info.shape == (4,)
    ahead = lowered.compile()
    assert ahead(state).tolist() == DATA[:4].tolist()
    assert ahead.output_shardings.device_set == {jax.devices()[0]}
    assert "cereal.jit" in repr(ahead)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ahead.nonsense


def test_shapes_are_told_without_running(loader: Any) -> None:
    compiled: Any = cereal.jit(lambda state: loader.next_batch(state)[0])
    spec = compiled.eval_shape(loader.init_state(0))
    assert spec == jax.ShapeDtypeStruct((4,), np.float32)


def test_a_cleared_cache_is_filled_again(loader: Any) -> None:
    traced: list[int] = []

    def step(state: Any) -> Any:
        traced.append(1)
        return loader.next_batch(state)[0]

    compiled: Any = cereal.jit(step)
    state = loader.init_state(0)
    compiled(state)
    before = len(traced)
    compiled(state)
    assert len(traced) == before
    compiled.clear_cache()
    assert compiled(state).tolist() == DATA[:4].tolist()
    assert len(traced) > before


@pytest.mark.parametrize("fn", [3, "step", [len]])
def test_what_is_no_function_is_refused(fn: Any) -> None:
    message = rf"`cereal.jit` compiles a function, got {type(fn).__name__} \(.*; write `cereal"
    with pytest.raises(cereal.UsageError, match=message):
        cereal.jit(fn)
    with pytest.raises(cereal.UsageError, match="compiles a function"):
        cereal.jit(donate_argnums=0)(fn)
