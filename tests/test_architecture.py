"""What holds the project's shape: rooms, public names, docstrings, imports."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.public_names import PUBLIC, PUBLIC_RL

import cereal

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "cereal"
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A room imports only rooms before it.
ROOMS = [
    "base",
    "reading",
    "device",
    "order",
    "functions",
    "routes",
    "host",
    "pipeline",
    "cache",
    "workers",
    "sources",
    "transforms",
    "loaders",
    "conversion",
    "preview",
    "datasets",
    "rl",
    "testing",
]
MOST_LINES = 400


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Rooms


def imported_modules(path: Path) -> Iterator[str]:
    """The modules of cereal that a file imports, with their full names."""
    here = [*module_of(path).split("."), *(["_"] if path.name == "__init__.py" else [])]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("cereal"))
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "cereal":  # `from .. import core`, `from cereal import core`
                yield from (f"cereal.{alias.name}" for alias in node.names)
            elif module.startswith("cereal."):
                yield module


def room_of(module: str) -> str:
    return module.split(".")[1]


def later_rooms(path: Path) -> Iterator[str]:
    own = ROOMS.index(room_of(module_of(path)))
    for module in imported_modules(path):
        room = room_of(module)
        assert room in ROOMS, f"{name_of(path)} imports {module}, which is in no room"
        if ROOMS.index(room) > own:
            yield f"{name_of(path)} imports {module}, a later room"


def test_a_room_imports_only_rooms_before_it() -> None:
    paths = [path for path in FILES if path.parent != PACKAGE]
    assert len(paths) > 100
    assert not [wrong for path in paths for wrong in later_rooms(path)]


def test_every_room_is_in_the_list_and_has_something_in_it() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert rooms | files == set(ROOMS)
    for room in rooms:
        assert (PACKAGE / room / "__init__.py").exists(), room
        assert len(list((PACKAGE / room).glob("*.py"))) > 1, room


def test_the_map_of_rooms_in_the_package_is_complete() -> None:
    listed = re.findall(r"^    (\w+)(?:/|\.py) ", cereal.__doc__ or "", re.MULTILINE)
    assert listed == ROOMS


def test_relative_imports_are_understood() -> None:
    found = set(imported_modules(PACKAGE / "loaders" / "loader.py"))
    assert {
        "cereal.pipeline.state",
        "cereal.loaders.iterators.iterate",
        "cereal.loaders.drawing",
    } <= found
    assert "cereal.sources.array" in set(imported_modules(PACKAGE / "sources" / "__init__.py"))


# Files


def test_files_are_short() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in [*FILES, *TESTS]}
    assert len(lines) > 200
    long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not long, "split them by idea"


def test_no_file_is_named_for_nothing() -> None:
    vague = {"util", "utils", "helper", "helpers", "misc", "common", "tools", "shared"}
    assert not [name_of(path) for path in [*FILES, *TESTS] if path.stem in vague]


def test_every_file_and_public_class_and_function_says_what_it_is() -> None:
    missing = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        nodes: list[Any] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        nodes += [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        missing += [name_of(path)] if ast.get_docstring(tree) is None else []
        missing += [
            f"{name_of(path)}: {node.name}"
            for node in nodes
            if not node.name.startswith("_")
            and ast.get_docstring(node) is None
            and "overload" not in map(ast.unparse, node.decorator_list)
        ]
    assert not missing


# Public names


def public_names() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(cereal).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(public_names()) == PUBLIC


def test_the_only_public_modules_are_the_rooms() -> None:
    modules = {name for name, value in vars(cereal).items() if isinstance(value, ModuleType)}
    assert {name for name in modules if not name.startswith("_")} <= set(ROOMS)


def test_the_public_names_of_the_room_of_rollouts_are_exactly_these() -> None:
    names = {n: v for n, v in vars(cereal.rl).items() if not isinstance(v, ModuleType)}
    assert sorted(name for name in names if not name.startswith("_")) == PUBLIC_RL


def test_a_public_name_lives_where_users_find_it_and_shows_itself() -> None:
    places = [*((cereal, name) for name in PUBLIC), *((cereal.rl, name) for name in PUBLIC_RL)]
    for module, name in places:
        value = getattr(module, name)
        assert value.__module__ == ("cereal" if name in PUBLIC else module.__name__), name
        assert value.__name__ == name
        text = inspect.getdoc(value) or ""
        first, _, rest = text.partition("\n")
        assert first.rstrip().endswith((".", "`.", ":")) or first.endswith("`"), (name, first)
        drawing = re.search(r"^    \S", rest, re.MULTILINE)
        assert ">>>" in text or drawing, f"{name} has neither an example nor a drawing"


def test_the_rooms_export_what_the_package_exports() -> None:
    for path in sorted(set(PACKAGE.glob("*/__init__.py")) - {PACKAGE / "rl" / "__init__.py"}):
        module = importlib.import_module(module_of(path))
        for name, value in vars(module).items():
            if name.startswith("_") or isinstance(value, ModuleType):
                continue
            assert name in PUBLIC, f"{module.__name__} exports {name}"
            assert value is getattr(cereal, name)


def test_the_kit_exports_its_checks() -> None:
    from cereal import testing

    checks = {name for name in vars(testing) if name.startswith("check_")}
    assert checks == {"check_source", "check_transform", "check_loader", "check_resume"}


def test_the_version_is_a_version_and_types_are_shipped() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", cereal.__version__)
    assert (PACKAGE / "py.typed").exists()


# Importing

HEAVY = [
    "cloudpickle",
    "pooch",
    "tqdm",
    "torch",
    "tensorflow",
    "pandas",
    "scipy.stats",
    "matplotlib",
    "PIL",
    "pyarrow",
    "orbax",
]


def test_importing_cereal_loads_jax_and_numpy_and_nothing_else_that_is_heavy() -> None:
    code = (
        "import sys, jax, jax.numpy; before = set(sys.modules); import cereal; "
        "print(' '.join(before), '|', ' '.join(set(sys.modules) - before))"
    )
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    before, after = (part.split() for part in found.stdout.split("|"))
    assert {"jax", "numpy"} <= set(before)
    assert "cereal" in after
    assert not [name for name in HEAVY if name in after]
    allowed = {"cereal", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in after} <= allowed


# Examples


def examples(room: str) -> Iterator[doctest.DocTest]:
    """The examples of every docstring, read from the text: decorators cannot hide them."""
    parser = doctest.DocTestParser()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in FILES:
        if f"{module_of(path)}.".split(".")[1] != room:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text and ">>>" in text:
                name = f"{module_of(path)}.{getattr(node, 'name', '')}".rstrip(".")
                yield parser.get_doctest(text, {}, name, str(path), 0)


SLOWLY = {"rl"}  # environments are compiled


@pytest.mark.parametrize(
    "room",
    [pytest.param(room, marks=[pytest.mark.slow] * (room in SLOWLY)) for room in ["", *ROOMS]],
)
def test_the_examples_of_a_room_run(room: str) -> None:
    for example in examples(room):
        example.globs = {"__name__": "__main__"}
        output: list[str] = []
        result = doctest.DocTestRunner().run(example, out=output.append)
        assert result.attempted > 0, example.name
        assert result.failed == 0, "".join(output)
