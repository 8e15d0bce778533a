"""Reads pickles of plain data; nothing that a pickle names is imported or called.

A pickle is a program. Before it runs, its instructions are checked: only those that build dicts,
lists, tuples, numbers, text, bytes and arrays are allowed. For the few NumPy names that arrays
need, the pickle gets the stand-ins below. Any other instruction or name is an error.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from ...base.errors import DatasetError

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_NAMED = ("GLOBAL", "STACK_GLOBAL")
_CORES = ("core", "_core")  # the names of one module, before and from NumPy 2 on
_ALLOWED = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", *_PUTS, "GET", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT", "FLOAT"),
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"),
    *("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8"),
    *("BINSTRING", "SHORT_BINSTRING", "STRING"),
    *("BYTEARRAY8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE"),
    *("TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *(*_NAMED, "REDUCE", "BUILD"),
}


def unpickled(data: bytes, where: str) -> Any:
    """The contents of a pickle of plain data; strings of Python 2 become `str`."""
    try:
        return _Plain().of(_Unpickler(data, where).load())
    except DatasetError:
        raise
    except Exception as error:  # of `pickle` and `pickletools`, and those raised below
        raise DatasetError(f"{where} is a damaged pickle ({error}); fetch it again.") from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data), encoding="latin-1")
        self.where = where
        self.places = iter(self.places_of_names(data))

    def places_of_names(self, data: bytes) -> list[int | None]:
        """Checks all instructions; returns the places of those that ask for a name."""
        import pickletools

        places = []
        for opcode, arg, place in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                raise self.refused(f"the instruction {opcode.name}", place)
            # Python would reserve memory for all numbers below this one.
            if opcode.name in _PUTS and int(arg or 0) > len(data):
                raise ValueError(f"it remembers a value as number {arg}")
            if opcode.name in _NAMED:
                places.append(place)
        return places

    def find_class(self, module: str, name: str) -> Any:
        place = next(self.places)  # instructions run in their order, each once
        if (module, name) not in _STAND_INS:
            raise self.refused(f"the name {module}.{name}", place)
        return _STAND_INS[module, name]

    def refused(self, what: str, place: int | None) -> DatasetError:
        return DatasetError(
            f"{self.where} is a pickle that uses {what} (byte {place}). Only plain data and arrays "
            f"are read from pickles, and nothing in them is run."
        )


class _Array:
    """Stands for an array while the pickle builds it."""

    made: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if np.dtype(dtype.name).hasobject:
            raise ValueError("an array of objects")
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw  # from Python 2
        array = np.frombuffer(raw, np.dtype(dtype.name))
        self.made = array.reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stands for a dtype while the pickle builds it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        self.name = (state[1] if state[1] in ("<", ">") else "") + self.name


class _StandIn:
    """What a pickle gets for a name: it can only be called."""

    __slots__ = ("make",)

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a name that is written to")


def _whole_array(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", raw))
    return array


_STAND_INS = {
    **{(f"numpy.{c}.multiarray", "_reconstruct"): _StandIn(lambda *_: _Array()) for c in _CORES},
    **{(f"numpy.{c}.numeric", "_frombuffer"): _StandIn(_whole_array) for c in _CORES},
    ("numpy", "ndarray"): _StandIn(None),
    ("numpy", "dtype"): _StandIn(lambda name, *_: _Dtype(name)),
    # How Python 3 writes bytes for Python 2.
    ("_codecs", "encode"): _StandIn(lambda text, _: text.encode("latin-1")),
}


class _Plain:
    """Copies what a pickle built. Shared parts stay shared, so a copy cannot become huge."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.open: set[int] = set()

    def of(self, value: Any) -> Any:
        if isinstance(value, _Array) and value.made is not None:
            return value.made
        if isinstance(value, _Array | _StandIn | _Dtype):
            raise ValueError("a bare name, a dtype, or an array without contents")
        if not isinstance(value, dict | list | tuple):
            return value
        if id(value) not in self.done:
            if id(value) in self.open:
                raise ValueError("something that holds itself")
            self.open.add(id(value))
            self.done[id(value)] = self.copy(value)
        return self.done[id(value)]

    def copy(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {_key(key): self.of(each) for key, each in value.items()}
        return type(value)(self.of(each) for each in value)


def _key(key: Any) -> Any:
    """A key of a dict, with bytes as text; refuses a key that is not a plain value."""
    if isinstance(key, tuple):
        return tuple(_key(each) for each in key)
    if key is not None and type(key) not in (bool, int, float, str, bytes):
        raise ValueError("a key that is no plain value")
    return key.decode("latin-1") if isinstance(key, bytes) else key
