"""BatchTransform over sources that carry a state of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import quickly

import cereal
from cereal.testing import check_loader, check_resume, check_source

RULES: list[dict[str, Any]] = [{}, {"pad_last_batch": True}, {"drop_last": True}]


@cereal.pytree_dataclass
class Counter(cereal.Source[Any]):
    """0, 1, 2, ... without end; an epoch is ten of them. Multiples of `gap` are not real."""

    steps_per_epoch: int = cereal.static_field(default=10)
    gap: int = cereal.static_field(default=1_000_003)

    def element_spec(self) -> Any:
        return {
            "n": jax.ShapeDtypeStruct((), jnp.int32),
            "x": jax.ShapeDtypeStruct((2,), jnp.float32),
        }

    def init_state(self, key: Any) -> Any:
        return {"n": jnp.int32(0), "key": jax.random.key(0)}

    def next(self, state: Any) -> Any:
        n, (key, _) = state["n"], jax.random.split(state["key"])
        element = {"n": n, "x": jnp.stack([n, -n]).astype(jnp.float32)}
        return element, (n + 1) % self.gap != 0, {"n": n + 1, "key": key}


def numbers(*stages: Any, source: Any = None, steps: int = 6) -> list[tuple[Any, Any]]:
    loader = cereal.DataLoader([source or Counter(), *stages])
    state = loader.init_state(jax.random.key(1))
    pairs = loader.iterate(state, steps=steps)
    return [(batch["n"].tolist(), mask.tolist()) for batch, mask in pairs]


def noise(element: Any, key: jax.Array) -> Any:
    return {**element, "n": element["n"] ^ jax.random.bits(key, (), jnp.uint32).astype(jnp.int32)}


NOISE = cereal.RandomMapTransform(noise)
DOUBLE = cereal.MapTransform(lambda element: {**element, "n": element["n"] * 2})


@pytest.mark.parametrize("rule", quickly(RULES, {"pad_last_batch": True}), ids=str)
def test_a_batched_stream_keeps_the_contract(rule: dict[str, Any]) -> None:
    loader = cereal.DataLoader([Counter(), cereal.BatchTransform(4, **rule)])
    check_source(loader.source)
    check_loader(loader)
    check_resume(loader)


def test_a_stream_goes_on_where_it_was_when_an_epoch_ends() -> None:
    rules: list[dict[str, Any]] = [{}, {"drop_last": True}]
    for rule in rules:
        flat = np.ravel([batch for batch, _ in numbers(cereal.BatchTransform(4, **rule))])
        np.testing.assert_array_equal(flat, np.arange(24))


def test_padding_ends_an_epoch_without_taking_from_the_next() -> None:
    pairs = numbers(cereal.BatchTransform(4, pad_last_batch=True))
    assert [mask for _, mask in pairs] == [[True] * 4, [True] * 4, [True, True, False, False]] * 2
    real = [n for batch, mask in pairs for n, ok in zip(batch, mask, strict=True) if ok]
    assert real == list(range(20))


@pytest.mark.parametrize(("rule", "steps"), list(zip(RULES, (3, 3, 2), strict=True)))
def test_an_epoch_of_a_stream_has_as_many_steps_as_the_rule_makes(rule: Any, steps: int) -> None:
    loader = cereal.DataLoader([Counter(), cereal.BatchTransform(4, **rule)])
    assert loader.steps_per_epoch == steps
    assert len(list(loader.iterate(loader.init_state(0)))) == steps
    assert len(list(loader.iterate(loader.init_state(0), epochs=2))) == 2 * steps


def test_elements_that_are_not_real_stay_so_in_the_batch() -> None:
    rules: list[dict[str, Any]] = [{}, {"pad_last_batch": True}]
    for rule in rules:
        _, mask = numbers(cereal.BatchTransform(4, **rule), source=Counter(gap=3))[0]
        assert mask == [True, True, False, True]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_map_is_the_same_before_and_after_batching_a_stream(rule: dict[str, Any]) -> None:
    batch = cereal.BatchTransform(4, **rule)
    assert numbers(DOUBLE, batch) == numbers(batch, DOUBLE)
    assert numbers(DOUBLE, batch)[0][0] == [0, 2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("before", [True, False])
def test_a_random_map_on_either_side_of_batching_a_stream_keeps_the_contract(
    rule: dict[str, Any], before: bool
) -> None:
    batch = cereal.BatchTransform(4, **rule)
    stages = [NOISE, batch] if before else [batch, NOISE]
    loader = cereal.DataLoader([Counter(), *stages])
    check_source(loader.source)
    check_resume(loader, epochs=1)


def test_random_maps_over_a_stream_draw_one_key_per_element() -> None:
    plain = numbers(cereal.BatchTransform(4), steps=5)
    once = numbers(cereal.BatchTransform(4), NOISE, steps=5)
    twice = numbers(cereal.BatchTransform(4), NOISE, NOISE, steps=5)
    first = np.ravel([b for b, _ in once]) ^ np.ravel([b for b, _ in plain])
    second = np.ravel([b for b, _ in twice]) ^ np.ravel([b for b, _ in once])
    assert len(np.unique(np.concatenate([first, second]))) == 40


def test_a_random_map_over_a_stream_is_the_same_before_and_after_batching_it() -> None:
    batch = cereal.BatchTransform(4)
    assert numbers(NOISE, batch) == numbers(batch, NOISE)


def test_the_key_of_the_stream_decides_what_is_drawn() -> None:
    loader = cereal.DataLoader([Counter(), cereal.BatchTransform(4), NOISE])
    first, second = (loader.next_batch(loader.init_state(key))[0]["n"] for key in (0, 1))
    assert (first != second).all()


def test_microbatches_of_a_stream() -> None:
    loader = cereal.DataLoader([Counter(), cereal.BatchTransform(2), cereal.BatchTransform(3)])
    assert loader.element_spec()["x"].shape == (3, 2, 2)
    batch, _, mask = loader.next_batch(loader.init_state(0))
    assert batch["n"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert mask.shape == (3, 2)


def test_padded_microbatches_of_a_stream() -> None:
    stages = [cereal.BatchTransform(2), cereal.BatchTransform(3, pad_last_batch=True)]
    pairs = numbers(*stages, steps=4)
    assert pairs[1][1] == [[True, True], [True, True], [False, False]]
    assert pairs[2][0] == [[10, 11], [12, 13], [14, 15]]


def test_callbacks_over_a_stream_run_once_per_batch() -> None:
    seen: list[int] = []
    log = cereal.HostCallbackTransform(lambda batch, mask: seen.append(int(batch["n"][0])))
    numbers(cereal.BatchTransform(4), log, steps=3)
    assert seen == [0, 4, 8]


def test_a_batch_of_a_stream_that_drops_everything_is_refused_when_built() -> None:
    with pytest.raises(
        cereal.PipelineError, match=r"^stage 1: BatchTransform: .*drops all 10 elem"
    ):
        cereal.DataLoader([Counter(), cereal.BatchTransform(11, drop_last=True)])


@pytest.mark.parametrize("name", ["batch_at", "indices_at", "state_at"])
def test_a_stream_has_no_step_that_can_be_asked_for(name: str) -> None:
    loader = cereal.DataLoader([Counter(), cereal.BatchTransform(4)])
    message = rf"`{name}` needs an indexed pipeline; BatchTransform\(4\) is a stream"
    with pytest.raises(cereal.UsageError, match=message):
        getattr(loader, name)(0, 1)
