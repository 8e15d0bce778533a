"""The names of caches on disk."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from cereal import HostMapTransform, MapTransform, PipelineError, RangeSource
from cereal.cache.name import Named, check_version, name_of

SOURCE = RangeSource(8)


def name(source: Any = SOURCE, version: Any = None, *more: Any) -> str:
    return name_of(source, Named("folder", version), *more)


def test_a_name_is_a_digest_and_the_version() -> None:
    plain = name()
    assert len(plain) == 32
    assert [name(version=version) for version in (0, 7, "b.1")] == [
        f"{plain}-0",
        f"{plain}-7",
        f"{plain}-b.1",
    ]


def test_where_it_lies_and_who_asks_is_not_part_of_a_name() -> None:
    assert name_of(SOURCE, Named("elsewhere", None, "select")) == name()


def test_what_is_done_with_the_elements_is() -> None:
    assert len({name(), name(SOURCE, None, len), name(SOURCE, None, abs)}) == 3


def test_the_backend_and_the_release_count_for_programs_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = [HostMapTransform(abs)(SOURCE), MapTransform(abs)(SOURCE)]
    before = [name(source) for source in sources]
    monkeypatch.setattr(jax, "default_backend", lambda: "another")
    assert [name(source) == old for source, old in zip(sources, before, strict=True)] == [
        True,
        False,
    ]


@pytest.mark.parametrize("version", [None, 0, -3, 10**20, "a", "2024-01-31", "v1.2+x"])
def test_numbers_and_words_are_versions(version: Any) -> None:
    check_version(version, "here")
    name(version=version)


@pytest.mark.parametrize("version", ["", " ", "a/b", "ä", "x" * 61, "a\n", 1.0, False, [1]])
def test_other_things_are_none(version: Any) -> None:
    with pytest.raises(PipelineError, match=r"^here: `version` must be an integer, or a word"):
        check_version(version, "here")
