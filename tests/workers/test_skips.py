"""Errors under a policy: counted, masked, logged, replaced; the same by every road."""

from __future__ import annotations

import logging
import threading
from typing import Any

import jax
import numpy as np
import pytest
from tests.workers.reading import OwnError, chunks, kept, loader_of, numbers

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    HostFilterTransform,
    HostMapTransform,
    MapTransform,
)

N, BATCH = 24, 4
BAD = {0, 5, 6, 11, 23}


def read(i: int) -> int:
    if i in BAD:
        raise OwnError(f"element {i} is bad")
    return i


def good(n: int = N, bad: Any = BAD) -> list[list[int]]:
    return [[i for i in each if i not in bad] for each in chunks(n, BATCH)]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("prefetch", [0, 2, 16])
def test_skipped_elements_are_masked_and_counted(workers: int, prefetch: int) -> None:
    loader = loader_of(read, workers=workers, prefetch=prefetch, on_error="skip")
    pairs = list(loader.iterate(loader.init_state(0)))
    assert kept(pairs) == good()
    assert [mask.tolist() for _, mask in pairs] == [[i not in BAD for i in c] for c in chunks(N, 4)]
    assert loader.skipped == len(BAD)


def test_what_stands_in_for_a_skipped_element_is_valid_input() -> None:
    valid = {i + 100 for i in range(N) if i not in BAD}
    loader = loader_of(lambda i: read(i) + 100, workers=2, on_error="skip")
    for batch, _ in loader.iterate(loader.init_state(0)):
        assert set(batch.tolist()) <= valid


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_which_all_is_skipped_is_masked_and_the_others_are_whole(workers: int) -> None:
    def bad(i: int) -> int:
        if 4 <= i < 8:
            raise OwnError
        return i + 1

    loader = loader_of(bad, 12, 4, workers=workers, on_error="skip")
    assert kept(loader.iterate(loader.init_state(0))) == [[1, 2, 3, 4], [], [9, 10, 11, 12]]
    assert loader.skipped == 4


def test_data_of_which_nothing_can_be_read_is_masked_or_an_error_and_no_hang() -> None:
    def bad(i: int) -> int:
        raise OwnError

    loader = loader_of(bad, 12, 4, workers=2, on_error="skip")
    try:
        found = kept(loader.iterate(loader.init_state(0)))
    except cereal.PipelineError:
        found = [[], [], []]
    assert found == [[], [], []]


