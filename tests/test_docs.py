"""Every Python block of the README and the docs runs; a page's blocks share one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.slowly import quickly

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = [
    ROOT / "docs" / f"{name}.md" for name in ("all-of-cereal", "many-hosts", "replay")
]  # for `make slow`
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", quickly(PAGES, *(set(PAGES) - set(LONG))), ids=lambda page: page.name
)
@pytest.mark.usefixtures("mnist_is_small", "orbax_threads_end")
def test_every_python_block_of_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    # On CPUs, a program with several collectives that XLA loads from its cache may wait for itself.
    request.getfixturevalue("compiled_anew" if page.name == "many-hosts.md" else "tmp_path")
    text, names = page.read_text(), {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        code = compile("\n" * line + block.group(1), str(page), "exec")
        exec(code, names)
    names.clear()  # and with them the files that the page has opened


def test_the_readme_is_short_and_starts_with_a_pipeline() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    first = BLOCK.search(text)
    assert first is not None
    assert text.count("\n", 0, first.end()) <= 16
    assert text.count("\n", 0, text.index("loader = DataLoader(")) < 15


def test_the_readme_names_only_commands_that_make_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        used: list[Any] = re.findall(
            r"\bmake (?:[A-Z]+=\S+ )?([a-z-]+)\b(?=\s*(?:#|`|$))", page.read_text()
        )
        assert set(used) <= targets, page.name


@pytest.mark.slow
def test_the_demo_reaches_its_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "demo"}
    exec((ROOT / "examples" / "digits.py").read_text(), namespace)
    assert namespace["main"]() >= 0.96
    printed = capsys.readouterr().out
    assert "RandomMapTransform(speckle)" in printed
    assert "elements/s" in printed
