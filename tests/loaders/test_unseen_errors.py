"""Errors of host functions in programs over several devices: they reach the user, by whatever comes
first."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.functions.programs import spread
from tests.loaders.squares import B, N, at, make, square
from tests.workers.reading import script

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, batch


# Errors on several devices


class BrokenError(Exception):
    pass


@pytest.fixture
def broken() -> Any:
    """A loader, and an event: while it is set, element 5 cannot be read."""
    fails = threading.Event()

    def read(i: int) -> np.int32:
        if fails.is_set() and i == 5:
            raise BrokenError("the disk is on fire")
        return square(i)

    with make(read) as loader:
        yield loader, fails


PASSED = jax.jit(lambda loader, state: loader.next_batch(state)[0])
OTHER = DataLoader([cereal.RangeSource(N), BatchTransform(B)])
ITERATOR = OTHER.iterate(epochs=None)
STATE = [make(square).init_state(0), OTHER.init_state(0)]
CALLS: dict[str, Any] = {
    "next_batch": lambda loader: loader.next_batch(loader.init_state(0)),
    "scan_epoch": lambda loader: loader.scan_epoch(loader.init_state(0), 0, keep, steps=1),
    "iterate": lambda loader: next(loader.iterate()),
    "evaluate": lambda loader: cereal.evaluate(loader, lambda batch: batch),
    "init_state": lambda loader: loader.init_state(0),
    "close": lambda loader: loader.close(),
    "a program, passed": lambda loader: PASSED(loader, STATE[0]),
    "a program, captured": lambda loader: jax.jit(lambda s: loader.next_batch(s)[0])(STATE[0]),
    "another loader": lambda _: OTHER.next_batch(STATE[1]),
    "another iterator": lambda _: next(ITERATOR),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_next_call_of_the_loader_raises_what_a_program_could_not(
    name: str, broken: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    loader, fails = broken
    step = jax.jit(loader.next_batch)
    step(spread(loader.state_at(0, 5)))  # JAX asks for the parts of a state once more to compile
    fails.set()
    batch, _, mask = step(spread(loader.state_at(0, 1)))
    assert not mask.any()
    assert batch.tolist() == [0] * B
    printed = capfd.readouterr().err
    assert "BrokenError: the disk is on fire" in printed
    assert "element 5 of epoch 0" in printed
    fails.clear()
    with pytest.raises(BrokenError, match="the disk is on fire") as caught:
        CALLS[name](loader)
    error: Any = caught.value
    assert error.element.index == 5
    CALLS[name](loader)
    for state in (loader.state_at(0, 1), spread(loader.state_at(0, 1))):
        assert step(state)[0].tolist() == at(1)


def test_an_error_in_the_middle_of_a_scan_masks_that_batch_alone(broken: Any) -> None:
    loader, fails = broken

    def both(carry: Any, batch: Any, mask: Any) -> Any:
        return carry + mask.sum(), (batch, mask)

    run = jax.jit(lambda state: loader.scan_epoch(state, 0, both, steps=4))
    run(spread(loader.state_at(0, 5)))
    fails.set()
    _, real, (batches, masks) = run(spread(loader.init_state(0)))
    assert int(real) == 3 * B
    assert masks.all(axis=1).tolist() == [True, False, True, True]
    assert [batches[n].tolist() for n in (0, 2, 3)] == [at(0), at(2), at(3)]
    with pytest.raises(BrokenError):
        loader.next_batch(loader.init_state(0))
    fails.clear()
    assert run(loader.init_state(0))[2][0].tolist() == [at(n) for n in range(4)]


# Loops over a compiled step


class Readings:
    """Element `bad` cannot be read."""

    bad = 17

    def __call__(self, i: int) -> dict[str, Any]:
        if i == self.bad:
            raise BrokenError("the disk is on fire")
        return {"x": np.float32(i), "n": i}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_a_loop_over_a_compiled_step_ends_at_the_step_after_the_broken_one(
    captured: bool, several: bool
) -> None:
    source = DiskSampleSource(N, Readings(), ordering="sequential")
    loader = DataLoader([source, BatchTransform(B)], workers=1)

    @jax.jit
    def passed(loader: Any, state: Any, w: Any) -> Any:
        batch, state, mask = loader.next_batch(state)
        return state, w + batch["x"].mean(), mask

    taken = jax.jit(lambda state, w: passed(loader, state, w))
    state, w = loader.init_state(0), jnp.float32(0)
    state, w = spread((state, w)) if several else (state, w)
    ended, mask = 0, np.ones(B)
    error = BrokenError if several else (jax.errors.JaxRuntimeError, ValueError)
    with pytest.raises(error, match="the disk is on fire"):  # noqa: PT012
        for ended in range(N // B):  # noqa: B007
            state, w, mask = taken(state, w) if captured else passed(loader, state, w)
            jax.block_until_ready(w)
    assert ended == (5 if several else 4)  # element 17 is in batch 4
    assert mask.all() != several
    assert np.isnan(w) == several


def test_an_error_that_is_raised_already_is_not_replaced_when_the_loader_is_closed(
    broken: Any,
) -> None:
    loader, fails = broken
    step = jax.jit(lambda state: loader.next_batch(state)[0])
    step(spread(loader.state_at(0, 5)))
    fails.set()
    jax.block_until_ready(step(spread(loader.state_at(0, 1))))
    with pytest.raises(ZeroDivisionError, match="of the loop"), loader:
        raise ZeroDivisionError("of the loop")


# In processes of their own

ENDS = """
from jax.sharding import NamedSharding, PartitionSpec, AxisType
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
def read(i):
    if i == 5:
        raise OSError("the disk is on fire")
    return np.float32(i)
source = cereal.DiskSampleSource(8, read, ordering="sequential")
loader = cereal.DataLoader([source, cereal.BatchTransform(4)], workers=1)
state = jax.device_put(loader.init_state(0), NamedSharding(mesh, PartitionSpec()))
step = jax.jit(lambda loader, state: loader.next_batch(state))
for _ in range(2):
    batch, state, mask = step(loader, state)
    batch.block_until_ready()  # not of the state, which would raise an error that is known by now
log = open(1, "w", closefd=False)
log.write("buffered")
import atexit, logging
atexit.register(lambda: print("at exit"))
logging.warning("of the user")
"""


@pytest.mark.slow
@pytest.mark.parametrize("last", ["", "del loader", "raise SystemExit(3)", "1 / 0"])
def test_a_process_that_ends_without_having_seen_an_error_fails(last: str) -> None:
    code, output, errors, _ = script(ENDS + last, devices=4)
    assert code == 120
    assert "the process ends, and this error was never raised" in errors
    assert "what was computed from its batch is wrong" in errors
    assert errors.count("OSError: the disk is on fire") == 2  # when it happened, and at the end
    assert "Exception ignored" not in errors
    assert "at exit" in output
    assert "buffered" in output


@pytest.mark.slow
def test_a_process_that_has_seen_the_error_ends_well() -> None:
    seen = "try:\n    loader.close()\nexcept OSError as error:\n    say(str(error))\n"
    code, output, errors, _ = script(ENDS + seen, devices=4)
    assert (code, "the disk is on fire" in output) == (0, True)
    assert errors.count("OSError: the disk is on fire") == 1
