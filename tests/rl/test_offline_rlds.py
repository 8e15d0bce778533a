"""RLDS: the last step of an episode has an observation, and no action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from tests.rl.recorded import recorded

from cereal import PipelineError
from cereal.rl import EpisodeSource, RLDSSource

EPISODES = recorded((3, 1, 4))


def as_rlds(episode: Any) -> dict[str, Any]:
    """An episode as one tree of steps; of the last step, action and reward are garbage."""
    count = len(episode["rewards"]) + 1

    def longer(leaf: Any) -> Any:
        return np.concatenate([leaf, np.full_like(leaf[:1], 99)])

    last = np.arange(count) == count - 1
    return {
        "observation": episode["observations"],
        "action": jax.tree.map(longer, episode["actions"]),
        "reward": longer(episode["rewards"]),
        "discount": np.where(last, 0.0, 0.5),
        "is_first": np.arange(count) == 0,
        "is_last": last,
        "is_terminal": last & episode["terminations"].any(),
    }


STEPS = [as_rlds(each) for each in EPISODES]


def apart(steps: Any) -> list[Any]:
    """The same steps, one after another."""
    return [jax.tree.map(lambda x, t=t: x[t], steps) for t in range(len(steps["is_last"]))]


def with_steps(**parts: Any) -> list[Any]:
    steps = {**STEPS[0], **parts}
    return [{"steps": STEPS[1]}, {"steps": {k: v for k, v in steps.items() if v is not None}}]


@pytest.mark.parametrize("stacked", [True, False])
def test_steps_become_the_transitions_of_their_episodes(stacked: bool) -> None:
    data = [{"steps": steps if stacked else apart(steps), "id": 7} for steps in STEPS]
    source = RLDSSource(data, n_step=2)
    wanted = EpisodeSource(EPISODES, n_step=2, infos=False)
    every = np.arange(len(wanted))
    jax.tree.map(np.testing.assert_array_equal, source.take(every), wanted.take(every))


def test_a_list_in_a_step_is_one_row_of_it() -> None:
    """TFDS gives such a list for a `Sequence` among steps."""
    rows = np.arange(24).reshape(4, 2, 3)
    steps = [{**step, "w": row.tolist()} for step, row in zip(apart(STEPS[0]), rows, strict=True)]
    source = RLDSSource([{"steps": steps}], infos=["w"])
    np.testing.assert_array_equal(source.take(np.arange(3))["info"]["w"], rows[:-1])
    seen = [{**step, "observation": {"w": step["w"]}} for step in steps]
    found = RLDSSource([{"steps": seen}]).take(np.arange(3))
    np.testing.assert_array_equal(found["state"]["w"], rows[:-1])
    np.testing.assert_array_equal(found["next_state"]["w"], rows[1:])


def test_steps_and_episodes_may_be_written_into_the_same_arrays() -> None:
    seen = np.zeros(2, np.float32)

    def steps() -> Any:
        for t, step in enumerate(apart(STEPS[0])):
            seen[:] = t
            yield {**step, "observation": seen}

    found = RLDSSource([{"steps": steps()}]).take(np.arange(3))
    assert found["state"][:, 0].tolist() == [0, 1, 2]
    assert found["next_state"][:, 1].tolist() == [1, 2, 3]

    class Episodes:
        def __iter__(self) -> Any:
            whole = np.zeros(4, np.float32)
            for number in range(2):
                whole[:] = number
                yield {"steps": {**STEPS[0], "observation": whole}}

    assert RLDSSource(Episodes()).take(np.arange(6))["state"].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_lazy_sequence_may_write_episodes_into_the_same_arrays() -> None:
    class Lazy(Sequence[Any]):
        def __init__(self) -> None:
            self.seen = np.zeros(4, np.float32)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: Any) -> Any:
            if index >= 2:
                raise IndexError
            self.seen[:] = index
            return {"steps": {**STEPS[0], "observation": self.seen}}

    assert RLDSSource(Lazy()).take(np.arange(6))["state"].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("name", ["observation", "reward", "is_last", "discount"])
def test_masked_numbers_are_refused(name: str, stacked: bool) -> None:
    steps = {**STEPS[0], name: np.ma.masked_array(np.ones(4), np.arange(4) == 1)}
    data = [{"steps": steps if stacked else apart(steps)}]
    with pytest.raises(PipelineError, match=rf"episode 0: .*{name}.* is a masked array, 1 of"):
        RLDSSource(data, infos=["discount"])


@pytest.mark.parametrize("stacked", [True, False])
def test_the_reward_of_the_last_step_may_be_masked(stacked: bool) -> None:
    steps = {**STEPS[0], "reward": np.ma.masked_array(np.arange(4.0), np.arange(4) == 3)}
    source = RLDSSource([{"steps": steps if stacked else apart(steps)}])
    assert np.asarray(source.take(np.arange(3))["reward"]).tolist() == [0, 1, 2]


def test_other_keys_of_steps_are_infos() -> None:
    source = RLDSSource([{"steps": each} for each in STEPS], infos=["discount"], window=2)
    info = source.take(np.arange(8))["info"]
    assert sorted(info) == ["discount", "terminated", "truncated"]
    assert np.unique(info["discount"]).tolist() == [0.5], "that of the last step is no transition's"


def test_an_episode_without_a_last_step_is_refused_or_truncated() -> None:
    data = with_steps(is_last=np.zeros(4, bool), is_terminal=np.zeros(4, bool))
    with pytest.raises(PipelineError, match=r'episode 1 has no end.*`unfinished="truncate"`'):
        RLDSSource(data)
    source = RLDSSource(data, unfinished="truncate", ordering="sequential")
    assert len(source) == 1 + 3
    assert bool(source[3]["info"]["truncated"])


NO, ONE, LAST = np.zeros(4, bool), np.arange(4) == 1, np.arange(4) == 3


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (
            with_steps(reward=None),
            r"episode 1: its steps have no key 'reward'; they have \['action'",
        ),
        (with_steps(is_terminal=None), r"no key 'is_terminal'"),
        (with_steps(is_last=ONE), r"`is_last` is True at step 1 of 4, inside of the episode"),
        (with_steps(is_terminal=ONE), r"`is_terminal` is True at step 1 of 4"),
        (with_steps(is_first=ONE), r"`is_first` is True at step 1 of 4"),
        (with_steps(is_last=NO), r"at its last step, 3, `is_last` is False and `is_terminal` True"),
        (with_steps(is_last=2 * LAST), r"`is_last` must be True or False \(1 or 0\)"),
        (with_steps(is_terminal=np.array([0, 0, 0, np.nan])), r"`is_terminal` must be True or"),
        (with_steps(is_terminal=np.zeros((4, 2))), r"`is_terminal` of shape \(4, 2\) is not one"),
        (with_steps(is_first=np.ones(1)), r"`is_first` has 1 rows, but `is_last` has 4"),
        (with_steps(is_last=True), r"`is_last` has no axis of steps"),
        (with_steps(action=[np.zeros(4)] * 4), r"`action` is a list; write `np.stack\(action\)`"),
        (with_steps(reward=np.ones(3)), r"`reward` has 3 rows, but `is_last` has 4"),
        (with_steps(observation=np.array(["a"] * 4)), r"`observation` must be an array of numbers"),
        ([{"steps": apart(STEPS[0])[:1]}], r"episode 0 has 1 step, whose action and reward mean"),
        ([{"steps": [STEPS[0]]}], r"`is_last` has the shape \(1, 4\), an axis too many.*`.batch"),
        (
            with_steps(observation=jax.random.split(jax.random.key(0), 4)),
            r"episode 1: `observations` holds random keys; write `jax.random.key_data",
        ),
        (
            [{"steps": [{**apart(STEPS[0])[0], 1: 2}]}],
            r"episode 0: one of its steps cannot be read",
        ),
        ([{"steps": []}], r"episode 0 has no steps"),
        ([{"steps": [3]}], r"its steps are ints, and not dicts"),
        ([{"steps": 3}], r"its steps are int, and not steps"),
        ([{"steps": [STEPS[0], STEPS[1]]}], r"its steps cannot be stacked"),
        (
            [STEPS[0]],
            r"must be a dict with the key 'steps', got the keys \['action'.*give episodes",
        ),
        (EPISODES, r"write `EpisodeSource"),
        ([3], r"must be a dict with the key 'steps', got int"),
        ({"steps": STEPS[0]}, r"got dict; of one episode, write `\[episode\]`"),
        (3, r"`data` must be a folder of TFDS, or something that gives episodes.*got int"),
        ([], r"there are no episodes"),
    ],
)
def test_what_is_not_rlds_is_refused(data: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        RLDSSource(data)


def test_errors_of_your_own_generator_pass() -> None:
    def episodes() -> Any:
        yield {"steps": STEPS[0]}
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        RLDSSource(episodes())


def test_wrong_folders_and_options(tmp_path: Any) -> None:
    with pytest.raises(PipelineError, match=r"is no dataset of TFDS: it has no 'features.json'"):
        RLDSSource(tmp_path)
    with pytest.raises(PipelineError, match=r"there is no folder '.*none'; mend the path"):
        RLDSSource(tmp_path / "none")
    with pytest.raises(PipelineError, match=r"`split=` is for a folder"):
        RLDSSource([{"steps": STEPS[0]}], split="train")
    with pytest.raises(PipelineError, match=r"has no info 'speed'; it has \['discount'\]"):
        RLDSSource([{"steps": STEPS[0]}], infos=["speed"])
