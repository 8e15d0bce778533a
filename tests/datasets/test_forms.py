"""A dataset may come in several forms: which of them is read, and which is fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.datasets.remote import FOLDER, TINY, assert_same, dataset_of, tree
from tests.datasets.server import Server, refused

from cereal import DatasetError
from cereal.datasets.base import RecordedDataset
from cereal.datasets.record import Form, Record

NAMES = ("train-images.gz", "train-labels.gz")
OTHER = tuple(f"other-{name}" for name in NAMES)


def in_two_forms(first: str, second: str) -> type[RecordedDataset[Any]]:
    """The files by their names at one place, and by other names at another."""
    plain, other = TINY.record(first), TINY.record(second)

    def renamed(form: Form) -> Form:
        files = {
            split: tuple(replace(file, name=f"other-{file.name}") for file in each)
            for split, each in form.files.items()
        }
        return replace(form, files=files)

    record: Record = replace(plain, forms=(plain.forms[0], renamed(other.forms[0])))
    return dataset_of(record)


def gone(server: Server) -> None:
    for name in NAMES:
        server.serve(f"/{name}", refused(404))


def test_the_next_form_is_fetched_when_the_first_cannot_be(server: Server, tmp_path: Path) -> None:
    with Server() as dead:
        gone(dead)
        make = in_two_forms(dead.url, server.url)
        assert_same(make("train", tmp_path).as_array_dict(), TINY.arrays["train"])
        assert_same(make("train", tmp_path).as_array_dict(), TINY.arrays["train"])
        assert dead.count() == 1  # its second file is not asked for, nor is it in the next call
    assert tree(tmp_path / FOLDER) == {*OTHER, ".lock"}
    assert server.count() == len(OTHER)


def test_arrays_on_disk_are_those_of_any_form(server: Server, tmp_path: Path) -> None:
    with Server() as dead:
        gone(dead)
        make = in_two_forms(dead.url, server.url)
        make.make_disk_source("train", cache_dir=tmp_path)
        TINY.put(tmp_path / FOLDER)  # and now the first form is there as well
        make.make_disk_source("train", cache_dir=tmp_path)
    assert len(list((tmp_path / FOLDER / "arrays").glob("train-*"))) == 1


def test_a_form_that_is_there_is_read_and_nothing_is_fetched(
    server: Server, tmp_path: Path
) -> None:
    TINY.put(tmp_path / FOLDER)
    for name in NAMES:
        (tmp_path / FOLDER / name).rename(tmp_path / FOLDER / f"other-{name}")
    make = in_two_forms(server.url, server.url)
    assert_same(make("train", tmp_path).as_array_dict(), TINY.arrays["train"])
    assert server.count() == 0


def test_when_no_form_can_be_had_all_places_are_named(tmp_path: Path) -> None:
    with Server() as one, Server() as two:
        gone(one)
        gone(two)
        with pytest.raises(DatasetError, match="put these files into") as caught:
            in_two_forms(one.url, two.url)("train", tmp_path)
        assert one.url in str(caught.value)
        assert two.url in str(caught.value)
    assert str(caught.value).count("  train-images.gz  (sha256:") == 1


def test_a_full_disk_is_not_asked_for_the_next_form(server: Server, tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    with pytest.raises(DatasetError, match="could not be written"):
        in_two_forms(server.url, server.url)("train", tmp_path)
    assert server.count() == 0
