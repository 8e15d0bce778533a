"""WebDataset tars: samples in any order, through an index that is kept beside the tar."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal import BatchTransform, BlockShuffle, DataLoader, HostMapTransform, TarSource
from cereal.testing import check_loader, check_resume, check_source

from .tars import element, npy, plain, sample, write_tar

N = 10
NUMBERS = ("cls", "npy")


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Ten samples in three tars."""
    for number, (begin, end) in enumerate(((0, 4), (4, 5), (5, N))):
        members = [member for i in range(begin, end) for member in sample(i)]
        write_tar(tmp_path / f"part-{number}.tar", members)
    return str(tmp_path / "part-{0..2}.tar")


def elements(source: Any) -> list[Any]:
    """All elements, as host stages get them."""
    found: list[Any] = []

    def see(value: Any) -> int:
        found.append(plain(value))
        return 0

    with DataLoader([source, HostMapTransform(see), BatchTransform(1)], workers=0) as loader:
        found.clear()
        list(loader.iterate(loader.init_state(0)))
    return found


def numbers(source: Any, key: int = 0, **options: Any) -> list[Any]:
    stages = [source, BatchTransform(4, pad_last_batch=True)]
    with DataLoader(stages, **options) as loader:
        return [jax.device_get((b, m)) for b, m in loader.iterate(loader.init_state(key))]


# Values


def test_a_sample_is_a_dict_of_its_members_decoded_by_their_extensions(shards: str) -> None:
    assert elements(TarSource(shards, ordering="sequential")) == [element(i) for i in range(N)]


def test_a_shuffled_epoch_has_each_sample_once(shards: str) -> None:
    found = elements(TarSource(shards))
    order = [each["cls"] for each in found]
    assert sorted(order) == list(range(N)) != order
    assert found == [element(i) for i in order]


def test_without_decode_all_members_are_bytes(shards: str) -> None:
    found = elements(TarSource(shards, None, "sequential"))
    wanted = {name.rpartition(".")[2]: data for name, data in sample(3)}
    assert found[3] == {"__key__": "train/0003", **wanted}


def test_decode_may_be_a_function_of_the_bytes(shards: str) -> None:
    def decode(member: Any) -> Any:
        return {"n": int(member["cls"]), "size": len(member["bin"])}

    source = TarSource(shards, decode, "sequential", index_key="i")
    found = numbers(source, workers=0)[1][0]
    assert {key: value.tolist() for key, value in found.items()} == {
        "n": [4, 5, 6, 7],
        "size": [1201, 1501, 1801, 2101],
        "i": [4, 5, 6, 7],
    }


def test_columns_choose_and_name_what_is_read(shards: str) -> None:
    batch, _ = numbers(TarSource(shards, ordering="sequential", columns=NUMBERS), workers=0)[0]
    assert batch["cls"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(batch["npy"], np.arange(3) + np.arange(4)[:, None])
    assert batch["npy"].dtype == np.float32
    named = TarSource(shards, ordering="sequential", columns={"y": "cls", "b": "jpg;.BIN"})
    assert elements(named)[2] == {"y": 2, "b": element(2)["bin"]}
    assert elements(TarSource(shards, columns="__key__", ordering="sequential"))[9] == {
        "__key__": "train/0009"
    }


def test_the_first_of_several_extensions_is_taken_in_each_sample(tmp_path: Path) -> None:
    members = [("a.jpg", b"1"), ("a.png", b"2"), ("b.png", b"3"), ("c.JPG", b"4")]
    path = write_tar(tmp_path / "x.tar", members)
    found = elements(TarSource(path, columns={"image": "jpg;png"}, ordering="sequential"))
    assert [each["image"] for each in found] == [b"1", b"3", b"4"]


@pytest.mark.slow
def test_numbers_are_read_in_batches_and_the_kit_is_passed(shards: str) -> None:
    source = TarSource(shards, columns=NUMBERS, index_key="i")
    check_source(source)
    loader = DataLoader([source, BatchTransform(4)], workers=0)
    check_loader(loader)
    check_resume(loader)


@pytest.mark.parametrize("ordering", ["shuffle", BlockShuffle(3, together=2), [7, 1, 1]])
def test_threads_read_the_same(shards: str, ordering: Any) -> None:
    source = TarSource(shards, columns=NUMBERS, ordering=ordering, index_key="i")
    alone = numbers(source, key=3, workers=0)
    jax.tree.map(np.testing.assert_array_equal, numbers(source, key=3, workers=2), alone)
    for batch, _ in alone:
        np.testing.assert_array_equal(batch["i"], batch["cls"])


@pytest.mark.slow
@pytest.mark.parametrize("decode", ["auto", lambda member: {"n": int(member["cls"])}])
def test_processes_read_the_same(shards: str, decode: Any) -> None:
    source = TarSource(shards, decode, columns=NUMBERS)
    found = numbers(source, workers=2, worker_type="process")
    jax.tree.map(np.testing.assert_array_equal, found, numbers(source, workers=0))


def test_in_the_users_own_jit(shards: str) -> None:
    source = TarSource(shards, columns="cls", ordering="sequential")
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    with DataLoader([source, BatchTransform(4)], workers=1) as loader:
        batch, _, _ = step(loader, loader.init_state(0))
        assert batch["cls"].tolist() == [0, 1, 2, 3]


def test_the_key_of_an_index_can_be_asked_for(shards: str) -> None:
    source = TarSource(shards)
    assert [source.key(i) for i in (0, 4, 9)] == ["train/0000", "train/0004", "train/0009"]
    with pytest.raises(cereal.PipelineError, match="`index` must be an integer"):
        source.key(10)


def test_arrays_of_different_shapes_come_one_by_one(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"{i}.npy", npy(np.ones(i + 1))) for i in range(3)])
    source = TarSource(path, columns="npy", ordering="sequential")
    assert [len(each["npy"]) for each in elements(source)] == [1, 2, 3]
    with pytest.raises(cereal.PipelineError, match="resize them"):
        numbers(source, workers=0)


