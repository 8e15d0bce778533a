from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cereal import PipelineError
from cereal.preview.captions import as_names, captions

CATS = ("cat", "dog", "fox")


def words(values: Any, classes: Any = None) -> list[str]:
    values = list(values)
    return captions({"label": values}, classes, [f"#{i}" for i in range(len(values))])


def test_numbers_are_written_or_named() -> None:
    assert words(np.array([0, 2, 7])) == ["0", "2", "7"]
    assert words(np.array([0, 2, 7]), CATS) == ["cat", "fox", "7"]
    assert words([1, np.int64(2), jnp.int32(0), -1], CATS) == ["dog", "fox", "cat", "-1"]
    assert words([2**40]) == [str(2**40)]
    assert words([np.array([1])], CATS) == ["dog"]
    assert words([True, False]) == ["True", "False"]
    assert words([True, False], ("no", "yes")) == ["yes", "no"]


def test_floats_are_short() -> None:
    assert words([0.123456, 3.0, float("nan")]) == ["0.123", "3", "nan"]


def test_texts_are_written_on_one_line() -> None:
    assert words(["a\nb", b"caf\xc3\xa9", np.str_("c"), np.array("d")]) == ["a b", "café", "c", "d"]
    assert words([np.bytes_(b"e")]) == ["e"]


def test_one_hot_labels_are_the_place_of_the_one() -> None:
    rows = np.eye(3, dtype=np.float32)[[2, 0]]
    assert words(rows) == ["2", "0"]
    assert words(rows, CATS) == ["fox", "cat"]
    assert words(rows.astype(np.int32), CATS) == ["fox", "cat"]


def test_parts_of_a_whole_are_the_largest_and_how_much_of_it() -> None:
    assert words(np.array([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]]), CATS) == ["cat 70%", "fox"]


def test_attributes_are_the_names_that_are_set() -> None:
    rows = np.array([[1, 1, 0], [-1, -1, -1], [0, 0, 1]])
    assert words(rows, CATS) == ["cat\ndog", "none", "fox"]


def test_many_attributes_are_counted() -> None:
    names = [f"a{i}" for i in range(40)]
    rows = np.zeros((2, 40), np.int32)
    rows[0, [1, 5, 6, 7, 39]] = 1
    rows[1, [2, 3]] = 1
    assert words(rows, names) == ["a1\na5\na6\n+ 2 more", "a2\na3"]
    assert words(rows) == ["#0", "#1"]


def test_short_vectors_are_written_out() -> None:
    assert words(np.array([[1, 2], [3, 4]])) == ["1, 2", "3, 4"]
    assert words([np.array([1, 2]), np.array([1, 2, 3])]) == ["1, 2", "1, 2, 3"]


def test_several_labels_are_lines_and_numbers_say_which_they_are() -> None:
    labels = {"label": [0, 1], "coarse_label": [5, 6]}
    assert captions(labels, CATS, ["", ""]) == ["cat\ncoarse_label 5", "dog\ncoarse_label 6"]
    both = {"label": CATS, "coarse_label": tuple("abcdefg")}
    assert captions(labels, both, ["", ""]) == ["cat\nf", "dog\ng"]
    texts = {"label": ["x", "y"], "coarse_label": [5, 6]}
    assert captions(texts, None, ["", ""]) == ["x\ncoarse_label 5", "y\ncoarse_label 6"]


def test_where_labels_say_nothing_the_number_of_the_element_stands() -> None:
    assert captions({}, None, ["#3", "#1"]) == ["#3", "#1"]
    assert words([None, "a", object()]) == ["#0", "a", "#2"]


@pytest.mark.parametrize("classes", ["cat", 3, [1, 2], {"label": "cat"}])
def test_names_that_are_none_are_refused(classes: Any) -> None:
    with pytest.raises(PipelineError, match=r"`classes` must be the names.*write `classes="):
        as_names(classes)
