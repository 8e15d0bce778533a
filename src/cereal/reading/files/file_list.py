"""Files, as users name them: a path, a pattern, or a list of these.

"data/a.tar"                   one file
"data/*.tar"                   all that match, sorted
"data/part-{000..009}.tar"     ten files; "{train,extra}.tar" are two
["a.tar", Path("b.tar")]       a list of all of these
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from typing import Any

from ...base.errors import PipelineError
from ...base.paths import as_path

_BRACES = re.compile(r"\{([^{}]*)\}")
_REMOTE = re.compile(r"\w+://|pipe:")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def listed_files(paths: Any, owner: str, name: str = "paths", like: str = "*") -> list[str]:
    """The files that `paths` names, at least one, each once. `like`: what such files are called."""
    many = list(paths) if isinstance(paths, list | tuple) else [paths]
    if not many:
        raise PipelineError(f"{owner}: `{name}` is an empty list; name at least one file.")
    found = [path for each in many for path in _one(each, owner, name, like)]
    seen: set[str] = set()
    for path in found:
        if os.path.realpath(path) in seen:
            raise PipelineError(
                f"{owner}: `{name}` names {path!r} twice; name each file once. (To see its "
                f"elements more often, use MixSource or WeightedSampling.)"
            )
        seen.add(os.path.realpath(path))
    return found


def _one(value: Any, owner: str, name: str, like: str) -> list[str]:
    path = str(as_path(value, name, owner))
    if _REMOTE.match(str(value)):
        raise PipelineError(
            f"{owner}: `{name}` names {str(value)!r:.80}, which is no file; cereal reads files: "
            f"copy them to a disk first, or mount them."
        )
    if os.path.isdir(path):
        raise PipelineError(
            f"{owner}: `{name}` names the folder {path!r}, not files; write "
            f"{os.path.join(path, like)!r}."
        )
    if os.path.exists(path):
        return [path]
    parts = expanded(path)
    found = [_matching(part, owner, name) for part in parts]
    return [path for each in found for path in each]


def _matching(pattern: str, owner: str, name: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    if not glob.has_magic(pattern):
        raise PipelineError(
            f"{owner}: `{name}` names {pattern!r}, which does not exist; you are in "
            f"{os.getcwd()!r}."
        )
    found = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not found:
        raise PipelineError(f"{owner}: no file matches {pattern!r}; you are in {os.getcwd()!r}.")
    return found


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
