from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.slowly import slowly

import cereal
from cereal.testing import check_loader, check_resume, check_transform

T = True
F = False


def batches(n: int, *stages: Any, epochs: int = 1) -> list[tuple[Any, Any]]:
    loader = cereal.DataLoader([cereal.RangeSource(n), *stages])
    return [(batch.tolist(), mask.tolist()) for batch, mask in loader.iterate(epochs=epochs)]


@pytest.mark.parametrize(
    "transform",
    [
        slowly(cereal.BatchTransform(4)),
        cereal.BatchTransform(4, pad_last_batch=True),
        slowly(cereal.BatchTransform(4, drop_last=True)),
    ],
    ids=str,
)
def test_batching_keeps_the_contract(transform: cereal.BatchTransform) -> None:
    check_transform(transform, cereal.RangeSource(10, ordering=np.arange(10)[::-1]))
    check_loader(cereal.DataLoader([cereal.RangeSource(6), transform]))


def test_without_a_rule_batches_wrap_into_the_next_epoch() -> None:
    given = [batch for batch, mask in batches(10, cereal.BatchTransform(4), epochs=2)]
    assert given == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_padding_repeats_elements_of_the_epoch_and_masks_them() -> None:
    pairs = batches(10, cereal.BatchTransform(4, pad_last_batch=True), epochs=2)
    assert pairs[2] == pairs[5] == ([8, 9, 0, 1], [T, T, F, F])
    assert pairs[3] == ([0, 1, 2, 3], [T, T, T, T])
    assert len(pairs) == 6


def test_dropping_leaves_the_rest_of_the_order_out() -> None:
    pairs = batches(10, cereal.BatchTransform(4, drop_last=True), epochs=2)
    assert [batch for batch, _ in pairs] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert all(mask == [T] * 4 for _, mask in pairs)


def test_a_shuffled_epoch_drops_other_elements_every_time() -> None:
    source = cereal.RangeSource(10, ordering="shuffle")
    loader = cereal.DataLoader([source, cereal.BatchTransform(8, drop_last=True)])
    left_out = {
        tuple(sorted(set(range(10)) - set(loader.indices_at(0, step).tolist())))
        for step in range(20)
    }
    assert len(left_out) > 10


def test_a_batch_that_divides_the_data_is_the_same_under_every_rule() -> None:
    rules: list[dict[str, Any]] = [{}, {"drop_last": True}, {"pad_last_batch": True}]
    given = [batches(8, cereal.BatchTransform(4, **rule), epochs=2) for rule in rules]
    assert given[0] == given[1] == given[2]


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_a_batch_may_be_larger_than_the_data() -> None:
    assert batches(3, cereal.BatchTransform(7)) == [([0, 1, 2, 0, 1, 2, 0], [T] * 7)]
    padded = batches(3, cereal.BatchTransform(7, pad_last_batch=True), epochs=2)
    assert padded == [([0, 1, 2, 0, 1, 2, 0], [T, T, T, F, F, F, F])] * 2


def test_a_batch_of_one_has_an_axis() -> None:
    assert batches(2, cereal.BatchTransform(1)) == [([0], [T]), ([1], [T])]


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_one_element_makes_batches() -> None:
    source = cereal.RangeSource(1, ordering="shuffle")
    loader = cereal.DataLoader([source, cereal.BatchTransform(3)])
    check_loader(loader)
    assert loader.batch_at(0, 5)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rule", "steps"), [({}, 4), ({"pad_last_batch": True}, 4), ({"drop_last": True}, 3)]
)
def test_an_epoch_has_as_many_steps_as_the_rule_makes(rule: Any, steps: int) -> None:
    loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(3, **rule)])
    assert loader.steps_per_epoch == len(loader) == len(list(loader)) == steps


def test_sizes_may_be_integers_of_numpy() -> None:
    assert cereal.BatchTransform(np.int64(4)).batch_size == 4  # type: ignore[arg-type]


