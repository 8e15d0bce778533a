"""Iterators hand out the pipeline's batches, with a state that is exact after each of them."""

from __future__ import annotations

import itertools
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
    DevicePutTransform,
    HostCallbackTransform,
    MapTransform,
    RangeSource,
)
from cereal.loaders.iterators import iterator as iterator_module
from cereal.testing import assert_same

N = 200


def same(x: Any) -> Any:
    return x


def watched(batch: Any, mask: Any) -> None:
    del batch, mask


# `light` pipelines ask for many batches in one call, those with user functions for one until it
# was seen to be cheap, and those with callbacks never read ahead.
PIPELINES: dict[str, list[Any]] = {
    "light": [],
    "map": [MapTransform(same)],
    "callback": [HostCallbackTransform(watched)],
}


def make_loader(kind: str = "light", **rule: Any) -> DataLoader[Any]:
    source = RangeSource(N, ordering="shuffle")
    return DataLoader([source, BatchTransform(3, **rule), *PIPELINES[kind]])


@pytest.fixture
def loader() -> DataLoader[Any]:
    return make_loader()


@pytest.fixture(autouse=True)
def short_runs_read_ahead_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator_module, "LEAST_CALLS", 1)


def take(batches: Any, count: int) -> list[Any]:
    return list(itertools.islice(batches, count))


def flat(pairs: list[Any]) -> list[int]:
    return np.concatenate([np.asarray(batch)[np.asarray(mask)] for batch, mask in pairs]).tolist()


# How far it goes


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize(("rule", "steps"), [({}, 67), ({"pad_last_batch": True}, 67)])
def test_it_runs_to_the_end_of_the_epoch_of_its_state(
    kind: str, rule: dict[str, Any], steps: int
) -> None:
    loader = make_loader(kind, **rule)
    whole = list(loader.iterate(loader.init_state(4)))
    assert len(whole) == steps
    assert sorted(flat(whole)[:N]) == list(range(N))
    for middle in (1, 40, steps - 1):
        rest = list(loader.iterate(loader.state_at(4, middle)))
        assert_same(rest, whole[middle:], f"from step {middle}")


def test_the_next_epoch_starts_where_the_last_ended() -> None:
    loader = make_loader(drop_last=True)
    batches = loader.iterate(loader.init_state(0))
    first = list(batches)
    second = list(loader.iterate(batches.state))
    assert len(first) == len(second) == 66
    assert flat(first) != flat(second)
    assert_same(second, [loader.batch_at(0, step) for step in range(66, 132)], "epoch 1")


@pytest.mark.parametrize("steps", [0, 1, 5, 67, 150])
def test_steps_are_counted_across_epochs(steps: int) -> None:
    loader = make_loader()
    batches = loader.iterate(loader.init_state(0), steps=steps)
    assert sum(1 for _ in batches) == steps
    assert_same(batches.state, loader.state_at(0, steps), "the state at the end")
    assert next(batches, None) is None


def test_epochs_are_counted_from_the_epoch_of_the_state() -> None:
    loader = make_loader(pad_last_batch=True)
    assert sum(1 for _ in loader.iterate(loader.init_state(0), epochs=3)) == 3 * 67
    assert sum(1 for _ in loader.iterate(loader.state_at(0, 60), epochs=2)) == 7 + 67


def test_wrapped_epochs_have_no_remainder_of_their_own(loader: DataLoader[Any]) -> None:
    pairs = list(loader.iterate(loader.init_state(0), epochs=3))
    assert len(pairs) == 200
    passes = np.array(flat(pairs)).reshape(3, N)
    assert (np.sort(passes) == np.arange(N)).all()


@pytest.mark.parametrize("kind", PIPELINES)
def test_without_an_end_it_runs_on(kind: str) -> None:
    loader = make_loader(kind)
    batches = loader.iterate(loader.init_state(0), epochs=None)
    assert len(take(batches, 300)) == 300
    assert_same(batches.state, loader.state_at(0, 300), "the state")


def test_without_a_state_it_starts_at_the_beginning_unless_it_is_random(
    loader: DataLoader[Any],
) -> None:
    plain = DataLoader([RangeSource(N), BatchTransform(3)])
    assert flat(take(plain.iterate(), 2)) == list(range(6))
    match = r"`loader\.iterate\(\)` would repeat .* Write `state = loader\.init_state\(key\)`"
    with pytest.raises(cereal.UsageError, match=match):
        loader.iterate()


