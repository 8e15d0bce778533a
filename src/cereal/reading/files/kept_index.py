"""Indices of files (where each record begins), which are made once and kept.

    part-0.tar              the file
    .part-0.tar.index.npz   its index, beside it: arrays, never unpickled
    ~/.cache/cereal/...     or here, if nobody may write beside it

An index names the size and the time of its file. If they differ, or the index cannot be read, it is
made again. Nobody sees half of one. If it can be kept nowhere, it is made every time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...base.atomic import write_atomically
from ...base.paths import user_cache
from .watched import WatchedFile

Index = dict[str, np.ndarray]
_OF = "of"  # the entry that says which file it was made of, and how
log = logging.getLogger("cereal")
_BROKEN = (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile)


def kept_index(file: WatchedFile, kind: str, make: Callable[[], Index]) -> Index:
    """The index of a file. `kind` names its form: change it when `make` gives something else."""
    of = f"{kind} {file.digest()[1:]}"  # size and time: the folder may be moved
    places = list(_places(file.path))
    for place in places:
        with contextlib.suppress(*_BROKEN):
            return _read(place, of)
    index = make()
    file.check()  # it has not changed in the meantime
    entries = {**index, _OF: np.frombuffer(of.encode(), np.uint8)}
    for place in places:
        with contextlib.suppress(OSError):
            write_atomically(place, lambda out: np.savez(out, **entries))
            return index
    log.warning("no folder can be written to, so the index of %s is not kept", file.path)
    return index


def _places(path: str) -> Iterator[Path]:
    file = Path(path)
    yield file.with_name(f".{file.name}.index.npz")
    name = hashlib.blake2b(path.encode(), digest_size=16).hexdigest()
    yield user_cache() / "indices" / f"{name}.npz"


def _read(place: Path, of: str) -> Index:
    # (`np.load` of a path would leave a damaged file open.)
    with open(place, "rb") as file, zipfile.ZipFile(file):
        entries: Any = np.load(file, allow_pickle=False)
        if entries[_OF].tobytes().decode() != of:
            raise ValueError("it is that of another file")
        return {name: entries[name] for name in entries.files if name != _OF}
