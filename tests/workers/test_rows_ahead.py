"""Which rows the next steps read: the same in blocks, in chunks, compiled and not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, DatasetSource
from cereal.order.position import Remainder
from cereal.pipeline.state import make_words
from cereal.workers import rows_ahead as routes
from cereal.workers.rows_ahead import Routes

N = 22


def source_of(ordering: Any = "sequential", batch: int = 4, **options: Any) -> Any:
    return BatchTransform(batch, **options)(DatasetSource(list(range(N)), ordering))


def words_at(key: int = 5, epoch: int = 0, offset: int = 0) -> np.ndarray:
    return np.asarray(make_words((0, key), epoch, offset))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("lanes", [1, 8, 64, 1 << 14])
def test_sequential_rows_are_those_of_a_plain_loop(
    compiled: bool, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_LANES", lanes)
    found = Routes(source_of(), words_at(), compiled=compiled)
    for step in range(40):
        places = [step * 4 + lane for lane in range(4)]
        for _ in range(2):
            rows = found(step)
            assert rows.index.tolist() == [place % N for place in places]
            assert rows.epoch.tolist() == [place // N for place in places]
            assert np.asarray(rows.key).tolist() == [0, 5]


@pytest.mark.parametrize("rule", [{}, {"pad_last_batch": True}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize("offset", [0, 8])
def test_compiled_and_not_give_the_same_rows(rule: dict[str, Any], offset: int) -> None:
    source, words = source_of("shuffle", **rule), words_at(offset=offset)
    one, other = (Routes(source, words, compiled=compiled) for compiled in (True, False))
    seen: dict[int, list[int]] = {}
    for step in range(30):
        mine, theirs = one(step), other(step)
        assert mine.index.tolist() == theirs.index.tolist()
        assert mine.epoch.tolist() == theirs.epoch.tolist()
        assert (mine.valid is None) == (theirs.valid is None)
        valid = np.ones(4, bool) if mine.valid is None else np.asarray(mine.valid)
        assert mine.valid is None or valid.tolist() == np.asarray(theirs.valid).tolist()
        for epoch, index in zip(
            mine.epoch[valid].tolist(), mine.index[valid].tolist(), strict=True
        ):
            seen.setdefault(epoch, []).append(index)
    for epoch in list(seen)[1:-1]:
        whole = N // 4 * 4 if rule.get("drop_last") else N
        assert len(set(seen[epoch])) == len(seen[epoch]) == whole


@pytest.mark.parametrize("each", [1, 2, 3, 7])
@pytest.mark.parametrize("lanes", [1, 30, 1 << 14])
def test_chunks_are_steps_in_one(each: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_LANES", lanes)
    source, words = source_of("shuffle"), words_at()
    single, many = Routes(source, words), Routes(source, words, steps_at_once=each, total=5)
    for chunk in range(5):
        rows = many(chunk)
        assert rows.index.shape == (each, 4)
        expected = [single(chunk * each + step).index.tolist() for step in range(each)]
        assert rows.index.tolist() == expected


@pytest.mark.parametrize("remainder", ["wrap", "pad", "drop"])
def test_the_rule_for_the_end_can_be_another_one(remainder: Remainder) -> None:
    found = Routes(source_of(), words_at(), remainder=remainder)
    firsts = {"wrap": [20, 2], "pad": [20, 0], "drop": [0, 4]}[remainder]
    assert [int(found(step).index[0]) for step in (5, 6)] == firsts