def test_batching_twice_makes_microbatches() -> None:
    twice = [cereal.BatchTransform(8), cereal.BatchTransform(4)]
    data = cereal.ArraySampleSource({"x": np.arange(70.0).reshape(35, 2)}, ordering="sequential")
    loader = cereal.DataLoader([data, *twice])
    assert loader.element_spec()["x"].shape == (4, 8, 2)
    assert loader.steps_per_epoch == 2
    batch, mask = loader.batch_at(0, 1)
    assert mask.shape == (4, 8)
    flat = np.arange(32, 64) % 35
    np.testing.assert_array_equal(batch["x"], np.arange(70.0).reshape(35, 2)[flat].reshape(4, 8, 2))


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ({}, {}),
        ({}, {"pad_last_batch": True}),
        ({"pad_last_batch": True}, {}),
        ({"pad_last_batch": True}, {"pad_last_batch": True}),
        ({"drop_last": True}, {}),
        ({}, {"drop_last": True}),
    ],
    ids=str,
)
def test_microbatches_are_the_batches_of_their_product(inner: Any, outer: Any) -> None:
    rule = inner | outer
    plain = batches(15, cereal.BatchTransform(6, **rule), epochs=2)
    twice = batches(
        15, cereal.BatchTransform(2, **inner), cereal.BatchTransform(3, **outer), epochs=2
    )
    flat = [tuple(np.ravel(part).tolist() for part in pair) for pair in twice]
    assert flat == plain


def test_microbatches_keep_the_contract() -> None:
    source = cereal.RangeSource(7, ordering="shuffle")
    stages = [cereal.BatchTransform(2), cereal.BatchTransform(2, pad_last_batch=True)]
    loader = cereal.DataLoader([source, *stages])
    check_loader(loader)
    check_resume(loader)


def test_a_stage_between_two_batchings_sees_microbatches() -> None:
    total = cereal.MapTransform(lambda x: {"x": x, "total": x.sum()})
    loader = cereal.DataLoader(
        [cereal.RangeSource(12), cereal.BatchTransform(2), total, cereal.BatchTransform(3)]
    )
    batch, _ = loader.batch_at(0, 0)
    assert batch["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch["total"].tolist() == [1, 5, 9]


def test_it_prints_what_was_asked_for() -> None:
    assert repr(cereal.BatchTransform(4)) == "BatchTransform(4)"
    assert repr(cereal.BatchTransform(4, drop_last=True)) == "BatchTransform(4, drop_last=True)"


@pytest.mark.parametrize("size", [0, -1, 2.5, "4", None, True, (4,)])
def test_a_size_that_is_no_positive_integer_is_refused_when_built(size: Any) -> None:
    message = "^BatchTransform: `batch_size` must be an integer of at least 1, got "
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.BatchTransform(size)


def test_both_rules_at_once_are_refused_when_built() -> None:
    message = "`drop_last=True` and `pad_last_batch=True` contradict each other; pass one of them"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.BatchTransform(4, drop_last=True, pad_last_batch=True)


def test_dropping_everything_is_refused_when_built() -> None:
    message = (
        r"^stage 1: BatchTransform: `drop_last=True` with `batch_size=8` drops all 6 elements; "
        r"pass `pad_last_batch=True`, or a batch of at most 6"
    )
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([cereal.RangeSource(6), cereal.BatchTransform(8, drop_last=True)])


@pytest.mark.parametrize(
    ("inner", "outer"), [({"drop_last": True}, {}), ({}, {"drop_last": True})], ids=str
)
def test_dropping_all_microbatches_is_refused_when_built(inner: Any, outer: Any) -> None:
    stages = [cereal.BatchTransform(4, **inner), cereal.BatchTransform(2, **outer)]
    message = "^stage 2: .* with `batch_size=2 x 4` drops all 6 elements; .* at most 6"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([cereal.RangeSource(6), *stages])


def test_two_batchings_with_two_rules_are_refused_when_built() -> None:
    stages = [
        cereal.BatchTransform(2, drop_last=True),
        cereal.BatchTransform(2, pad_last_batch=True),
    ]
    message = r"^stage 2: BatchTransform\(2, pad.*different rules.*give the rule once, to the outer"
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.DataLoader([cereal.RangeSource(9), *stages])


def test_options_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        cereal.BatchTransform(4, True)  # type: ignore[misc]


def test_masks_are_bool_arrays_of_the_lanes() -> None:
    loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(3)])
    mask = loader.batch_at(0, 0)[1]
    assert isinstance(mask, jax.Array)
    assert (mask.dtype, mask.shape) == (jnp.bool_, (3,))
