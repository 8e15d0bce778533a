"""Something that a function refers to changes between two epochs.

A program is a few lines of Python: something that holds a number, a function that uses it, and a
line that changes it. It runs with the old number, is changed, and runs again. What must come out is
what the same lines give that had the new number from the start, or an error of cereal's.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.fuzz.reference import DifferenceError

import cereal

N = 6
OLD, NEW = 2.0, 5.0

# What holds the number: the lines that make it, how it is read, the line that changes it.
HOLDERS: dict[str, tuple[str, str, str]] = {
    "a global": ("V = {v}", "V", "V = {w}"),
    "a namespace": ("C = types.SimpleNamespace(v={v})", "C.v", "C.v = {w}"),
    "an argparse namespace": ("C = argparse.Namespace(v={v})", "C.v", "C.v = {w}"),
    "a nested object": (
        "C = types.SimpleNamespace(a=types.SimpleNamespace(v={v}))",
        "C.a.v",
        "C.a.v = {w}",
    ),
    "a dict": ("C = dict(v={v})", "C['v']", "C['v'] = {w}"),
    "a list": ("C = [{v}]", "C[0]", "C[0] = {w}"),
    "a growing list": ("C = [{v}]", "C[-1]", "C.append({w})"),
    "a set": ("C = {{{v}}}", "max(C)", "C.clear(); C.add({w})"),
    "a class attribute": ("class C:\n    v = {v}", "C.v", "C.v = {w}"),
    "an attribute of the class of an object": (
        "class K:\n    v = {v}\nC = K()",
        "C.v",
        "K.v = {w}",
    ),
    "slots": (
        "class K:\n    __slots__ = ('v',)\nC = K(); C.v = {v}",
        "C.v",
        "C.v = {w}",
    ),
    "a dataclass": (
        "@dataclasses.dataclass(slots=True)\nclass K:\n    v: float\nC = K({v})",
        "C.v",
        "C.v = {w}",
    ),
    "a property": (
        "class K:\n    @property\n    def v(self): return self.hidden\nC = K(); C.hidden = {v}",
        "C.v",
        "C.hidden = {w}",
    ),
    "NumPy in place": ("C = np.array([{v}], np.float32)", "C[0]", "C[0] = {w}"),
    "NumPy replaced": (
        "C = np.array([{v}], np.float32)",
        "C[0]",
        "C = np.array([{w}], np.float32)",
    ),
    "a JAX array replaced": ("C = jnp.float32({v})", "C", "C = jnp.float32({w})"),
    "a helper rebound": ("def h(): return {v}", "h()", "def h(): return {w}"),
    "a helper's default": ("def h(c={v}): return c", "h()", "h.__defaults__ = ({w},)"),
    "a mutable default": ("def h(c=[{v}]): return c[0]", "h()", "h.__defaults__[0][0] = {w}"),
    "an attribute of a function": ("def h(): return h.v\nh.v = {v}", "h()", "h.v = {w}"),
    "a cell": (
        "def make_h(v):\n    def get(): return v\n    def put(new):\n        nonlocal v\n"
        "        v = new\n    return get, put\nh, put = make_h({v})",
        "h()",
        "put({w})",
    ),
    "a module": ("C = types.ModuleType('settings'); C.v = {v}", "C.v", "C.v = {w}"),
    "a constant of a class, a tuple": (
        "class C:\n    v = ({v}, 1)",
        "C.v[0]",
        "C.v = ({w}, 1)",
    ),
}

_FUNCTIONS = """
def plain(x):
    return x * ({read})
def through_another(x):
    return plain(x)
class Model:
    def call(self, x):
        return x * ({read})
model = Model()
def make():
    def inner(x):
        return x * ({read})
    return inner
once = make()
def second(factor, x):
    return factor * plain(x)
