"""A digest changes with what is computed, and with nothing else, in any process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.core.digest import digest

# What a user's file may hold, before and after an edit: 1 becomes 2.
FILES = {
    "a constant in its code": "def fn(x): return x * VALUE",
    "a lambda": "fn = lambda x: x * VALUE",
    "a value of its closure": "def make(k): return lambda x: x * k\nfn = make(VALUE)",
    "a default": "def fn(x, k=VALUE): return x * k",
    "a keyword's default": "def fn(x, *, k=VALUE): return x * k",
    "a global number": "K = VALUE\ndef fn(x): return x * K",
    "a global array": "K = np.full(3, VALUE)\ndef fn(x): return x * K",
    "a global JAX array": "K = jnp.full(3, VALUE)\ndef fn(x): return x * K",
    "a global dict": "K = {1: 'a', 'b': [VALUE]}\ndef fn(x): return x * K['b'][0]",
    "a global set of words": "K = {'one', 'two', 'more', 'VALUE'}\ndef fn(x): return x * len(K)",
    "a global object": "K = types.SimpleNamespace(v=VALUE)\ndef fn(x): return x * K.v",
    "words that it looks for": "def fn(x): return x if 'a' in {'a', 'b', 'VALUE'} else -x",
    "a helper": "def helper(x): return x * VALUE\ndef fn(x): return helper(x)",
    "a helper's helper": """
def inner(x): return x * VALUE
def helper(x): return inner(x)
def fn(x): return helper(x)""",
    "a function inside of it": """
def fn(x):
    def inside(y): return y * VALUE
    return inside(x)""",
    "a name that a function inside of it uses": """
K = VALUE
def fn(x): return (lambda y: y * K)(x)""",
    "a function that calls itself": "def fn(x, n=3): return x * VALUE if n == 0 else fn(x, n - 1)",
    "two that call each other": """
def fn(x, n=3): return x if n == 0 else other(x, n)
def other(x, n): return fn(x * VALUE, n - 1)""",
    "a local one that calls itself": """
def make():
    def loop(x, n=3): return x * VALUE if n == 0 else loop(x, n - 1)
    return loop
fn = make()""",
    "a function under jit": "fn = jax.jit(lambda x: x * VALUE)",
    "a function under vmap": "fn = jax.vmap(lambda x: x * VALUE)",
    "a function under grad": "fn = jax.grad(lambda x: x * x * VALUE)",
    "a helper under jit": "helper = jax.jit(lambda x: x * VALUE)\ndef fn(x): return helper(x)",
    "a decorated function": """
def twice(f):
    @functools.wraps(f)
    def call(*args): return f(f(*args))
    return call
@twice
def fn(x): return x * VALUE""",
    "an argument of a partial": """
def scale(k, x): return x * k
fn = functools.partial(scale, VALUE)""",
    "the function of a partial": """
def scale(k, x): return x * k * VALUE
fn = functools.partial(scale, 3)""",
    "an argument of a JAX Partial": """
def scale(k, x): return x * k
fn = jax.tree_util.Partial(scale, VALUE)""",
    "the function of a JAX Partial": """
def scale(k, x): return x * k * VALUE
fn = jax.tree_util.Partial(scale, 3)""",
    "the state of a method's object": """
class Scale:
    def __init__(self, k): self.k = k
    def apply(self, x): return x * self.k
fn = Scale(VALUE).apply""",
    "the code of a method": """
class Scale:
    def apply(self, x): return x * VALUE
fn = Scale().apply""",
    "the code of a callable object": """
class Scale:
    def __call__(self, x): return x * VALUE
fn = Scale()""",
    "the code of a class that it refers to": """
class Scale:
    @staticmethod
    def apply(x): return x * VALUE
def fn(x): return Scale.apply(x)""",
    "a function of a module that it refers to": """
helpers = types.ModuleType("helpers")
exec("def scale(x): return x * VALUE", helpers.__dict__)
def fn(x): return helpers.scale(x)""",
    "a class constant that is a tuple": """
class Scale:
    K = (VALUE,)
    def __call__(self, x): return x * self.K[0]
fn = Scale()""",
    "a class constant that is a list": """
class Scale:
    K = [VALUE]
