"""Arrays of datasets on disk: written once, mapped, and written anew when the files change."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.datasets.files import (
    random_images,
    random_labels,
    with_own_hashes,
    write_mnist,
)

from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DatasetError,
    DigitsDataset,
    HostMapTransform,
    MNISTDataset,
    PipelineError,
)
from cereal.datasets.record import Form, Record, RemoteFile
from cereal.datasets.storage import SplitFiles
from cereal.testing import assert_same, check_resume

N, KEY = 13, 7
IMAGES, LABELS = random_images(N, 28, 28), random_labels(N, 10)
DATA = {"image": IMAGES[..., None], "label": LABELS}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    write_mnist(tmp_path / "mnist", "train", IMAGES, LABELS)
    return tmp_path


def on_disk(cache: Path, ordering: str = "shuffle", **options: Any) -> Any:
    return MNISTDataset.make_disk_source(
        split="train", ordering=ordering, cache_dir=cache, **{"verify": False, **options}
    )


def in_memory(ordering: str = "shuffle") -> Any:
    return ArraySampleSource(DATA, ordering=ordering)


def shelf(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "mnist" / "arrays").glob("[!.]*"))


# One source in every use


def by_iterate(loader: DataLoader[Any], steps: int) -> list[Any]:
    return [batch for batch, _ in loader.iterate(loader.init_state(KEY), steps=steps)]


def by_jit(loader: DataLoader[Any], steps: int) -> list[Any]:
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    state, batches = loader.init_state(KEY), []
    for _ in range(steps):
        batch, state, _ = step(loader, state)
        batches.append(batch)
    return batches


def by_scan(loader: DataLoader[Any], steps: int) -> list[Any]:
    def body(count: Any, batch: Any, mask: Any) -> Any:
        del mask
        return count + 1, batch

    _, _, stacked = loader.scan_epoch(loader.init_state(KEY), jnp.int32(0), body)
    return [jax.tree.map(lambda x, at=at: x[at], stacked) for at in range(steps)]


@pytest.mark.parametrize("ordering", ["sequential", "shuffle"])
@pytest.mark.parametrize("road", [by_iterate, by_jit, by_scan])
def test_batches_from_disk_are_rows_of_the_arrays(
    road: Callable[..., list[Any]], ordering: str, cache: Path
) -> None:
    loader = DataLoader([on_disk(cache, ordering), BatchTransform(4)])
    same = DataLoader([in_memory(ordering), BatchTransform(4)])
    batches = road(loader, loader.steps_per_epoch)
    assert len(batches) == 4
    for step, batch in enumerate(batches):
        index = same.indices_at(KEY, step)
        for name, array in DATA.items():
            np.testing.assert_array_equal(batch[name], array[index])
            assert batch[name].dtype == array.dtype


def test_an_epoch_from_disk_has_every_element_once(cache: Path) -> None:
    loader = DataLoader([on_disk(cache), BatchTransform(4, pad_last_batch=True)])
    pairs = list(loader.iterate(loader.init_state(KEY)))
    found = np.concatenate([np.asarray(batch["image"])[np.asarray(mask)] for batch, mask in pairs])
    assert sorted(map(bytes, found)) == sorted(map(bytes, DATA["image"]))


@pytest.mark.parametrize("workers", [0, 2])
def test_python_may_work_on_elements_from_disk(workers: int, cache: Path) -> None:
    def doubled(element: Any) -> Any:
        return {**element, "label": np.int32(2 * element["label"])}

    stages = [on_disk(cache), HostMapTransform(doubled), BatchTransform(4)]
    loader = DataLoader(stages, workers=workers)
    for step, batch in enumerate(by_iterate(loader, 6)):
        index = loader.indices_at(KEY, step)
        np.testing.assert_array_equal(batch["label"], 2 * LABELS[index])
        np.testing.assert_array_equal(batch["image"], DATA["image"][index])


def test_reading_from_disk_goes_on_where_it_stopped(cache: Path) -> None:
    check_resume(DataLoader([on_disk(cache), BatchTransform(4)]), epochs=1)


def test_a_state_from_memory_goes_on_from_disk(cache: Path) -> None:
    memory, disk = (DataLoader([s, BatchTransform(4)]) for s in (in_memory(), on_disk(cache)))
    batches = memory.iterate(memory.init_state(KEY))
    next(batches)
    rest = [batch for batch, _ in disk.iterate(batches.state)]
    assert_same(rest, [batch for batch, _ in batches], "the rest")


# Files


def test_the_source_reads_the_mapped_file_itself(cache: Path) -> None:
    source = on_disk(cache)
    assert isinstance(source, ArraySampleSource)
    regions = regions_of(cache / "mnist" / "arrays")
    for leaf in jax.tree.leaves(source.data):
        place = leaf.unsafe_buffer_pointer()
        assert any(begin <= place < end for begin, end in regions), "a copy is in memory"


def regions_of(folder: Path) -> list[tuple[int, int]]:
    """Where the files of a folder are mapped, as Linux tells; elsewhere, anywhere."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return [(0, 2**64)]
    lines = [line for line in maps.read_text().splitlines() if str(folder) in line]
    return [(int(a, 16), int(b, 16)) for a, b in (line.split()[0].split("-") for line in lines)]


