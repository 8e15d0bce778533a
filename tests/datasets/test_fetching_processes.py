"""Processes and threads that fetch at once, and processes that end in the middle of it."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.children import CONTEXT, Child, Wish, tell_of_waiting
from tests.datasets.remote import FOLDER, assert_same, make_tiny, tree
from tests.datasets.server import GUARD, Server, held, whole
from tests.workers.reading import until

from cereal.datasets import fetching
from cereal.datasets.fetching import locked

TINY = make_tiny(1000)  # images of three chunks, so that some are written before others come
TRAIN = TINY.names("train")
IMAGES = TINY.files[TRAIN[0]]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        TINY.serve(made)
        yield made


@pytest.fixture
def _hearing() -> Iterator[None]:
    """The logger as it was, after a test that listens to it."""
    level, handlers = fetching.log.level, list(fetching.log.handlers)
    yield
    fetching.log.setLevel(level)
    fetching.log.handlers[:] = handlers


def hold(server: Server, count: int, waits: Any) -> list[bool]:
    """The first file comes when `count` others wait for it; whether they did."""
    heard: list[bool] = []

    def wait() -> None:
        heard.extend(waits.acquire(timeout=GUARD / 2) for _ in range(count))

    server.serve(f"/{TRAIN[0]}", held(IMAGES, wait))
    return heard


# Those who end in the middle:


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "on disk"])
def test_a_process_that_ends_in_mid_download_leaves_nothing_to_trip_over(
    server: Server, tmp_path: Path, number: signal.Signals, mapped: bool
) -> None:
    folder = tmp_path / FOLDER
    server.serve(f"/{TRAIN[0]}", held(IMAGES, lambda: server.over.wait(GUARD)))
    child = Child(Wish(TINY.record(server.url), tmp_path, mapped=mapped))

    def begun() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a file may go while it is looked at
            return any(p.is_file() and p.stat().st_size for p in folder.rglob("*"))
        return False

    assert until(lambda: begun() or not child.process.is_alive())
    assert child.process.is_alive(), child.result()
    if number is signal.SIGINT:
        child.interrupt()
        assert child.result() == ("KeyboardInterrupt", "")
        assert {Path(each).name for each in tree(folder)} <= {".lock", "arrays"}
    else:
        assert child.end(number) == -number
    assert not (folder / TRAIN[0]).exists()

    TINY.serve(server)  # the next start finds no lock, no half file, and clears up
    make = TINY.dataset(server.url)
    if mapped:
        make.make_disk_source("train", cache_dir=tmp_path)
    assert_same(make("train", tmp_path).as_array_dict(), TINY.arrays["train"])
    left = {each for each in tree(folder) if not each.startswith("arrays")}
    assert left == {*TRAIN, ".lock"}
    assert server.count(f"/{TRAIN[0]}") == 2


def test_a_process_that_ends_while_it_writes_arrays_leaves_nothing_to_trip_over(
    server: Server, tmp_path: Path
) -> None:
    TINY.put(tmp_path / FOLDER)
    shelf = tmp_path / FOLDER / "arrays"
    wish = Wish(TINY.record(server.url), tmp_path, mapped=True, largest=500_000, deadly=True)
    assert Child(wish).end() == -signal.SIGXFSZ
    assert not list(shelf.glob("train-*"))

    TINY.dataset(server.url).make_disk_source("train", cache_dir=tmp_path)
    (made,) = [path for path in shelf.iterdir() if path.name != ".lock"]
    for name, array in TINY.arrays["train"].items():
        np.testing.assert_array_equal(np.load(made / f"{name}.npy"), array)


def test_a_lock_of_a_dead_process_stops_nobody(server: Server, tmp_path: Path) -> None:
    child = Child(Wish(None, tmp_path / FOLDER))
    assert child.hear() == "locked"
    assert child.end(signal.SIGKILL) == -signal.SIGKILL
    assert (tmp_path / FOLDER / ".lock").exists()
    dataset = TINY.dataset(server.url)("train", tmp_path)
    assert_same(dataset.as_array_dict(), TINY.arrays["train"])


def test_who_waits_for_another_process_can_be_interrupted(server: Server, tmp_path: Path) -> None:
    waits = CONTEXT.Semaphore(0)
    with locked(tmp_path / FOLDER):
        child = Child(Wish(TINY.record(server.url), tmp_path, waits=waits))
        assert waits.acquire(timeout=GUARD)
        child.interrupt()
        assert child.result() == ("KeyboardInterrupt", "")
    assert server.count() == 0
    TINY.dataset(server.url)("train", tmp_path)


# Those who begin at once:


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "on disk"])
def test_processes_that_start_at_once_fetch_once(
    server: Server, tmp_path: Path, count: int, mapped: bool
) -> None:
    waits, start = CONTEXT.Semaphore(0), CONTEXT.Barrier(count)
    heard = hold(server, count - 1, waits)
    wish = Wish(TINY.record(server.url), tmp_path, mapped=mapped, start=start, waits=waits)
    for found in [child.result() for child in [Child(wish) for _ in range(count)]]:
        assert isinstance(found, dict), found
        assert_same(found, TINY.arrays["train"])
    assert heard == [True] * (count - 1)
    assert sorted(server.paths()) == [f"/{name}" for name in TRAIN]
    below = tmp_path / FOLDER
    assert {path.name for path in below.iterdir()} - {"arrays"} == {*TRAIN, ".lock"}
    if mapped:
        (made,) = [path for path in (below / "arrays").iterdir() if path.name != ".lock"]
        assert tree(made) == {"image.npy", "label.npy", "tree.json"}


def test_processes_that_find_a_damaged_file_mend_it_once(server: Server, tmp_path: Path) -> None:
    TINY.put(tmp_path / FOLDER)
    (tmp_path / FOLDER / TRAIN[0]).write_bytes(IMAGES[:-5])
    waits, start = CONTEXT.Semaphore(0), CONTEXT.Barrier(3)
    heard = hold(server, 2, waits)
    wish = Wish(TINY.record(server.url), tmp_path, start=start, waits=waits)
    for found in [child.result() for child in [Child(wish) for _ in range(3)]]:
        assert isinstance(found, dict), found
        assert_same(found, TINY.arrays["train"])
    assert heard == [True, True]
    assert server.paths() == [f"/{TRAIN[0]}"]


def test_when_the_first_process_is_killed_the_next_one_fetches(
    server: Server, tmp_path: Path
) -> None:
    waits = CONTEXT.Semaphore(0)
    begun = threading.Event()
    first_half = held(IMAGES, lambda: server.over.wait(GUARD), begun)
    server.serve(f"/{TRAIN[0]}", first_half, whole(IMAGES))
    wish = Wish(TINY.record(server.url), tmp_path, waits=waits)
    first = Child(wish)
    assert begun.wait(GUARD)
    second = Child(wish)
    assert waits.acquire(timeout=GUARD)
    first.end(signal.SIGKILL)
    found = second.result()
    assert isinstance(found, dict), found
    assert_same(found, TINY.arrays["train"])
    assert server.paths() == [f"/{name}" for name in (TRAIN[0], *TRAIN)]


def test_processes_that_want_two_splits_do_not_disturb_each_other(
    server: Server, tmp_path: Path
) -> None:
    start = CONTEXT.Barrier(4)
    wishes = [
        Wish(TINY.record(server.url), tmp_path, split=split, mapped=mapped, start=start)
        for split in ("train", "test")
        for mapped in (False, True)
    ]
    children = [Child(wish) for wish in wishes]
    for wish, child in zip(wishes, children, strict=True):
        found = child.result()
        assert isinstance(found, dict), found
        assert_same(found, TINY.arrays[wish.split])
    assert sorted(server.paths()) == sorted(f"/{name}" for name in TINY.files)


@pytest.mark.usefixtures("_hearing")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "on disk"])
def test_threads_that_start_at_once_fetch_once(
    server: Server, tmp_path: Path, count: int, mapped: bool
) -> None:
    waits, start = threading.Semaphore(0), threading.Barrier(count)
    heard = hold(server, count - 1, waits)
    tell_of_waiting(waits.release)
    make = TINY.dataset(server.url)

    def work() -> Any:
        start.wait(GUARD)
        if mapped:
            make.make_disk_source("train", cache_dir=tmp_path)
        return make("train", tmp_path).as_array_dict()

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work) for _ in range(count)]:
            assert_same(done.result(GUARD), TINY.arrays["train"])
    assert heard == [True] * (count - 1)
    assert sorted(server.paths()) == [f"/{name}" for name in TRAIN]


@pytest.mark.usefixtures("_hearing")
def test_who_waits_says_so_and_asks_no_server(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = threading.Event()
    tell_of_waiting(waiting.set)
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.INFO, "cereal"):
        with locked(tmp_path / FOLDER):
            done = pool.submit(lambda: TINY.dataset(server.url)("train", tmp_path))
            assert waiting.wait(GUARD)
            assert server.count() == 0
        assert_same(done.result(GUARD).as_array_dict(), TINY.arrays["train"])
    assert f"another process fetches files into {tmp_path / FOLDER}" in caplog.text
