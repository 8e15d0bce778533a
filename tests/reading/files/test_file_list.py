"""Files as users name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cereal import PipelineError
from cereal.reading.files.file_list import expanded, listed_files


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a", ["a"]),
        ("a-{0..2}", ["a-0", "a-1", "a-2"]),
        ("a-{008..010}", ["a-008", "a-009", "a-010"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}-{1..2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("{a}", ["{a}"]),
        ("x{,.old}", ["x", "x.old"]),
    ],
)
def test_braces_are_those_of_a_shell(text: str, wanted: list[str]) -> None:
    assert expanded(text) == wanted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    for name in ("b.tar", "a.tar", "c.txt", "[x].tar", "d/e.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        ("a.tar", ["a.tar"]),
        (Path("a.tar"), ["a.tar"]),
        ("?.tar", ["a.tar", "b.tar"]),
        ("**/*.tar", ["[x].tar", "a.tar", "b.tar", "d/e.tar"]),
        ("[x].tar", ["[x].tar"]),
        ("{b,a}.tar", ["b.tar", "a.tar"]),
        ("{?,d/*}.tar", ["a.tar", "b.tar", "d/e.tar"]),
        (["b.tar", Path("a.tar")], ["b.tar", "a.tar"]),
        (("d/*", "a.tar"), ["d/e.tar", "a.tar"]),
        (".", ["[x].tar", "a.tar", "b.tar", "d/e.tar"]),
        (["d", "a.tar"], ["d/e.tar", "a.tar"]),
    ],
)
def test_a_path_a_pattern_or_a_list(folder: Path, paths: Any, wanted: list[str]) -> None:
    del folder
    assert listed_files(paths, "X", [".tar"]) == wanted


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "`paths` is an empty list"),
        (3, "`paths` must be a path"),
        ("gone.tar", r"the file 'gone\.tar' does not exist; in .* there is '\[x\].tar', 'a.tar'"),
        ("{a,gone}.tar", r"the file 'gone\.tar' does not exist"),
        ("no/gone.tar", r"does not exist; there is no folder '.*no'"),
        ("*.zip", r"no file matches '\*\.zip'; in .* there is"),
        ("empty", r"the folder 'empty' has no files that end in \.tar; .*empty' is empty"),
        ("https://x.org/a.tar", r"'https://x\.org/a\.tar', which is no file; .*copy them"),
        ("pipe:curl x", "'pipe:curl x', which is no file"),
        (["a.tar", "./a.tar"], r"'\.?/?a\.tar' is named twice"),
    ],
)
def test_what_names_no_files_is_refused(folder: Path, paths: Any, words: str) -> None:
    del folder
    with pytest.raises(PipelineError, match=f"^X: .*{words}"):
        listed_files(paths, "X", [".tar"])


def test_home_is_found(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert listed_files("~/a.tar", "X", [".tar"]) == [os.path.join(folder, "a.tar")]
