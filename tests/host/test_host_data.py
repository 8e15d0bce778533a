"""Who holds data on the host: loaders, never compiled programs; and what is compiled anew."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations
from tests.functions.programs import gone, spread

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, MapTransform
from cereal.base.unseen import raise_unseen
from cereal.host.host_data import HostData, HostFunction, host_data_in, identity_on_host, living

N, B = 12, 4


class Numbers:
    """A dataset that can be watched; element `bad` cannot be read."""

    bad = -1

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        if i == self.bad:
            raise OSError("cannot be read")
        return i * 3


class Double:
    """A function that can be watched."""

    def __call__(self, x: int) -> int:
        return x * 2


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, batch


PASSED = jax.jit(lambda loader, state: loader.next_batch(state)[0])
SCANNED = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, keep)[2])

USES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda loader: None,
    "iterate": lambda loader: list(loader),
    "a loop that is left": lambda loader: next(iter(loader)),
    "next_batch": lambda loader: loader.next_batch(loader.init_state(0)),
    "scan_epoch": lambda loader: loader.scan_epoch(loader.init_state(0), 0, keep),
    "evaluate": lambda loader: cereal.evaluate(loader, lambda batch: batch),
    "jit, passed": lambda loader: PASSED(loader, loader.init_state(0)),
    "jit, captured": lambda loader: jax.jit(loader.next_batch)(loader.init_state(0)),
    "cereal.jit": lambda loader: cereal.jit(lambda s: loader.next_batch(s))(loader.init_state(0)),
    "scan_epoch in jit": lambda loader: SCANNED(loader, loader.init_state(0)),
    "vmap": lambda loader: jax.vmap(loader.next_batch)(
        jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 3))
    ),
    "a gradient": lambda loader: jax.grad(
        lambda w: (loader.next_batch(loader.init_state(0))[0] * w).sum()
    )(2.0),
    "repr": repr,
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1}, {"on_error": "skip"}], ids=str)
@pytest.mark.parametrize("use", USES)
def test_data_goes_with_its_loader_whatever_was_run(use: str, options: dict[str, Any]) -> None:
    data, double = Numbers(), Double()
    watched = weakref.ref(data), weakref.ref(double)
    loader = DataLoader([data, HostMapTransform(double), BatchTransform(B)], **options)
    del data, double
    jax.block_until_ready(USES[use](loader))
    assert all(each() is not None for each in watched)
    del loader
    assert all(gone(each) for each in watched)


def test_data_goes_with_its_loader_after_a_program_kept_an_error() -> None:
    data = Numbers()
    watched = weakref.ref(data)
    loader = DataLoader([data, BatchTransform(B)], workers=1)
    step = jax.jit(loader.next_batch)
    step(spread(loader.state_at(0, 2)))
    data.bad = 5
    del data
    step(spread(loader.state_at(0, 1)))[0].block_until_ready()
    del step
    del loader
    assert gone(watched)
    with pytest.raises(OSError, match="cannot be read"):
        raise_unseen()


@pytest.mark.parametrize("several", [False, True])
def test_a_program_whose_data_is_gone_says_so(
    several: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader([Numbers(), BatchTransform(B)], workers=1)
    state = spread(loader.init_state(0)) if several else loader.init_state(0)
    data = weakref.ref(loader.source.source)  # type: ignore[attr-defined]
    program = jax.jit(loader.next_batch).lower(state).compile()
    assert program(state)[0].tolist() == [0, 3, 6, 9]
    del loader
    assert gone(data)
    error: type[Exception] = jax.errors.JaxRuntimeError
    if several:
        error = cereal.CerealError
        assert not program(state)[2].any()
    with pytest.raises(error, match="the data of a source on the host is gone"):
        jax.block_until_ready(program(state))
    if several:  # JAX prints, or logs, the other one
        assert "CerealError: the data of a source on the host is gone" in capfd.readouterr().err


def test_a_copy_of_a_loader_keeps_the_data() -> None:
    loader = DataLoader([Numbers(), BatchTransform(B)], workers=1)
    leaves, structure = jax.tree.flatten(loader)
    again = jax.tree.unflatten(structure, leaves)
    assert PASSED(loader, loader.init_state(0)).tolist() == [0, 3, 6, 9]
    del loader
    gc.collect()
    assert PASSED(again, again.init_state(0)).tolist() == [0, 3, 6, 9]
    assert [b.tolist() for b, _ in again] == (3 * np.arange(N)).reshape(3, B).tolist()


def test_a_structure_alone_does_not_keep_the_data() -> None:
    loader = DataLoader([Numbers(), BatchTransform(B)])
    leaves, structure = jax.tree.flatten(loader)
    del loader
    gc.collect()
    with pytest.raises(cereal.CerealError, match=r"is gone: .*keep the loader"):
        jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_loader_that_was_copied_or_pickled_gives_the_same(how: Callable[[Any], Any]) -> None:
    with DataLoader([DatasetSource([1, 5, 7]), BatchTransform(3)], workers=1) as loader:
        with how(loader) as again:
            assert PASSED(again, again.init_state(0)).tolist() == [1, 5, 7]
            assert [b.tolist() for b, _ in again] == [[1, 5, 7]]
        assert next(iter(loader))[0].tolist() == [1, 5, 7]


# What is compiled anew


class Traced:
    """A compiled stage's function that counts its traces."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: Any) -> Any:
        self.count += 1
        return batch + 1