def test_the_first_three_are_logged_with_their_place(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(read, workers=1, on_error="skip")
    with caplog.at_level(logging.WARNING, "cereal"):
        list(loader.iterate(loader.init_state(0)))
    lines = [record.getMessage() for record in caplog.records if record.name == "cereal"]
    assert len(lines) == 3
    for line, i in zip(lines, sorted(BAD)[:3], strict=True):
        assert f"OwnError: element {i} is bad" in line
        assert f"element {i} of epoch 0" in line
    assert "loader.skipped" in lines[2]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_policy_gives_replacements_or_skips(workers: int) -> None:
    seen: list[Any] = []

    def policy(error: Any) -> Any:
        seen.append((type(error), error.element.index))
        return None if error.element.index % 2 else -error.element.index

    loader = loader_of(read, workers=workers, prefetch=2, on_error=policy)
    pairs = list(loader.iterate(loader.init_state(0)))
    expected = [
        [-i if i in BAD else i for i in c if i not in BAD or i % 2 == 0] for c in chunks(N, 4)
    ]
    assert kept(pairs) == expected
    assert sorted(seen, key=lambda pair: pair[1]) == [(OwnError, i) for i in sorted(BAD)]
    assert loader.skipped == sum(i % 2 for i in BAD)


def test_a_policy_runs_where_the_element_is_read() -> None:
    names: set[str] = set()
    loader = loader_of(
        read, workers=2, on_error=lambda e: names.add(threading.current_thread().name)
    )
    list(loader.iterate(loader.init_state(0)))
    assert all(name.startswith("cereal") for name in names)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_policy_that_raises_is_an_error_of_that_batch(workers: int) -> None:
    def policy(error: Exception) -> Any:
        raise KeyError("no policy") from error

    loader = loader_of(read, workers=workers, on_error=policy)
    iterator = loader.iterate(loader.state_at(0, 1))
    for _ in range(2):
        with pytest.raises(KeyError, match="no policy") as raised:
            next(iterator)
        assert isinstance(raised.value.__cause__, OwnError)
        assert int(iterator.state.words[4]) == 4
    assert loader.skipped == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_policy_may_raise_the_error_it_is_given(workers: int) -> None:
    def policy(error: Exception) -> Any:
        raise error

    loader = loader_of(read, workers=workers, on_error=policy)
    with pytest.raises(OwnError, match="element 0"):
        list(loader.iterate(loader.init_state(0)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_replacement_of_another_shape_is_an_error_and_no_hang(workers: int) -> None:
    loader = loader_of(read, workers=workers, on_error=lambda error: np.zeros(3, np.int32))
    with pytest.raises(cereal.PipelineError, match=r"int32\[3\]"):
        list(loader.iterate(loader.init_state(0)))


@pytest.mark.parametrize("workers", [0, 2])
def test_replacements_go_through_the_stages_that_follow(workers: int) -> None:
    def decode(x: Any) -> Any:
        if x == 7:
            raise OwnError
        return {"x": x * 10}

    stages = [
        DatasetSource(range(12)),
        HostMapTransform(decode),
        HostMapTransform(lambda e: e["x"] + 1),
        BatchTransform(4),
        MapTransform(lambda x: x * 2),
    ]
    loader = DataLoader(stages, workers=workers, on_error=lambda error: {"x": -1})
    found = numbers(loader.iterate(loader.init_state(0)))
    assert found == [[2 * ((-1 if i == 7 else 10 * i) + 1) for i in c] for c in chunks(12, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_function_that_fails_skips_its_batch(workers: int) -> None:
    def double(batch: Any) -> Any:
        if int(batch[0]) == 8:
            raise OwnError
        return batch * 2

    loader = loader_of(
        lambda i: i, N, 4, HostMapTransform(double), workers=workers, on_error="skip"
    )
    found = kept(loader.iterate(loader.init_state(0)))
    assert found == [[] if c[0] == 8 else [2 * i for i in c] for c in chunks(N, 4)]
    assert loader.skipped >= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_function_that_fails_is_replaced_by_a_batch(workers: int) -> None:
    def double(batch: Any) -> Any:
        if int(batch[0]) == 8:
            raise OwnError
        return batch * 2

    stage, instead = HostMapTransform(double), np.full(4, -1, np.int32)
    loader = loader_of(lambda i: i, N, 4, stage, workers=workers, on_error=lambda e: instead)
    found = kept(loader.iterate(loader.init_state(0)))
    assert found == [[-1] * 4 if c[0] == 8 else [2 * i for i in c] for c in chunks(N, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_elements_of_another_shape_are_skipped(workers: int) -> None:
    def ragged(i: int) -> Any:
        return np.full(3 if i in BAD else 2, i, np.int32)

    spec = jax.ShapeDtypeStruct((2,), np.int32)
    loader = loader_of(ragged, spec=spec, workers=workers, on_error="skip")
    found = [
        np.asarray(batch)[np.asarray(mask), 0].tolist()
        for batch, mask in loader.iterate(loader.init_state(0))
    ]
    assert found == good()
    assert loader.skipped == len(BAD)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_another_shape_are_skipped(workers: int) -> None:
    cut = HostMapTransform(lambda batch: batch[:3] if int(batch[0]) == 4 else batch)
    loader = loader_of(lambda i: i, 12, 4, cut, workers=workers, on_error="skip")
    assert kept(loader.iterate(loader.init_state(0))) == [[0, 1, 2, 3], [], [8, 9, 10, 11]]


@pytest.mark.parametrize("first", ["array", "dataset"])
def test_a_replacement_for_a_filter_that_fails_is_the_element(first: str) -> None:
    def odd(x: Any) -> bool:
        if int(x) == 5:
            raise OwnError
        return int(x) % 2 == 1

    data = np.arange(12, dtype=np.int32)
    source = (
        ArraySampleSource(data, ordering="sequential")
        if first == "array"
        else DatasetSource(data.tolist())
    )
    stages = [source, HostFilterTransform(odd), BatchTransform(4)]
    loader = DataLoader(stages, workers=2, on_error=lambda error: np.int32(99))
    assert kept(loader.iterate(loader.init_state(0))) == [[1, 3], [99, 7], [9, 11]]


# Other roads


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry + mask.sum(), (batch, mask)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_road_skips_the_same(workers: int) -> None:
    loader = loader_of(read, workers=workers, prefetch=3, on_error="skip")
    state, total, found = loader.scan_epoch(loader.init_state(0), 0, keep)
    assert (kept(zip(*found, strict=True)), int(total)) == (good(), N - len(BAD))
    state, found = loader.init_state(0), []
    for _ in range(6):
        batch, state, mask = loader.next_batch(state)
        found.append((batch, mask))
    assert kept(found) == good()
    inside = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, keep))
    state, total, found = inside(loader, loader.init_state(0))
    assert (kept(zip(*found, strict=True)), int(total)) == (good(), N - len(BAD))
    step, state, found = jax.jit(loader.next_batch), loader.init_state(0), []
    for _ in range(6):
        batch, state, mask = step(state)
        found.append((batch, mask))
    assert kept(found) == good()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_walk_counts_an_element_once(workers: int) -> None:
    loader = loader_of(read, workers=workers, prefetch=2, on_error="skip")
    loader.scan_epoch(loader.init_state(0), 0, keep)
    assert loader.skipped == len(BAD)
    state = loader.init_state(0)
    for _ in range(6):
        _, state, _ = loader.next_batch(state)
    loader.close()
    ahead = loader.skipped - 2 * len(BAD)  # of the first three batches of the next epoch
    assert 0 <= ahead <= 4


def test_iterators_know_how_much_was_skipped() -> None:
    loader = loader_of(read, workers=2, on_error="skip")
    iterator: Any = loader.iterate(loader.init_state(0))
    list(iterator)
    assert iterator.skipped == loader.skipped == len(BAD)


@pytest.mark.parametrize("on_error", ["ignore", "", 3, None, ("skip",)])
def test_a_policy_that_is_none_is_refused(on_error: Any) -> None:
    with pytest.raises(cereal.PipelineError, match="`on_error` must be"):
        loader_of(read, on_error=on_error)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("road", ["iterate", "scan_epoch", "jit"])
def test_an_element_that_fills_up_the_last_batch_is_not_counted_again(
    workers: int, road: str
) -> None:
    def bad(i: int) -> int:
        if i % 7 == 3:
            raise OwnError(i)
        return i

    spec = jax.ShapeDtypeStruct((), np.int32)
    source = cereal.DiskSampleSource(60, bad, spec)
    stages = [source, BatchTransform(8, pad_last_batch=True)]
    keep = lambda carry, batch, mask: (carry + mask.sum(), None)  # noqa: E731
    with DataLoader(stages, workers=workers, on_error="skip", prefetch=0) as loader:
        state = loader.init_state(0)
        if road == "iterate":
            list(loader.iterate(state))
        elif road == "scan_epoch":
            loader.scan_epoch(state, 0, keep)
        else:
            run = jax.jit(lambda state: loader.scan_epoch(state, 0, keep)[1])
            jax.block_until_ready(run(state))
        assert loader.skipped == 9


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_runs_jax_in_a_program_is_told_so_and_not_skipped(
    workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def plus(i: int) -> Any:
        return np.int32(jax.numpy.int32(i) + 1)

    loader = loader_of(plus, workers=workers, on_error="skip")
    assert len(list(loader.iterate(loader.init_state(0)))) == 6
    message = r"DiskSampleSource\(plus.*\) runs JAX inside of a compiled program(.|\n)*use NumPy"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(jax.jit(loader.next_batch)(loader.init_state(0)))
    assert "no_execution" not in capfd.readouterr().err
    assert loader.skipped == 0
