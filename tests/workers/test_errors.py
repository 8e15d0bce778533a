"""Elements that raise: the error says where, the state says where, and the rest is still there."""

from __future__ import annotations

import itertools
import threading
import traceback
from typing import Any

import jax
import numpy as np
import pytest
from tests.workers.reading import OwnError, chunks, loader_of, numbers, within

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, MapTransform

N, BATCH = 24, 4


class Failing:
    """Reads element i, unless it is bad."""

    def __init__(self, *bad: int, error: type[BaseException] = OwnError) -> None:
        self.bad, self.error = set(bad), error
        self.threads: set[str] = set()

    def __call__(self, i: int) -> int:
        self.threads.add(threading.current_thread().name)
        if i in self.bad:
            raise self.error(f"element {i} is bad")
        return i


def words(iterator: Any) -> tuple[int, int]:
    found = np.asarray(iterator.state.words)
    return int(found[2]), int(found[4])


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("bad", [0, 3, 9, 11, 20, 23])
def test_an_error_comes_in_its_turn_says_where_and_the_rest_follows(workers: int, bad: int) -> None:
    read = Failing(bad)
    loader = loader_of(read, N, BATCH, workers=workers, prefetch=3)
    iterator = loader.iterate(loader.init_state(7))
    good = bad // BATCH
    found = [next(iterator)[0].tolist() for _ in range(good)]
    for _ in range(3):
        with pytest.raises(OwnError, match=f"^element {bad} is bad") as raised:
            next(iterator)
        error: Any = raised.value
        assert error.__class__ is OwnError
        assert (error.element.index, error.element.epoch, error.element.key) == (bad, 0, (0, 7))
        assert "DiskSampleSource" in error.element.stage
        assert len(error.__notes__) == 1
        assert f"loader.read_element({bad}, key=7, epoch=0)" in error.__notes__[0]
        frames = traceback.extract_tb(error.__traceback__)
        assert (frames[-1].name, frames[-1].line) == (
            "__call__",
            'raise self.error(f"element {i} is bad")',
        )
        assert words(iterator) == (0, good * BATCH)
    with pytest.raises(OwnError, match=f"element {bad} is bad"):
        loader.read_element(bad, key=7)
    read.bad.clear()
    assert found + numbers(iterator) == chunks(N, BATCH)
    assert loader.skipped == 0


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_several_errors_come_in_the_order_of_the_batches(workers: int) -> None:
    bad = [6, 7, 13, 20]
    read = Failing(*bad)
    loader = loader_of(read, N, BATCH, workers=workers, prefetch=6)
    iterator = loader.iterate(loader.init_state(0))
    met, found = [], []
    while True:
        try:
            found.append(next(iterator)[0].tolist())
        except StopIteration:
            break
        except OwnError as error:
            met.append(int(str(error).split()[1]))
            assert words(iterator)[1] == met[-1] // BATCH * BATCH
            read.bad.remove(met[-1])
    assert met == bad
    assert found == chunks(N, BATCH)