@pytest.mark.parametrize("road", ["iterate", "next_batch"])
def test_a_second_loader_of_the_same_kind_compiles_nothing(road: str) -> None:
    runs, stages = [], [BatchTransform(B), MapTransform(Traced())]
    for offset in range(3):
        data = [offset + i for i in range(N)]
        loader = DataLoader([DatasetSource(data), *stages], workers=1)
        with loader, compilations() as made:
            for step in range(3):
                found = loader.batch_at(0, step)[0]
                assert found.tolist() == [offset + i + 1 for i in range(step * B, step * B + B)]
            if road == "iterate":
                assert len(list(loader)) == 3
            runs.append(made())
    assert runs[1:] == [0, 0]


def test_one_program_is_traced_once_for_all_positions_of_a_loader() -> None:
    add = Traced()
    with DataLoader([Numbers(), BatchTransform(B), MapTransform(add)]) as loader:
        step = jax.jit(lambda loader, state: loader.next_batch(state))
        state = loader.init_state(0)
        _, state, _ = step(loader, state)
        once = add.count
        for _ in range(5):
            _, state, _ = step(jax.tree.map(lambda x: x, loader), state)
        step(loader, loader.state_at(9, 30))
        assert add.count == once


# The parts


def test_numbers_tell_data_apart_and_are_found_in_trees() -> None:
    one, two = HostFunction(len), HostFunction(len)
    assert one.number != two.number
    tree = {"a": [one, jnp.zeros(2)], "b": (two, 3.0)}
    assert host_data_in(tree) == [one, two]
    assert identity_on_host(tree) == (one.number, two.number)
    assert identity_on_host({"a": 1.0}) == ()
    assert jax.tree.leaves(one) == []
    assert jax.tree.map(lambda x: x, one) is one
    assert living(one.number) is one


def test_data_that_is_gone_is_not_found() -> None:
    number = HostFunction(len).number
    gc.collect()
    with pytest.raises(cereal.CerealError, match="keep the loader"):
        living(number)


def test_a_function_is_called_and_named() -> None:
    from functools import partial

    assert HostFunction(len)("abc") == 3
    assert HostFunction(len).name == "len"
    assert HostFunction(partial(int, base=2)).name == "int"
    assert HostFunction(Double()).name == "Double"
    again = pickle.loads(pickle.dumps(HostFunction(len, 3)))
    assert (again.fn, again.sample) == (len, 3)
    assert HostFunction(len).digest_of() is len


def test_data_is_told_before_a_program_reads_it() -> None:
    told: list[int] = []

    class Told(HostData):
        def before_program(self) -> None:
            told.append(self.number)

    data = Told()
    for each in host_data_in([data]):
        each.enter_program()
    assert told == [data.number]
    with pytest.raises(TypeError, match="Told has no digest"):
        data.digest_of()
