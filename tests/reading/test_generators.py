"""Generators for elements: the numbers of their keys, however the keys are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cereal.reading import generators
from cereal.reading.generators import with_generator, writes_in_place

KEYS = [0, 1, 12_345_678_901, (1 << 64) - 1]


def draws(rng: np.random.Generator) -> list[Any]:
    """Numbers of all widths: a generator keeps half of a word, and a buffer of four."""
    return [
        rng.integers(0, 1 << 31, 3, np.uint32).tolist(),
        rng.random(5).tolist(),
        rng.normal(size=3).tolist(),
        rng.integers(0, 100, 7, np.uint8).tolist(),
        rng.permutation(10).tolist(),
    ]


def fresh(key: int) -> list[Any]:
    return draws(np.random.Generator(np.random.Philox(key=key)))


def test_a_key_is_written_where_numpy_keeps_it() -> None:
    assert writes_in_place(), "NumPy's Philox has another struct: keys are set five times slower"


@pytest.mark.parametrize("way", ["_in_place", "_by_setter"])
def test_a_key_gives_the_numbers_of_a_new_generator_whatever_was_drawn_before(way: str) -> None:
    bits = np.random.Philox(key=5)
    rekey, rng = getattr(generators, way)(bits), np.random.Generator(bits)
    for before in range(9):
        for key in KEYS:
            rng.integers(0, 9, before, np.uint32)
            rng.random(before)
            rekey(key)
            assert draws(rng) == fresh(key)


def test_both_ways_leave_the_same_state() -> None:
    for key in KEYS:
        assert generators._writes_as_the_setter(key)


def test_a_struct_that_is_not_as_expected_is_never_written(monkeypatch: Any) -> None:
    class Other(generators.ctypes.Structure):
        _fields_ = (("first", generators.ctypes.c_uint64), *generators._State._fields_)

    monkeypatch.setattr(generators, "_State", Other)
    monkeypatch.setattr(generators, "_in_place", None)
    assert not writes_in_place.__wrapped__()


def test_a_function_that_reads_another_pipeline_has_a_generator_of_its_own() -> None:
    def inner(value: int, rng: np.random.Generator) -> Any:
        return draws(rng)

    def outer(value: int, rng: np.random.Generator) -> Any:
        first = rng.random()
        return first, with_generator(inner, 0, 7), rng.random()

    rng = np.random.Generator(np.random.Philox(key=3))
    assert with_generator(outer, 0, 3) == (rng.random(), fresh(7), rng.random())


def test_an_error_gives_the_generator_back() -> None:
    with pytest.raises(ZeroDivisionError):
        with_generator(lambda value, rng: 1 // value, 0, 3)
    assert with_generator(lambda value, rng: draws(rng), 0, 3) == fresh(3)
