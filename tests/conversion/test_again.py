"""Calling `convert` again: after it was done, after an error, after a kill; with another source."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import DatasetSource, HostMapTransform, IterableSource, PipelineError, convert
from cereal.cache.elements import FEW
from cereal.conversion import chunks, conversion, staging

N = 200


class Numbers:
    """Element i is i in several forms; element `fails_at` in the folder cannot be read."""

    def __init__(self, folder: Path, n: int = N) -> None:
        self.folder, self.n = str(folder), n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        with open(f"{self.folder}/reads", "a") as file:
            file.write(f"{index}\n")
        fails = Path(self.folder, "fails_at")
        if fails.exists() and index == int(fails.read_text()):
            raise RuntimeError("a broken file")
        return {"i": index, "ragged": np.arange(index % 7) + index, "text": str(index)}

    def reads(self) -> list[int]:
        found = Path(self.folder, "reads")
        text = found.read_text() if found.exists() else ""
        found.unlink(missing_ok=True)
        return [*map(int, text.split())]


def check(folder: Path, n: int = N, begin: int = 0) -> None:
    numbers = np.arange(begin, n)
    np.testing.assert_array_equal(np.load(folder / "i.npy"), numbers)
    offsets = np.load(folder / "ragged.offsets.npy")
    np.testing.assert_array_equal(np.diff(offsets), numbers % 7)
    values = np.load(folder / "ragged.npy")
    assert values.tolist() == [i + k for i in numbers for k in range(i % 7)]
    assert np.load(folder / "text.npy").tobytes().decode() == "".join(map(str, numbers))
    assert [path for path in folder.parent.iterdir() if "convert" in path.name] == []


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    (tmp_path / "hidden").mkdir()
    return tmp_path / "hidden"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MOST_ELEMENTS", 8)


def test_a_folder_of_the_same_source_is_returned_at_once(tmp_path: Path, hidden: Path) -> None:
    dataset, folder = Numbers(hidden), tmp_path / "out"
    convert(dataset, folder, progress=False)
    before = (folder / "i.npy").stat().st_mtime_ns
    dataset.reads()
    assert len(convert(Numbers(hidden), folder, progress=False)) == N
    assert len(dataset.reads()) <= FEW + 4  # and those that show what elements look like
    assert (folder / "i.npy").stat().st_mtime_ns == before
    check(folder)


def test_a_folder_of_another_source_is_left_alone_unless_it_may_be_overwritten(
    tmp_path: Path, hidden: Path
) -> None:
    folder = tmp_path / "out"
    convert(Numbers(hidden), folder, progress=False)
    with pytest.raises(PipelineError, match=r"holds other arrays; pass `overwrite=True`"):
        convert(Numbers(hidden, N + 1), folder, progress=False)
    check(folder)
    convert(Numbers(hidden, N + 1), folder, overwrite=True, progress=False)
    check(folder, N + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hidden", "out"]


def test_another_version_is_another_source(tmp_path: Path, hidden: Path) -> None:
    convert(Numbers(hidden), tmp_path / "out", version=1, progress=False)
    with pytest.raises(PipelineError, match="holds other arrays"):
        convert(Numbers(hidden), tmp_path / "out", version=2, progress=False)


def test_a_change_that_no_digest_sees_is_noticed(tmp_path: Path, hidden: Path) -> None:
    (hidden / "offset").write_text("0")

    def read(path: Any) -> Any:
        return int(Path(hidden, "offset").read_text()) + path

    stages = [list(range(30)), HostMapTransform(read)]
    convert(stages, tmp_path / "out", progress=False)
    (hidden / "offset").write_text("1")
    with pytest.raises(PipelineError, match=r"of element 0 .* not what the source gives now"):
        convert(stages, tmp_path / "out", progress=False)
    convert(stages, tmp_path / "out", overwrite=True, progress=False)
    assert np.load(tmp_path / "out" / "array.npy").tolist() == list(range(1, 31))


def test_what_is_no_folder_of_arrays_is_never_overwritten(tmp_path: Path, hidden: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("...")
    for overwrite in (False, True):
        with pytest.raises(PipelineError, match=r"exists; pass|not written by cereal"):
            convert(Numbers(hidden), home, overwrite=overwrite, progress=False)
    assert (home / "thesis.tex").exists()
    with pytest.raises(PipelineError, match="is a file; name a folder"):
        convert(Numbers(hidden), home / "thesis.tex", progress=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    convert(Numbers(hidden), empty, overwrite=True, progress=False)
    check(empty)


# After an error


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_it_goes_on_where_it_was(workers: int, tmp_path: Path, hidden: Path) -> None:
    dataset = Numbers(hidden)
    (hidden / "fails_at").write_text("150")
    with pytest.raises(RuntimeError, match="a broken file") as caught:
        convert(dataset, tmp_path / "out", workers=workers, progress=False)
    assert caught.value.element.index == 150  # type: ignore[attr-defined]
    assert "goes on from there" in caught.value.__notes__[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.converting", "hidden"]
    (hidden / "fails_at").unlink()
    dataset.reads()
    convert(dataset, tmp_path / "out", workers=workers, progress=False)
    assert len(dataset.reads()) <= N - 150 + 8 + FEW + 4
    check(tmp_path / "out")


@pytest.mark.usefixtures("small_chunks")
def test_the_rest_of_another_source_is_thrown_away_and_this_is_said(
    tmp_path: Path, hidden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (hidden / "fails_at").write_text("150")
    with pytest.raises(RuntimeError, match="broken"):
        convert(Numbers(hidden), tmp_path / "out", progress=False)
    convert(Numbers(hidden, 100), tmp_path / "out", progress=False)
    assert "of another source, which is thrown away" in caplog.text
    check(tmp_path / "out", 100)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("damage", ["shorter", "gone", "manifest"])
def test_damaged_files_are_made_again(
    damage: str, tmp_path: Path, hidden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (hidden / "fails_at").write_text("150")
    with pytest.raises(RuntimeError, match="broken"):
        convert(Numbers(hidden), tmp_path / "out", progress=False)
    made = tmp_path / ".out.converting" / "new"
    if damage == "shorter":
        os.truncate(made / "ragged.npy", 200)
    elif damage == "gone":
        (made / "text.offsets.npy").unlink()
    else:
        (made.parent / "manifest.json").write_text('{"what"')
    (hidden / "fails_at").unlink()
    convert(Numbers(hidden), tmp_path / "out", progress=False)
    assert damage == "manifest" or "damaged" in caplog.text
    check(tmp_path / "out")


@pytest.mark.usefixtures("small_chunks")
def test_elements_that_fail_can_be_left_out(tmp_path: Path, hidden: Path) -> None:
    (hidden / "fails_at").write_text("0")
    source = convert(Numbers(hidden), tmp_path / "out", on_error="skip", progress=False)
    assert len(source) == N - 1
    check(tmp_path / "out", begin=1)
    again = convert(Numbers(hidden), tmp_path / "out", on_error="skip", progress=False)
    assert len(again) == N - 1
    with pytest.raises(RuntimeError, match="broken"):  # this is another conversion
        convert(Numbers(hidden), tmp_path / "other", progress=False)


@contextmanager
def small_disk(most: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Wide(Numbers):
    """With rows of 1 KB."""

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full(256, super().__getitem__(index)["i"], np.float32)}


@pytest.mark.usefixtures("small_chunks")
def test_on_a_full_disk_what_was_written_stays(tmp_path: Path, hidden: Path) -> None:
    with (
        pytest.raises(PipelineError, match=r"element \d+ or one after it cannot be written"),
        small_disk(100_000),
    ):
        convert(Wide(hidden), tmp_path / "out", workers=0, progress=False)
    dataset = Wide(hidden)
    dataset.reads()
    convert(dataset, tmp_path / "out", progress=False)
    assert (np.load(tmp_path / "out" / "x.npy")[:, 0] == np.arange(N)).all()


# Iterators


def count(begin: int = 0) -> Iterator[Any]:
    yield from ({"i": k, "text": str(k)} for k in range(begin, N))


class Counting:
    """An iterator that has a state of its own."""

    made: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Any:
        if self.at >= N:
            raise StopIteration
        self.made.append(self.at)
        self.at += 1
        if os.environ.get("COUNTING_FAILS") == str(self.at):
            raise RuntimeError("a broken stream")
        return {"i": self.at - 1, "text": str(self.at - 1)}

    def get_state(self) -> int:
        return self.at

    def set_state(self, state: int) -> None:
        self.at = state


@pytest.mark.usefixtures("small_chunks")
def test_an_iterator_with_a_state_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTING_FAILS", "150")
    with pytest.raises(RuntimeError, match="broken"):
        convert(IterableSource(Counting), tmp_path / "out", workers=0, progress=False)
    monkeypatch.delenv("COUNTING_FAILS")
    Counting.made.clear()
    convert(IterableSource(Counting), tmp_path / "out", workers=0, progress=False)
    assert sum(k < 100 for k in Counting.made) <= 2 * FEW + 2
    assert np.load(tmp_path / "out" / "i.npy").tolist() == list(range(N))


# Other processes


def test_a_second_process_is_refused_while_the_first_one_works(
    tmp_path: Path, hidden: Path
) -> None:
    with (
        staging.Staging(tmp_path / "out"),
        pytest.raises(PipelineError, match=r"another process is converting .* pass another folder"),
    ):
        convert(Numbers(hidden), tmp_path / "out", progress=False)
    convert(Numbers(hidden), tmp_path / "out", progress=False)
    check(tmp_path / "out")


def test_of_many_at_once_one_wins_and_the_folder_is_whole(tmp_path: Path, hidden: Path) -> None:
    together, failed = threading.Barrier(6), []

    def work() -> None:
        together.wait(60)
        try:
            convert(Numbers(hidden), tmp_path / "out", workers=0, progress=False)
        except PipelineError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(failed) < 6
    assert all("another process is converting" in each for each in failed)
    check(tmp_path / "out")


def test_killed_while_the_names_change_nothing_is_lost(tmp_path: Path, hidden: Path) -> None:
    folder, made = tmp_path / "out", tmp_path / ".out.converting"
    convert(Numbers(hidden), folder, progress=False)
    made.mkdir()
    os.rename(folder, made / "old")  # as after a kill between two renames
    convert(Numbers(hidden), folder, progress=False)
    check(folder)


CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.conversion.test_again import Numbers
from cereal import convert


class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.02)
        return super().__getitem__(index)


print("begins", flush=True)
convert(Slow(Path({hidden!r})), {out!r}, workers={workers}, worker_type={kind!r}, progress=False)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, "thread"), (2, "process")])
def test_after_a_kill_it_goes_on_where_it_was(
    workers: int, kind: str | None, tmp_path: Path, hidden: Path
) -> None:
    root = str(Path(__file__).parents[2])
    names = {"tests": root, "hidden": str(hidden), "out": str(tmp_path / "out")}
    code = CHILD.format(**names, workers=workers, kind=kind)
    saved = tmp_path / ".out.converting" / "manifest.json"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        while not saved.exists():
            assert child.poll() is None, "it was done before it could be killed"
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    done = json.loads(saved.read_text())["position"]
    assert 0 < done < N
    assert not (tmp_path / "out").exists()
    Numbers(hidden).reads()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert len(Numbers(hidden).reads()) <= N - done + FEW + 4
    check(tmp_path / "out")


@pytest.mark.usefixtures("small_chunks")
def test_ctrl_c_keeps_what_was_written(
    tmp_path: Path, hidden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = conversion.Conversion._save, []

    def interrupted(self: Any) -> None:
        calls.append(self._position)
        real(self)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(conversion, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(conversion.Conversion, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(DatasetSource(Numbers(hidden)), tmp_path / "out", progress=False)
    monkeypatch.undo()
    dataset = Numbers(hidden)
    dataset.reads()
    convert(DatasetSource(dataset), tmp_path / "out", progress=False)
    assert len(dataset.reads()) < N
    check(tmp_path / "out")