def test_errors_of_all_threads_at_once_lose_nothing() -> None:
    together, failing = threading.Barrier(4), threading.Event()

    def read(i: int) -> int:
        if not failing.is_set():
            together.wait(60)
            raise OwnError(f"element {i}")
        return i

    loader = loader_of(read, 8, 1, workers=4, prefetch=4)
    iterator = loader.iterate(loader.init_state(0))
    with pytest.raises(OwnError, match="element 0"):
        within(lambda: next(iterator))
    failing.set()

    def rest() -> list[Any]:
        found = []
        while True:
            try:
                found.append(next(iterator)[0].tolist())
            except OwnError:  # of a batch that was read when they all failed
                continue
            except StopIteration:
                return found

    assert within(rest) == chunks(8, 1)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_is_no_exception_comes_out_too_and_loses_no_batch(workers: int, error: Any) -> None:
    read = Failing(8, error=error)
    loader = loader_of(read, N, BATCH, workers=workers, prefetch=4)
    iterator = loader.iterate(loader.init_state(0))
    found: list[Any] = []
    came_out: list[BaseException] = []
    for _ in range(20):
        before = words(iterator)
        try:
            found.append(next(iterator)[0].tolist())
        except (error, RuntimeError) as caught:
            came_out.append(caught)
            assert words(iterator) == before, "the batch that was asked for is still to come"
            read.bad.clear()
        except StopIteration:
            break
    assert found == chunks(N, BATCH)
    (raised,) = came_out
    if error is KeyboardInterrupt:
        assert type(raised) is error
    else:  # it would end the training run in silence
        assert isinstance(raised, RuntimeError)
        assert isinstance(raised.__cause__, error)
        assert raised.element.index == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_stop_iteration_of_a_function_does_not_end_the_loop_quietly(workers: int) -> None:
    loader = loader_of(Failing(9, error=StopIteration), N, BATCH, workers=workers)
    iterator = loader.iterate(loader.init_state(0))
    with pytest.raises((RuntimeError, cereal.CerealError)):
        numbers(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_with_slots_or_arguments_of_its_own_stays_what_it_is(workers: int) -> None:
    class Slotted(Exception):  # noqa: N818
        __slots__ = ()

        def __init__(self, one: int, two: int) -> None:
            super().__init__(one, two)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "element":
                raise AttributeError(name)
            super().__setattr__(name, value)

    def read(i: int) -> int:
        if i == 5:
            raise Slotted(1, 2)
        return i

    loader = loader_of(read, N, BATCH, workers=workers)
    iterator = loader.iterate(loader.init_state(0))
    next(iterator)
    with pytest.raises(Slotted) as raised:
        next(iterator)
    assert raised.value.args == (1, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_error_object_raised_for_two_elements_names_each_in_its_turn(workers: int) -> None:
    same = OwnError("always the same")
    bad = {5, 13}

    def read(i: int) -> int:
        if i in bad:
            raise same
        return i

    loader = loader_of(read, N, BATCH, workers=workers, prefetch=1)
    iterator = loader.iterate(loader.init_state(0))
    met = []
    for _ in range(12):
        try:
            next(iterator)
        except StopIteration:
            break
        except OwnError as error:
            met.append(error.element.index)  # type: ignore[attr-defined]
            bad.discard(min(bad))
    assert met == [5, 13]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_error_of_a_later_stage_names_that_stage(workers: int) -> None:
    def decode(x: Any) -> Any:
        if x == 10:
            raise OwnError("cannot decode")
        return x

    stages = [DatasetSource(range(N)), HostMapTransform(decode), BatchTransform(BATCH)]
    loader = DataLoader([*stages, MapTransform(lambda x: x + 1)], workers=workers)
    with pytest.raises(OwnError) as raised:
        list(loader.iterate(loader.init_state(0)))
    assert raised.value.element.stage == "HostMapTransform(decode)"  # type: ignore[attr-defined]
    assert raised.value.element.index == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_function_over_batches_keeps_the_place(workers: int) -> None:
    bad = {8}

    def double(batch: Any) -> Any:
        if int(batch[0]) in bad:
            raise OwnError("this batch")
        return batch * 2

    loader = loader_of(lambda i: i, N, BATCH, HostMapTransform(double), workers=workers, prefetch=2)
    iterator = loader.iterate(loader.init_state(0))
    found = [next(iterator)[0].tolist() for _ in range(2)]
    with pytest.raises(OwnError) as raised:
        next(iterator)
    assert raised.value.element.stage == "HostMapTransform(double)"  # type: ignore[attr-defined]
    assert words(iterator) == (0, 8)
    bad.clear()
    found += numbers(iterator)
    assert found == [[2 * i for i in each] for each in chunks(N, BATCH)]


@pytest.mark.parametrize("workers", [0, 3])
def test_an_element_whose_shape_changes_is_an_error_with_its_place(workers: int) -> None:
    spec = jax.ShapeDtypeStruct((2,), np.float32)

    def read(i: int) -> Any:
        return np.zeros(3 if i == 6 else 2, np.float32)

    loader = loader_of(read, N, BATCH, spec=spec, workers=workers)
    iterator = loader.iterate(loader.init_state(0))
    next(iterator)
    with pytest.raises(cereal.PipelineError, match=r"float32\[3\]") as raised:
        next(iterator)
    assert raised.value.element.index == 6  # type: ignore[attr-defined]
    assert words(iterator) == (0, 4)


# Other roads


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_error_in_a_scan_leaves_the_loader_usable(workers: int) -> None:
    read = Failing(13)
    loader = loader_of(read, N, BATCH, workers=workers, prefetch=2)
    body = lambda carry, batch, mask: (carry + 1, batch)  # noqa: E731
    with pytest.raises(OwnError) as raised:
        loader.scan_epoch(loader.init_state(0), 0, body)
    assert raised.value.element.index == 13  # type: ignore[attr-defined]
    read.bad.clear()
    state, count, found = loader.scan_epoch(loader.init_state(0), 0, body)
    assert (int(count), found.tolist()) == (6, chunks(N, BATCH))
    assert int(state.words[2]) == 1


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_error_of_next_batch_leaves_the_state_good(workers: int) -> None:
    read = Failing(9)
    loader = loader_of(read, N, BATCH, workers=workers, prefetch=2)
    state, found = loader.init_state(0), []
    for _ in range(2):
        batch, state, _ = loader.next_batch(state)
        found.append(batch.tolist())
    for _ in range(3):
        with pytest.raises(OwnError) as raised:
            loader.next_batch(state)
        assert raised.value.element.index == 9  # type: ignore[attr-defined]
    read.bad.clear()
    for _ in range(4):
        batch, state, _ = loader.next_batch(state)
        found.append(batch.tolist())
    assert found == chunks(N, BATCH)


def test_a_state_after_an_error_is_a_checkpoint() -> None:
    read = Failing(17)
    loader = loader_of(read, N, BATCH, workers=2, prefetch=3)
    iterator = loader.iterate(loader.init_state(0))
    found = numbers(itertools.islice(iterator, 4))
    with pytest.raises(OwnError):
        next(iterator)
    saved = np.asarray(iterator.state.words)
    iterator.close()
    again = loader_of(Failing(), N, BATCH, workers=2, prefetch=3)
    state = again.init_state(0).replaced(jax.numpy.asarray(saved))
    assert found + numbers(again.iterate(state)) == chunks(N, BATCH)