kept_partial = functools.partial(second, 1)
kept_method = model.call
"""

# How a run names the function: the same object every time, or a new one.
STYLES: dict[str, str] = {
    "a function": "plain",
    "a function that calls it": "through_another",
    "a lambda in the loop": "lambda x: x * ({read})",
    "a bound method": "model.call",
    "a bound method that is kept": "kept_method",
    "a closure made anew": "make()",
    "a closure that is kept": "once",
    "a partial": "functools.partial(second, 1)",
    "a partial that is kept": "kept_partial",
}


class Program:
    """The lines of a program, run with a number in a namespace of their own."""

    def __init__(self, holder: str, style: str, number: float) -> None:
        setup, self.read, self.change = HOLDERS[holder]
        self.style = STYLES[style].format(read=self.read)
        self.names: dict[str, Any] = {"__name__": __name__}  # dataclasses look for it
        exec("import argparse, dataclasses, functools, types", self.names)
        exec("import numpy as np, jax.numpy as jnp", self.names)
        exec(setup.format(v=number), self.names)
        exec(_FUNCTIONS.format(read=self.read), self.names)

    def function(self) -> Callable[[Any], Any]:
        return eval(self.style, self.names)

    def mutate(self, number: float) -> None:
        exec(self.change.format(v=number, w=number), self.names)


# What a function is used for: a run of one epoch, and what comes out.


@dataclass
class Use:
    """Keeps the loader between the epochs, where a training would."""

    folder: Path

    def __post_init__(self) -> None:
        self.kept: Any = None

    def loader(self, *stages: Any, source: Any = None) -> Any:
        source = cereal.RangeSource(N) if source is None else source
        return cereal.DataLoader([source, *stages, cereal.BatchTransform(3)], workers=0)

    def keep(self, made: Callable[[], Any]) -> Any:
        if self.kept is None:
            self.kept = made()
        return self.kept


def body_of_a_scan(use: Use, program: Program) -> list[Any]:
    loader = use.keep(use.loader)
    fn = program.function()
    state = loader.init_state(0)

    def body(total: Any, batch: Any, mask: Any) -> Any:
        return total + fn(batch).sum(), None

    return [float(loader.scan_epoch(state, jnp.float32(0), body)[1])]


def evaluated(use: Use, program: Program) -> list[Any]:
    return [float(cereal.evaluate(use.keep(use.loader), program.function()))]


def stage_of_a_new_loader(use: Use, program: Program) -> list[Any]:
    return through(use.loader(cereal.MapTransform(program.function())), "iterate")


def stage_of_a_kept_loader(use: Use, program: Program, way: str = "iterate") -> list[Any]:
    return through(use.keep(lambda: use.loader(cereal.MapTransform(program.function()))), way)


def other_stages_of_a_kept_loader(use: Use, program: Program) -> list[Any]:
    def made() -> Any:
        fn = program.function()
        return use.loader(
            cereal.FilterTransform(lambda x: fn(x) < 9),
            cereal.RandomMapTransform(lambda x, key: fn(x) + 0 * jax.random.uniform(key)),
        )

    return through(use.keep(made), "iterate")


def through(loader: Any, way: str) -> list[Any]:
    """The values of an epoch."""
    if way == "scan":
        collected = loader.scan_epoch(loader.init_state(0), 0, _collected)[2]
        return np.asarray(collected).reshape(-1).tolist()
    if way == "steps":
        found, state = [], loader.init_state(0)
        for _ in range(N // 3):
            batch, state, _ = loader.next_batch(state)
            found += batch.tolist()
        return found
    return [x for batch, _ in loader.iterate(loader.init_state(0)) for x in batch.tolist()]


def _collected(count: Any, batch: Any, mask: Any) -> Any:
    return count, batch


def on_the_host(use: Use, program: Program) -> list[Any]:
    stage = cereal.HostMapTransform
    return through(use.keep(lambda: use.loader(stage(program.function()))), "iterate")


def read_from_disk(use: Use, program: Program) -> list[Any]:
    def made() -> Any:
        fn = program.function()
        source = cereal.DiskSampleSource(N, lambda i: np.float32(fn(i)), ordering="sequential")
        return use.loader(source=source)

    return through(use.keep(made), "scan")


def iterated(use: Use, program: Program) -> list[Any]:
    def made() -> Any:
        fn = program.function()
        source = cereal.IterableSource(lambda: (np.float32(fn(i)) for i in range(N)), length=N)
        return use.loader(source=source)

    return through(use.keep(made), "iterate")


def in_a_file_cache(use: Use, program: Program) -> list[Any]:
    stage = cereal.MapTransform(program.function())
    return through(use.loader(stage, cereal.CacheTransform(use.folder / "cache")), "iterate")


def in_memory_of_a_new_loader(use: Use, program: Program) -> list[Any]:
    stage = cereal.MapTransform(program.function())
    return through(use.loader(stage, cereal.CacheTransform("host")), "iterate")


def selected(use: Use, program: Program) -> list[Any]:
    fn = program.function()
    source = cereal.select(cereal.RangeSource(N), lambda x: fn(x) < 9, cache=use.folder / "select")
    return through(use.loader(source=source), "iterate")


USES: dict[str, Callable[[Use, Program], list[Any]]] = {
    "the body of scan_epoch": body_of_a_scan,
    "the function of evaluate": evaluated,
    "a map in a new loader": stage_of_a_new_loader,
    "a map in a loader that is kept, iterate": stage_of_a_kept_loader,
    "a map in a loader that is kept, scan_epoch": functools.partial(
        stage_of_a_kept_loader, way="scan"
    ),
    "a map in a loader that is kept, next_batch": functools.partial(
        stage_of_a_kept_loader, way="steps"
    ),
    "a filter and a random map in a loader that is kept": other_stages_of_a_kept_loader,
    "a map on the host": on_the_host,
    "DiskSampleSource": read_from_disk,
    "IterableSource": iterated,
    "above a cache in files": in_a_file_cache,
    "above a cache in memory": in_memory_of_a_new_loader,
    "select(cache=)": selected,
}


def check_mutation(seed: int) -> tuple[str, str, str]:
    """Draws what holds a number, how it is named and used; raises a `DifferenceError`."""
    rng = np.random.default_rng([seed, 2])
    holder, style, use = (
        names[int(rng.integers(len(names)))] for names in map(list, (HOLDERS, STYLES, USES))
    )
    check_change(holder, style, use)
    return holder, style, use


def check_change(holder: str, style: str, use: str) -> None:
    what = f"{use}: {style} that reads {holder}"
    run = USES[use]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        wanted = run(Use(Path(one)), Program(holder, style, NEW))
        program, kept = Program(holder, style, OLD), Use(Path(two))
        old = run(kept, program)
        if old == wanted:
            raise DifferenceError(f"{what}: the number does not matter, so nothing is shown")
        if run(kept, program) != old:
            raise DifferenceError(f"{what}: a second epoch differs, and nothing was changed")
        program.mutate(NEW)
        try:
            found = run(kept, program)
        except cereal.CerealError:
            return
        finally:
            jax.effects_barrier()
    if found != wanted:
        stale = "what it was before" if found == old else f"neither {old} nor that"
        raise DifferenceError(f"{what}: {found} after the change, {stale}; a new process: {wanted}")
