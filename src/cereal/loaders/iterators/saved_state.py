"""The state of an iterator as a dict of numbers and text, and back.

    {"version": 1, "kind": "position",
     "key": [0, 7], "epoch": 3, "offset": 1280,
     "pipeline": {"length": 60000, "ordering": "shuffle", "random_stages": 1},
     "bookmark": "",
     "checksum": 1853914927}

JSON keeps all of it exactly. The words under `pipeline` are the state's fingerprint. A dict that
was changed in any place does not match its checksum.
"""

from __future__ import annotations

import hashlib
import json
import operator
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ...base.errors import StateError
from ...base.identity import in_words
from ...pipeline.state import Fingerprint, PipelineState, check_fingerprint, make_words
from ...pipeline.walk import Key
from ...sources.iterators.bookmark import from_text, text_of, unpacked

VERSION = 1
WHAT_TO_DO = "pass a dict as `get_state()` gave it, whole and unchanged"
_FIELDS = {
    "position": {"key", "epoch", "offset", "pipeline", "bookmark"},
    "stream": {"leaves", "pipelines"},
}
_NAMES = {"position": "an indexed pipeline", "stream": "a stream"}
_LONG = 200  # letters of an ordering that are written; the rest is a digest


# All kinds of states


def sealed(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The dict of a state, with its version and its checksum."""
    whole = {"version": VERSION, "kind": kind, **fields}
    return {**whole, "checksum": _checksum(whole)}


def opened(saved: Any, kind: str) -> dict[str, Any]:
    """What such a dict holds, checked; for an iterator over a pipeline of this kind."""
    if not isinstance(saved, Mapping):
        raise StateError(
            f"`set_state` takes the dict that `get_state()` gave, got {type(saved).__name__}; "
            f"{_instead(saved)}."
        )
    _check_version(saved)
    found = _plain(saved, "")
    fields = _FIELDS.get(str(found.get("kind")))
    if fields is None:
        raise StateError(f"the saved state is of no known kind; {WHAT_TO_DO}.")
    wanted = {"version", "kind", "checksum", *fields}
    if set(found) != wanted:
        wrong = [f"without `{name}`" for name in sorted(wanted - set(found))]
        wrong += [f"with `{name}`, which no state has" for name in sorted(set(found) - wanted)]
        raise StateError(f"the saved state is damaged: it is {', '.join(wrong)}; {WHAT_TO_DO}.")
    if found.pop("checksum") != _checksum(found):
        raise StateError(
            f"the saved state is damaged: it does not match its checksum; {WHAT_TO_DO}. To begin "
            f"elsewhere, write `loader.iterate(loader.state_at(key, step))`."
        )
    if found["kind"] != kind:
        raise StateError(
            f"the saved state belongs to another pipeline: it is of {_NAMES[found['kind']]}, and "
            f"this is {_NAMES[kind]}; restore it with a loader like the one that was saved."
        )
    return found


def _check_version(saved: Mapping[Any, Any]) -> None:
    """Refuses what a newer version wrote, before anything else in it is looked at."""
    version = _plain(saved.get("version", ""), "['version']")
    if not isinstance(version, int) or version < 1:
        has = ", ".join(f"`{name}`" for name in list(saved)[:5]) or "nothing"
        raise StateError(
            f"the saved state has no version, so it is none of `get_state()`: it holds {has}; "
            f"{WHAT_TO_DO}."
        )
    if version > VERSION:
        raise StateError(
            f"the saved state was written by a newer version of cereal: its format is {version}, "
            f"and this version reads {VERSION}; write `pip install --upgrade cereal-jax`."
        )


def _instead(saved: Any) -> str:
    if isinstance(saved, PipelineState):
        return "for a state as it is, write `batches.state = state`"
    if isinstance(saved, str | bytes):
        return "for its JSON, write `batches.set_state(json.loads(text))`"
    return "save `batches.get_state()`, and pass what you restored"


def _plain(value: Any, place: str) -> Any:
    """The same in types of JSON. (Some checkpoints turn numbers into those of NumPy or JAX.)"""
    if isinstance(value, Mapping):
        return {str(name): _plain(each, f"{place}[{name!r}]") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, f"{place}[{number}]") for number, each in enumerate(value)]
    if isinstance(value, str):
        return value
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            return operator.index(value)
        except TypeError:  # an array of several numbers, or of floats
            pass
    raise StateError(
        f"the saved state is damaged: `saved{place}` is {type(value).__name__} ({value!r:.40}), "
        f"and a state holds whole numbers and text; {WHAT_TO_DO}."
    )


def _checksum(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


# The pipeline that a state belongs to


@lru_cache(64)
def _in_words(fingerprint: Fingerprint) -> Fingerprint:
    """The same with its ordering as text; of a long one, its beginning and a digest."""
    text = in_words(fingerprint.ordering)
    if len(text) > _LONG:
        text = f"{text[:_LONG]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
    return fingerprint._replace(ordering=text)


def saved_pipeline(fingerprint: Fingerprint) -> dict[str, Any]:
    """A fingerprint as a dict."""
    return _in_words(fingerprint)._asdict()


def check_pipeline(found: Any, fingerprint: Fingerprint) -> None:
    """Refuses the fingerprint of another pipeline; the error names what differs."""
    try:
        theirs = Fingerprint(**found)
    except TypeError:
        raise StateError(f"the saved state names no pipeline; {WHAT_TO_DO}.") from None
    check_fingerprint(theirs, _in_words(fingerprint))


# Positions


def saved_position(
    fingerprint: Fingerprint, key: Key, epoch: int, offset: int, bookmark: np.ndarray | None
) -> dict[str, Any]:
    """A position in an indexed pipeline, as a dict."""
    return sealed(
        "position",
        {
            "key": list(key),
            "epoch": epoch & 0xFFFF_FFFF,
            "offset": offset,
            "pipeline": saved_pipeline(fingerprint),
            "bookmark": "" if bookmark is None else text_of(bookmark),
        },
    )


def position_from(saved: Any, fingerprint: Fingerprint) -> PipelineState:
    """The state in such a dict; `fingerprint` is that of the pipeline that goes on from it."""
    found = opened(saved, "position")
    check_pipeline(found["pipeline"], fingerprint)
    key = found["key"]
    if not isinstance(key, list) or len(key) != 2:
        raise StateError(f"the saved state has the key {key!r:.40}, not two words; {WHAT_TO_DO}.")
    first, second = (_number(word, "key", 32) for word in key)
    epoch, offset = _number(found["epoch"], "epoch", 32), _number(found["offset"], "offset", 63)
    words: Any = make_words((first, second), epoch, offset)
    return PipelineState(words, fingerprint, _bookmark(found["bookmark"]))


def _number(value: Any, name: str, bits: int) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**bits:
        raise StateError(
            f"the saved state has the {name} {value!r:.40}, which is no number of {bits} bits; "
            f"{WHAT_TO_DO}."
        )
    return value


def _bookmark(text: Any) -> Any:
    """The bytes of a bookmark, if its text can be read."""
    if text == "":
        return None
    try:
        coded = from_text(text)
        mark = None if coded is None else unpacked(coded)
        numbers = () if mark is None else (mark.run.epoch, mark.position, *(mark.run.key or ()))
        if numbers and all(isinstance(each, int) for each in numbers):
            return coded
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise StateError(
        f"the saved state holds a bookmark that cannot be read, {text!r:.60}; {WHAT_TO_DO}."
    )
