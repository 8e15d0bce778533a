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
from tests.cache.user_files import FILES

import cereal
from cereal.cache.digest import digest

LOAD = """
import collections, enum, functools, operator, sys, threading, types
import jax, jax.numpy as jnp, numpy as np
import cereal
from cereal.cache.digest import digest

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


@pytest.mark.slow
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
    lines = [
        f"class C{i}:\n    A, B, BOTH = C{i - 1}, C{i - 1}, [C{i - 1}] * 2" for i in range(1, 60)
    ]
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
