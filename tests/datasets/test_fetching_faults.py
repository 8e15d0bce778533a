"""Servers that drop, lie, redirect and die: mirrors in turn, three rounds, never half a file."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.datasets import server as answers
from tests.datasets.remote import FOLDER, TINY, assert_same, remote_file, tree
from tests.datasets.server import (
    Answer,
    Server,
    chunked,
    dead_port,
    dropped,
    dying,
    halved,
    moved,
    packed,
    page,
    refused,
    slow,
    spoken,
    stalled,
    whole,
    without_length,
)

from cereal import DatasetError
from cereal.datasets import fetching
from cereal.datasets.fetching import ROUNDS, obtain

DATA = os.urandom(600_000)  # more than two chunks, so that half of it is written


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Server]:
    with Server() as made:
        yield made


def fetched(folder: Path, *urls: str) -> bytes:
    """The file from these mirrors; nothing else may be left."""
    path = obtain(remote_file("a.bin", DATA, *urls), folder)
    assert tree(folder) == {"a.bin", ".lock"}
    return path.read_bytes()


def refusal(folder: Path, *urls: str) -> str:
    """What is said when no mirror has the file; nothing may be left."""
    with pytest.raises(DatasetError) as caught:
        obtain(remote_file("a.bin", DATA, *urls), folder)
    assert tree(folder) <= {".lock"}
    return str(caught.value)


BROKEN = "the connection broke off"
HASH = "a file came whose hash is not the right one"
WEB_PAGE = "a web page came, not the file; is there a proxy or a login?"

# What a server does, and what the error says of it.
FAULTS: dict[str, tuple[Callable[[], Answer], str]] = {
    "drops": (dropped, "no connection|broke off"),
    "resets": (lambda: dropped(reset=True), "no connection|broke off"),
    "drops half-way": (lambda: halved(DATA), BROKEN),
    "resets half-way": (lambda: halved(DATA, reset=True), BROKEN),
    "ends without the last chunk": (lambda: chunked(DATA, ends=False), BROKEN),
    "is broken off without a length": (lambda: without_length(DATA[:-9]), HASH),
    "serves garbage": (lambda: whole(os.urandom(len(DATA))), HASH),
    "serves too little": (lambda: whole(DATA[: len(DATA) // 2]), HASH),
    "serves too much": (lambda: whole(DATA + b"\0"), HASH),
    "serves nothing": (lambda: whole(b""), HASH),
    "serves what is packed once more": (lambda: whole(gzip.compress(DATA, 1)), HASH),
    "serves a page": (page, re.escape(WEB_PAGE)),
    "serves XML": (lambda: page(b"\n <?XML version='1.0'?><html/>"), re.escape(WEB_PAGE)),
    "serves a marked page": (lambda: page(b"\xef\xbb\xbf<html></html>"), re.escape(WEB_PAGE)),
    "serves a page with a note": (lambda: page(b"<!-- hi --><html></html>"), re.escape(WEB_PAGE)),
    "is broken": (lambda: refused(500), "HTTP 500 Internal Server Error"),
    "is busy": (lambda: refused(503), "HTTP 503 Service Unavailable"),
    "has had enough": (lambda: refused(429), "HTTP 429 Too Many Requests"),
    "was asked too slowly": (lambda: refused(408), "HTTP 408 Request Timeout"),
    "speaks no HTTP": (lambda: spoken(b"SSH-2.0-server\r\n"), "no connection|broke off"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_the_same_place_is_asked_again(
    server: Server, tmp_path: Path, fault: str
) -> None:
    url = server.serve("/a.bin", FAULTS[fault][0](), whole(DATA))
    assert fetched(tmp_path, url) == DATA
    assert server.count() == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_named_after_three_rounds(
    server: Server, tmp_path: Path, fault: str
) -> None:
    answer, said = FAULTS[fault]
    url = server.serve("/a.bin", answer())
    error = refusal(tmp_path, url)
    assert error.startswith("a.bin could not be fetched. Tried:")
    assert re.search(rf"^  {re.escape(url)}: ({said})$", error, re.MULTILINE)
    assert server.count() == ROUNDS == 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_spoils_nothing_that_is_there(server: Server, tmp_path: Path, fault: str) -> None:
    (tmp_path / "b.bin").write_bytes(b"another file")
    (tmp_path / "a.bin").write_bytes(DATA[:99])
    url = server.serve("/a.bin", FAULTS[fault][0]())
    with pytest.raises(DatasetError, match=r"a\.bin is damaged \(it has 99 bytes"):
        obtain(remote_file("a.bin", DATA, url), tmp_path)
    assert tree(tmp_path) == {"a.bin", "b.bin", ".lock"}
    assert (tmp_path / "a.bin").read_bytes() == DATA[:99]
    assert (tmp_path / "b.bin").read_bytes() == b"another file"


@pytest.mark.parametrize("begins", [b"", DATA], ids=["at once", "half-way"])
def test_a_server_that_stalls_is_left_after_the_timeout(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bytes
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 0.2)
    url = server.serve("/a.bin", stalled(begins))
    assert re.search(rf"{re.escape(url)}: no answer in \S+ s$", refusal(tmp_path, url))
    assert server.count() == ROUNDS
    assert fetched(tmp_path, url, server.serve("/b.bin", whole(DATA))) == DATA


def test_a_server_that_is_only_slow_is_not_left(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 1.0)  # for each piece, not for all of them
    assert fetched(tmp_path, server.serve("/a.bin", slow(DATA, 12, 0.1))) == DATA


# Ways in which the right file may come:


@pytest.mark.parametrize("way", [chunked, without_length, packed], ids=lambda way: way.__name__)
def test_the_file_may_come_in_other_ways(
    server: Server, tmp_path: Path, way: Callable[[bytes], Answer]
) -> None:
    assert fetched(tmp_path, server.serve("/a.bin", way(DATA))) == DATA
    assert server.count() == 1


def test_a_gzip_file_stays_packed_and_is_asked_for_as_it_is(server: Server, tmp_path: Path) -> None:
    data = gzip.compress(DATA, 1)
    url = server.serve("/a.gz", whole(data, content_type="application/x-gzip"))
    assert obtain(remote_file("a.gz", data, url), tmp_path).read_bytes() == data
    assert server.asked[0].headers["Accept-Encoding"] == "identity"


def test_a_gzip_file_that_is_packed_on_the_way_is_unpacked_once(
    server: Server, tmp_path: Path
) -> None:
    data = gzip.compress(DATA, 1)
    url = server.serve("/a.gz", packed(data))
    assert obtain(remote_file("a.gz", data, url), tmp_path).read_bytes() == data


def test_what_cannot_be_unpacked_is_said_in_words(server: Server, tmp_path: Path) -> None:
    bad, good = whole(DATA, content_encoding="gzip"), whole(DATA)
    error = refusal(tmp_path, server.serve("/bad", bad))
    assert "/bad: " in error
    assert not re.search(r"\('|zlib|error\(", error)  # no repr of Python's
    assert fetched(tmp_path, server.serve("/bad", bad), server.serve("/good", good)) == DATA


# Mirrors:


def test_the_first_mirror_is_enough(server: Server, other: Server, tmp_path: Path) -> None:
    urls = [each.serve("/a.bin", whole(DATA)) for each in (server, other)]
    assert fetched(tmp_path, *urls) == DATA
    assert (server.count(), other.count()) == (1, 0)


def test_mirrors_are_asked_in_turn_and_all_of_them_three_times(
    server: Server, tmp_path: Path
) -> None:
    urls = [server.serve(f"/{name}", refused(500)) for name in "cab"]
    error = refusal(tmp_path, *urls)
    assert server.paths() == ["/c", "/a", "/b"] * 3
    assert re.findall(r"^  (\S+): ", error, re.MULTILINE) == urls


def test_a_mirror_that_works_later_is_found(server: Server, tmp_path: Path) -> None:
    busy = refused(503)
    urls = [
        server.serve("/a", busy, busy, busy, whole(DATA)),
        server.serve("/b", halved(DATA), page(), whole(DATA)),
    ]
    assert fetched(tmp_path, *urls) == DATA
    assert server.paths() == ["/a", "/b", "/a", "/b", "/a", "/b"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 407, 410, 451])
def test_a_mirror_that_says_no_is_not_asked_again(
    server: Server, tmp_path: Path, status: int
) -> None:
    urls = [
        server.serve("/no", refused(status), whole(DATA)),
        server.serve("/yes", dropped(), refused(500), whole(DATA)),
    ]
    assert fetched(tmp_path, *urls) == DATA
    assert server.paths() == ["/no", "/yes", "/yes", "/yes"]


def test_when_all_say_no_nobody_waits(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PAUSE", 3600.0)
    urls = [server.serve("/a", refused(404)), server.serve("/b", refused(403))]
    error = refusal(tmp_path, *urls)
    assert f"{urls[0]}: HTTP 404 Not Found\n" in error
    assert error.endswith(f"{urls[1]}: HTTP 403 Forbidden")
    assert server.paths() == ["/a", "/b"]


def test_there_is_a_pause_between_rounds_that_grows(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PAUSE", 0.05)
    refusal(tmp_path, server.serve("/a", refused(500)), server.serve("/b", refused(500)))
    at = [each.at for each in server.asked]
    assert at[2] - at[1] >= 0.05
    assert at[4] - at[3] >= 0.1


def test_a_server_that_dies_half_way_is_replaced_by_a_mirror(
    server: Server, other: Server, tmp_path: Path
) -> None:
    urls = [server.serve("/a.bin", dying(DATA)), other.serve("/a.bin", whole(DATA))]
    assert fetched(tmp_path, *urls) == DATA
    assert (server.count(), other.count()) == (1, 1)


def test_a_server_that_dies_half_way_leaves_nothing_and_a_later_start_works(
    server: Server, other: Server, tmp_path: Path
) -> None:
    names = TINY.names("train")
    TINY.serve(server)
    server.serve(f"/{names[1]}", dying(TINY.files[names[1]]))
    with pytest.raises(DatasetError, match=r"train-labels\.gz could not be fetched") as caught:
        TINY.dataset(server.url)("train", tmp_path)
    assert f"{server.url}/{names[1]}: no connection" in str(caught.value)
    assert server.paths() == [f"/{name}" for name in names]  # the second round found nobody
    assert tree(tmp_path / FOLDER) == {names[0], ".lock"}
    TINY.serve(other)
    dataset = TINY.dataset(other.url)("train", tmp_path)
    assert_same(dataset.as_array_dict(), TINY.arrays["train"])
    assert other.paths() == [f"/{names[1]}"]


def test_a_dead_mirror_is_passed_over(server: Server, tmp_path: Path) -> None:
    assert fetched(tmp_path, dead_port() + "/a", server.serve("/a", whole(DATA))) == DATA


def test_a_mirror_whose_name_nobody_knows_is_passed_over(server: Server, tmp_path: Path) -> None:
    urls = "http://mirror.invalid/a", "gopher://127.0.0.1/a", "http://[bad/a"
    assert fetched(tmp_path, *urls, server.serve("/a", whole(DATA))) == DATA


def test_a_server_without_encryption_is_said_to_be_so(server: Server, tmp_path: Path) -> None:
    url = server.serve("/a", whole(DATA)).replace("http:", "https:")
    assert f"{url}: no secure connection" in refusal(tmp_path, url)


# Redirects:


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_to_another_port(
    server: Server, other: Server, tmp_path: Path, status: int
) -> None:
    url = server.serve("/a.bin", moved(other.serve("/b.bin", whole(DATA)), status))
    assert fetched(tmp_path, url) == DATA
    assert (server.count(), other.count()) == (1, 1)


def test_a_chain_of_redirects_is_followed(server: Server, tmp_path: Path) -> None:
    server.serve("/5", whole(DATA))
    for step in range(5):
        server.serve(f"/{step}", moved(f"/{step + 1}"))
    assert fetched(tmp_path, f"{server.url}/0") == DATA
    assert server.paths() == [f"/{step}" for step in range(6)]


def test_a_loop_of_redirects_is_said_and_left(server: Server, tmp_path: Path) -> None:
    server.serve("/a", moved("/b"))
    url = server.serve("/b", moved("/a"))
    assert re.search(rf"^  {re.escape(url)}: .*redirects", refusal(tmp_path, url), re.MULTILINE)
    assert fetched(tmp_path, url, server.serve("/c", whole(DATA))) == DATA


@pytest.mark.parametrize(
    ("where", "said"),
    [("/missing", "HTTP 404 Not Found"), ("/login", "a web page came")],
)
def test_a_redirect_to_nothing_good_is_said(
    server: Server, tmp_path: Path, where: str, said: str
) -> None:
    server.serve("/login", page())
    url = server.serve("/a", moved(where))
    assert f"{url}: {said}" in refusal(tmp_path, url)
    assert fetched(tmp_path, url, server.serve("/b", whole(DATA))) == DATA


def test_a_redirect_to_a_dead_port_is_said(server: Server, tmp_path: Path) -> None:
    url = server.serve("/a", moved(dead_port() + "/b"))
    assert f"{url}: no connection" in refusal(tmp_path, url)
    assert server.count() == ROUNDS


# Proxies:


def through(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.delenv("NO_PROXY")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, proxy)


def test_a_proxy_is_used(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, server.url)
    server.serve("http://data.invalid/a", whole(DATA))
    assert fetched(tmp_path, "http://data.invalid/a") == DATA


def test_a_proxy_that_answers_with_a_page_is_said(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, server.url)
    names = TINY.names("train")
    for name in names:
        server.serve(f"http://data.invalid/{name}", page())
    with pytest.raises(DatasetError) as caught:
        TINY.dataset("http://data.invalid")("train", tmp_path)
    said = str(caught.value)
    assert f"  http://data.invalid/{names[0]}: {WEB_PAGE}\n" in said
    assert f"put these files into {tmp_path / FOLDER}" in said
    assert tree(tmp_path / FOLDER) == {".lock"}


def test_a_proxy_that_asks_for_a_password_is_said(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, server.url)
    server.serve("http://data.invalid/a", refused(407, answers.PAGE))
    assert "HTTP 407 Proxy Authentication Required" in refusal(tmp_path, "http://data.invalid/a")
    assert server.count() == 1


def test_a_dead_proxy_is_said_to_be_the_trouble(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, dead_port())
    url = server.serve("/a", whole(DATA))
    assert f"{url}: the proxy does not answer" in refusal(tmp_path, url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert fetched(tmp_path, url) == DATA
