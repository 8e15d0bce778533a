"""Which files a user means: by a path, a list of paths, a pattern or a folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.errors import PipelineError
from ...base.paths import as_path
from ..tables.watched import WatchedFile

_ADDRESS = re.compile(r"\w{2,}:/")  # s3://..., after `Path` has made one slash of two


def files_of(paths: Any, endings: Sequence[str], owner: str) -> list[WatchedFile]:
    """The files, in the order of the list; those of a pattern or a folder are sorted by name.

    A folder stands for all files below it with one of these `endings`.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, list | tuple) or not given:
        raise PipelineError(
            f"{owner}: `paths` must be a path, a pattern such as 'data/*{endings[0]}', a folder, "
            f"or a list of these, got {paths!r:.60}."
        )
    found: list[str] = []
    for each in given:
        found += _meant(as_path(each, "paths", owner), endings, owner)
    seen: set[str] = set()
    for path in found:
        place = os.path.realpath(path)
        if place in seen:
            raise PipelineError(
                f"{owner}: the file {path!r} is named twice; name it once. (To read data several "
                f"times in an epoch, write `RepeatSource(source, 2)`.)"
            )
        seen.add(place)
    return [WatchedFile(path, owner) for path in found]


def _meant(path: Path, endings: Sequence[str], owner: str) -> list[str]:
    if _ADDRESS.match(str(path)):
        raise PipelineError(
            f"{owner}: {str(path)!r} is an address, and cereal reads files of this machine; copy "
            f"them first."
        )
    if path.is_dir():
        inside = [
            str(each)
            for each in sorted(path.rglob("*"))
            if each.is_file() and _counts(each.relative_to(path), endings)
        ]
        if not inside:
            raise PipelineError(
                f"{owner}: the folder {str(path)!r} has no files that end in "
                f"{' or '.join(endings)}; {_what_there_is(path)}."
            )
        return inside
    text = str(path)
    if path.exists() or not glob.has_magic(text):
        if not path.exists():
            raise PipelineError(
                f"{owner}: the file {text!r} does not exist; {_what_there_is(path.parent)}."
            )
        return [text]
    matched = sorted(each for each in glob.glob(text, recursive=True) if os.path.isfile(each))
    if not matched:
        folder = next((p for p in path.parents if not glob.has_magic(str(p))), path)
        raise PipelineError(
            f"{owner}: no file matches the pattern {text!r}; {_what_there_is(folder)}."
        )
    return matched


def _counts(path: Path, endings: Sequence[str]) -> bool:
    """Whether a file of a folder is data; names with `_` or `.` in front are not."""
    hidden = any(part.startswith(("_", ".")) for part in path.parts)
    return not hidden and path.name.endswith(tuple(endings))


def _what_there_is(folder: Path, most: int = 5) -> str:
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}"
    names = sorted(each.name for each in folder.iterdir())
    if not names:
        return f"the folder {str(folder)!r} is empty"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"in {str(folder)!r} there is {', '.join(map(repr, names[:most]))}{more}"


def name_of(files: Sequence[WatchedFile]) -> str:
    """What these files are called in drawings."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].name}{more}"
