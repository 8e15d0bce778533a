"""FilterTransform: elements that do not count, in their place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.pipeline.counter import Counter

import cereal
from cereal import BatchTransform, DataLoader, FilterTransform, MapTransform, RangeSource
from cereal.testing import assert_same, check_loader, check_resume, check_source

RULES: list[dict[str, Any]] = [{}, {"pad_last_batch": True}, {"drop_last": True}]
LARGE = FilterTransform(lambda x: x >= 4)


def pairs(*stages: Any, source: Any = None, steps: int = 6) -> list[tuple[Any, Any]]:
    loader = DataLoader([RangeSource(10) if source is None else source, *stages])
    found = loader.iterate(loader.init_state(1), steps=steps)
    return [(batch.tolist(), mask.tolist()) for batch, mask in found]


def test_a_filter_keeps_the_contract(strict_jax: None) -> None:
    source = RangeSource(6, ordering="shuffle")
    check_source(LARGE(source))
    loader = DataLoader([source, LARGE, BatchTransform(4, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader, epochs=1)


def test_masked_elements_stay_in_their_place() -> None:
    assert pairs(LARGE, BatchTransform(4), steps=2) == [
        ([0, 1, 2, 3], [False] * 4),
        ([4, 5, 6, 7], [True] * 4),
    ]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_before_and_after_batching_it_is_the_same(rule: dict[str, Any]) -> None:
    source = RangeSource(10, ordering="shuffle")
    batch = BatchTransform(4, **rule)
    before = pairs(LARGE, batch, source=source)
    assert before == pairs(batch, LARGE, source=source)
    unmasked = pairs(batch, source=source)
    assert [values for values, _ in before] == [values for values, _ in unmasked]
    for (values, mask), (_, real) in zip(before, unmasked, strict=True):
        assert mask == [x >= 4 and ok for x, ok in zip(values, real, strict=True)]


def test_padding_stays_masked_whatever_passes() -> None:
    everything = FilterTransform(lambda x: True)
    for stages in (
        [everything, BatchTransform(4, pad_last_batch=True)],
        [BatchTransform(4, pad_last_batch=True), everything],
    ):
        assert pairs(*stages)[2][1] == [True, True, False, False]


def test_filters_add_up() -> None:
    even = FilterTransform(lambda x: x % 2 == 0)
    for stages in ([even, LARGE, BatchTransform(10)], [even, BatchTransform(10), LARGE]):
        ((_, mask),) = pairs(*stages, steps=1)
        assert [n for n, ok in enumerate(mask) if ok] == [4, 6, 8]


def test_it_sees_elements_in_batches_of_batches_too() -> None:
    stages = [BatchTransform(2), BatchTransform(3)]
    for found in (pairs(*stages, LARGE, steps=1), pairs(LARGE, *stages, steps=1)):
        assert found == [
            ([[0, 1], [2, 3], [4, 5]], [[False, False], [False, False], [True, True]]),
        ]


def test_it_sees_what_stages_before_it_made() -> None:
    half = MapTransform(lambda x: x // 2)
    assert pairs(half, LARGE, BatchTransform(10), steps=1)[0][1] == [False] * 8 + [True] * 2
    assert pairs(LARGE, half, BatchTransform(10), steps=1)[0][1] == [False] * 4 + [True] * 6


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_means_and_metrics_leave_masked_elements_out(rule: dict[str, Any]) -> None:
    loader = DataLoader([RangeSource(10), LARGE, BatchTransform(4, **rule)])
    assert cereal.evaluate(loader, lambda batch: batch) == np.arange(4, 10).mean()
    batch, mask = loader.batch_at(0, 1)
    assert cereal.masked_mean(batch, mask) == 5.5
    batch, mask = loader.batch_at(0, 0)
    assert cereal.masked_mean(batch, mask) == 0


def test_a_filter_may_hold_arrays() -> None:
    @cereal.pytree_dataclass
    class Above:
        limit: Any

        def __call__(self, x: Any) -> Any:
            return x > self.limit

    def count(limit: Any) -> Any:
        loader = DataLoader([RangeSource(10), FilterTransform(Above(limit)), BatchTransform(10)])
        return loader.next_batch(loader.init_state(0))[2].sum()

    assert jax.vmap(count)(jnp.array([0, 5, 9])).tolist() == [9, 4, 0]


def test_a_filtered_source_stays_indexed_and_splits() -> None:
    filtered = LARGE(RangeSource(10))
    train, val = cereal.split(filtered, (0.5, 0.5))
    assert pairs(BatchTransform(5), source=train, steps=1) == [
        ([0, 1, 2, 3, 4], [False, False, False, False, True])
    ]
    assert pairs(BatchTransform(5), source=val, steps=1)[0][1] == [True] * 5


def test_a_stream_is_filtered_before_and_after_batching_alike() -> None:
    source = Counter()
    before = pairs(LARGE, BatchTransform(4), source=source, steps=3)
    assert before == pairs(BatchTransform(4), LARGE, source=source, steps=3)
    assert [values for values, _ in before] == np.arange(12).reshape(3, 4).tolist()
    assert np.ravel([mask for _, mask in before]).tolist() == [
        n >= 4 and (n + 1) % 3 != 0 for n in range(12)
    ]


def test_a_filtered_stream_keeps_the_contract() -> None:
    loader = DataLoader([Counter(), LARGE, BatchTransform(4, pad_last_batch=True)])
    check_loader(loader)
    check_resume(loader, epochs=1)
    real = [n for n in range(10) if n >= 4 and (n + 1) % 3 != 0]
    assert cereal.evaluate(loader, lambda batch: batch) == np.mean(real)


def test_a_filter_over_windows_is_the_same_in_memory_and_in_a_file(tmp_path: Any) -> None:
    data = np.arange(20, dtype=np.float32)
    data.tofile(tmp_path / "data.bin")
    file = np.memmap(tmp_path / "data.bin", np.float32, mode="r")
    high = FilterTransform(lambda window: window.mean() > 8)
    found = []
    for source in (cereal.WindowSource(file, 5), cereal.WindowSource(data, 5)):
        loader = DataLoader([source, high, BatchTransform(4)])
        found.append(list(loader.iterate(loader.init_state(1), steps=5)))
    assert_same(found[0], found[1], "the batches")
    masks = np.concatenate([mask for _, mask in found[0]])
    assert masks.any()
    assert not masks.all()


# What goes wrong


@pytest.mark.parametrize(
    ("fn", "returned"),
    [
        (lambda x: x, r"int32\[\]"),
        (lambda x: 1.5, r"float"),
        (lambda x: x > jnp.arange(3), r"bool\[3\]; write a comparison, and `.any\(\)`"),
        (lambda x: None, ""),
        (lambda x: "yes", ""),
        (lambda x: (x > 1, x > 2), ""),
    ],
)
def test_a_function_that_does_not_decide_is_refused_when_built(fn: Any, returned: str) -> None:
    message = r"^FilterTransform\(<lambda>\): the function must return one True or False per elem"
    for source in (RangeSource(10), BatchTransform(4)(RangeSource(10)), Counter()):
        with pytest.raises(cereal.PipelineError, match=f"{message}ent, returned {returned}"):
            FilterTransform(fn)(source)


def test_a_function_that_fails_is_named_when_built() -> None:
    def decide(x: Any) -> Any:
        return bool(x > 1)

    message = r"^FilterTransform\(decide\) failed on int32\[4\]: TracerBoolConversionError"
    with pytest.raises(cereal.PipelineError, match=message):
        FilterTransform(decide)(BatchTransform(4)(RangeSource(10)))


def test_something_that_is_no_function_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match=r"^FilterTransform: `fn` must be callable"):
        FilterTransform(3)  # type: ignore[arg-type]


def test_something_that_is_no_source_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match="must be called with a source, got ndarray"):
        LARGE(np.arange(3))  # type: ignore[arg-type]
