from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.testing import check_transform

SOURCE = cereal.RangeSource(10)
BATCH = cereal.BatchTransform(4)


class OwnError(Exception):
    pass


class Log:
    """Notes the first value of each batch; raises when it meets `bad`."""

    def __init__(self, bad: int = -1) -> None:
        self.seen: list[int] = []
        self.bad = bad

    def __call__(self, batch: Any, mask: Any) -> None:
        self.seen.append(int(batch[0]))
        if batch[0] == self.bad:
            raise OwnError(f"met {self.bad}")


def loader_with(fn: Any, **options: Any) -> cereal.DataLoader[Any]:
    return cereal.DataLoader([SOURCE, BATCH, cereal.HostCallbackTransform(fn, **options)])


def keep(carry: Any, batch: Any, mask: Any) -> Any:
    return carry, (batch, mask)


def by_next_batch(loader: cereal.DataLoader[Any], state: Any, steps: int) -> Any:
    for _ in range(steps):
        _, state, _ = loader.next_batch(state)
    return state


def by_iterate(loader: cereal.DataLoader[Any], state: Any, steps: int) -> Any:
    iterator = loader.iterate(state, steps=steps)
    for _ in iterator:
        pass
    return iterator.state


def by_scan_epoch(loader: cereal.DataLoader[Any], state: Any, steps: int) -> Any:
    return loader.scan_epoch(state, 0, keep, steps=steps)[0]


def by_jit(loader: cereal.DataLoader[Any], state: Any, steps: int) -> Any:
    step = jax.jit(lambda loader, state: loader.next_batch(state)[1])
    for _ in range(steps):
        state = step(loader, state)
    jax.effects_barrier()
    return state


def by_scan_in_jit(loader: cereal.DataLoader[Any], state: Any, steps: int) -> Any:
    run = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, keep, steps=steps)[0])
    state = run(loader, state)
    jax.effects_barrier()
    return state


ROADS = [by_next_batch, by_iterate, by_scan_epoch, by_jit, by_scan_in_jit]


def test_a_callback_keeps_the_contract() -> None:
    check_transform(cereal.HostCallbackTransform(lambda batch, mask: None), BATCH(SOURCE))


@pytest.mark.parametrize("road", ROADS)
def test_it_runs_once_per_batch_handed_out_and_in_order(road: Callable[..., Any]) -> None:
    log = Log()
    loader = loader_with(log)
    assert log.seen == []
    state = road(loader, loader.init_state(0), 5)
    assert log.seen == [0, 4, 8, 2, 6]
    assert (int(state.epoch), int(state.offset)) == (2, 0)
    road(loader, state, 2)
    assert log.seen == [0, 4, 8, 2, 6, 0, 4]


def test_a_batch_that_is_not_taken_is_not_logged() -> None:
    log = Log()
    iterator = loader_with(log).iterate(steps=50)
    for _ in range(3):
        next(iterator)
    assert log.seen == [0, 4, 8]


def test_it_has_run_when_the_batch_is_handed_out() -> None:
    log = Log()
    for count, _ in enumerate(loader_with(log).iterate(), start=1):
        assert len(log.seen) == count


def test_it_gets_the_batch_and_the_mask_as_read_only_numpy_arrays() -> None:
    seen: list[Any] = []
    pad = cereal.BatchTransform(4, pad_last_batch=True)
    tree = cereal.MapTransform(lambda x: {"x": x, "y": (x * 2.0,)})
    stage = cereal.HostCallbackTransform(lambda batch, mask: seen.append((batch, mask)))
    list(cereal.DataLoader([SOURCE, pad, tree, stage]).iterate())
    batch, mask = seen[-1]
    assert mask.tolist() == [True, True, False, False]
    assert batch["x"].tolist() == [8, 9, 0, 1]
    for array in (batch["x"], batch["y"][0], mask):
        assert type(array) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_returning_none_keeps_the_batch() -> None:
    loader = loader_with(lambda batch, mask: None)
    assert loader.batch_at(0, 1)[0].tolist() == [4, 5, 6, 7]