def fn(x): return x * Scale.K[0]""",
    "a class constant that is a dict": """
class Scale:
    K = {"k": {"inner": VALUE}}
    def __call__(self, x): return x * self.K["k"]["inner"]
fn = Scale()""",
    "a class constant that is an array": """
class Scale:
    K = np.array([VALUE])
    def __call__(self, x): return x * self.K
fn = Scale()""",
    "a class constant of a parent": """
class Parent:
    K = (VALUE,)
class Scale(Parent):
    def __call__(self, x): return x * self.K[0]
fn = Scale()""",
    "a class constant beside a lock": """
class Scale:
    A = threading.Lock()
    K = (VALUE,)
    def __call__(self, x): return x * self.K[0]
fn = Scale()""",
    "a member of an enum": """
class Kind(enum.Enum):
    A = VALUE
    B = 7
def fn(x): return x * Kind.A.value""",
    "an enum's member that it holds": """
class Kind(enum.Enum):
    A = VALUE
def make(kind): return lambda x: x * kind.value
fn = make(Kind.A)""",
    "a value in a slot": """
class Scale:
    __slots__ = ("k",)
    def __init__(self, k): self.k = k
    def __call__(self, x): return x * self.k
fn = Scale(VALUE)""",
    "a decorating object": """
class Times:
    def __init__(self, fn, k): functools.update_wrapper(self, fn); self.k = k
    def __call__(self, x): return self.__wrapped__(x) * self.k
fn = Times(lambda x: x, VALUE)""",
    "an attribute of the function": """
def fn(x): return x * fn.k
fn.k = VALUE""",
    "the method of a dict": "fn = {1: VALUE}.get",
    "a function under np.vectorize": "def h(x): return x * VALUE\nfn = np.vectorize(h)",
    "a method under np.vectorize": """
class Scale:
    K = (VALUE,)
    def apply(self, x): return x * self.K[0]
fn = np.vectorize(Scale().apply)""",
    "a function in a library's object": """
def h(x): return x * VALUE
fn = collections.deque([h])""",
    "a function in a partial in a library's object": """
def h(k, x): return x * k * VALUE
fn = operator.methodcaller("get", functools.partial(h, 3))""",
    "a function imported inside of it": """
module("elsewhere", "def h(x): return x * VALUE")
def fn(x):
    from elsewhere import h
    return h(x)""",
    "a module imported inside of it": """
module("elsewhere", "def h(x): return x * VALUE")
def fn(x):
    import elsewhere
    return elsewhere.h(x)""",
    "a module of a module": """
module("elsewhere", "def h(x): return x * VALUE")
module("between", "import elsewhere as deep")
import between
def fn(x): return between.deep.h(x)""",
    "an array of objects": "K = np.array([None, VALUE], object)\ndef fn(x): return x * K[1]",
    "a list with a name": """
class Scales(list):
    pass
K = Scales([1])
K.k = VALUE
def fn(x): return x * K.k""",
    "the weights of a model": """
@cereal.pytree_dataclass
class Model:
    weight: jax.Array
    def __call__(self, x): return x * self.weight
fn = Model(jnp.float32(VALUE))""",
    "the parts of a model": """
@cereal.pytree_dataclass
class Model:
    parts: tuple[jax.Array, ...]
    def __call__(self, x): return x * self.parts[0]
fn = Model((jnp.float32(VALUE),))""",
    "the code of a model": """
@cereal.pytree_dataclass
class Model:
    weight: jax.Array
    def __call__(self, x): return x * self.weight * VALUE
fn = Model(jnp.float32(3))""",
    "the function that a model holds": """
@cereal.pytree_dataclass
class Model:
    weight: jax.Array
    activation: object = cereal.static_field()
    def __call__(self, x): return self.activation(x * self.weight)
fn = Model(jnp.float32(3), lambda x: x * VALUE)""",
    "a field of one's own source": """
@cereal.pytree_dataclass
class Own(cereal.IndexedSource):
    scale: int = cereal.static_field()
    def __len__(self): return 8
    def element_spec(self): return jax.ShapeDtypeStruct((), jnp.int32)
    def take(self, indices): return indices * self.scale
fn = Own(VALUE)""",
    "how one's own source reads": """
