"""Draws the house: which rooms import which, and the way of a batch through them.

    python tools/house.py            prints both drawings
    python tools/house.py --write    writes them into docs/design.md, where a test expects them

The way of a batch is not read from the code but seen while it runs: in the caller's thread while it
waits, in the worker's thread when the user's function is called, and where arrays go to JAX.
"""

from __future__ import annotations

import ast
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "cereal"
DESIGN = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- drawn by tools/house.py -->", "<!-- end of the drawing -->"


def rooms() -> list[str]:
    """The rooms, in the order in which they may import each other."""
    text = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("    ")]
    return [name.rstrip("/") for name in lines if name.endswith("/")]


def imports() -> dict[str, list[str]]:
    """For every room, the rooms that its files import."""
    known, found = rooms(), {}
    for room in known:
        files = (PACKAGE / room).rglob("*.py")
        seen = {other for path in files for other in _imported(path)} - {room}
        found[room] = sorted(seen & set(known), key=known.index)
    return found


def _imported(path: Path) -> Iterator[str]:
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            yield from [*base, *(node.module or "").split(".")][1:2]


# The way of a batch


def way_of_files() -> list[str]:
    """The rooms that a batch of a DiskSampleSource passes, read by workers."""
    import cereal

    waiting: list[list[str]] = []
    reading: list[list[str]] = []
    main = threading.main_thread().ident

    def read(index: int) -> Any:
        if threading.get_ident() != main:
            threading.Event().wait(0.01)  # the caller has come to wait for it
            waiting.append(_rooms_of(sys._current_frames().get(main or 0)))
            reading.append(_rooms_of(sys._getframe()))
        return float(index)

    source = cereal.DiskSampleSource(64, read, ordering="sequential")
    loader = cereal.DataLoader([source, cereal.BatchTransform(4)], workers=2, timeout=60)
    with loader.iterate(loader.init_state(0)) as batches:
        handed = _handed_to_jax(lambda: list(itertools.islice(batches, 4)))
    loader.close()
    called = next(each for each in waiting if each[-1:] == ["host"])
    return _joined(called, reading[-1], handed)


def way_of_arrays() -> list[str]:
    """The rooms that a batch of arrays passes when its program is traced."""
    import jax
    import numpy as np

    import cereal

    jax.clear_caches()  # so that the program is traced
    loader = cereal.DataLoader(
        [cereal.ArraySampleSource(np.arange(64.0), "shuffle"), cereal.BatchTransform(4)]
    )
    state, seen = loader.init_state(0), []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "take_rows":
            seen.append(_rooms_of(frame))

    batches = loader.iterate(state)
    _profiled(look, lambda: next(batches))
    return _joined(seen[-1])


def _rooms_of(frame: FrameType | None) -> list[str]:
    """The rooms on the stack, from the outermost, each once where functions of it call others."""
    found: list[str] = []
    while frame is not None:
        name = frame.f_globals.get("__name__", "").split(".")
        if name[0] == "cereal" and len(name) > 2:
            found.append(name[1])
        frame = frame.f_back
    return [room for room, _ in itertools.groupby(found[::-1])]


def _handed_to_jax(run: Callable[[], Any]) -> list[str]:
    """The rooms on the stack of the caller where it last calls JAX."""
    last: list[list[str]] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None:
            ours = caller.f_globals.get("__name__", "").startswith("cereal.")
            if ours and frame.f_globals.get("__name__", "").startswith("jax."):
                last[:] = [_rooms_of(caller)]

    _profiled(look, run)
    return last[0]


def _profiled(look: Callable[[FrameType, str, Any], None], run: Callable[[], Any]) -> None:
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)


def _joined(*ways: list[str]) -> list[str]:
    """One way after the other, without what they have in common at their beginning."""
    whole = list(ways[0])
    for way in ways[1:]:
        pairs = zip(ways[0], way, strict=False)
        common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        whole += way[common:]
    return [room for room, _ in itertools.groupby(whole)]


def drawing() -> str:
    """Both drawings, as docs/design.md has them."""
    width = max(map(len, rooms()))
    lines = [f"{room:{width}}   {'  '.join(others)}".rstrip() for room, others in imports().items()]
    ways = {"files, read by workers": way_of_files(), "arrays": way_of_arrays()}
    changes = [
        f"{name:{22}}   {' -> '.join(way)}   ({len(way) - 1} changes)" for name, way in ways.items()
    ]
    return "\n".join(["```", *lines, "```", "", "```", *changes, "```"])


def main() -> None:
    """Prints or writes the drawings."""
    drawn = drawing()
    if "--write" not in sys.argv:
        print(drawn)
        return
    text = DESIGN.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DESIGN.write_text(f"{before}{BEGIN}\n{drawn}\n{END}{after}")


if __name__ == "__main__":
    main()