# Names


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_foreign_names_are_whole(tmp_path: Path, form: int) -> None:
    key = "ö" * 60 + "/" + "x" * 180
    path = write_tar(tmp_path / "x.tar", [(f"{key}.cls", b"7")], form)
    assert elements(TarSource(path)) == [{"__key__": key, "cls": 7}]


def test_the_extension_begins_at_the_first_dot_behind_the_last_slash(tmp_path: Path) -> None:
    members = [("./v1.0/a.seg.png", b"1"), ("v1.0/a.cls", b"3"), ("v1.0/README", b"")]
    members += [("v1.0/.DS_Store", b""), ("v1.0/._a.png", b"")]
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    assert elements(source) == [{"__key__": "v1.0/a", "seg.png": b"1", "cls": 3}]
    assert "x.tar, 3 members ignored" in str(DataLoader([source, HostMapTransform(len)]))


def test_members_of_a_sample_need_not_be_neighbours(tmp_path: Path) -> None:
    members = [("a.cls", b"1"), ("b.cls", b"2"), ("b.txt", b"B"), ("a.txt", b"A")]
    found = elements(TarSource(write_tar(tmp_path / "x.tar", members), ordering="sequential"))
    assert [(each["cls"], each["txt"]) for each in found] == [(1, "A"), (2, "B")]


# The index


def test_a_tar_is_indexed_once(shards: str, monkeypatch: Any) -> None:
    first = elements(TarSource(shards))
    monkeypatch.setattr(tarfile, "open", None)
    assert elements(TarSource(shards)) == first


def test_a_changed_tar_is_indexed_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1")])
    assert elements(TarSource(path)) == [{"__key__": "a", "cls": 1}]
    write_tar(path, [("b.cls", b"2")])
    os.utime(path, ns=(1, 1))
    assert elements(TarSource(path)) == [{"__key__": "b", "cls": 2}]


def test_an_index_that_leads_out_of_the_file_is_made_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.cls", b"1")])
    TarSource(path)
    (kept,) = tmp_path.glob(".*.npz")
    with np.load(kept) as entries:
        changed = {**entries, "begins": entries["begins"] + (1 << 40)}
    np.savez(kept, **changed)
    assert elements(TarSource(path)) == [{"__key__": "a", "cls": 1}]


def test_a_source_is_pickled_without_open_files(shards: str) -> None:
    source = TarSource(shards, columns="cls", ordering="sequential")
    before = elements(source)
    table = pickle.loads(pickle.dumps(source.data.table))
    assert table.take(np.arange(N))[0].tolist() == [each["cls"] for each in before]


# What is wrong


def refused(path: Any, words: str, kind: Any = cereal.PipelineError, **options: Any) -> None:
    with pytest.raises(kind, match=f"(?s)^TarSource: .*{words}"):
        TarSource(path, **options)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"Z", "of an unknown kind"),
    ],
)
def test_what_is_no_plain_file_is_refused_by_name(tmp_path: Path, kind: bytes, words: str) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        member = tarfile.TarInfo("n/bad.jpg")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    refused(tmp_path / "x.tar", rf"x\.tar': its member 'n/bad\.jpg' is {words}")


@pytest.mark.parametrize("name", ["/etc/a.jpg", "../a.jpg", "n/../../a.jpg"])
def test_a_path_that_leads_outside_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = write_tar(tmp_path / "x.tar", [("ok.jpg", b"1"), (name, b"2")])
    refused(path, rf"member '{name}' has a path that leads outside")