@cereal.pytree_dataclass
class Own(cereal.IndexedSource):
    def __len__(self): return 8
    def element_spec(self): return jax.ShapeDtypeStruct((), jnp.int32)
    def take(self, indices): return indices * VALUE
fn = Own()""",
}

LOAD = """
import collections, enum, functools, operator, sys, threading, types
import jax, jax.numpy as jnp, numpy as np
import cereal
from cereal.core.digest import digest

def module(name, text):
    made = sys.modules[name] = types.ModuleType(name)
    exec(text, made.__dict__)

LIBRARIES = [collections, enum, functools, operator, threading, types, jax, cereal]

def load(text):
    module = types.ModuleType("project")
    module.__dict__.update({each.__name__: each for each in LIBRARIES})
    module.__dict__.update(jnp=jnp, np=np, module=globals()["module"])
    sys.modules["project"] = module
    exec(text, module.__dict__)
    return module.fn
"""
CHILD = f"""{LOAD}
import json

def run(text):
    exec(text, globals())
    return fn

how = load if sys.argv[1] == "imported" else run
print(json.dumps({{name: digest(how(text)) for name, text in json.load(sys.stdin).items()}}))
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Any]:
    """What a project's file calls `fn`, as it is before (1) or after (2) an edit."""
    for name in ("project", "elsewhere", "between"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    scope: dict[str, Any] = {}
    exec(LOAD, scope)
    return lambda name, version: scope["load"](FILES[name].replace("VALUE", str(version)))


@pytest.mark.parametrize("name", FILES)
def test_the_digest_changes_with(name: str, load: Callable[[str, int], Any]) -> None:
    before, after = (digest(load(name, version)) for version in (1, 2))
    assert before != after


@pytest.mark.parametrize("name", FILES)
def test_the_digest_is_the_same_if_the_file_is(name: str, load: Callable[[str, int], Any]) -> None:
    once, again = (digest(load(name, 1)) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("how", ["imported", "run"])
def test_digests_are_the_same_in_every_process_if_the_file_is(how: str) -> None:
    texts = {name: text.replace("VALUE", "1") for name, text in FILES.items()}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    one, other = (json.loads(child.communicate(json.dumps(texts))[0]) for child in children)
    assert {name for name in texts if one[name] != other[name]} == set()


# Values


VALUES: list[Any] = [
    0, 1, True, 1.0, "1", b"1", None, 0.0, -0.0, float("nan"), 1j, [], (), {}, [1], (1,), [1, 1],
    [[1], 1], [1, [1]], {"a": 1}, {"b": 1}, {"a": 2}, np.float32(1), np.int32(1), np.zeros(2),
    np.zeros((2, 1)), np.zeros((1, 2)), np.zeros(2, np.int64), np.zeros(16, np.uint8),
    np.array([0.0, -0.0]), np.zeros(2, np.bool_), jnp.zeros(2, jnp.bfloat16),
    jax.random.key(0), jax.random.key(1), range(3), range(4), slice(1), ..., jnp.float32,
    jnp.sin, jnp.cos, np.sin, len, jnp.add,
]  # fmt: skip


def test_different_values_have_different_digests() -> None:
    found: dict[str, Any] = {}
    for value in VALUES:
        name = digest(value)
        assert name not in found, f"{value!r} has the digest of {found.get(name)!r}"
        found[name] = value


def test_equal_arrays_have_one_digest_wherever_they_are() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    same = [values, jnp.asarray(values), values.copy(order="F"), np.stack([values] * 2)[::2][0]]
    assert len({digest(each) for each in same}) == 1


def test_a_big_dict_is_told_from_one_with_another_value() -> None:
    table = {str(number): number for number in range(5_000)}
    assert digest(table) == digest(dict(table))
    assert digest(table) != digest({**table, "4999": 0})


def test_a_function_over_a_million_numbers_is_told_by_all_of_them() -> None:
    numbers = np.zeros(1_000_000, np.uint8)
    before = digest(lambda x: x + numbers)
    numbers[999_999] = 1
    assert digest(lambda x: x + numbers) != before


def test_a_chain_of_functions_is_told_by_each_of_them() -> None:
    def chain(*functions: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: [x := function(x) for function in functions][-1]

    add, double = (lambda x: x + 1), (lambda x: x * 2)
    chains = [(add, double, add), (add, double, double), (add, add, double), (double, add, add)]
    assert len({digest(chain(*each)) for each in chains}) == len(chains)


def test_a_function_is_told_by_how_it_takes_its_arguments() -> None:
    one: Callable[..., Any] = lambda x: x  # noqa: E731
    many: Callable[..., Any] = lambda *x: x  # noqa: E731
    many.__qualname__ = one.__qualname__
    assert digest(one) != digest(many)


def test_classes_of_one_name_in_two_files_differ() -> None:
    made = [types.new_class("Same") for _ in range(2)]
    for number, cls in enumerate(made):
        cls.__module__ = f"file{number}"
    first, second = (cereal.pytree_dataclass(cls)() for cls in made)
    assert digest(first) != digest(second)


CLOSED: dict[str, Any] = {
    "lock": threading.Lock(),
    "ufunc": np.frompyfunc(lambda x: x, 1, 1),
    "generator": (number for number in range(3)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_cannot_be_told_apart_is_refused_by_name(name: str) -> None:
    closed = CLOSED[name]
    with pytest.raises(cereal.PipelineError, match=f"a {name} that .*; name them yourself"):
        digest(lambda x: (closed, x)[1], remedy="name them yourself")


def test_what_cannot_be_told_apart_counts_by_its_type_if_that_is_wanted() -> None:
    first, second = threading.Lock(), threading.Lock()
    found = [digest(lambda x, k=k: (k, x)[1], lenient=True) for k in (first, second, 3)]
    assert found[0] == found[1] != found[2]


def test_many_classes_that_refer_to_each_other_are_looked_into_once_each() -> None:
    lines = [f"class C{i}:\n    NEXT = [C{i - 1}, C{i - 1}]" for i in range(1, 60)]
    scope: dict[str, Any] = {"__name__": "project", "C0": 1}
    exec("\n".join(lines), scope)
    assert digest(scope["C59"]) != digest(scope["C58"])  # 2^59 ways lead to the first


# Pipelines


def test_the_order_is_not_part_of_it() -> None:
    orders: list[Any] = ["sequential", "shuffle", [1, 0], cereal.BlockShuffle(2)]
    ranges = {digest(cereal.RangeSource(5, ordering=order)) for order in orders}
    arrays = {digest(cereal.ArraySampleSource(np.arange(5), ordering=order)) for order in orders}
    assert len(ranges) == 1
    assert len(arrays) == 1


def test_every_option_of_a_source_is_part_of_it() -> None:
    source = cereal.RangeSource(8)
    different = [
        source,
        cereal.RangeSource(9),
        cereal.RangeSource(1, 9),
        cereal.ArraySampleSource({"x": np.arange(8)}),
        cereal.ArraySampleSource({"y": np.arange(8)}),
        cereal.ArraySampleSource({"x": np.arange(8)}, index_key="index"),
        cereal.SliceSource(source, range(8)[::-1]),
        cereal.SliceSource(source, [0, 1]),
        *cereal.split(source, (0.5, 0.5)),
        *cereal.split(source, (0.5, 0.5), key=0),
        *cereal.split(source, (0.5, 0.5), key=1),
        *cereal.kfold(source, 4, 1),
        *cereal.kfold(source, 4, 2),
        cereal.ConcatSource([source, cereal.RangeSource(9)]),
        cereal.ConcatSource([cereal.RangeSource(9), source]),
        cereal.WindowSource(np.arange(8), 3),
        cereal.WindowSource(np.arange(8), 3, 2),
        cereal.WindowSource(np.arange(8), 2, predict=1),
        cereal.FilterTransform(lambda x: x > 3)(source),
        cereal.RenameTransform({"x": "y"})(cereal.ArraySampleSource({"x": np.arange(8)})),
    ]
    assert len({digest(each) for each in different}) == len(different)


def test_a_digest_is_32_letters_of_the_objects_in_order() -> None:
    assert len(digest(1, 2)) == 32
    assert int(digest(1, 2), 16) >= 0
    assert digest(1, 2) != digest(2, 1)
    assert digest() == hashlib.blake2b(digest_size=16).hexdigest()