def test_returning_a_batch_replaces_it() -> None:
    loader = loader_with(lambda batch, mask: batch * 10)
    assert loader.batch_at(0, 1)[0].tolist() == [40, 50, 60, 70]
    outputs = loader.scan_epoch(loader.init_state(0), 0, keep, steps=2)[2]
    assert outputs[0].tolist() == [[0, 10, 20, 30], [40, 50, 60, 70]]


def test_stages_after_it_see_the_new_batch() -> None:
    stage = cereal.HostCallbackTransform(lambda batch, mask: batch + 1)
    loader = cereal.DataLoader([SOURCE, BATCH, stage, cereal.MapTransform(lambda x: x * 100)])
    assert loader.batch_at(0, 0)[0].tolist() == [100, 200, 300, 400]


def test_an_override_states_other_shapes_and_dtypes() -> None:
    spec = {"mean": jax.ShapeDtypeStruct((), jnp.float32), "wide": np.zeros((4, 2))}
    loader = loader_with(
        lambda batch, mask: {"mean": batch.mean(), "wide": np.ones((4, 2)) * batch[0]},
        element_spec_override=spec,
    )
    assert loader.element_spec()["wide"] == jax.ShapeDtypeStruct((4, 2), jnp.float32)
    batch, _ = loader.batch_at(0, 1)
    assert float(batch["mean"]) == 5.5
    assert batch["wide"].tolist() == [[4, 4]] * 4


def test_jnp_works_inside_it() -> None:
    loader = loader_with(lambda batch, mask: jnp.cumsum(jnp.asarray(batch)))
    assert loader.batch_at(0, 0)[0].tolist() == [0, 1, 3, 6]
    total = loader.scan_epoch(loader.init_state(0), 0, lambda c, b, m: (c + b[-1], None))[1]
    assert int(total) == 6 + 22 + 18


def test_it_may_stand_before_no_batching_at_all() -> None:
    seen: list[int] = []
    stage = cereal.HostCallbackTransform(lambda element, mask: seen.append(int(element)))
    list(cereal.DataLoader([cereal.RangeSource(3), stage]).iterate())
    assert seen == [0, 1, 2]


def test_two_callbacks_run_one_after_the_other_in_every_batch() -> None:
    seen: list[str] = []
    first = cereal.HostCallbackTransform(lambda batch, mask: seen.append("a"))
    second = cereal.HostCallbackTransform(lambda batch, mask: seen.append("b"))
    list(cereal.DataLoader([SOURCE, BATCH, first, second]).iterate(steps=2))
    assert seen == ["a", "b", "a", "b"]


def test_plain_iteration_works() -> None:
    log = Log()
    assert len(list(loader_with(log))) == 3
    assert log.seen == [0, 4, 8]


# Errors in it


@pytest.mark.parametrize("road", [by_next_batch, by_iterate, by_scan_epoch])
def test_what_it_raises_arrives_as_it_is_and_the_loader_is_well_afterwards(
    road: Callable[..., Any],
) -> None:
    log = Log(bad=4)
    loader = loader_with(log)
    state = loader.init_state(0)
    with pytest.raises(OwnError, match=r"^met 4$"):
        road(loader, state, 3)
    assert log.seen[:2] == [0, 4]
    log.seen.clear()
    log.bad = -1
    after = road(loader, state, 3)
    assert log.seen == [0, 4, 8]
    assert (int(after.epoch), int(after.offset)) == (1, 2)


def test_an_iterator_goes_on_after_an_error_with_the_batch_that_failed() -> None:
    log = Log(bad=4)
    iterator = loader_with(log).iterate(steps=3)
    next(iterator)
    with pytest.raises(OwnError, match="met 4"):
        next(iterator)
    assert int(iterator.state.offset) == 4
    log.bad = -1
    batch, mask = next(iterator)
    assert batch.tolist() == [4, 5, 6, 7]
    assert mask.all()
    assert len(list(iterator)) == 1


