"""The guides "coming from ...": every block runs, what is before and what is after."""

from __future__ import annotations

import gc
import os
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bridges, pytest.mark.filterwarnings("ignore")]  # of other libraries
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else TensorFlow talks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("coming-from-*.md"))
# A block of "python bridges" needs another library; tests/test_docs.py runs only the others.
BLOCK = re.compile(r"^```python(?: bridges)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Grain's threads end soon after their iterator is gone; Loadax's end with the program."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    left = [each for each in threading.enumerate() if each not in before and not each.daemon]
    left = [each for each in left if not each.name.startswith("ThreadPoolExecutor")]
    for thread in left:
        thread.join(timeout=30)
    assert not [thread.name for thread in left if thread.is_alive()]


def test_there_is_a_guide_for_every_origin() -> None:
    origins = {page.stem.removeprefix("coming-from-") for page in PAGES}
    assert origins == {"torch", "grain", "tfds", "huggingface", "loadax", "cyreal"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_guide_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(), {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) >= 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks:
            line = text.count("\n", 0, block.start(1))
            exec(compile("\n" * line + block.group(1), str(page), "exec"), names)
    names.clear()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_says_what_a_newcomer_asks(page: Path) -> None:
    text = page.read_text()
    for title in ("## The ten lines", "Before", "After:", "## What differs", "## Speed", "esume"):
        assert title in text, title
    assert "SPEED_" not in text
    assert len(text.splitlines()) <= 150
