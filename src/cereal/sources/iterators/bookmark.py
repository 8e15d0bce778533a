"""Bookmarks: the state of a user's iterator, as bytes inside the loader's state."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

import numpy as np

BOOKMARK_BYTES = 4096


class Run(NamedTuple):
    """What an iterator was made for: an epoch, and a key if `make_iterator` takes one."""

    epoch: int
    key: tuple[int, int] | None


class Bookmark(NamedTuple):
    """The state of an iterator after it has given `position` elements of a run."""

    run: Run
    position: int
    state: Any


def packed(bookmark: Bookmark) -> np.ndarray | None:
    """A bookmark as bytes, their number first; None if it is too long or JSON would change it."""
    (epoch, key), *rest = bookmark
    plain = [epoch, *rest, *([] if key is None else [list(key)])]
    try:
        text = json.dumps(plain, default=_plain)
        if not _equal(json.loads(text, object_hook=_from_plain), plain):
            return None
    except (TypeError, ValueError):
        return None
    return from_text(text)


def from_text(text: str) -> np.ndarray | None:
    """The bytes of a bookmark, given its text; None if it is too long."""
    coded = len(text.encode()).to_bytes(4, "little") + text.encode()
    if len(coded) > BOOKMARK_BYTES:
        return None
    return np.frombuffer(coded.ljust(BOOKMARK_BYTES, b"\0"), np.uint8).copy()


def text_of(array: np.ndarray) -> str:
    """The text in the bytes of a bookmark; empty if they hold none."""
    size = int.from_bytes(array[:4].tobytes(), "little")
    return array[4 : 4 + size].tobytes().decode() if 0 < size <= BOOKMARK_BYTES - 4 else ""


def _equal(found: Any, given: Any) -> bool:
    """Whether JSON gave back the same data: it turns tuples into lists, and keys into strings."""
    if isinstance(given, dict) and isinstance(found, dict):
        return found.keys() == given.keys() and all(_equal(found[k], given[k]) for k in given)
    if isinstance(given, list) and isinstance(found, list):
        return len(found) == len(given) and all(map(_equal, found, given))
    given = given.item() if isinstance(given, np.generic) else given
    return type(found) is type(given) and found == given


def unpacked(array: np.ndarray) -> Bookmark | None:
    """The bookmark in these bytes; None if they hold none."""
    text = text_of(array)
    if not text:
        return None
    epoch, position, state, *key = json.loads(text, object_hook=_from_plain)
    return Bookmark(Run(epoch, (key[0][0], key[0][1]) if key else None), position, state)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain data")


def _from_plain(found: dict[str, Any]) -> Any:
    return base64.b64decode(found["__bytes__"]) if set(found) == {"__bytes__"} else found
