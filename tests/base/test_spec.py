from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.base.spec import Spec, as_override, format_spec, is_array_like, spec_of


class Pair(NamedTuple):
    image: Any
    label: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    image: Any
    extra: Any


def shaped(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_specs_are_equal_when_structure_shapes_and_dtypes_are() -> None:
    spec = Spec({"x": shaped((2,)), "y": shaped(())})
    same = Spec({"y": jnp.zeros(()), "x": jnp.zeros(2)})
    assert spec == same
    assert hash(spec) == hash(same)
    assert spec != Spec({"x": shaped((3,)), "y": shaped(())})
    assert spec != Spec({"x": shaped((2,), jnp.int32), "y": shaped(())})
    assert spec != Spec({"x": shaped((2,)), "z": shaped(())})
    assert spec != {"x": shaped((2,))}


def test_a_batch_of_a_spec_has_one_more_axis() -> None:
    assert Spec((shaped((2,)),)).batched(5).tree == (shaped((5, 2)),)


def test_the_spec_of_an_array_has_the_dtype_that_jax_gives_it() -> None:
    assert spec_of(np.zeros((3, 2)), drop_axes=1) == shaped((2,))
    assert spec_of(np.zeros(3, np.int64)).dtype == jnp.int32
    assert (
        spec_of(jax.random.split(jax.random.key(0), 3), drop_axes=1).dtype
        == jax.random.key(0).dtype
    )


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (shaped((2, 3)), "float32[2,3]"),
        (shaped(()), "float32[]"),
        (
            {"image": shaped((8, 8), jnp.uint8), "y": shaped(())},
            "{image: uint8[8,8], y: float32[]}",
        ),
        ((shaped(()), [shaped((1,), jnp.bool_)]), "(float32[], [bool[1]])"),
        (Pair(shaped((2,)), shaped((), jnp.int32)), "Pair(image=float32[2], label=int32[])"),
        ({"a": None, "b": {}}, "{a: None, b: {}}"),
        (
            Record(shaped((2,)), {"k": shaped(())}),
            "Record(image: float32[2], extra['k']: float32[])",
        ),
        (shaped((2,), jnp.bfloat16), "bfloat16[2]"),
    ],
)
def test_specs_are_written_as_users_read_them(tree: Any, text: str) -> None:
    assert format_spec(tree) == text
    assert repr(Spec(tree)) == text


@pytest.mark.parametrize(
    "leaf",
    [
        1, 2.0, True, 1j, np.float64(3), np.zeros(2, np.uint8), np.zeros(2, bool), jnp.zeros(2),
        jnp.zeros(2, jnp.bfloat16), np.zeros(2, jnp.bfloat16), jax.random.key(0), shaped((2,)),
    ],
)  # fmt: skip
def test_numbers_and_arrays_are_array_like(leaf: Any) -> None:
    assert is_array_like(leaf)


@pytest.mark.parametrize(
    "leaf",
    [
        "text", b"bytes", None, [1, 2], object(), np.array(["a"]), np.array([None]),
        np.array([b"a"]), np.zeros(2, "datetime64[s]"), np.zeros(2, [("a", int)]), np.str_("a"),
    ],
)  # fmt: skip
def test_text_lists_objects_dates_and_records_are_not(leaf: Any) -> None:
    assert not is_array_like(leaf)


def test_an_override_is_read_from_shapes_or_arrays_with_the_dtypes_that_jax_has() -> None:
    assert as_override(None, "Test") is None
    expected = Spec({"x": shaped((2,)), "y": shaped((), jnp.int32)})
    assert as_override({"x": np.zeros(2), "y": shaped((), np.int64)}, "Test") == expected


@pytest.mark.parametrize("override", ["x", {"x": 3}, {"x": (2, "float32")}, jnp.int32])
def test_an_override_without_shapes_is_refused(override: Any) -> None:
    message = (
        r"Test: `element_spec_override.*` must be .*write `jax.ShapeDtypeStruct\(shape, dtype\)`"
    )
    with pytest.raises(cereal.PipelineError, match=message):
        as_override(override, "Test")
