"""A real HTTP server that misbehaves as it is told: what each path answers, request by request.

server.serve("/a.gz", dropped(), refused(503), whole(data))
    1st request   the connection ends before any byte
    2nd           HTTP 503
    3rd, 4th ...  the file
"""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GUARD = 60.0  # seconds after which something hangs
PAGE = b"<!DOCTYPE html>\n<html><body>Please log in to the network.</body></html>\n"


class Request(BaseHTTPRequestHandler):
    """One request; an `Answer` writes to it."""

    protocol_version = "HTTP/1.1"
    site: Server

    def do_GET(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):  # the other side may go away
            self.site.answer(self)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def begin(self, status: int = 200, /, **headers: object) -> None:
        """The first lines; `content_length=5` is `Content-Length: 5`."""
        self.send_response(status)
        headers.setdefault("connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-").title(), str(value))
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def hang_up(self, *, reset: bool = False) -> None:
        """Ends the connection; with `reset`, as a machine does that knows nothing of it."""
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.connection.shutdown(socket.SHUT_RDWR)
        os.close(self.connection.detach())


Answer = Callable[[Request], None]


@dataclass
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]
    at: float = field(default_factory=time.monotonic)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the other side may go away
            super().handle_error(request, client_address)


class Server:
    """Serves at a port of 127.0.0.1 until it is closed, and remembers what was asked."""

    def __init__(self) -> None:
        handler = type("Handler", (Request,), {"site": self})
        self._http = _Http(("127.0.0.1", 0), handler)
        self._answers: dict[str, list[Answer]] = {}
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.over = threading.Event()  # those who stall wait for it
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        loop = {"poll_interval": 0.01}
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs=loop, daemon=True)
        self._thread.start()

    def serve(self, path: str, *answers: Answer) -> str:
        """From now on `path` answers so, the last answer again and again; its address."""
        self._answers[path] = list(answers)
        return self.url + path

    def answer(self, request: Request) -> None:
        with self._lock:
            self.asked.append(Asked(request.path, dict(request.headers.items())))
            left = self._answers.get(request.path, [refused(404)])
            now = left.pop(0) if len(left) > 1 else left[0]
        now(request)

    def count(self, path: str | None = None) -> int:
        """How often a path was asked for, or all of them."""
        return sum(path is None or each.path == path for each in self.asked)

    def paths(self) -> list[str]:
        return [each.path for each in self.asked]

    def die(self) -> None:
        """Listens no more; safe to call from an answer, and twice."""
        self._http.shutdown()
        self._http.server_close()

    def close(self) -> None:
        self.over.set()
        self.die()
        self._thread.join(GUARD)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def dead_port() -> str:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


# Answers that give the file:


def whole(data: bytes, **headers: object) -> Answer:
    def answer(request: Request) -> None:
        request.begin(200, content_length=len(data), **headers)
        request.send(data)

    return answer


def held(data: bytes, wait: Callable[[], object], begun: threading.Event | None = None) -> Answer:
    """Half of the file; the rest when `wait` returns."""

    def answer(request: Request) -> None:
        request.begin(200, content_length=len(data))
        request.send(data[: len(data) // 2])
        if begun is not None:
            begun.set()
        wait()
        request.send(data[len(data) // 2 :])

    return answer


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def chunked(data: bytes, *, ends: bool = True) -> Answer:
    """By HTTP's chunks, without a length in front; unless `ends`, the last one is missing."""

    def answer(request: Request) -> None:
        request.begin(200, transfer_encoding="chunked")
        for piece in _pieces(data, max(1, len(data) // 5)):
            request.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if ends:
            request.send(b"0\r\n\r\n")

    return answer


def slow(data: bytes, pieces: int, seconds: float) -> Answer:
    """Piece by piece, with time between them."""

    def answer(request: Request) -> None:
        request.begin(200, content_length=len(data))
        for piece in _pieces(data, -(-len(data) // pieces)):
            request.site.over.wait(seconds)
            request.send(piece)

    return answer


def without_length(data: bytes) -> Answer:
    """The end of the connection is the end of the file."""

    def answer(request: Request) -> None:
        request.begin(200)
        request.send(data)

    return answer


def packed(data: bytes) -> Answer:
    """Compressed on the way, and said so."""
    return whole(gzip.compress(data), content_encoding="gzip")


# Answers that do not:


def dropped(*, reset: bool = False) -> Answer:
    """The connection ends before any byte."""
    return lambda request: request.hang_up(reset=reset)


def halved(data: bytes, *, reset: bool = False) -> Answer:
    """The length of the whole file, and half of it."""

    def answer(request: Request) -> None:
        request.begin(200, content_length=len(data))
        request.send(data[: len(data) // 2])
        request.hang_up(reset=reset)

    return answer


def dying(data: bytes) -> Answer:
    """Half of the file, and then the whole server is gone."""

    def answer(request: Request) -> None:
        request.begin(200, content_length=len(data))
        request.send(data[: len(data) // 2])
        request.site.die()
        request.hang_up()

    return answer


def refused(status: int, body: bytes = b"no") -> Answer:
    def answer(request: Request) -> None:
        request.begin(status, content_length=len(body))
        request.send(body)

    return answer


def moved(url: str, status: int = 302) -> Answer:
    return lambda request: request.begin(status, location=url, content_length=0)


def page(text: bytes = PAGE) -> Answer:
    """A web page, as a proxy gives instead of the file."""
    return whole(text, content_type="text/html")


def stalled(data: bytes = b"") -> Answer:
    """Nothing, or half of the file, and then nothing while the server lives."""

    def answer(request: Request) -> None:
        if data:
            request.begin(200, content_length=len(data))
            request.send(data[: len(data) // 2])
        request.site.over.wait(GUARD)

    return answer


def spoken(words: bytes) -> Answer:
    """These bytes, be they HTTP or not."""

    def answer(request: Request) -> None:
        request.send(words)
        request.hang_up()

    return answer
