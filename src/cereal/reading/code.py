"""Python code that is made for a chain of stages, and for the form of the elements at its end.

    for lane in range(lane, stop):
        status[0], ... = ...                   where the thread is
        value = f0(m0[lane])                   the source
        value = f1(protected(value))           a stage, and so on
        v0 = value["x"]                        the leaves, if their types are as expected
        r0[lane] = v0                          arrays are written into the batch
        w0(v1)                                 numbers wait, to be written by column

A loop that calls a function for each of these lines takes twice as long. The code is a text, made
once for each kind of chain; what it works on are arguments.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.fitting import canonical
from .form import Form
from .generators import with_generator
from .leaves import protected
from .read_context import CAUGHT, SKIPPED
from .structure import Node

_MOST_COLUMNS = 4
_FROM_PYTHON = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}


class UnlikeError(Exception):
    """An element is not like the one for which the code was made."""


_ALWAYS = {
    "CAUGHT": CAUGHT,
    "SKIPPED": SKIPPED,
    "UnlikeError": UnlikeError,
    "ndarray": np.ndarray,
    "protected": protected,
    "with_generator": with_generator,
}


def loop_of(stages: list[tuple[str, int, Any, Any, Any]], end: Any, **names: Any) -> Any:
    """The loop `loop(lane, stop)` over lanes. A stage has an expression, a number, and what the
    expression may name: `fn`, `many`, `run`. `end` has the lines that put an element, and what they
    name.

    The loop returns None; or, if something was raised: that, the lane, the value, and which stage.
    """
    for at, (_, number, fn, many, run) in enumerate(stages):
        names |= {f"n{at}": number, f"f{at}": fn, f"m{at}": many, f"c{at}": run}
    names |= end[1]
    masked = names["keep"] is not None
    make = _made(tuple(each[0] for each in stages), end[0], masked, tuple(names))
    return make(**names)


@functools.lru_cache(maxsize=256)
def _made(
    stages: tuple[str, ...], end: tuple[str, ...], masked: bool, names: tuple[str, ...]
) -> Callable[..., Any]:
    lines = ["at = 0", "status[0] = lane + offset", "status[1] = now()", "status[2] = n0"]
    if masked:
        lines = ["if not keep[lane]:", "    leave_out(lane)", "    continue", *lines]
    for at, expression in enumerate(stages):
        lines += [f"at = {at}", f"status[2] = n{at}"] if at else []
        lines.append(f"value = {expression.format(fn=f'f{at}', many=f'm{at}', run=f'c{at}')}")
        lines += ["if value is SKIPPED:", "    leave_out(lane)", "    continue"]
    lines += [f"at = {len(stages)}", *end]
    text = _LOOP.format(names=", ".join(names), lines="\n                ".join(lines))
    known = dict(_ALWAYS)
    exec(compile(text, "<cereal: the loop over elements>", "exec"), known)
    return known["make"]


_LOOP = """
def make({names}):
    def loop(lane, stop):
        at, value = 0, None
        try:
            for lane in range(lane, stop):
                {lines}
        except CAUGHT as error:
            return error, lane, value, at
    return loop
"""


def put_code(form: Form, types: tuple[type, ...]) -> Any:
    """The lines that put an element whose leaves have these types, what they name, and which leaves
    are numbers, with their dtypes. None if some leaf is neither an array nor a number.

    The lines also name `r0`, `r1`, ..., memory for the leaves that are arrays, and `w0`, `w1`, ...,
    to which numbers are given: one for each, or if there are many, one for tuples of them.
    """
    names: dict[str, Any] = {}
    lines = taken_apart(form.structure.node, names)
    numbers, arrays = [], []
    for place, (kind, promised) in enumerate(zip(types, form.leaves, strict=True)):
        value = f"v{place}"
        if kind is np.ndarray:
            names |= {f"d{place}": promised.dtype, f"s{place}": promised.shape}
            arrays.append(place)
            lines.append(
                f"if type({value}) is not ndarray or {value}.dtype != d{place} or {value}.shape != "
                f"s{place}: raise UnlikeError"
            )
            continue
        dtype = number_dtype(kind)
        if dtype is None or promised.shape or canonical(dtype) != promised.dtype:
            return None
        names[f"t{place}"] = kind
        numbers.append((place, dtype))
        lines.append(f"if type({value}) is not t{place}: raise UnlikeError")
    lines += [f"r{place}[lane] = v{place}" for place in arrays]
    names_of = [f"v{place}" for place, _ in numbers]
    if columns_of(numbers) == len(numbers):
        lines += [f"w{at}({name})" for at, name in enumerate(names_of)]
    else:
        lines.append(f"w0(({', '.join(names_of)}))")
    return tuple(lines), names, tuple(numbers), tuple(arrays)


def columns_of(numbers: Sequence[Any]) -> int:
    """How many lists the numbers of elements wait in."""
    return len(numbers) if len(numbers) <= _MOST_COLUMNS else 1


def number_dtype(kind: type) -> np.dtype[Any] | None:
    """The dtype of numbers of this type, as Python and NumPy have them; None for all else."""
    if kind in _FROM_PYTHON:
        return _FROM_PYTHON[kind]
    known = issubclass(kind, np.number | np.bool_) and kind.__module__ == "numpy"
    return np.dtype(kind) if known else None


def taken_apart(node: Node | None, names: dict[str, Any]) -> list[str]:
    """Lines that check the containers of an element, and name its leaves v0, v1, ..."""
    lines: list[str] = []
    leaves, nodes, keys = itertools.count(), itertools.count(), itertools.count()

    def key(at: Any) -> str:
        if type(at) in (str, int):
            return repr(at)
        name = f"a{next(keys)}"
        names[name] = at
        return name

    def visit(node: Node | None, value: str) -> None:
        if node is None:
            lines.append(f"v{next(leaves)} = {value}")
            return
        me = next(nodes)
        if node.kind is type(None):
            lines.append(f"if {value} is not None: raise UnlikeError")
            return
        names[f"k{me}"] = node.kind
        lines.append(f"e{me} = {value}")
        size = len(node.children)
        lines.append(f"if type(e{me}) is not k{me} or len(e{me}) != {size}: raise UnlikeError")
        for (_, at), child in zip(node.places(), node.children, strict=True):
            visit(child, f"e{me}[{key(at)}]")

    visit(node, "value")
    return lines
