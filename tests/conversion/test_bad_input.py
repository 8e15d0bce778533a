"""What `convert` refuses: when it is called if it can be known then, else with the element."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    IterableSource,
    MemmapSource,
    MixSource,
    PipelineError,
    RandomMapTransform,
    UsageError,
    convert,
)

NUMBERS = list(range(20))


class Pair(NamedTuple):
    a: int
    b: int


def mapped(fn: Callable[[int], Any]) -> list[Any]:
    return [NUMBERS, HostMapTransform(fn)]


REFUSED: dict[str, tuple[Any, str]] = {
    "batches": ([NUMBERS, BatchTransform(4)], "makes batches, and a folder holds elements"),
    "a random stage": (
        [NUMBERS, HostRandomMapTransform(lambda x, rng: x + rng.integers(3))],
        "has a random stage",
    ),
    "a compiled random stage": (
        [ArraySampleSource(np.arange(4.0)), RandomMapTransform(lambda x, key: x)],
        "has a random stage",
    ),
    "elements that vary": (
        DiskSampleSource(4, lambda index, epoch: index + epoch),
        "change from epoch to epoch",
    ),
    "a mixture": (
        MixSource([ArraySampleSource(np.arange(4)), ArraySampleSource(np.arange(3))], [1, 1]),
        "change from epoch to epoch",
    ),
    "a loader": (DataLoader([NUMBERS, BatchTransform(4)]), "end of a pipeline and not data"),
    "objects": (mapped(lambda x: {"x": object()}), r"`element\['x'\]` is no number, array, text"),
    "none": (mapped(lambda x: {"x": x, "y": None}), r"`element\['y'\]` is None, a missing value"),
    "a named tuple": (mapped(lambda x: Pair(x, x)), "got Pair; write it as a dict"),
    "numbered keys": (mapped(lambda x: {0: x}), "keys of dicts must be strings"),
    "nothing inside": (mapped(lambda x: {}), "elements have no values"),
    "no data": (3, "must be a source"),
    "random keys": (
        ArraySampleSource({"k": jax.random.split(jax.random.key(0), 3)}),
        "random keys|key_data",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_when_it_is_called(name: str, tmp_path: Path) -> None:
    source, words = REFUSED[name]
    with pytest.raises((PipelineError, UsageError), match=words):
        convert(source, tmp_path / "out", progress=False)
    assert list(tmp_path.iterdir()) == []


WRONG: dict[str, tuple[Callable[[int], Any], str]] = {
    "another shape": (
        lambda x: {"x": np.zeros((2, 3 + (x == 13)))},
        r"element 13: `element\['x'\]` has shape \(2, 4\).* only the first axis may differ; resize",
    ),
    "another number of axes": (
        lambda x: {"x": np.zeros((2, 3) if x == 13 else 2)},
        r"element 13: .* has shape \(2, 3\), and that of the first element is \(2,\)",
    ),
    "a number among arrays": (lambda x: [1, 2] if x < 13 else 5, r"element 13: .* has shape \(\)"),
    "another dtype": (lambda x: x if x < 13 else 0.5, "element 13: .* is float32, .* is int32"),
    "a missing value": (lambda x: {"x": None if x == 13 else x}, "element 13: .* a missing value"),
    "a missing text": (lambda x: {"x": None if x == 13 else "a"}, "element 13: .* missing value"),
    "a number among text": (lambda x: "a" if x < 13 else 3, "element 13: .* is int, .* is text"),
    "bytes among text": (lambda x: "a" if x < 13 else b"a", "element 13: .* is bytes, .* is text"),
    "another key": (lambda x: {"x" if x < 13 else "y": x}, "element 13 is .*the same keys"),
    "a large number": (lambda x: x if x < 13 else 2**40, "element 13: .*does not fit int32"),
    "a list that is ragged inside": (
        lambda x: [[1, 2], [3, 4]] if x < 13 else [[1, 2], [3]],
        "element 13: .* is no number, array, text or bytes",
    ),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", WRONG)
def test_an_element_that_is_unlike_the_first_is_named(
    name: str, workers: int, tmp_path: Path
) -> None:
    fn, words = WRONG[name]
    with pytest.raises(PipelineError, match=words) as caught:
        convert(mapped(fn), tmp_path / "out", workers=workers, progress=False)
    assert caught.value.element.index == 13  # type: ignore[attr-defined]
    assert not (tmp_path / "out").exists()


def test_if_nothing_is_left_there_is_no_folder(tmp_path: Path) -> None:
    stages = [NUMBERS, HostFilterTransform(lambda x: bool(x < 0))]
    with pytest.raises(PipelineError, match="left out"):
        convert(stages, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"workers": -1}, "convert: `workers`"),
        ({"worker_type": "fork"}, "convert: `worker_type`"),
        ({"on_error": "ignore"}, "convert: `on_error`"),
        ({"version": "a b"}, "convert: `version`"),
        ({"ordering": "random"}, "ordering"),
    ],
)
def test_options_are_checked(option: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=words):
        convert([NUMBERS], tmp_path / "out", progress=False, **option)
    with pytest.raises(PipelineError, match="convert: `folder` must be a path"):
        convert([NUMBERS], 3, progress=False)  # type: ignore[arg-type]


class Locked:
    """A dataset that cannot be read by a digest."""

    def __init__(self) -> None:
        self.lock = (i for i in range(3))

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return index


def test_a_source_without_a_digest_is_converted_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(convert(DatasetSource(Locked()), tmp_path / "out", progress=False)) == 9
    assert "cannot be compared with others" in caplog.text
    with pytest.raises(PipelineError, match="has no digest to compare it with"):
        convert(DatasetSource(Locked()), tmp_path / "out", progress=False)
    convert(DatasetSource(Locked()), tmp_path / "out", version=1, overwrite=True, progress=False)
    assert len(convert(DatasetSource(Locked()), tmp_path / "out", version=1, progress=False)) == 9


# Folders with ragged columns that were damaged


def ragged(tmp_path: Path) -> Path:
    convert([[np.arange(k) for k in range(9)]], tmp_path / "out", progress=False)
    return tmp_path / "out"


def test_an_older_cereal_refuses_ragged_columns_by_their_version(tmp_path: Path) -> None:
    said = json.loads((ragged(tmp_path) / "tree.json").read_text())
    assert said["version"] == 2
    assert said["tree"]["kind"] == "array"
    assert set(said["tree"]["ragged"]) == {"values", "offsets", "dtype", "lengths"}


@pytest.mark.parametrize("damage", ["values", "offsets", "kind", "outside", "gone"])
def test_a_damaged_ragged_column_is_refused(damage: str, tmp_path: Path) -> None:
    folder = ragged(tmp_path)
    said = json.loads((folder / "tree.json").read_text())
    if damage in ("values", "offsets"):
        name = said["tree"]["ragged"][damage]
        np.save(folder / name, np.load(folder / name)[:-1])
    elif damage == "kind":
        said["tree"]["kind"] = "text"
    elif damage == "outside":
        said["tree"]["ragged"]["values"] = "../out/array.npy"
    else:
        (folder / "array.offsets.npy").unlink()
    (folder / "tree.json").write_text(json.dumps(said))
    with pytest.raises(PipelineError, match=r"MemmapSource: .*(fit|uint8|outside|mapped)"):
        MemmapSource(folder)


def test_an_iterator_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    source = IterableSource(lambda: iter(NUMBERS), length=30)
    with pytest.raises(PipelineError, match="ended after 20 elements"):
        convert(source, tmp_path / "out", progress=False)