def test_arrays_are_written_once(cache: Path) -> None:
    on_disk(cache)
    (name,) = shelf(cache)
    assert re.fullmatch(r"train-[0-9a-f]{12}", name)
    folder = cache / "mnist" / "arrays" / name
    assert sorted(path.name for path in folder.iterdir()) == ["image.npy", "label.npy", "tree.json"]
    np.testing.assert_array_equal(np.load(folder / "image.npy"), DATA["image"])
    np.testing.assert_array_equal(np.load(folder / "label.npy"), LABELS)
    stamps = [path.stat() for path in sorted(folder.iterdir())]
    on_disk(cache, "sequential", prefetch_size=3)
    assert [path.stat() for path in sorted(folder.iterdir())] == stamps
    assert shelf(cache) == [name]


def test_a_dataset_in_memory_writes_nothing(cache: Path) -> None:
    MNISTDataset("train", cache, verify=False).as_array_dict()
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]


def test_arrays_are_written_anew_when_files_change(cache: Path) -> None:
    before = on_disk(cache, "sequential")
    write_mnist(cache / "mnist", "train", IMAGES[::-1], LABELS[::-1])
    after = on_disk(cache, "sequential")
    for source, labels in ((before, LABELS), (after, LABELS[::-1])):
        batch, _ = DataLoader([source, BatchTransform(N)]).batch_at(0, 0)
        np.testing.assert_array_equal(batch["label"], labels)
    assert len(shelf(cache)) == 2


def test_checked_files_are_not_needed_once_their_arrays_are_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNISTDataset, "record", with_own_hashes(MNISTDataset.record, cache))
    on_disk(cache, verify=True)
    for path in (cache / "mnist").glob("*.gz"):
        path.unlink()
    batch, _ = DataLoader([on_disk(cache, "sequential", verify=True), BatchTransform(N)]).batch_at(
        0, 0
    )
    np.testing.assert_array_equal(batch["label"], LABELS)


def test_files_of_your_own_do_not_mix_with_checked_ones(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNISTDataset, "record", with_own_hashes(MNISTDataset.record, cache))
    on_disk(cache, verify=True)
    write_mnist(cache / "mnist", "train", IMAGES, LABELS[::-1])
    for verify, labels in ((False, LABELS[::-1]), (True, LABELS)):
        source = on_disk(cache, "sequential", verify=verify)
        batch, _ = DataLoader([source, BatchTransform(N)]).batch_at(0, 0)
        np.testing.assert_array_equal(batch["label"], labels)


