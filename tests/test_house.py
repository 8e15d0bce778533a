"""The house: rooms of a size that one can survey, imports one way, a way that runs downhill."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest
from tools import house

FILES = sorted(house.PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})


@pytest.fixture(scope="module")
def ways() -> dict[str, list[str]]:
    return {"files": house.way_of_files(), "arrays": house.way_of_arrays()}


def test_the_design_has_the_drawings_of_today() -> None:
    text = house.DESIGN.read_text()
    drawn = text.partition(house.BEGIN)[2].partition(house.END)[0].strip()
    assert drawn == house.drawing(), "write `python tools/house.py --write`"


def test_a_batch_passes_few_rooms(ways: dict[str, list[str]]) -> None:
    assert len(ways["files"]) - 1 <= 8, ways["files"]
    assert len(ways["arrays"]) - 1 <= 6, ways["arrays"]


def test_the_way_is_seen_and_not_made_up(ways: dict[str, list[str]]) -> None:
    assert ways["files"][0] == ways["arrays"][0] == "loaders"
    assert {"host", "pipeline", "reading", "device"} <= set(ways["files"])
    assert {"pipeline", "sources"} <= set(ways["arrays"])


def test_imports_run_one_way() -> None:
    rooms = house.rooms()
    assert len(rooms) > 10
    for room, others in house.imports().items():
        later = [other for other in others if rooms.index(other) > rooms.index(room)]
        assert not later, f"{room} imports {later}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(house.ROOT)))
def test_a_room_has_a_sentence_at_its_door_and_few_files(folder: Path) -> None:
    door = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert door.splitlines()[0].endswith("."), folder
    assert len(list(folder.glob("*.py"))) <= 16


def test_no_test_gives_up_while_it_runs() -> None:
    tests = (house.ROOT / "tests").rglob("*.py")
    given_up = [path for path in tests if "pytest.skip" + "(" in path.read_text()]
    assert not given_up, "a test that cannot run must fail, or not be collected"


def test_files_are_small() -> None:
    lines = [len(path.read_text().splitlines()) for path in FILES]
    assert statistics.median(lines) < 130
    assert max(lines) <= 400