def test_an_error_in_one_loader_does_not_reach_another() -> None:
    bad, good = loader_with(Log(bad=0)), loader_with(Log())
    with pytest.raises(OwnError, match="met 0"):
        bad.next_batch(bad.init_state(0))
    good.next_batch(good.init_state(0))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(3, np.int32), r"returned int32\[3\] instead of int32\[4\]; return the same"),
        (np.zeros(4, np.float64), r"returned float32\[4\] instead of int32\[4\]"),
        ({"x": np.zeros(4, np.int32)}, r"returned \{x: int32\[4\]\} instead of int32\[4\]"),
        (7, r"returned int32\[\] instead of int32\[4\].*state yours as `element_spec_override`"),
    ],
)
def test_a_batch_of_another_kind_is_refused(result: Any, message: str) -> None:
    loader = loader_with(lambda batch, mask: result)
    with pytest.raises(
        cereal.PipelineError, match=r"^HostCallbackTransform\(<lambda>\) " + message
    ):
        loader.next_batch(loader.init_state(0))


@pytest.mark.parametrize("result", ["text", object(), ["a", "b", "c", "d"]])
def test_what_is_no_batch_is_refused(result: Any) -> None:
    loader = loader_with(lambda batch, mask: result)
    with pytest.raises(cereal.PipelineError, match=r"^HostCallbackTransform\(<lambda>\) returned"):
        loader.next_batch(loader.init_state(0))


def test_returning_none_against_an_override_is_refused() -> None:
    spec = jax.ShapeDtypeStruct((), jnp.float32)
    loader = loader_with(lambda batch, mask: None, element_spec_override=spec)
    message = r"returned None, but `element_spec_override` promises float32\[\]; return the new"
    with pytest.raises(cereal.PipelineError, match=message):
        loader.next_batch(loader.init_state(0))


def test_under_vmap_it_is_refused_with_what_to_do() -> None:
    loader = loader_with(Log())
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 2))
    message = "runs once per batch, in order, which has no meaning under `vmap`.*remove the stage"
    for run in (jax.vmap(loader.next_batch), jax.jit(jax.vmap(loader.next_batch))):
        with pytest.raises(cereal.UsageError, match=message):
            run(states)
    with pytest.raises(cereal.UsageError, match=message):
        jax.vmap(lambda state: loader.scan_epoch(state, 0, keep)[1])(states)


def test_before_batching_it_is_refused_when_built() -> None:
    stage = cereal.HostCallbackTransform(Log())
    message = r"^stage 2: BatchTransform\(4\) comes after a HostCallbackTransform, which runs once"
    with pytest.raises(cereal.PipelineError, match=message + ".*put the callback after the Batch"):
        cereal.DataLoader([SOURCE, stage, BATCH])


def test_what_cannot_be_called_is_refused_when_built() -> None:
    with pytest.raises(
        cereal.PipelineError, match=r"^HostCallbackTransform: `fn` must be callable"
    ):
        cereal.HostCallbackTransform(3)  # type: ignore[arg-type]


def test_several_threads_may_run_one_loader() -> None:
    counts: list[int] = []
    loader = loader_with(lambda batch, mask: counts.append(1))
    threads = [threading.Thread(target=lambda: list(loader.iterate())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 9


def test_vmap_of_a_scan_inside_jit_is_refused_in_our_words() -> None:
    stages = [cereal.RangeSource(8), cereal.BatchTransform(4)]
    loader = cereal.DataLoader([*stages, cereal.HostCallbackTransform(lambda batch, mask: None)])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 2))

    def run(state: Any) -> Any:
        return loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, None))[1]

    for mapped in (jax.vmap(run), jax.jit(jax.vmap(run))):
        with pytest.raises(cereal.UsageError, match="no meaning under `vmap`"):
            mapped(states)
