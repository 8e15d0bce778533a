"""Filters in Python: masks, what stands where an element was left out, who sees it."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    FilterTransform,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    MapTransform,
    PipelineError,
    RangeSource,
    evaluate,
    masked_mean,
)
from cereal.testing import check_loader, check_resume, check_source

N, SIZE = 10, 4
ODD = HostFilterTransform(lambda x: x % 2 == 1)
BATCH, PADDED = BatchTransform(SIZE), BatchTransform(SIZE, pad_last_batch=True)


def some(stages: list[Any], steps: int = 3, **options: Any) -> list[tuple[np.ndarray, list[bool]]]:
    with DataLoader(stages, **options) as loader:
        found = list(loader.iterate(loader.init_state(0), steps=steps))
    return [(np.asarray(batch), np.asarray(mask).tolist()) for batch, mask in found]


def places(step: int, size: int = SIZE) -> list[int]:
    return [step * size + lane for lane in range(size)]


def sources() -> dict[str, Any]:
    return {
        "list": list(range(N)),
        "range": RangeSource(N),
        "array": ArraySampleSource(np.arange(N), ordering="sequential"),
        "texts": HostMapTransform(int)(DatasetSource([str(i) for i in range(N)])),
    }


@pytest.mark.parametrize("name", sources())
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_the_mask_is_false_where_the_function_is(batched: bool, workers: int, name: str) -> None:
    stages = [BATCH, ODD] if batched else [ODD, BATCH]
    for step, (batch, mask) in enumerate(some([sources()[name], *stages], 5, workers=workers)):
        expected = [place % N % 2 == 1 for place in places(step)]
        assert mask == expected
        kept = [place % N for place, yes in zip(places(step), expected, strict=True) if yes]
        assert batch[mask].tolist() == kept


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_padding_and_filtering_are_both_masked(batched: bool) -> None:
    stages = [PADDED, ODD] if batched else [ODD, PADDED]
    found = some([list(range(N)), *stages], 6)
    for step, (_, mask) in enumerate(found):
        assert mask == [p < N and p % 2 == 1 for p in places(step % 3)]


def test_what_stands_where_one_was_left_out_is_the_same_for_all_sources_and_places() -> None:
    found = {
        (name, stages[0] is BATCH): [batch.tolist() for batch, _ in some([source, *stages])]
        for stages in ([ODD, BATCH], [BATCH, ODD])
        for name, source in sources().items()
    }
    first = next(iter(found.values()))
    assert found == dict.fromkeys(found, first)


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_a_batch_of_which_nothing_is_left_is_all_masked(batched: bool) -> None:
    nothing = HostFilterTransform(lambda x: x >= 8)
    stages = [BATCH, nothing] if batched else [nothing, BATCH]
    found = some([list(range(N)), *stages])
    assert [mask for _, mask in found] == [[False] * 4, [False] * 4, [True, True, False, False]]
    assert np.isfinite(found[0][0]).all()
    everything = some([list(range(N)), *[BATCH, HostFilterTransform(lambda x: False)]])
    assert all(mask == [False] * SIZE for _, mask in everything)


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
@pytest.mark.parametrize("workers", [0, 4])
def test_later_stages_on_elements_do_not_see_what_was_left_out(workers: int, batched: bool) -> None:
    seen: list[int] = []
    lock = threading.Lock()

    def look(x: Any, rng: Any = None) -> Any:
        with lock:
            seen.append(int(x))
        return x * 10

    if batched:
        stages = [BATCH, ODD, HostRandomMapTransform(lambda x, rng: look(x))]
    else:
        stages = [ODD, HostMapTransform(lambda x: look(x)), BATCH]
    loader = DataLoader([list(range(N)), *stages], workers=workers)
    seen.clear()  # building looks at one element
    with loader:
        found = list(loader.iterate(loader.init_state(0), steps=5))
    assert sorted(seen) == sorted(p % N for p in range(20) if p % 2)
    for step, (batch, mask) in enumerate(found):
        assert np.asarray(batch)[np.asarray(mask)].tolist() == [
            p % N * 10 for p in places(step) if p % 2
        ]


def test_a_stage_on_whole_batches_sees_the_mask() -> None:
    def mean(batch: Any, mask: Any) -> Any:
        return {"mean": batch[mask].mean() if mask.any() else 0.0, "x": batch}

    with DataLoader([list(range(N)), PADDED, ODD, HostMapTransform(mean)]) as loader:
        found = [float(batch["mean"]) for batch, _ in loader.iterate()]
    assert found == [2.0, 6.0, 9.0]


def test_filters_after_each_other_all_count() -> None:
    third = HostFilterTransform(lambda x: x % 3 == 0)
    small = FilterTransform(lambda x: x < 9)
    for stages in ([ODD, third, BATCH, small], [ODD, BATCH, third, small], [BATCH, ODD, third]):
        for step, (_, mask) in enumerate(some([list(range(N)), *stages], 5)):
            limit = 9 if small in stages else N
            expected = [p % N % 6 == 3 and p % N < limit for p in places(step)]
            assert mask == expected


def test_compiled_stages_after_it_see_the_mask() -> None:
    mean = MapTransform(lambda x, mask: {"x": x, "mean": masked_mean(x * 1.0, mask)})
    with DataLoader([list(range(N)), ODD, PADDED, mean]) as loader:
        assert [float(b["mean"]) for b, _ in loader.iterate()] == [2.0, 6.0, 9.0]


def test_the_filter_of_a_microbatch_is_that_of_its_elements() -> None:
    inner, outer = BatchTransform(2), BatchTransform(3)
    for stages in ([ODD, inner, outer], [inner, ODD, outer], [inner, outer, ODD]):
        for step, (_, mask) in enumerate(some([list(range(N)), *stages], 4)):
            expected = [p % N % 2 == 1 for p in places(step, 6)]
            assert np.ravel(mask).tolist() == expected
            assert np.shape(mask) == (3, 2)


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_metrics_leave_out_what_was_filtered(batched: bool) -> None:
    stages = [BATCH, ODD] if batched else [ODD, BATCH]
    with DataLoader([list(range(N)), *stages]) as loader:
        found = evaluate(loader, lambda batch: {"mean": batch, "count": batch * 0 + 1})
    assert float(found["mean"]) == 5.0  # of 1, 3, 5, 7, 9
    assert float(found["count"]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_every_road_is_the_same(batched: bool) -> None:
    stages = [PADDED, ODD] if batched else [ODD, PADDED]
    loader = DataLoader([RangeSource(7, ordering="shuffle"), *stages])
    check_loader(loader)
    check_resume(loader, epochs=1)
    loader.close()


def test_filtered_elements_keep_the_contract_of_a_source() -> None:
    for source in (RangeSource(N), DatasetSource(list(range(N)))):
        check_source(ODD(source))
        check_source(BATCH(ODD(source)))


def test_inside_of_jit_the_mask_is_the_same() -> None:
    loader = DataLoader([list(range(N)), ODD, PADDED])
    step = jax.jit(loader.next_batch)
    state = loader.init_state(0)
    for number in range(4):
        _, state, mask = step(state)
        assert np.asarray(mask).tolist() == [p < N and p % 2 == 1 for p in places(number % 3)]
    loader.close()


# What a function may return


@pytest.mark.parametrize(
    "decide",
    [lambda x: x > 4, lambda x: np.bool_(x > 4), lambda x: np.array(x > 4)],
    ids=["bool", "np.bool_", "array"],
)
def test_one_yes_or_no_is_a_decision(decide: Any) -> None:
    (_, mask), *_ = some([list(range(N)), HostFilterTransform(decide), BatchTransform(N)], 1)
    assert mask == [i > 4 for i in range(N)]


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: None,
        lambda x: x % 2,
        lambda x: "yes",
        lambda x: np.array([True, False]),
        lambda x: [True],
        lambda x: np.float32(0.5),
        lambda x: np.array(3),
    ],
    ids=["None", "int", "text", "two", "list", "np.float32", "array of int"],
)
@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_anything_else_is_refused_when_the_pipeline_is_built(decide: Any, batched: bool) -> None:
    stages = [HostFilterTransform(decide), BATCH]
    with pytest.raises(PipelineError, match="must return one True or False per element"):
        DataLoader([list(range(N)), *stages[:: -1 if batched else 1]])


def test_an_answer_that_becomes_wrong_is_an_error_of_that_element() -> None:
    fickle = HostFilterTransform(lambda x: True if x < 6 else None)
    loader = DataLoader([list(range(N)), fickle, BATCH], workers=1)
    iterator = loader.iterate()
    next(iterator)
    with pytest.raises(PipelineError, match="returned NoneType") as caught:
        next(iterator)
    assert caught.value.element.index == 6  # type: ignore[attr-defined]
    loader.close()


def test_a_function_that_raises_may_be_skipped() -> None:
    def fails(x: Any) -> bool:
        if x == 6:
            raise ValueError("six")
        return x % 2 == 0

    loader = DataLoader(
        [list(range(N)), HostFilterTransform(fails), BATCH], workers=2, on_error="skip"
    )
    masks = [np.asarray(mask).tolist() for _, mask in loader.iterate(steps=2)]
    assert masks == [[True, False, True, False], [True, False, False, False]]
    assert loader.skipped == 1
    loader.close()


def test_a_filter_cannot_write_into_the_element() -> None:
    data = [np.full(2, i) for i in range(N)]

    def write(x: Any) -> bool:
        x = {"a": x}
        x["a"][:] = 0
        return True

    with pytest.raises(PipelineError, match="read-only"):
        DataLoader([data, HostFilterTransform(write), BATCH])
    assert [int(x[0]) for x in data] == list(range(N))


def test_text_is_filtered_as_it_is() -> None:
    words = ["a", "bcd", "ef", "ghij"]
    long = HostFilterTransform(lambda text: len(text) > 2)
    (batch, mask), *_ = some([words, long, HostMapTransform(len), BATCH], 1)
    assert mask == [False, True, False, True]
    assert batch[mask].tolist() == [3, 4]


@pytest.mark.parametrize("batched", [False, True], ids=["before", "after batching"])
def test_what_is_left_out_need_not_suit_the_stages_after_it(batched: bool) -> None:
    digits = HostFilterTransform(str.isdigit)
    data: list[Any] = ["-", "1", "x", "3", "4", "5"]
    stages: list[Any] = [digits, HostMapTransform(int), BatchTransform(3)]
    if batched:
        data = [-1, 1, -2, 3, 4, 5]
        stages = [BatchTransform(3), HostFilterTransform(lambda x: x >= 0)]
        stages += [HostRandomMapTransform(lambda x, rng: [0, 1, 2, 3, 4, 5][: x + 1][-1])]
    found = some([data, *stages], 2)
    assert [mask for _, mask in found] == [[False, True, False], [True] * 3]
    assert found[0][0][1] == 1
    assert found[1][0].tolist() == [3, 4, 5]
