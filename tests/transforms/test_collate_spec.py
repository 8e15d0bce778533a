"""What a collate function returns: seen in a real batch, or stated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal import (
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostMapTransform,
    IterableSource,
    PipelineError,
)
from cereal.testing import check_loader

TEXTS = [[1], [1, 2, 3], [1, 2], [1, 2, 3], [1], [1, 2, 3]]


def to_the_longest(texts: list[list[int]]) -> np.ndarray:
    most = max(map(len, texts))
    return np.array([text + [0] * (most - len(text)) for text in texts])


def apart(many: list[int]) -> np.ndarray:
    """As a contrastive loss would have it: no two alike."""
    if len(set(many)) < len(many):
        raise ValueError("two of a batch are the same")
    return np.array(many)


def test_the_shape_is_that_of_a_batch_and_not_of_copies_of_one_element() -> None:
    loader = DataLoader([TEXTS, BatchTransform(2, collate=to_the_longest)])
    assert loader.element_spec() == jax.ShapeDtypeStruct((2, 3), jnp.int32)
    assert [batch.tolist()[1] for batch, _ in loader] == [[1, 2, 3]] * 3
    check_loader(loader)


def test_a_function_that_refuses_copies_is_given_a_real_batch() -> None:
    loader = DataLoader([[5, 6, 7, 8], BatchTransform(4, collate=apart)])
    assert [batch.tolist() for batch, _ in loader] == [[5, 6, 7, 8]]
    doubled = DataLoader([[5, 6], BatchTransform(2, collate=apart), HostMapTransform(lambda b: -b)])
    assert [batch.tolist() for batch, _ in doubled] == [[-5, -6]]


def test_a_batch_larger_than_the_data_begins_again() -> None:
    batches = BatchTransform(5, collate=to_the_longest, pad_last_batch=True)
    sizes = DataLoader([TEXTS[:2], batches])
    assert sizes.element_spec().shape == (5, 3)


def test_elements_that_cannot_be_read_do_not_hinder_building() -> None:
    def read(index: int) -> int:
        if index == 1:
            raise OSError("gone")
        return index

    source = DiskSampleSource(4, read, ordering="sequential")
    batches = BatchTransform(2, collate=np.stack)
    loader = DataLoader([source, batches], on_error="skip", workers=0)
    assert [m.tolist() for _, m in loader.iterate()] == [[True, False], [True, True]]


@pytest.mark.parametrize("size", [2, 4, 7])
@pytest.mark.parametrize("length", [None, 6])
def test_what_was_read_of_an_iterator_is_given_again(length: int | None, size: int) -> None:
    made = []

    def texts() -> Iterator[Any]:
        made.append(1)
        yield from TEXTS

    source = HostMapTransform(len)(IterableSource(texts, length=length))
    batches = BatchTransform(size, collate=np.stack, pad_last_batch=True)
    loader = DataLoader([source, batches], workers=0)
    found = [x for b, m in loader.iterate() for x in np.asarray(b)[np.asarray(m)].tolist()]
    assert found == [len(text) for text in TEXTS]
    assert len(made) == 1 + (length is not None and size != 2)  # padding begins it anew
    again = [x for b, m in loader.iterate() for x in np.asarray(b)[np.asarray(m)].tolist()]
    assert again == found


def test_a_stated_shape_reads_nothing_when_the_pipeline_is_built() -> None:
    read = []

    def element(index: int) -> list[int]:
        read.append(index)
        return TEXTS[index]

    shape = jax.ShapeDtypeStruct((2, 3), np.int64)
    source = DiskSampleSource(6, element, jax.ShapeDtypeStruct((), object), "sequential")
    loader = DataLoader([source, BatchTransform(2, collate=to_the_longest, spec=shape)], workers=0)
    assert read == []
    assert loader.element_spec() == jax.ShapeDtypeStruct((2, 3), jnp.int32)
    assert [batch.shape for batch, _ in loader] == [(2, 3)] * 3


def test_a_batch_unlike_the_stated_shape_is_an_error_that_names_both() -> None:
    shape = {"x": jax.ShapeDtypeStruct((2, 5), np.int32)}
    batches = BatchTransform(2, collate=lambda many: {"x": to_the_longest(many)}, spec=shape)
    loader = DataLoader([TEXTS, batches])
    match = r"returned \{x: int32\[2,3\]\}, but \{x: int32\[2,5\]\} by `spec=`; all batches"
    with pytest.raises(PipelineError, match=match):
        loader.batch_at(0, 0)


def test_host_stages_after_a_stated_shape_see_a_real_batch() -> None:
    shape = jax.ShapeDtypeStruct((2,), np.int32)
    stages = [BatchTransform(2, collate=apart, spec=shape), HostMapTransform(lambda x: x + 1)]
    loader = DataLoader([DatasetSource([1, 2, 3, 4]), *stages])
    assert [batch.tolist() for batch, _ in loader] == [[2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (jax.ShapeDtypeStruct((3,), np.int32), r"of shape \(3,\); of a batch, not of an element"),
        ((2, 3), r"`spec\[0\]` must be a shape and a dtype, got 2"),
    ],
)
def test_a_wrong_statement_is_refused(spec: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        BatchTransform(2, collate=np.stack, spec=spec)


def test_a_statement_about_nothing_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"`spec=` says what a `collate=` function returns"):
        BatchTransform(2, spec=jax.ShapeDtypeStruct((2,), np.int32))


def test_a_function_of_batches_whose_shape_varies_names_both() -> None:
    def values(batch: Any) -> Any:
        return np.unique(batch)

    loader = DataLoader([np.array([1, 1, 1, 2]), BatchTransform(2), HostMapTransform(values)])
    match = r"HostMapTransform\(values\) returned int32\[2\], but int32\[1\] when it was built; all"
    with pytest.raises(PipelineError, match=match):
        loader.batch_at(0, 1)
