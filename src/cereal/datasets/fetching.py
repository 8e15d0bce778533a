"""Getting files: from the folder of datasets, or from the first mirror that has the right one.

    in the folder, hash right    ->  taken
    in the folder, hash wrong    ->  said, and fetched again
    not there                    ->  mirror 1, mirror 2, ...; all of them up to three times

A file appears in the folder when it is whole and its hash is right. Two processes that want the
same file take turns, and the second finds it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.atomic import as_usual
from ..core.errors import DatasetError
from ..core.foreign_errors import has_wrong_hash, timed_out
from ..core.paths import as_path
from .record import RemoteFile

VARIABLE = "CEREAL_DATA_DIR"
ROUNDS = 3
PAUSE = 0.5  # seconds before the second round; then twice that, ...
TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 2**18
_UNFINISHED = ".unfinished-"

log = logging.getLogger("cereal")


def data_dir(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all datasets: as given, as `CEREAL_DATA_DIR` says, or the user's cache."""
    if cache_dir is not None:
        return as_path(cache_dir, "cache_dir", "the datasets")
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return user_cache()


def user_cache() -> Path:
    """The folder that the system has for such files of this user."""
    import pooch

    return Path(pooch.os_cache("cereal"))


def hash_of(path: Path, kind: str) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()


def damage_of(file: RemoteFile, path: Path) -> str | None:
    """What is wrong with a file that is there; None: it is whole."""
    kind, _, wanted = file.hash.partition(":")
    found = hash_of(path, kind)
    if found == wanted:
        return None
    return f"it has {path.stat().st_size:,} bytes and {kind} {found}, not {wanted}"


def obtain(file: RemoteFile, folder: Path, *, verify: bool = True) -> Path:
    """The path of a file that is whole, fetched if need be."""
    path = folder / file.name
    damage = _damage(file, path) if verify or not path.is_file() else None
    if path.is_file() and damage is None:
        return path
    try:
        with locked(folder) as alone:
            damage = _damage(file, path)
            if path.is_file() and damage is None:
                return path  # another process has fetched it
            if damage is not None:
                log.warning("%s is damaged: %s. It is fetched again.", path, damage)
            if alone:  # what a process left that was killed
                for left in folder.glob(f"{_UNFINISHED}*"):
                    shutil.rmtree(left, ignore_errors=True)
            download(file, path, damage)
    except DatasetError:
        raise
    except OSError as error:
        raise cannot_write(path, error, damage) from error
    return path


def _damage(file: RemoteFile, path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return damage_of(file, path)
    except OSError as error:
        raise DatasetError(
            f"{path} could not be read: {error.strerror or error}. Give yourself the rights to "
            f"read it, or delete it, so that it is fetched again."
        ) from error


def download(file: RemoteFile, path: Path, damage: str | None = None) -> None:
    """Fetches a file from its mirrors, in turn; what all of them answered is in the error."""
    import pooch
    from requests.exceptions import RequestException

    fetch: Any = _Http(path.name)
    left, failures = list(file.urls), dict.fromkeys(file.urls, "")
    folder = tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=path.parent)
    with folder as unfinished, _without_lines_of(pooch.get_logger()):
        for turn in range(ROUNDS):
            if turn and left:
                time.sleep(PAUSE * 2 ** (turn - 1))
            for url in list(left):
                try:
                    done = pooch.retrieve(url, file.hash, path.name, unfinished, downloader=fetch)
                    os.replace(done, path)
                    return
                except (RequestException, _WrongAnswerError, ValueError) as error:
                    failures[url] = _in_short(error)
                    if _is_final(error):
                        left.remove(url)
    tried = "".join(f"\n  {url}: {failure}" for url, failure in failures.items())
    was = f" {path} is damaged ({damage})." if damage else ""
    why = f" Tried:{tried}" if tried else " No place is known to fetch it from."
    raise DatasetError(f"{file.name} could not be fetched.{was}{why}")


@contextlib.contextmanager
def _without_lines_of(logger: logging.Logger) -> Iterator[None]:
    """The bar says enough; pooch has a line for every attempt, with a temporary name."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _WrongAnswerError(Exception):
    """What came is not the file."""


class _Http:
    """Fetches over HTTP with a progress bar, into the temporary file that pooch names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        import requests
        from tqdm.auto import tqdm

        # A server that compresses a .gz once more would have requests open both.
        headers = {"Accept-Encoding": "identity"}
        with requests.get(url, headers=headers, timeout=TIMEOUT, stream=True) as answer:
            answer.raise_for_status()
            said = answer.headers.get("Content-Length", "")
            total = int(said) if said.isdigit() else None
            bar = tqdm(desc=self.name, total=total, unit="B", unit_scale=True, dynamic_ncols=True)
            with bar, open(output_file, "wb") as file:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    bar.update(len(chunk))
        path = Path(output_file)
        with path.open("rb") as file:
            begin = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
        if begin.startswith((b"<!doctype html", b"<html", b"<!--", b"<?xml")):
            raise _WrongAnswerError("a web page came, not the file; is there a proxy or a login?")
        as_usual(path, 0o666)  # temporary files are the user's alone


def _is_final(error: Exception) -> bool:
    """Whether asking the same place again is useless."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0) if response is not None else 0
    return 400 <= status < 500 and status not in (408, 429)


def _in_short(error: Exception) -> str:
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, exceptions.ProxyError):
        return "the proxy does not answer"
    if isinstance(error, exceptions.SSLError):
        return f"no secure connection ({error!s:.120})"
    if isinstance(error, exceptions.Timeout) or timed_out(error):
        return f"no answer in {TIMEOUT:g} s"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, exceptions.ContentDecodingError):
        return "what came cannot be unpacked"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    if has_wrong_hash(error):
        return "a file came whose hash is not the right one"
    return str(error)


def cannot_write(path: Path, error: OSError, damage: str | None = None) -> DatasetError:
    """The error of a folder that takes no file."""
    why = os.strerror(error.errno) if error.errno else str(error)
    was = f"{path} is damaged ({damage}). " if damage else ""
    return DatasetError(
        f"{was}{path} could not be written: {why}. Make room or give the rights to write there; or "
        f"name another folder, with `cache_dir=` or the variable {VARIABLE}."
    )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """One process at a time works in a folder; False: the system cannot say so."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # both do the work; files are moved into place whole
        yield False
        return
    with open(folder / ".lock", "a") as handle:
        alone = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log.info("another process fetches files into %s; waiting for it", folder)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:  # some network drives have no locks
                alone = False
        yield alone