def test_it_hints_at_its_length(loader: DataLoader[Any]) -> None:
    batches = loader.iterate(loader.init_state(0))
    next(batches)
    assert batches.__length_hint__() == 66
    assert iter(batches) is batches


# State


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("rule", [{}, {"pad_last_batch": True}, {"drop_last": True}])
def test_the_state_is_exact_after_every_batch(kind: str, rule: dict[str, Any]) -> None:
    loader = make_loader(kind, **rule)
    batches = loader.iterate(loader.init_state(9), steps=140)
    assert_same(batches.state, loader.init_state(9), "before the first batch")
    words = []
    for _ in batches:
        words.append(np.asarray(batches.state.words))
    expected = [loader.state_at(9, step).words for step in range(1, 141)]
    assert np.array_equal(words, np.stack(expected))


@pytest.mark.parametrize("kind", PIPELINES)
def test_the_state_can_be_set_in_the_middle(kind: str) -> None:
    loader = make_loader(kind)
    batches = loader.iterate(loader.init_state(0))
    take(batches, 20)
    batches.state = loader.state_at(7, 67 * 2 + 60)  # another key, another epoch
    rest = list(batches)
    assert_same(rest, list(loader.iterate(loader.state_at(7, 67 * 2 + 60))), "the rest")
    batches.state = loader.init_state(0)  # and after the end
    assert len(list(batches)) == 67


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_set_state_leaves_the_number_of_steps(kind: str) -> None:
    loader = make_loader(kind)
    batches = loader.iterate(loader.init_state(0), steps=10)
    take(batches, 4)
    batches.state = loader.state_at(0, 100)
    assert_same(list(batches), [loader.batch_at(0, 100 + k) for k in range(6)], "six more")


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_state_of_another_pipeline_cannot_be_set(kind: str) -> None:
    loader = make_loader(kind)
    batches = loader.iterate(loader.init_state(0))
    with pytest.raises(cereal.StateError, match="it has length=5, this one has length=200"):
        batches.state = DataLoader(RangeSource(5, ordering="shuffle")).init_state(0)


@pytest.mark.parametrize("kind", PIPELINES)
def test_donated_states_do_not_harm_the_iterator(kind: str) -> None:
    loader = make_loader(kind)
    consume = jax.jit(lambda state: state, donate_argnums=0)
    first = loader.init_state(0)
    batches = loader.iterate(first)
    consume(first)
    seen = []
    for pair in itertools.islice(batches, 5):
        seen.append(pair)
        consume(batches.state)
    replacement = loader.state_at(0, 5)
    batches.state = replacement
    consume(replacement)
    seen += list(batches)
    assert_same(seen, list(loader.iterate(loader.init_state(0))), "with donated states")


# Read-ahead cannot be seen


@pytest.mark.parametrize("worth", [0.0, float("inf")])
def test_batches_do_not_depend_on_how_many_a_call_makes(
    worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterator_module, "_WORTH_READING_AHEAD", worth)
    light, mapped = make_loader("light"), make_loader("map")
    expected = [light.batch_at(1, step) for step in range(150)]
    for loader in (light, mapped):
        assert_same(list(loader.iterate(loader.init_state(1), steps=150)), expected, "read ahead")


def test_calls_make_many_batches_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    read_many = iterator_module.read_many

    def counted(source: Any, words: Any, count: int) -> Any:
        counts.append(count)
        return read_many(source, words, count)

    monkeypatch.setattr(iterator_module, "read_many", counted)
    monkeypatch.setattr(iterator_module, "_WORTH_READING_AHEAD", 0.0)
    for kind, most in (("light", 16), ("map", 1)):
        loader = make_loader(kind)
        counts.clear()
        take(loader.iterate(loader.init_state(0), epochs=None), 100)
        assert 1 < max(counts) <= most if kind == "light" else set(counts) == {1}
        assert sum(counts) <= 100 + 2 * most


