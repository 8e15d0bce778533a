"""NumPy generators for elements: Philox, with the element's random key, at its start.

One generator for each thread: making one costs 40 µs. Giving it another key through NumPy's own
`state` costs 5 µs; writing the key where NumPy keeps it costs 0.3.

The bet (`_in_place`): NumPy's Philox keeps a counter, a key and a buffer in one struct, whose
address it tells. Whether the struct is laid out as expected is looked at once in each process,
before anything is written; if it is not, or if a key that was written does not give the same state
as NumPy's own setter, the setter is used. `tests/reading/test_generators.py`,
`test_a_key_is_written_where_numpy_keeps_it`, fails first.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

_KEYS = (0, 1, (1 << 64) - 1, 0x0123_4567_89AB_CDEF)


class _State(ctypes.Structure):
    """The struct `philox_state` of NumPy."""

    _fields_ = (
        ("counter", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("buffer_pos", ctypes.c_int),
        ("buffer", ctypes.c_uint64 * 4),
        ("has_uint32", ctypes.c_int),
        ("uinteger", ctypes.c_uint32),
    )


class Generators:
    """The generator of a thread. `busy`: the user's function has it now."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.rekey = (_in_place if writes_in_place() else _by_setter)(self.bits)
        self.busy = False


def _by_setter(bits: np.random.Philox) -> Callable[[int], None]:
    """A function that gives the generator a key, and forgets what was drawn."""
    # The bet: these fields are all that NumPy's Philox keeps of earlier draws. Its test is
    # `test_nothing_that_an_element_drew_is_left_for_the_next`.
    state: Any = np.random.Philox(key=0).state

    def rekey(key: int) -> None:
        state["state"]["key"][:] = key, 0
        state["state"]["counter"][:] = 0
        state["buffer_pos"], state["has_uint32"], state["uinteger"] = 4, 0, 0
        bits.state = state

    return rekey


def _in_place(bits: np.random.Philox) -> Callable[[int], None]:
    """The same, by writing into the generator's memory."""
    there = _State.from_address(bits.ctypes.state_address)
    key = (ctypes.c_uint64 * 2).from_address(there.key)
    counter = memoryview((ctypes.c_ubyte * 32).from_address(there.counter)).cast("B")
    begin = _State.buffer_pos.offset
    rest = memoryview((ctypes.c_ubyte * (ctypes.sizeof(_State) - begin)).from_address(
        bits.ctypes.state_address + begin
    )).cast("B")  # fmt: skip
    fresh, zeros = bytes(_State(buffer_pos=4))[begin:], bytes(32)

    def rekey(number: int) -> None:
        key[0], key[1] = number, 0
        counter[:] = zeros
        rest[:] = fresh

    return rekey


@functools.cache
def writes_in_place() -> bool:
    """Whether keys can be written into a generator's memory; found out once."""
    try:
        return _is_laid_out_so() and all(map(_writes_as_the_setter, _KEYS))
    except Exception:
        return False


def _is_laid_out_so() -> bool:
    """Whether the fields are where we expect them. Reads only memory of the generator itself."""
    bits = np.random.Philox(key=0)
    state: Any = bits.state
    state["state"]["counter"][:], state["state"]["key"][:] = (11, 12, 13, 14), (15, 16)
    state["buffer"][:] = (17, 18, 19, 20)
    state["buffer_pos"], state["has_uint32"], state["uinteger"] = 3, 1, 21
    bits.state = state
    address, size = bits.ctypes.state_address, ctypes.sizeof(_State)

    def inside(begin: int | None, size: int) -> bool:
        return begin is not None and id(bits) <= begin <= id(bits) + sys.getsizeof(bits) - size

    if not inside(address, size):
        return False
    there = _State.from_address(address)
    if not inside(there.key, 16) or not inside(there.counter, 32):
        return False
    key = (ctypes.c_uint64 * 2).from_address(there.key)
    counter = (ctypes.c_uint64 * 4).from_address(there.counter)
    found = (*counter, *key, *there.buffer, there.buffer_pos, there.has_uint32, there.uinteger)
    return found == (*range(11, 21), 3, 1, 21)


def _writes_as_the_setter(key: int) -> bool:
    found = []
    for way in (_by_setter, _in_place):
        bits = np.random.Philox(key=99)
        generator = np.random.Generator(bits)
        generator.integers(0, 100, 3, np.uint32)
        generator.random(3)
        way(bits)(key)
        state: Any = bits.state
        numbers = [*generator.integers(0, 1 << 31, 5, np.uint32), *generator.random(5)]
        state["state"] = {name: words.tolist() for name, words in state["state"].items()}
        found.append(({**state, "buffer": state["buffer"].tolist()}, numbers))
    return found[0] == found[1]


class _Current(threading.local):
    def __init__(self) -> None:
        self.mine = Generators()


_current = _Current()


def with_generator(fn: Callable[..., Any], value: Any, key: int) -> Any:
    """`fn(value, rng)` with the generator of a random key."""
    mine = _current.mine
    if mine.busy:  # the user's function reads another pipeline in the same thread
        mine = Generators()
    mine.busy = True
    try:
        mine.rekey(key)
        return fn(value, mine.generator)
    finally:
        mine.busy = False
