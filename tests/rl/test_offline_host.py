"""Host stages after recorded episodes: NumPy reads what compiled code would read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rl.recorded import recorded

from cereal import BatchTransform, ConcatSource, DataLoader, HostMapTransform, PipelineError
from cereal.rl import EpisodeSource
from cereal.rl.offline import episodic
from cereal.testing import assert_same

EPISODES = recorded((3, 1, 5, 4))
OPTIONS: dict[str, Any] = {
    "transitions": {"index_key": "at"},
    "n_step": {"n_step": 3, "gamma": 0.9},
    "windows": {"window": 2, "period": 2, "pad": False, "n_step": 2, "index_key": "a"},
}


def as_it_is(element: Any) -> Any:
    return element


def check(options: Any, **loader: Any) -> None:
    source = EpisodeSource(EPISODES, **options)
    batches = BatchTransform(4, pad_last_batch=True)
    compiled = DataLoader([source, batches])
    wanted = list(compiled.iterate(compiled.init_state(0)))
    with DataLoader([source, HostMapTransform(as_it_is), batches], **loader) as host:
        assert_same(list(host.iterate(host.init_state(0))), wanted, f"{loader}")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_host_stage_sees_the_same_elements(options: Any) -> None:
    check(options, workers=0)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_threads_read_the_same(options: Any) -> None:
    check(options, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_processes_read_the_same(options: Any) -> None:
    check(options, workers=2, worker_type="process")


def test_returns_of_many_steps_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EpisodeSource(EPISODES, n_step=2, ordering="sequential")
    monkeypatch.setattr(episodic, "_MANY", 4)
    parts = EpisodeSource(EPISODES, n_step=2, ordering="sequential")
    wanted = whole.take(np.arange(13))
    found = [parts[at] for at in range(13)]
    for name in ("n_step_return", "bootstrap_discount"):
        np.testing.assert_allclose([each[name] for each in found], wanted[name], rtol=1e-6)
    states = [each["bootstrap_state"]["id"] for each in found]
    np.testing.assert_array_equal(states, wanted["bootstrap_state"]["id"])


def test_windows_with_padding_have_no_host_stages() -> None:
    padded = EpisodeSource(EPISODES, window=2)
    words = r"no masks inside of elements, but .* gives windows with padding; pass it `pad=False`"
    for source in (padded, ConcatSource([padded, EpisodeSource(EPISODES, window=2)])):
        with pytest.raises(PipelineError, match=words):
            DataLoader([source, HostMapTransform(as_it_is)])
