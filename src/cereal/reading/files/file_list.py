"""Files, as users name them: a path, a pattern, or a list of these.

"data/a.tar"                   one file
"data/*.tar"                   all that match, sorted
"data/part-{000..009}.tar"     ten files; "{train,extra}.tar" are two
"data"                         all files below this folder with the right ending, sorted
["a.tar", Path("b.tar")]       a list of all of these
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.errors import PipelineError
from ...base.paths import as_path
from .watched import WatchedFile

_BRACES = re.compile(r"\{([^{}]*)\}")
_REMOTE = re.compile(r"\w+://|pipe:")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def listed_files(paths: Any, owner: str, endings: Sequence[str]) -> list[str]:
    """The files that `paths` names, at least one, each once.

    A folder stands for all files below it that have one of these `endings`, sorted.
    """
    many = list(paths) if isinstance(paths, list | tuple) else [paths]
    if not many:
        raise PipelineError(f"{owner}: `paths` is an empty list; name at least one file.")
    found = [path for each in many for path in _one(each, owner, endings)]
    seen: set[str] = set()
    for path in found:
        if os.path.realpath(path) in seen:
            raise PipelineError(
                f"{owner}: the file {path!r} is named twice; name each file once. (To read data "
                f"several times in an epoch, write `RepeatSource(source, 2)`.)"
            )
        seen.add(os.path.realpath(path))
    return found


def watched_files(paths: Any, owner: str, endings: Sequence[str]) -> list[WatchedFile]:
    """The same files, which must not change from now on."""
    return [WatchedFile(path, owner) for path in listed_files(paths, owner, endings)]


def name_of(files: Sequence[WatchedFile]) -> str:
    """What these files are called in drawings."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].name}{more}"


def _one(value: Any, owner: str, endings: Sequence[str]) -> list[str]:
    path = str(as_path(value, "paths", owner))
    if _REMOTE.match(str(value)):
        raise PipelineError(
            f"{owner}: `paths` names {str(value)!r:.80}, which is no file; cereal reads files: "
            f"copy them to a disk first, or mount them."
        )
    if os.path.isdir(path):
        return _inside(Path(path), owner, endings)
    if os.path.exists(path):
        return [path]
    return [each for part in expanded(path) for each in _matching(part, owner)]


def _inside(folder: Path, owner: str, endings: Sequence[str]) -> list[str]:
    """The files of a folder; names with `_` or `.` in front do not count."""

    def counts(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        return not any(part.startswith(("_", ".")) for part in parts) and path.is_file()

    inside = [each for each in sorted(folder.rglob("*")) if each.name.endswith(tuple(endings))]
    found = [str(each) for each in inside if counts(each)]
    if not found:
        raise PipelineError(
            f"{owner}: the folder {str(folder)!r} has no files that end in "
            f"{' or '.join(endings)}; {_what_there_is(folder)}."
        )
    return found


def _matching(pattern: str, owner: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    if not glob.has_magic(pattern):
        folder = Path(pattern).parent
        raise PipelineError(
            f"{owner}: the file {pattern!r} does not exist; {_what_there_is(folder)}."
        )
    found = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not found:
        parents = Path(pattern).parents
        folder = next(each for each in parents if not glob.has_magic(str(each)))
        raise PipelineError(f"{owner}: no file matches {pattern!r}; {_what_there_is(folder)}.")
    return found


def _what_there_is(folder: Path, most: int = 5) -> str:
    folder = folder.absolute()
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}"
    names = sorted(each.name for each in folder.iterdir())
    if not names:
        return f"the folder {str(folder)!r} is empty"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"in {str(folder)!r} there is {', '.join(map(repr, names[:most]))}{more}"


def expanded(text: str) -> list[str]:
    """The texts that braces stand for, as in a shell: `{a,b}`, `{3..5}`, `{000..012}`.

    >>> from cereal.reading.files.file_list import expanded
    >>> expanded("part-{08..11}.{tar,idx}")[:3]
    ['part-08.tar', 'part-08.idx', 'part-09.tar']
    """
    pieces = _BRACES.split(text)  # text, inside of braces, text, ...
    choices = [_choices(each) if at % 2 else [each] for at, each in enumerate(pieces)]
    return ["".join(each) for each in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    if between := _RANGE.fullmatch(inside):
        first, last = between.groups()
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        step = 1 if int(first) <= int(last) else -1
        return [f"{number:0{width}}" for number in range(int(first), int(last) + step, step)]
    return inside.split(",") if "," in inside else ["{" + inside + "}"]
