"""Batches that a Python function makes of lists of elements, and the padding one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    MapTransform,
    PipelineError,
    RangeSource,
    pad_collate,
)
from cereal.testing import check_loader, check_resume, check_source

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(1, 99, length).tolist() for length in (3, 1, 2, 5, 4, 0, 7, 2, 1, 6)]
N, SIZE = len(TEXTS), 4


def padded(text: list[int], most: int, value: Any = 0) -> list[int]:
    return (text + [value] * most)[:most]


def plain(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x).tolist(), tree)


def some(stages: list[Any], steps: int = 3, key: int = 0, **options: Any) -> list[tuple[Any, Any]]:
    with DataLoader(stages, **options) as loader:
        return [plain(pair) for pair in loader.iterate(loader.init_state(key), steps=steps)]


def lanes(steps: int = 3, size: int = SIZE) -> list[list[int]]:
    return [[(step * size + lane) % N for lane in range(size)] for step in range(steps)]


def padding(max_length: int = 4, size: int = SIZE, **options: Any) -> BatchTransform:
    return BatchTransform(size, collate=pad_collate(max_length, **options))


# pad_collate


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("most", [1, 4, 9])
def test_ragged_lists_are_padded_and_have_lengths(most: int, workers: int) -> None:
    found = some([TEXTS, padding(most)], 5, workers=workers)
    for (batch, mask), step in zip(found, lanes(5), strict=True):
        assert batch["values"] == [padded(TEXTS[i], most) for i in step]
        assert batch["lengths"] == [min(len(TEXTS[i]), most) for i in step]
        assert mask == [True] * SIZE


def test_dicts_keep_their_keys_and_numbers_are_stacked() -> None:
    data = [{"t": text, "y": i, "w": i / 2, "z": np.int8(i)} for i, text in enumerate(TEXTS)]
    for (batch, _), step in zip(some([data, padding(value=-1)]), lanes(), strict=True):
        assert batch == {
            "t": [padded(TEXTS[i], 4, -1) for i in step],
            "lengths": [min(len(TEXTS[i]), 4) for i in step],
            "y": step,
            "w": [i / 2 for i in step],
            "z": step,
        }


def test_several_ragged_entries_have_a_length_each() -> None:
    data = [{"a": text, "b": text[::2], "y": i} for i, text in enumerate(TEXTS)]
    for (batch, _), step in zip(some([data, padding()]), lanes(), strict=True):
        assert batch["b"] == [padded(TEXTS[i][::2], 4) for i in step]
        assert batch["lengths"] == {
            "a": [min(len(TEXTS[i]), 4) for i in step],
            "b": [min(len(TEXTS[i][::2]), 4) for i in step],
        }


def test_nested_entries_are_padded_and_only_what_is_ragged_has_lengths() -> None:
    data = [{"in": {"t": text, "n": i}, "out": {"u": text[1:]}} for i, text in enumerate(TEXTS)]
    for (batch, _), step in zip(some([data, padding()]), lanes(), strict=True):
        assert batch["in"] == {"t": [padded(TEXTS[i], 4) for i in step], "n": step}
        assert batch["out"]["u"] == [padded(TEXTS[i][1:], 4) for i in step]
        assert batch["lengths"]["in"]["t"] == [min(len(TEXTS[i]), 4) for i in step]
        assert batch["lengths"]["out"]["u"] == [min(len(TEXTS[i][1:]), 4) for i in step]
        leaves = jax.tree.leaves(batch["lengths"], is_leaf=lambda x: x is None)
        assert None not in leaves


def test_nested_numbers_need_no_lengths() -> None:
    data = [{"a": {"n": i}, "y": i} for i in range(N)]
    assert some([data, padding()]) == [({"a": {"n": s}, "y": s}, [True] * SIZE) for s in lanes()]


def test_numbers_alone_are_stacked() -> None:
    assert some([list(range(N)), padding()]) == [(step, [True] * SIZE) for step in lanes()]


def test_arrays_are_padded_along_their_first_axis() -> None:
    data = [np.full((len(text), 2, 3), i, np.float16) for i, text in enumerate(TEXTS)]
    loader = DataLoader([data, padding(value=9)])
    for step, numbers in enumerate(lanes()):
        batch, _ = loader.batch_at(0, step)
        assert batch["values"].dtype == jnp.float16
        expected = np.full((SIZE, 4, 2, 3), 9, np.float16)
        for lane, i in enumerate(numbers):
            expected[lane, : len(TEXTS[i])] = data[i][:4]
        np.testing.assert_array_equal(batch["values"], expected)
    loader.close()


@pytest.mark.parametrize("texts", [[[], [1, 2], [3], []], [[1], [], [], [4, 5, 6]]])
def test_empty_lists_are_all_padding(texts: list[list[int]]) -> None:
    for (batch, _), step in zip(some([texts, padding(3, 2)], 2), (0, 2), strict=True):
        assert batch["values"] == [padded(text, 3) for text in texts[step : step + 2]]
        assert batch["lengths"] == [len(text) for text in texts[step : step + 2]]


def test_without_truncation_what_is_too_long_is_an_error_with_its_place() -> None:
    loader = DataLoader([TEXTS, padding(4, 2, truncate=False)], workers=0)
    iterator = loader.iterate()
    next(iterator)
    with pytest.raises(PipelineError, match="length 5, more than max_length=4") as caught:
        next(iterator)
    assert caught.value.element.epoch == 0  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[list[Any], str]] = {
    "text": (["ab", "c"], r"has a str \('ab'\).*HostMapTransform"),
    "other keys": ([{"a": [1]}, {"b": [1]}], "different structures"),
    "other last axes": ([np.ones((2, 2)), np.ones((2, 3))], "more than their first axis"),
    "other axes": ([np.ones((2, 2)), np.ones(2)], "more than their first axis"),
    "a list and a number": ([[1, 2], 3], "pad_collate"),
    "a number and a list": ([3, [1, 2]], "pad_collate"),
    "ragged inside": ([[[1], [2, 3]], [[4], [5, 6]]], "pad_collate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_padded_is_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(PipelineError, match=message):
        some([data, padding(4, 2)], 1)


@pytest.mark.parametrize("most", [0, -1, 2.5, True, None, "4"])
def test_a_max_length_that_is_no_positive_integer_is_refused(most: Any) -> None:
    with pytest.raises(PipelineError, match="`max_length` must be an integer of at least 1"):
        pad_collate(most)


@pytest.mark.parametrize(("data", "value"), [([[1], [2, 3]], 0.5), ([np.ones(1, np.uint8)], -1)])
def test_a_value_that_the_numbers_cannot_hold_is_refused(data: Any, value: Any) -> None:
    with pytest.raises(PipelineError, match="value"):
        DataLoader([data, padding(3, 1, value=value)])


# A function of one's own


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_it_is_given_a_list_of_elements_in_order(workers: int) -> None:
    def collate(elements: Any) -> Any:
        assert type(elements) is list
        assert len(elements) == SIZE
        return {
            "sum": [sum(each) for each in elements],
            "first": np.full(SIZE, len(elements[0]) * 1.0),
        }

    for (batch, _), step in zip(
        some([TEXTS, BatchTransform(SIZE, collate=collate)], 6, workers=workers),
        lanes(6),
        strict=True,
    ):
        assert batch["sum"] == [sum(TEXTS[i]) for i in step]
        assert batch["first"] == [len(TEXTS[step[0]])] * SIZE


@pytest.mark.parametrize("rule", [{"pad_last_batch": True}, {"drop_last": True}, {}], ids=str)
def test_the_rule_for_the_end_of_an_epoch_is_kept(rule: dict[str, Any]) -> None:
    batch = BatchTransform(SIZE, collate=pad_collate(4), **rule)
    loader = DataLoader([DatasetSource(TEXTS, ordering="shuffle"), batch])
    steps = {"pad_last_batch": 3, "drop_last": 2}.get(next(iter(rule), ""), 3)
    assert loader.steps_per_epoch == steps
    for step in range(2 * steps):
        found, mask = plain(loader.batch_at(3, step))
        real = loader.indices_at(3, step).tolist()
        kept = [row for row, yes in zip(found["values"], mask, strict=True) if yes]
        assert kept == [padded(TEXTS[i], 4) for i in real]
    loader.close()


def test_every_road_is_the_same() -> None:
    source = DatasetSource(TEXTS[:7], ordering="shuffle")
    batch = BatchTransform(3, pad_last_batch=True, collate=pad_collate(4))
    loader = DataLoader([source, batch, MapTransform(lambda b: {**b, "n": b["lengths"] + 1})])
    check_loader(loader)
    check_resume(loader, epochs=1)
    check_source(loader.source)
    loader.close()


@pytest.mark.parametrize("source", [TEXTS, RangeSource(N)], ids=["list", "range"])
def test_any_host_source_is_collated(source: Any) -> None:
    size = lambda each: len(each) if isinstance(each, list) else int(each)  # noqa: E731
    found = some([source, BatchTransform(SIZE, collate=lambda many: [size(x) for x in many])])
    expected = [[len(TEXTS[i]) if source is TEXTS else i for i in step] for step in lanes()]
    assert [batch for batch, _ in found] == expected


def test_it_cannot_change_the_data() -> None:
    data = [[1, 2], [3]]

    def grow(elements: Any) -> Any:
        for each in elements:
            each.append(0)
        return [len(each) for each in elements]

    found = some([data, BatchTransform(2, collate=grow)], 3)
    assert [batch for batch, _ in found] == [[3, 2]] * 3
    assert data == [[1, 2], [3]]


BAD: dict[str, tuple[Any, str]] = {
    "another axis": (lambda many: np.zeros(3), r"`batch` of shape \(3,\).*first axis.*must be 4"),
    "a scalar": (lambda many: {"n": len(many)}, r"`batch\['n'\]` of shape \(\)"),
    "text": (lambda many: {"x": np.zeros(4), "s": "a"}, r"\['s'\]` is a Python object"),
    "None": (lambda many: None, "None"),
    "an error": (lambda many: {}["x"], r"BatchTransform\(4.*KeyError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_result_is_an_error_when_the_pipeline_is_built(name: str) -> None:
    fn, message = BAD[name]
    with pytest.raises(PipelineError, match=f"stage 1.*{message}"):
        DataLoader([TEXTS, BatchTransform(SIZE, collate=fn)])


def test_a_collate_that_cannot_be_called_is_named() -> None:
    with pytest.raises(PipelineError, match="`collate` must be callable"):
        BatchTransform(4, collate=3)  # type: ignore[arg-type]


def fails_on_five(many: Any) -> Any:
    if any(len(each) == 5 for each in many):
        raise ValueError("five")
    return np.array([len(each) for each in many])


def test_an_error_in_a_late_batch_says_where_and_the_loader_goes_on() -> None:
    loader = DataLoader([TEXTS, BatchTransform(2, collate=fails_on_five)], workers=2)
    iterator = loader.iterate()
    next(iterator)
    for _ in range(2):
        with pytest.raises(ValueError, match="five") as caught:
            next(iterator)
        assert "BatchTransform(2, collate=fails_on_five)" in "".join(caught.value.__notes__)
    assert loader.batch_at(0, 2)[0].tolist() == [4, 0]
    loader.close()


@pytest.mark.parametrize(
    ("policy", "batch", "mask"),
    [("skip", [0, 0], [False, False]), (lambda error: [8, 9], [8, 9], [True, True])],
    ids=["skip", "replaced"],
)
def test_a_batch_that_fails_is_skipped_or_replaced(policy: Any, batch: Any, mask: Any) -> None:
    found = some([TEXTS, BatchTransform(2, collate=fails_on_five)], 3, on_error=policy, workers=1)
    assert found == [([3, 1], [True, True]), (batch, mask), ([4, 0], [True, True])]


def test_a_batch_of_another_shape_than_the_first_is_an_error() -> None:
    longest = lambda many: np.zeros((SIZE, max(map(len, many))))  # noqa: E731
    match = r"returned float32\[4,7\], but float32\[4,5\] for the first batch.*pad_collate.*spec="
    with pytest.raises(PipelineError, match=match):
        some([TEXTS, BatchTransform(SIZE, collate=longest)])


def test_filtered_elements_are_masked() -> None:
    long = HostFilterTransform(lambda text: len(text) > 2)
    found = some([TEXTS, long, padding()], 5)
    for (batch, mask), step in zip(found, lanes(5), strict=True):
        assert mask == [len(TEXTS[i]) > 2 for i in step]
        kept = [padded(TEXTS[i], 4) for i in step if len(TEXTS[i]) > 2]
        assert [row for row, yes in zip(batch["values"], mask, strict=True) if yes] == kept
    nothing = some([TEXTS, HostFilterTransform(lambda text: False), padding()], 2)
    assert all(mask == [False] * SIZE for _, mask in nothing)


# In the middle of other stages


def test_host_stages_after_it_see_the_batch_and_its_mask() -> None:
    def mean(batch: Any, mask: Any) -> Any:
        return {"n": batch["lengths"][mask].sum(), **batch}

    batch = BatchTransform(SIZE, pad_last_batch=True, collate=pad_collate(9))
    found = some([TEXTS, batch, HostMapTransform(mean)], 3)
    sums = [sum(len(text) for text in TEXTS[i : i + SIZE]) for i in (0, 4, 8)]
    assert [batch["n"] for batch, _ in found] == sums


@pytest.mark.parametrize("rule", [{}, {"pad_last_batch": True}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_microbatches_of_collated_batches(workers: int, rule: dict[str, Any]) -> None:
    count = HostMapTransform(lambda batch, mask: {**batch, "real": mask.sum()})
    top = HostMapTransform(lambda batch: {**batch, "top": batch["lengths"].max()})
    stages = [TEXTS, padding(9, 2), count, BatchTransform(2, **rule), top]
    loader = DataLoader(stages, workers=workers)
    assert loader.element_spec()["values"].shape == (2, 2, 9)
    for step, (batch, mask) in enumerate(some(stages, loader.steps_per_epoch, workers=workers)):
        at = [step * 4 + lane for lane in range(4)]
        texts = [TEXTS[place % N] for place in at]
        real = [place < N or not rule.get("pad_last_batch", False) for place in at]
        assert np.ravel(mask).tolist() == real
        assert np.reshape(batch["values"], (4, 9)).tolist() == [padded(t, 9) for t in texts]
        assert np.ravel(batch["lengths"]).tolist() == [len(text) for text in texts]
        assert batch["real"] == [sum(real[:2]), sum(real[2:])]
        assert batch["top"] == max(map(len, texts))


def test_random_stages_before_and_after_it_are_those_without_it() -> None:
    noise = HostRandomMapTransform(lambda x, rng: x * 100 + rng.integers(100))
    stacked = BatchTransform(SIZE, collate=np.stack)
    expected = some([list(range(N)), noise, noise, BatchTransform(SIZE)], 5, key=4)
    for stages in ([noise, noise, stacked], [noise, stacked, noise], [stacked, noise, noise]):
        assert some([list(range(N)), *stages], 5, key=4) == expected


def test_it_collates_once_and_before_compiled_stages() -> None:
    own = BatchTransform(2, collate=np.stack)
    with pytest.raises(PipelineError, match="collate in the first BatchTransform"):
        DataLoader([RangeSource(8), BatchTransform(2), own])
    with pytest.raises(PipelineError, match=r"stage 2: BatchTransform.*comes after MapTransform"):
        DataLoader([RangeSource(8), MapTransform(lambda x: x), own])


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_batches_larger_than_the_data_and_dropping_everything() -> None:
    assert some([TEXTS[:3], padding(2, 7)], 1)[0][0]["lengths"] == [2, 1, 2, 2, 1, 2, 2]
    with pytest.raises(PipelineError, match="drops all 3 elements"):
        DataLoader([TEXTS[:3], BatchTransform(4, drop_last=True, collate=pad_collate(2))])
