"""What tests of caches share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def number(tmp_path: Path) -> Path:
    """A file with a number in it, which no digest of code sees."""
    path = tmp_path / "number"
    path.write_text("1")
    return path