def test_two_iterators_do_not_disturb_each_other(loader: DataLoader[Any]) -> None:
    one, two = loader.iterate(loader.init_state(1)), loader.iterate(loader.init_state(2))
    seen_one, seen_two = [], []
    for step in range(67):
        seen_one.append(next(one))
        if step % 3 == 0:
            seen_two.append(next(two))
    assert_same(seen_one, list(loader.iterate(loader.init_state(1))), "the first")
    assert_same(seen_two, take(loader.iterate(loader.init_state(2)), 23), "the second")


def test_loops_may_be_left_early_a_hundred_times(loader: DataLoader[Any]) -> None:
    state = loader.init_state(0)
    seen = []
    for _ in range(100):
        batches = loader.iterate(state)
        seen.append(next(batches))
        state = batches.state
    assert_same(seen, list(loader.iterate(loader.init_state(0), steps=100)), "one batch a loop")


# Masks and places


@pytest.mark.parametrize("kind", PIPELINES)
def test_only_the_last_batch_is_padded_and_its_mask_says_where(kind: str) -> None:
    loader = make_loader(kind, pad_last_batch=True)
    masks = [mask.tolist() for _, mask in loader.iterate(loader.init_state(0), epochs=2)]
    assert len(masks) == 2 * 67
    for step, mask in enumerate(masks):
        assert mask == ([True, True, False] if step % 67 == 66 else [True] * 3)


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_batch_and_its_mask_are_where_device_put_says(kind: str) -> None:
    device = jax.devices()[0]
    stages = [BatchTransform(3, pad_last_batch=True), *PIPELINES[kind], DevicePutTransform(device)]
    loader = DataLoader([RangeSource(7), *stages])
    for batch, mask in loader.iterate(loader.init_state(0)):
        assert batch.devices() == mask.devices() == {device}


def test_a_batch_follows_a_sharding() -> None:
    mesh = jax.make_mesh((1,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    loader = DataLoader([RangeSource(7), BatchTransform(3), DevicePutTransform(sharding)])
    for batch, mask in loader.iterate(loader.init_state(0)):
        assert batch.sharding == mask.sharding == sharding


# Bad input


def test_iterate_inside_a_traced_function_names_what_to_write(loader: DataLoader[Any]) -> None:
    state = loader.init_state(0)
    match = r"cannot run inside a traced function; there write `loader\.scan_epoch"
    with pytest.raises(cereal.UsageError, match=match):
        jax.jit(lambda loader, state: [batch for batch, _ in loader.iterate(state)])(loader, state)
    with pytest.raises(cereal.UsageError, match=match):  # nothing passed in, all captured
        jax.jit(lambda: [batch for batch, _ in loader.iterate(state)])()
    with pytest.raises(cereal.UsageError, match=match):
        cereal.jit(lambda: [batch for batch, _ in loader.iterate(state)])()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": -1}, "`steps` must be an integer of at least 0, got -1"),
        ({"steps": 2.5}, "`steps` must be an integer of at least 0, got 2.5"),
        ({"epochs": 0}, "`epochs` must be an integer of at least 1, got 0"),
        ({"epochs": "2"}, "`epochs` must be an integer of at least 1, got '2'"),
    ],
)
def test_counts_are_checked_when_the_iterator_is_made(
    loader: DataLoader[Any], options: dict[str, Any], match: str
) -> None:
    with pytest.raises(cereal.PipelineError, match=match):
        loader.iterate(loader.init_state(0), **options)


def test_a_failing_callback_raises_its_own_error_and_leaves_the_loader_healthy() -> None:
    fails = [True]

    def sometimes(batch: Any, mask: Any) -> None:
        del mask
        if fails[0] and batch[0] == 3:
            raise KeyError("three")

    loader = DataLoader([RangeSource(9), BatchTransform(3), HostCallbackTransform(sometimes)])
    batches = loader.iterate(loader.init_state(0))
    next(batches)
    with pytest.raises(KeyError, match="three"):
        next(batches)
    fails[0] = False
    assert [batch[0].item() for batch, _ in loader.iterate(loader.init_state(0))] == [0, 3, 6]


def test_a_progress_bar_counts_the_batches(capsys: pytest.CaptureFixture[str]) -> None:
    data = ArraySampleSource(jnp.arange(9.0), "sequential")
    loader = DataLoader([data, BatchTransform(3)])
    assert len(list(loader.iterate(loader.init_state(0), progress="training"))) == 3
    shown = capsys.readouterr().err
    assert "training" in shown
    assert "3/3" in shown
