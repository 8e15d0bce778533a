"""What is written in one place stays there; and bets name a test that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {path: path.read_text() for path in sorted((ROOT / "src" / "cereal").rglob("*.py"))}

# What is written: the file whose function all others call, then those that still write it too.
PLACES = {
    r"jax\._src": ["jax_internals"],
    r"compute_on2?\b": ["jax_internals"],
    r"\bjax\.core\.Tracer": ["capture"],
    r"get_opaque_trace_state": ["capture"],
    r"\bgetrefcount": ["buffers"],
    r"unsafe_buffer_pointer": ["on_disk"],
    r"in str\((error|cause|first)\)": ["foreign_errors"],
    r"canonicalize_dtype": ["fitting"],
    r"ctypes": ["c_library", "generators", "on_disk"],
    r'partition\("\\n"\)\[0\]': ["errors"],
    r"must be an integer of at least|positive integer": ["numbers", "errors"],
    "must be called with a source": ["source"],
    r"sched_getaffinity|\bcpu_count\(": ["cpus"],
}


@pytest.mark.parametrize("pattern", PLACES)
def test_it_is_written_in_one_place(pattern: str) -> None:
    found = {path.stem for path, text in FILES.items() if re.search(pattern, text)}
    assert PLACES[pattern][0] in found, "where is it now?"
    assert not found - set(PLACES[pattern])


def test_bets_name_tests_that_there_are() -> None:
    named = {each for text in FILES.values() for each in re.findall(r"`(tests/[\w/]+\.py)`", text)}
    assert len(named) >= 8
    assert not [name for name in named if not (ROOT / name).exists()]
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    functions = {each for text in FILES.values() for each in re.findall(r"`(test_\w+)`", text)}
    assert len(functions) >= 8
    assert not [name for name in functions if f"def {name}(" not in tests]