def test_many_threads_may_ask_at_once(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        sources = list(pool.map(lambda _: on_disk(cache, "sequential"), range(16)))
    assert len(shelf(cache)) == 1
    for source in sources:
        np.testing.assert_array_equal(source.data["label"], LABELS)


def test_what_a_killed_process_left_does_no_harm(cache: Path) -> None:
    on_disk(cache)
    (name,) = shelf(cache)
    folder = cache / "mnist" / "arrays"
    shutil.rmtree(folder / name)
    (folder / f".{name}-abcdefgh").mkdir()
    (folder / f".{name}-abcdefgh" / "image.npy").write_bytes(b"half")
    np.testing.assert_array_equal(on_disk(cache, "sequential").data["label"], LABELS)


def test_digits_may_be_on_disk_too(tmp_path: Path) -> None:
    source = DigitsDataset.make_disk_source("test", "sequential", cache_dir=tmp_path)
    arrays = DigitsDataset("test").as_array_dict()
    batch, _ = DataLoader([source, BatchTransform(297)]).batch_at(0, 0)
    for name, array in arrays.items():
        np.testing.assert_array_equal(batch[name], array)


def test_arrays_go_to_the_cache_of_the_user_where_there_is_no_room_beside_the_files(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (cache / "mnist" / "arrays").write_text("in the way")
    np.testing.assert_array_equal(on_disk(cache, "sequential").data["label"], LABELS)
    assert len(list(home.glob("cereal/mnist/arrays/train-*/image.npy"))) == 1


# Records


def read(paths: Any, split: str) -> Any:
    return {
        "x": np.array([len(path.read_bytes()) for path in paths]),
        "split": np.array([len(split)]),
    }


def record_of(*forms: tuple[str, ...]) -> Record:
    def form(names: tuple[str, ...]) -> Form:
        return Form(read, {"all": tuple(RemoteFile(name, "md5:" + "0" * 32) for name in names)})

    return Record("numbers", "some", ("all",), tuple(map(form, forms)))


def files_of(record: Record, folder: Path) -> SplitFiles:
    return SplitFiles(record, "all", folder, verify=False, owner="Owner")


def test_the_first_form_that_is_whole_is_taken(tmp_path: Path) -> None:
    record = record_of(("a", "b"), ("c",), ("d", "e"))
    (tmp_path / "some").mkdir()
    for name in ("a", "d", "e"):
        (tmp_path / "some" / name).write_bytes(b"x")
    form, paths = files_of(record, tmp_path).located()
    assert form is record.forms[2]
    assert paths == [tmp_path / "some" / "d", tmp_path / "some" / "e"]
    (tmp_path / "some" / "c").write_bytes(b"")
    assert files_of(record, tmp_path).located()[0] is record.forms[1]


def test_arrays_that_are_loaded_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a").write_bytes(b"four")
    arrays = files_of(record_of(("a",)), tmp_path).load()
    assert arrays["x"].tolist() == [4]
    with pytest.raises(ValueError, match="read-only"):
        arrays["x"][0] = 1
    found = files_of(record_of(("a",)), tmp_path).mapped()
    assert isinstance(found["x"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        found["x"][0] = 1


def test_records_of_one_folder_have_arrays_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a").write_bytes(b"four")
    one = record_of(("a",))
    other = replace(
        one, name="others", forms=(replace(one.forms[0], read=lambda *_: {"y": LABELS}),)
    )
    assert list(files_of(one, tmp_path).mapped()) == ["x", "split"]
    assert list(files_of(other, tmp_path).mapped()) == ["y"]


# Bad input


@pytest.mark.parametrize("value", [0, -3, 1.5, "many"])
def test_elements_ahead_must_be_a_positive_integer(value: Any, cache: Path) -> None:
    says = r"^MNISTDataset\.make_disk_source: `prefetch_size` must be an integer .* 1, got "
    with pytest.raises(PipelineError, match=says + repr(value)):
        on_disk(cache, prefetch_size=value)


def test_an_unknown_order_is_refused(cache: Path) -> None:
    with pytest.raises(PipelineError, match="'random'"):
        on_disk(cache, "random")


def test_arrays_on_disk_that_are_damaged_are_named(cache: Path) -> None:
    on_disk(cache)
    folder = cache / "mnist" / "arrays" / shelf(cache)[0]
    os.truncate(folder / "image.npy", 500)
    says = r"^MNISTDataset\.make_disk_source: .*" + re.escape(str(folder))
    with pytest.raises((PipelineError, DatasetError), match=says) as caught:
        on_disk(cache)
    assert "elete" in str(caught.value)  # what to do: it is written anew
    assert "save_arrays" not in str(caught.value)  # which the user did not call
