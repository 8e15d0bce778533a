"""The options of a loader: what they mean when they are not given, and what is refused."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.workers.reading import chunks, loader_of, numbers, workers

import cereal
from cereal import BatchTransform, DataLoader, HostMapTransform, MapTransform, MemmapSource
from cereal.host.cpus import usable_cpus

SOME = usable_cpus()


def named(names: set[str]) -> Any:
    def read(i: int) -> int:
        names.add(threading.current_thread().name)
        return i

    return read


def test_no_workers_is_the_callers_thread() -> None:
    names: set[str] = set()
    loader = loader_of(named(names), workers=0, prefetch=0)
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(24, 4)
    loader.scan_epoch(loader.init_state(0), 0, lambda c, b, m: (c, b))
    loader.next_batch(loader.init_state(0))
    assert names == {threading.current_thread().name}
    assert "read by the caller" in repr(loader)


def test_workers_are_not_the_callers_thread() -> None:
    names: set[str] = set()
    loader = loader_of(named(names), workers=1)
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(24, 4)
    assert len(names) == 1
    assert names.pop().startswith("cereal-worker")


def test_a_memmap_alone_has_no_workers_and_with_a_host_stage_it_has(tmp_path: Path) -> None:
    cereal.save_arrays(tmp_path / "a", np.arange(24, dtype=np.int32))
    source = MemmapSource(tmp_path / "a", ordering="sequential")
    alone = DataLoader([source, BatchTransform(4), MapTransform(lambda x: x)])
    assert alone.running.service.threads == 0  # type: ignore[attr-defined]
    staged = DataLoader([source, HostMapTransform(lambda x: x), BatchTransform(4)])
    assert staged.running.service.threads == SOME  # type: ignore[attr-defined]
    told = DataLoader([source, BatchTransform(4)], workers=3)
    assert told.running.service.threads == 3  # type: ignore[attr-defined]
    for loader in (alone, staged, told):
        assert numbers(loader.iterate(loader.init_state(0))) == chunks(24, 4)
    assert not workers()


def test_other_sources_begin_with_one_thread_and_may_have_one_worker_per_processor() -> None:
    loader = loader_of(lambda i: i)
    assert loader.running.service.threads == usable_cpus()  # type: ignore[attr-defined]
    assert "read by 1 thread, 16 batches ahead, until others are measured" in repr(loader)


def test_a_number_of_workers_is_the_most_and_a_type_makes_it_exact() -> None:
    assert "2 threads, 16 batches ahead, until" in repr(loader_of(lambda i: i, workers=2))
    exact = loader_of(lambda i: i, workers=2, worker_type="thread")
    assert "read by 2 threads, 16 batches ahead;" in repr(exact)


def test_compiled_pipelines_take_the_options_and_have_no_threads() -> None:
    stages = [cereal.RangeSource(24), BatchTransform(4)]
    with pytest.warns(cereal.OptionWarning, match="`workers=4`, `prefetch=2`, `on_error='skip'`"):
        loader = DataLoader(stages, workers=4, prefetch=2, on_error="skip", timeout=5)
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(24, 4)
    assert loader.skipped == 0
    with loader:
        assert not workers()


@pytest.mark.parametrize(
    "option", [{"workers": 8}, {"prefetch": 2}, {"timeout": 3.0}, {"on_error": "skip"}], ids=str
)
def test_an_option_that_has_no_effect_is_told_once_when_the_loader_is_built(option: Any) -> None:
    ((name, value),) = option.items()
    data = cereal.ArraySampleSource(np.arange(24))
    with pytest.warns(cereal.OptionWarning, match=f"`{name}={value!r}` has no effect") as caught:
        loader = DataLoader([data, BatchTransform(4)], **option)
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.next_batch(loader.init_state(0))
        DataLoader([data, BatchTransform(4)], workers=0, prefetch=0)  # that is how it is
        DataLoader([data, HostMapTransform(lambda x: x), BatchTransform(4)], **option)


@pytest.mark.parametrize("size", [1, 16, 64, 200])
def test_prefetch_size_counts_elements(size: int) -> None:
    spec = jax.ShapeDtypeStruct((), np.int32)
    source = cereal.DiskSampleSource(400, lambda i: i, spec, "sequential", prefetch_size=size)
    loader = DataLoader([source, BatchTransform(8)], workers=2)
    assert loader.running.service.prefetch == max(2, -(-size // 8))  # type: ignore[attr-defined]
    by_default = cereal.DiskSampleSource(400, lambda i: i, spec, "sequential")
    more = DataLoader([by_default, BatchTransform(8)], workers=8)
    assert more.running.service.prefetch == 16  # type: ignore[attr-defined]
    told = DataLoader([source, BatchTransform(8)], workers=2, prefetch=5)
    assert told.running.service.prefetch == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["workers", "prefetch"])
@pytest.mark.parametrize("value", [-1, 1.5, "2", True, float("nan"), [1], np.array([1, 2])])
def test_what_is_no_count_is_refused(name: str, value: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=f"`{name}` must be an integer"):
        loader_of(lambda i: i, **{name: value})


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), jnp.int32(2)])
def test_counts_may_be_any_whole_number(value: Any) -> None:
    loader = loader_of(lambda i: i, workers=value, prefetch=value)
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(24, 4)


@pytest.mark.parametrize("value", [0, 0.0, np.float32(0)])
def test_no_time_at_all_is_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=r"for no limit .* write `timeout=None`"):
        loader_of(lambda i: i, timeout=value)


@pytest.mark.parametrize("value", [-1, "1", True, float("nan"), [1]])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(cereal.PipelineError, match="`timeout` must be a positive number of second"):
        loader_of(lambda i: i, timeout=value)


@pytest.mark.parametrize("value", [5, 0.5, np.float64(5), np.float32(5), np.int64(5)])
def test_times_may_be_any_number(value: Any) -> None:
    loader = loader_of(lambda i: i, workers=1, timeout=value)
    assert numbers(loader.iterate(loader.init_state(0))) == chunks(24, 4)


def test_a_timeout_without_workers_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match="needs a worker"):
        loader_of(lambda i: i, workers=0, timeout=1)


# iterate's own options


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("steps", [0, 1, 5, 6, 7, 20])
def test_steps_are_so_many(count: int, steps: int) -> None:
    loader = loader_of(lambda i: i, workers=count, prefetch=3)
    iterator = loader.iterate(loader.init_state(0), steps=steps)
    assert iterator.__length_hint__() == steps
    assert numbers(iterator) == (chunks(24, 4) * 4)[:steps]


@pytest.mark.parametrize("count", [0, 2])
def test_epochs_are_so_many_or_without_end(count: int) -> None:
    loader = loader_of(lambda i: i, workers=count, prefetch=3)
    assert numbers(loader.iterate(loader.init_state(0), epochs=3)) == chunks(24, 4) * 3
    iterator = loader.iterate(loader.state_at(0, 2), epochs=None)
    found = [next(iterator)[0].tolist() for _ in range(20)]
    assert found == (chunks(24, 4) * 5)[2:22]
    assert int(iterator.state.words[2]) == 3
    iterator.close()


@pytest.mark.parametrize("progress", [True, "training"])
def test_a_bar_is_drawn_to_its_end(progress: Any, capsys: pytest.CaptureFixture[str]) -> None:
    loader = loader_of(lambda i: i, workers=2)
    assert numbers(loader.iterate(loader.init_state(0), progress=progress)) == chunks(24, 4)
    shown = "".join(capsys.readouterr())
    assert "6/6" in shown
    assert progress is True or progress in shown


def test_a_batch_that_fails_does_not_move_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bad = {8}

    def read(i: int) -> int:
        if i in bad:
            raise OSError
        return i

    loader = loader_of(read, workers=2)
    iterator = loader.iterate(loader.init_state(0), progress=True)
    for _ in range(2):
        next(iterator)
    for _ in range(5):
        with pytest.raises(OSError):  # noqa: PT011
            next(iterator)
    bad.clear()
    assert numbers(iterator) == chunks(24, 4)[2:]
    shown = "".join(capsys.readouterr())
    assert "6/6" in shown
    assert "7/6" not in shown
