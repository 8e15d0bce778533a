"""Pickles of plain data, read without running them.

A pickle is a program. This goes through its instructions and knows only those that build dicts,
lists, tuples, numbers, text, bytes and NumPy arrays; it imports nothing and calls nothing. Any
other instruction, or name, is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import DatasetError

_MARK = object()
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NAMES = {
    **{(module, "_reconstruct"): "new array" for module in _ARRAY_MODULES},
    **{(f"numpy.{c}.numeric", "_frombuffer"): "whole array" for c in ("core", "_core")},
    ("numpy", "ndarray"): "array",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",  # how Python 3 writes bytes for Python 2
}
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8"}
_OLD_TEXTS = {"BINSTRING", "SHORT_BINSTRING", "STRING"}  # bytes or text: Python 2 did not say
_BYTES = {"BYTEARRAY8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SILENT = {"PROTO", "FRAME"}


class _Name(str):
    """A name that the pickle refers to, which is never looked up."""


class _Array:
    """An array that is being described."""

    made: np.ndarray | None = None


class _Dtype:
    """A dtype that is being described."""

    def __init__(self, name: str) -> None:
        self.name = name


def unpickled(data: bytes, where: str) -> Any:
    """What a pickle of plain data holds; text of Python 2 as `str`, if it is text."""
    try:
        return _plain(_Reader(where).run(data))
    except DatasetError:
        raise
    except Exception as error:  # pickletools' own, and stacks that run empty
        raise DatasetError(f"{where} is a damaged pickle ({error}); fetch it again.") from error


class _Reader:
    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        import pickletools

        for opcode, arg, place in pickletools.genops(data):
            if opcode.name == "STOP":
                return self.stack.pop()
            self.step(opcode.name, arg, place)
        raise ValueError("it does not end")

    def step(self, name: str, arg: Any, place: int | None) -> None:
        stack = self.stack
        if name in _SILENT:
            return
        if name in _VALUES:
            stack.append(_VALUES[name])
        elif name in _NUMBERS or name in _TEXTS or name in _BYTES:
            stack.append(arg)
        elif name in _OLD_TEXTS:
            stack.append(arg.encode("latin-1") if isinstance(arg, str) else arg)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else int(arg)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(arg)])
        elif name in ("TUPLE", "LIST", "DICT"):
            stack.append(_gathered(name, self.marked()))
        elif name in _TUPLES:
            count = _TUPLES[name]
            if len(stack) < count:
                raise ValueError("the stack runs empty")
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("APPEND", "APPENDS"):
            values = [stack.pop()] if name == "APPEND" else self.marked()
            self.top(list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            pairs = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.marked()
            into = self.top(dict)
            into.update(
                (_text(key), value) for key, value in zip(pairs[::2], pairs[1::2], strict=True)
            )
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self.name(arg if name == "GLOBAL" else f"{stack.pop(-2)} {stack.pop()}", place)
        elif name in ("REDUCE", "BUILD"):
            last = stack.pop()
            stack.append(
                _reduced(stack.pop(), last) if name == "REDUCE" else _built(stack.pop(), last)
            )
        else:
            raise self.refused(f"the instruction {name}", place)

    def marked(self) -> list[Any]:
        """All that came after the last mark."""
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"a {kind.__name__} should be there")
        return self.stack[-1]

    def name(self, arg: str, place: int | None) -> None:
        module, _, what = arg.partition(" ")
        if (module, what) not in _NAMES:
            raise self.refused(f"the name {module}.{what}", place)
        self.stack.append(_Name(_NAMES[module, what]))

    def refused(self, what: str, place: int | None) -> DatasetError:
        return DatasetError(
            f"{self.where} is a pickle that uses {what} (byte {place}). Only plain data and arrays "
            f"are read from pickles, and nothing in them is run."
        )


def _gathered(name: str, values: list[Any]) -> Any:
    if name == "DICT":
        return {_text(key): value for key, value in zip(values[::2], values[1::2], strict=True)}
    return tuple(values) if name == "TUPLE" else values


def _reduced(name: Any, args: Any) -> Any:
    if not isinstance(name, _Name):
        raise ValueError("something is called that is no name")
    if name == "new array":
        return _Array()
    if name == "whole array":
        raw, dtype, shape, order = args
        array = _Array()
        return _built(array, (1, shape, dtype, order == "F", raw))
    if name == "dtype":
        return _Dtype(_text(args[0]))
    if name == "encode":
        return args[0].encode("latin-1")
    raise ValueError(f"{name} is called")


def _built(value: Any, state: Any) -> Any:
    if isinstance(value, _Dtype):
        order = _text(state[1])
        value.name = (order if order in "<>" else "") + value.name
    elif isinstance(value, _Array):
        _, shape, dtype, fortran, raw = state
        if np.dtype(dtype.name).hasobject:
            raise ValueError("an array of objects")
        array = np.frombuffer(raw, np.dtype(dtype.name))
        value.made = array.reshape(shape, order="F" if fortran else "C")
    else:
        raise ValueError("something is built that is no array")
    return value


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _plain(value: Any) -> Any:
    return _Plain().of(value)


class _Plain:
    """Copies what was built; what is shared stays shared, so that no copy outgrows its pickle."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.open: set[int] = set()

    def of(self, value: Any) -> Any:
        if isinstance(value, _Array) and value.made is not None:
            return value.made
        if isinstance(value, _Array | _Name | _Dtype) or value is _MARK:
            raise ValueError("a bare name, mark, dtype or array without contents")
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
            for key in value:
                _check_key(key)
            return {key: self.of(each) for key, each in value.items()}
        return type(value)(self.of(each) for each in value)


def _check_key(key: Any) -> None:
    for each in key if isinstance(key, tuple) else (key,):
        if isinstance(each, tuple):
            _check_key(each)
        elif each is not None and type(each) not in (bool, int, float, str, bytes):
            raise ValueError("a key that is no plain value")
