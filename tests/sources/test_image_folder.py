"""Folders of images: labels from the names of folders, or from a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.transforms.images import encoded, photo

import cereal
from cereal import BatchTransform, DataLoader, DecodeImageTransform, ImageFolderSource
from cereal.testing import check_loader, check_resume

FILES = ("cat/1.png", "cat/10.JPG", "cat/2.jpg", "dog/old/7.png", "dog/young/3.jpeg", "newt/a.webp")
LABELS = (0, 0, 0, 1, 1, 2)


def shade(number: int) -> np.ndarray:
    """An image of one grey, by which it can be told from others."""
    return np.full((10 + number, 12, 3), 40 * number, np.uint8)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    kinds = {"JPG": "JPEG", "jpg": "JPEG", "jpeg": "JPEG"}
    for number, name in enumerate(FILES):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = kinds.get(path.suffix[1:], path.suffix[1:].upper())
        path.write_bytes(encoded(shade(number), kind))
    return folder


def shown(source: Any, size: tuple[int, int] = (8, 8), **options: Any) -> Any:
    stages = [DecodeImageTransform(size, "center"), BatchTransform(2)]
    with DataLoader([source, *stages], **options) as loader:
        found = [jax.device_get(batch) for batch, _ in loader.iterate(loader.init_state(0))]
    return jax.tree.map(lambda *each: np.concatenate(each), *found)


def numbers(batch: Any) -> list[int]:
    """Which images these are."""
    return np.round(batch["image"].mean(axis=(1, 2, 3)) / 40).astype(int).tolist()


def test_folders_are_classes_in_sorted_order(pets: Path) -> None:
    source = ImageFolderSource(pets, ordering="sequential")
    assert len(source) == 6
    assert source.classes == {"label": ("cat", "dog", "newt")}
    found = shown(source, workers=0)
    assert found["label"].tolist() == list(LABELS)
    assert numbers(found) == list(range(6))
    assert [source.path(i) for i in range(6)] == [str(pets / name) for name in FILES]


def test_the_pipeline_of_the_guide(pets: Path) -> None:
    decode = DecodeImageTransform(size=(224, 224), crop="center")
    loader = DataLoader([ImageFolderSource(pets), decode, BatchTransform(4)])
    batch, _ = next(loader.iterate(loader.init_state(0)))
    assert batch["image"].shape == (4, 224, 224, 3)
    assert batch["label"].dtype == np.int32
    loader.close()


def test_a_shuffled_epoch_by_threads_has_each_image_once(pets: Path) -> None:
    source = ImageFolderSource(pets, index_key="i")
    found = shown(source, workers=2)
    jax.tree.map(np.testing.assert_array_equal, found, shown(source, workers=0))
    order = numbers(found)
    assert sorted(order) == list(range(6)) != order
    assert found["i"].tolist() == order
    assert found["label"].tolist() == [LABELS[i] for i in order]


@pytest.mark.slow
def test_the_kit_and_processes(pets: Path) -> None:
    source = ImageFolderSource(pets)
    loader = DataLoader([source, DecodeImageTransform((8, 8)), BatchTransform(4)], workers=0)
    check_loader(loader)
    check_resume(loader)
    found = shown(source, workers=2, worker_type="process")
    jax.tree.map(np.testing.assert_array_equal, found, shown(source, workers=0))


def test_a_stage_of_your_own_gets_the_bytes(pets: Path) -> None:
    seen = []
    stage = cereal.HostMapTransform(lambda element: seen.append(element) or len(element["image"]))
    loader = DataLoader([ImageFolderSource(pets, ordering="sequential"), stage], workers=0)
    next(iter(loader))
    assert seen[0] == {"image": (pets / FILES[0]).read_bytes(), "label": 0}


def test_what_is_no_image_is_ignored_and_counted(pets: Path) -> None:
    for name in ("cat/notes.txt", "dog/Thumbs.db", "README.md", "dog/old/noext"):
        (pets / name).write_text("?")
    for name in (".hidden/x.jpg", "cat/.1.jpg.swp", "cat/._1.jpg"):
        (pets / name).parent.mkdir(exist_ok=True)
        (pets / name).write_text("?")
    source = ImageFolderSource(pets)
    assert len(source) == 6
    assert "pets, 3 classes, 4 files ignored" in source._label


def test_links_to_images_and_folders_are_followed_but_not_in_a_circle(pets: Path) -> None:
    (pets / "cat" / "more").symlink_to(pets / "dog" / "old")
    (pets / "cat" / "again").symlink_to(pets)
    (pets / "newt" / "b.png").symlink_to(pets / "cat" / "1.png")
    source = ImageFolderSource(pets)
    names = [os.path.relpath(source.path(i), pets) for i in range(len(source))]
    assert {"cat/more/7.png", "newt/b.png"} <= set(names)
    assert not [name for name in names if name.startswith("cat/again")]


def test_stated_classes_number_other_data_alike(pets: Path, tmp_path: Path) -> None:
    train = ImageFolderSource(pets)
    test = tmp_path / "test"
    for name in ("dog", "newt", "cat"):
        (test / name).mkdir(parents=True)
    for name in ("newt/1.png", "newt/2.png", "dog/1.png"):
        (test / name).write_bytes(encoded(shade(1), "PNG"))
    source = ImageFolderSource(test, None, "sequential", classes=train.classes["label"])
    assert shown(source, workers=0)["label"].tolist()[:3] == [1, 2, 2]
    assert source.classes == train.classes


# A table of labels


def write(folder: Path, text: str, name: str = "labels.csv", encoding: str = "utf-8") -> None:
    (folder / name).write_text(text, encoding=encoding)


def test_labels_from_a_table_in_its_order(pets: Path) -> None:
    write(pets, 'file, label ,note\ndog/old/7.png,rex,"a, b"\ncat/2.jpg,tom,\nnewt/a.webp,rex,\n')
    source = ImageFolderSource(pets, "labels.csv", "sequential")
    assert source.classes == {"label": ("rex", "tom")}
    found = shown(source, workers=0)
    assert numbers(found)[:3] == [3, 2, 5]
    assert found["label"].tolist()[:3] == [0, 1, 0]


def test_labels_that_are_numbers_stay_so(pets: Path, tmp_path: Path) -> None:
    write(tmp_path, "file,label\ncat/2.jpg,7\ncat/1.png,-3\n", "mine.csv", "utf-8-sig")
    source = ImageFolderSource(pets, tmp_path / "mine.csv", "sequential")
    assert shown(source, workers=0)["label"].tolist() == [7, -3]
    assert source.classes == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,label\n", r"must have columns `file` and `label`.*'name,label'"),
        ("", "must have columns `file` and `label`"),
        ("file,label\ncat/2.jpg,1\ncat/9.jpg,1\n", r"line 3: there is no file 'cat/9\.jpg' in"),
        ("file,label\n/etc/passwd,1\n", "line 2: the file '/etc/passwd' must be a path from"),
        ("file,label\ncat/../../x,1\n", "must be a path from .* inside of it"),
        ("file,label\n,1\n", "line 2: the file '' must be a path"),
        ("file,label\ncat/2.jpg\n", "line 2: 'cat/2.jpg' has no label"),
        ("file,label\ncat/2.jpg,1\ncat/2.jpg,2\n", "line 3: 'cat/2.jpg' stands in line 2 already"),
        ("file,label\n", "there are no images in"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_its_line(
    pets: Path, text: str, words: str
) -> None:
    write(pets, text)
    with pytest.raises(cereal.PipelineError, match=f"^ImageFolderSource: .*{words}"):
        ImageFolderSource(pets, "labels.csv")


# What is wrong


def refused(words: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=f"^ImageFolderSource: .*{words}"):
        ImageFolderSource(*arguments, **options)


def test_folders_that_are_not_what_was_meant(pets: Path) -> None:
    refused("the folder .*gone' does not exist; you are in", pets / "gone")
    refused("is a file", pets / FILES[0])
    refused(r'has no folders, one for each class.*`labels="labels.csv"`', pets / "cat")
    refused("no 'labels.csv' in", pets, "labels.csv")
    refused("`folder` must be a path", 3)
    (pets / "zebra").mkdir()
    refused(r"zebra' of a class has no images .*`classes=\('cat', 'dog', \.\.\.\)`", pets)
    refused(
        "has a class 'newt', which is not among `classes`", pets, classes=("cat", "dog", "zebra")
    )
    refused("`classes` must be different names", pets, classes=("cat", "cat"))
    refused("`classes` must be different names", pets, classes="cat")


def test_images_of_different_sizes_are_told_to_be_resized(pets: Path) -> None:
    stages = [ImageFolderSource(pets), DecodeImageTransform(), BatchTransform(6)]
    loader = DataLoader(stages, workers=0)
    with pytest.raises(cereal.PipelineError, match=r"resize them: `DecodeImageTransform\(size="):
        next(loader.iterate(loader.init_state(0)))


def test_images_that_are_not_decoded_are_told_to_be(pets: Path) -> None:
    with pytest.raises(cereal.PipelineError, match=r"an encoded image; add `DecodeImageTransform"):
        DataLoader([ImageFolderSource(pets), BatchTransform(2)])


def test_a_bad_file_is_found_by_its_index(pets: Path) -> None:
    (pets / FILES[4]).write_bytes(encoded(photo(20, 20))[:300])
    source = ImageFolderSource(pets, ordering="sequential")
    loader = DataLoader([source, DecodeImageTransform((8, 8)), BatchTransform(6)], workers=0)
    with pytest.raises(cereal.DatasetError, match="cannot be decoded") as caught:
        next(iter(loader))
    index = caught.value.element.index  # type: ignore[attr-defined]
    assert source.path(index) == str(pets / FILES[4])


@pytest.mark.parametrize("how", ["written", "touched", "gone"])
def test_a_file_that_changes_under_us_is_an_error(pets: Path, how: str) -> None:
    source = ImageFolderSource(pets, ordering="sequential")
    loader = DataLoader([source, DecodeImageTransform((8, 8)), BatchTransform(2)], workers=0)
    path = pets / FILES[3]
    if how == "gone":
        path.unlink()
    elif how == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(b"?")
    loader.batch_at(0, 0)
    words = "is gone" if how == "gone" else "has changed since the source was built"
    with pytest.raises(cereal.PipelineError, match=f"{FILES[3]}' {words}"):
        loader.batch_at(0, 1)
    assert loader.batch_at(0, 2)[0]["label"].tolist() == [1, 2]
