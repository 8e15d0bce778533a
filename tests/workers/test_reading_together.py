"""Small batches that one NumPy call reads are read several at once, by the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, HostMapTransform, PipelineError
from cereal.base.pytree import pytree_dataclass
from cereal.reading.leaves import ArrayForm
from cereal.reading.tables.table import Table
from cereal.sources.table import TableSource

N, BATCH = 60, 4


class Counted(Table):
    """Numbers; it notes which rows it was asked for."""

    form = ArrayForm((), np.dtype(np.int64))
    quick = True

    def __init__(self, wrong: int = -1) -> None:
        self.asked: list[list[int]] = []
        self.wrong = wrong

    def __len__(self) -> int:
        return N

    def take(self, indices: np.ndarray) -> list[Any]:
        self.asked.append(indices.tolist())
        indices = indices.astype(np.int64)
        return [np.where(indices == self.wrong, np.int64(2**40), indices)]

    def digest(self) -> Any:
        return N


@pytree_dataclass
class Numbers(TableSource):
    def __init__(self, table: Table, ordering: Any = "sequential") -> None:
        self._open(table, ordering, None)


def loader_of(table: Counted, ordering: Any = "sequential", **options: Any) -> DataLoader[Any]:
    return DataLoader([Numbers(table, ordering), BatchTransform(BATCH)], **options)


def sizes(table: Counted) -> list[int]:
    return [len(each) // BATCH for each in table.asked]


def test_more_and_more_steps_are_read_at_once_and_none_beyond_the_end() -> None:
    table = Counted()
    loader = loader_of(table)
    found = [batch.tolist() for batch, _ in loader]
    assert found == np.arange(N).reshape(-1, BATCH).tolist()
    assert sizes(table) == [1, 2, 4, 8]
    assert [row for rows in table.asked for row in rows] == list(range(N))


@pytest.mark.parametrize(("prefetch", "wanted"), [(1, {1}), (3, {1, 2, 3})])
def test_not_more_than_may_be_read_ahead(prefetch: int, wanted: set[int]) -> None:
    table = Counted()
    assert len(list(loader_of(table, workers=0, prefetch=prefetch))) == N // BATCH
    assert set(sizes(table)) <= wanted


def test_each_shuffled_batch_is_that_of_a_step_by_itself() -> None:
    loader = loader_of(Counted(), "shuffle")
    state = loader.init_state(3)
    for step, (batch, _) in enumerate(loader.iterate(state, epochs=2)):
        alone, after, _ = loader.next_batch(state)
        assert batch.tolist() == alone.tolist(), step
        state = after


def test_the_state_is_that_of_the_batches_that_were_handed_out() -> None:
    loader = loader_of(Counted(), "shuffle")
    batches = loader.iterate(loader.init_state(0))
    for _ in range(5):
        next(batches)
    rest = [batch.tolist() for batch, _ in loader.iterate(batches.state)]
    assert rest == [batch.tolist() for batch, _ in batches]


def test_an_error_comes_with_its_own_batch() -> None:
    table = Counted(wrong=21)  # of step 5, which is read with others
    batches = loader_of(table).iterate()
    found = [next(batches)[0].tolist() for _ in range(5)]
    assert found == np.arange(20).reshape(5, BATCH).tolist()
    for _ in range(2):  # the failed batch stays the next one
        with pytest.raises(PipelineError, match="does not fit int32") as caught:
            next(batches)
        assert caught.value.element.index == 21  # type: ignore[attr-defined]
    table.wrong = -1
    assert [batch.tolist() for batch, _ in batches] == np.arange(20, N).reshape(-1, BATCH).tolist()


def test_what_python_runs_for_elements_is_read_step_by_step() -> None:
    table = Counted()
    stages = [Numbers(table), HostMapTransform(lambda x: x + 1), BatchTransform(BATCH)]
    loader = DataLoader(stages, workers=0)
    table.asked.clear()
    next(loader.iterate())
    assert sizes(table) == [1]
    assert set(sizes(table)) == {1}
