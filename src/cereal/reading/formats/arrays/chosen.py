"""`keys=`: which arrays of a file or a folder are read.

None                 all                              {"x": ..., "test": {"x": ...}}
["x", "test/x"]      these, where they were           {"x": ..., "test": {"x": ...}}
"test"               what is there, by itself         {"x": ...}
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ....base.errors import PipelineError


def chosen(tree: Any, keys: Any, owner: str, where: str) -> Any:
    """The parts of a tree of dicts that `keys` names; `where` is what an error calls the tree."""
    if keys is None:
        return tree
    if isinstance(keys, str):
        return _walked(tree, keys, owner, where)[-1][1]
    if not isinstance(keys, Sequence) or not keys or not all(isinstance(k, str) for k in keys):
        raise PipelineError(
            f'{owner}: `keys` must be names of arrays, such as `keys=["x", "y"]`, got {keys!r:.60}.'
        )
    found: dict[str, Any] = {}
    for key in keys:
        inner = found
        *above, (name, value) = _walked(tree, key, owner, where)
        for outer, _ in above:
            inner = inner.setdefault(outer, {})
        if name in inner:
            raise PipelineError(f"{owner}: `keys` names {key!r} twice; name each array once.")
        inner[name] = value
    return found


def _walked(tree: Any, key: str, owner: str, where: str) -> list[tuple[str, Any]]:
    """The way to a part of the tree: a name and what it names, for every step."""
    way: list[tuple[str, Any]] = []
    node, left = tree, key.strip("/")
    while left:
        name = left if isinstance(node, Mapping) and left in node else left.partition("/")[0]
        if not isinstance(node, Mapping) or name not in node:
            there = list(names_in(tree))
            near = difflib.get_close_matches(key, there, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PipelineError(
                f"{owner}: `keys` names {key!r}, which {where} does not have; it has "
                f"{', '.join(there[:20])}{', ...' if len(there) > 20 else ''}{hint or '.'}"
            )
        node = node[name]
        way.append((name, node))
        left = left[len(name) :].strip("/")
    if not way:
        raise PipelineError(f"{owner}: `keys` has an empty name; name an array of {where}.")
    return way


def names_in(tree: Any, above: str = "") -> Iterator[str]:
    """The names of the leaves of a tree of dicts, `a/b` for what is inside."""
    if not isinstance(tree, Mapping):
        yield above
        return
    for name, inner in tree.items():
        yield from names_in(inner, f"{above}/{name}" if above else str(name))


def mapped_tree(run: Callable[[Any], Any], tree: Any) -> Any:
    """The same dicts with `run(leaf)` for every leaf."""
    if isinstance(tree, Mapping):
        return {name: mapped_tree(run, inner) for name, inner in tree.items()}
    return run(tree)