@pytest.mark.parametrize("cut", [1, 600, 1025, 1600, 2048, 2049, 2600, 3100, 3600, 4096])
def test_a_truncated_tar_is_an_error_that_names_a_member(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.bin", b"x" * 900), ("b.bin", b"y" * 900)])
    whole = path.read_bytes()  # headers at 0 and 1536, data at 512 and 2048, the end at 3072
    path.write_bytes(whole[:cut])
    if cut < 3072 + 512:
        words = "is no tar file" if cut < 512 else "is truncated: .* member '[ab].bin'"
        refused(path, words, cereal.DatasetError)
    else:
        assert len(TarSource(path)) == 2
    assert not list(tmp_path.glob(".x*")) or cut >= 3584


def test_a_damaged_header_is_no_silent_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.bin", b"x" * 900), ("b.bin", b"y" * 900)])
    data = bytearray(path.read_bytes())
    data[1600] ^= 0xFF
    path.write_bytes(data)
    refused(path, r"is damaged: at byte 1,536, after its member 'a\.bin'", cereal.DatasetError)


def test_several_tars_in_one_file_are_no_silent_end(tmp_path: Path) -> None:
    one = write_tar(tmp_path / "x.tar", [("a.bin", b"x")])
    one.write_bytes(one.read_bytes() * 2)
    refused(one, "goes on behind its end.*tar --concatenate")


@pytest.mark.parametrize(
    ("mode", "command"), [("gz", "gunzip"), ("bz2", "bunzip2"), ("xz", "unxz")]
)
def test_a_compressed_tar_is_told_to_be_unpacked(tmp_path: Path, mode: str, command: str) -> None:
    path = tmp_path / f"x.tar.{mode}"
    with tarfile.open(path, f"w:{mode}") as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("a.jpg"))
    refused(path, rf"is compressed, .*`{command} --keep {path}`")


def test_samples_with_different_members_are_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", b"2"), ("b.jpg", b"1")])
    write_tar(tmp_path / "y.tar", [("c.jpg", b"1")])
    words = r"a member 'cls': 'a' in x\.tar has jpg, cls, but 'b' in x\.tar has jpg; name"
    refused(tmp_path / "?.tar", words)
    assert len(TarSource(tmp_path / "?.tar", columns="jpg")) == 3


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.jpg", b"2")])
    refused(path, "the sample 'a' has two members 'jpg'")


def test_names_with_numbers_behind_dots_are_explained(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"v.{i}.jpg", b"1") for i in range(70)])
    refused(path, r"70 different extensions, such as '0\.jpg' and '69\.jpg': .* first dot")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "png"}, "no member 'png' in .*; its samples have 'bin', 'cls'"),
        ({"columns": ()}, "`columns` must be extensions"),
        ({"columns": {"a": 3}}, "`columns` must be extensions"),
        ({"columns": {"key": "__key__"}}, "the key of a sample is called '__key__'"),
        ({"columns": {"x": "cls;txt"}}, "decoded in different ways"),
        ({"decode": "pil"}, '`decode` must be "auto", None, or a function'),
        ({"index_key": "cls"}, "has a key 'cls' already"),
        ({"decode": lambda member: 1 / 0}, "failed on its first elements: ZeroDivisionError"),
    ],
)
def test_options_that_mean_nothing_are_refused(shards: str, options: Any, words: str) -> None:
    with pytest.raises(cereal.PipelineError, match=f"^TarSource.*{words}"):
        TarSource(shards, **options)


def test_an_empty_tar_and_no_tar_at_all(tmp_path: Path) -> None:
    refused(write_tar(tmp_path / "x.tar", []), "x.tar")
    (tmp_path / "y.tar").write_bytes(b"no tar" * 1000)
    refused(tmp_path / "y.tar", "is no tar file", cereal.DatasetError)
    (tmp_path / "z.tar").write_bytes(b"")
    refused(tmp_path / "z.tar", "is no tar file", cereal.DatasetError)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.cls", b"cat"), ("a.json", b"{"), ("a.npy", b"\x93NUMPY"), ("a.txt", b"\xff")],
)
def test_a_member_that_cannot_be_decoded_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    extension = name.rpartition(".")[2]
    path = write_tar(
        tmp_path / "x.tar",
        [(f"a.{extension}", dict(sample(1, "k"))[f"k.{extension}"]), (f"b.{extension}", data)],
    )
    source = TarSource(path, columns=extension, ordering="sequential")
    with pytest.raises(
        cereal.DatasetError, match=rf"x\.tar': 'b', member '{extension}', cannot be decoded"
    ):
        elements(source)


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.npy", npy(np.array([{}], object)))])
    refused(path, "member 'npy', cannot be decoded .*allow_pickle=False", cereal.DatasetError)


def test_a_batch_without_columns_is_told_to_choose_some(shards: str) -> None:
    with pytest.raises(cereal.PipelineError, match=r"'__key__'.*choose what to read, `columns="):
        DataLoader([TarSource(shards), BatchTransform(2)])


@pytest.mark.parametrize("how", ["longer", "shorter", "touched", "gone"])
def test_a_tar_that_changes_under_us_is_an_error(shards: str, tmp_path: Path, how: str) -> None:
    source = TarSource(shards, columns="cls", ordering="sequential")
    loader = DataLoader([source, BatchTransform(2)], workers=0)
    loader.batch_at(0, 0)
    path = tmp_path / "part-0.tar"
    if how == "gone":
        path.unlink()
    elif how == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(path.read_bytes() + b"x" if how == "longer" else b"")
    words = "is gone" if how == "gone" else "has changed since the source was built"
    with pytest.raises(cereal.PipelineError, match=f"part-0.tar' {words}"):
        loader.batch_at(0, 1)
    assert loader.batch_at(0, 3)[0]["cls"].tolist() == [6, 7]  # another tar
