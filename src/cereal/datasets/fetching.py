"""Gets the files of datasets: from the cache folder, or from the first mirror that has them.

    in the folder, hash right    ->  used
    in the folder, hash wrong    ->  fetched again, with a warning
    not there                    ->  mirror 1, mirror 2, ...; all of them up to three times

A file is moved into the folder only when it is complete and its hash is right. If two processes
need the same file, the second waits until the first has fetched it.
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
from functools import partial
from pathlib import Path
from typing import Any

from ..base.atomic import as_usual
from ..base.errors import DatasetError
from ..base.foreign_errors import has_wrong_hash, timed_out
from ..base.paths import as_path, user_cache
from .record import RemoteFile

VARIABLE = "CEREAL_DATA_DIR"
ROUNDS = 3
PAUSE = 0.5  # seconds before the second round; then twice that, ...
TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 2**18
_UNFINISHED = ".unfinished-"

log = logging.getLogger("cereal")


def data_dir(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all datasets: `cache_dir`, or `CEREAL_DATA_DIR`, or the user's cache folder."""
    if cache_dir is not None:
        return as_path(cache_dir, "cache_dir", "the datasets")
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return user_cache()


def obtain(file: RemoteFile, folder: Path, *, verify: bool = True) -> Path:
    """The path of a file; it is fetched if it is missing or damaged."""
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
            if alone:  # leftovers of a process that was killed
                for left in folder.glob(f"{_UNFINISHED}*"):
                    shutil.rmtree(left, ignore_errors=True)
            download(file, path, damage)
    except DatasetError:
        raise
    except OSError as error:
        raise cannot_write(path, error, damage) from error
    return path


def _damage(file: RemoteFile, path: Path) -> str | None:
    """What is wrong with a file; None if it is correct, or missing."""
    if not path.is_file():
        return None
    kind, _, wanted = file.hash.partition(":")
    try:
        with path.open("rb") as opened:
            made = hashlib.file_digest(opened, lambda: hashlib.new(kind, usedforsecurity=False))
    except OSError as error:
        raise DatasetError(
            f"{path} could not be read: {error.strerror or error}. Give yourself the rights to "
            f"read it, or delete it, so that it is fetched again."
        ) from error
    if made.hexdigest() == wanted:
        return None
    return f"it has {path.stat().st_size:,} bytes and {kind} {made.hexdigest()}, not {wanted}"


def download(file: RemoteFile, path: Path, damage: str | None = None) -> None:
    """Fetches a file from the first mirror that has it; an error lists each mirror's answer."""
    import pooch
    from requests.exceptions import RequestException

    fetch: Any = partial(_http, path.name)
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
    """Hides pooch's log lines, which show a temporary name; there is a progress bar."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _WrongAnswerError(Exception):
    """The server sent something other than the file."""


def _http(name: str, url: str, output_file: Any, pooch: Any) -> None:
    """Fetches over HTTP with a progress bar, into the temporary file that pooch names."""
    del pooch
    import requests
    from tqdm.auto import tqdm

    # If a server compresses a .gz file once more, `requests` would unpack it twice.
    headers = {"Accept-Encoding": "identity"}
    with requests.get(url, headers=headers, timeout=TIMEOUT, stream=True) as answer:
        answer.raise_for_status()
        said = answer.headers.get("Content-Length", "")
        total = int(said) if said.isdigit() else None
        bar = tqdm(desc=name, total=total, unit="B", unit_scale=True, dynamic_ncols=True)
        with bar, open(output_file, "wb") as file:
            for chunk in answer.iter_content(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
    path = Path(output_file)
    with path.open("rb") as file:
        begin = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if begin.startswith((b"<!doctype html", b"<html", b"<!--", b"<?xml")):
        raise _WrongAnswerError("a web page came, not the file; is there a proxy or a login?")
    as_usual(path, 0o666)  # only the user could read a temporary file


def _is_final(error: Exception) -> bool:
    """Whether it is useless to ask the same server again."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= status < 500 and status not in (408, 429)


def _in_short(error: Exception) -> str:
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if has_wrong_hash(error):
        return "a file came whose hash is not the right one"
    if isinstance(error, exceptions.ProxyError):
        return "the proxy does not answer"
    if isinstance(error, exceptions.SSLError):
        return f"no secure connection ({error!s:.120})"
    if isinstance(error, exceptions.Timeout) or timed_out(error):
        return f"no answer in {TIMEOUT:g} s"
    known = {  # the last is a base class of others
        exceptions.ChunkedEncodingError: "the connection broke off",
        exceptions.ContentDecodingError: "what came cannot be unpacked",
        exceptions.ConnectionError: "no connection",
    }
    return next((text for kind, text in known.items() if isinstance(error, kind)), str(error))


def cannot_write(path: Path, error: OSError, damage: str | None = None) -> DatasetError:
    """The error for a file that could not be written."""
    why = os.strerror(error.errno) if error.errno else str(error)
    was = f"{path} is damaged ({damage}). " if damage else ""
    return DatasetError(
        f"{was}{path} could not be written: {why}. Make room or give the rights to write there; or "
        f"name another folder, with `cache_dir=` or the variable {VARIABLE}."
    )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lets one process at a time work in a folder; gives False if the system has no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # then two processes may do the same work, which does no harm
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
