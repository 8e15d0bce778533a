"""What ReplayTransform refuses, in words, when the pipeline is built."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.corridor import walk
from tests.rl.played import played
from tests.rl.replay.streams import numbered

import cereal

OPTIONS = [
    ({"batch_size": 8}, "needs a capacity"),
    ({"capacity": 0, "batch_size": 8}, "`capacity` must be"),
    ({"capacity": 10}, "`batch_size` must be .*how many items"),
    ({"capacity": 10, "batch_size": 0}, "`batch_size` must be"),
    ({"capacity": 10, "batch_size": 4, "prefill": 11}, "`prefill=11` is more than capacity, 10"),
    ({"capacity": 10, "batch_size": 4, "prefill": 3}, "`batch_size=4` is more than `prefill=3`"),
    ({"capacity": 10, "batch_size": 4, "collect": -1}, "`collect` must be"),
    ({"capacity": 10, "batch_size": 4, "sample": "per"}, '`sample` must be one of "uniform"'),
    ({"capacity": 10, "batch_size": 4, "write": "lifo"}, "`write` must be one of"),
    ({"capacity": 10, "batch_size": 4, "storage": "disk"}, "`storage` must be one of"),
    ({"capacity": 10, "batch_size": 4, "alpha": -0.1}, "`alpha` must be"),
    ({"capacity": 10, "batch_size": 4, "alpha": float("nan")}, "`alpha` must be"),
    ({"capacity": 10, "batch_size": 4, "beta": 1.5}, "`beta` must be a number from 0 to 1"),
    ({"capacity": 10, "batch_size": 4, "gamma": 2.0}, "`gamma` must be a number from 0 to 1"),
    ({"capacity": 10, "batch_size": 4, "period": 2}, "`period=2` says where sequences begin"),
    ({"capacity": 9, "batch_size": 4, "n_step": 2, "sequence": 3}, "exclude each other"),
    ({"capacity": 9, "batch_size": 4, "n_step": 2, "sample": "queue"}, "knows single items"),
    ({"capacity": 9, "batch_size": 4, "sequence": 2, "write": "reservoir"}, "knows single items"),
    (
        {"capacity": 9, "batch_size": 4, "sample": "prioritized", "write": "reservoir"},
        "a reservoir has items of all times",
    ),
    (
        {"capacity": 9, "batch_size": 4, "storage": "host", "write": "reservoir"},
        '`storage="host"` writes the items of a step side by side',
    ),
    (
        {"capacity": 9, "batch_size": 4, "n_step": 2, "episode_end": "terminal"},
        "`episode_end='terminal'` is for sequences",
    ),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_options(options: Any, words: str) -> None:
    with pytest.raises(cereal.PipelineError, match=words):
        cereal.ReplayTransform(**options)


def test_names_of_other_libraries_are_answered_with_ours() -> None:
    other: Any = cereal.ReplayTransform
    with pytest.raises(cereal.UsageError, match=r"no `max_length=`; write `capacity=`\."):
        other(max_length=100, min_length=4, sample_batch_size=4)
    with pytest.raises(cereal.UsageError, match=r"no `add_batch_size=`; write `num_envs=`, in the"):
        other(100, 4, add_batch_size=8)


def over(source: Any, **options: Any) -> Any:
    options = {"capacity": 20, "batch_size": 4, **options}
    return cereal.DataLoader([source, cereal.ReplayTransform(**options)])


STEPS = numbered(10)
RANGE = cereal.RangeSource(10)


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (played(STEPS), {"collect": 21}, "adds 21 items .21 steps.*capacity is 20"),
        (walk(num_envs=8), {"collect": 3}, "24 items .3 steps x 8 environments"),
        (played(STEPS), {"sequence": 21}, "`sequence=21` needs 20 items more.*at least 21"),
        (walk(num_envs=8), {"n_step": 4}, "`n_step=4` needs 24 items more"),
        (played(STEPS), {"collect": 0}, "`collect=0` stores one epoch.*is a stream"),
        (played({"x": np.arange(5)}), {"sequence": 2}, "no key 'done'.*episode_end=None"),
        (played({"x": np.arange(5)}), {"n_step": 2}, "no key 'reward'"),
        (played(numbered(9, 3)), {"n_step": 2}, "one number for each item.*pass `num_envs=`"),
        (played(np.arange(5)), {"sequence": 2}, "no key 'done'"),
        (walk(num_envs=8), {"num_envs": 4}, "`num_envs=4`, but .* has environments of shape .8."),
        (played(STEPS), {"num_envs": 3}, "all arrays of a step begin with the axes .3."),
        (RANGE, {"sequence": 2}, "indexed pipeline.*EpisodeSource"),
        (RANGE, {"sample": "queue", "collect": 5}, "adds 5 items .* takes 4.*overflow"),
        (RANGE, {"sample": "queue", "prefill": 20, "collect": 4}, "23 items may wait"),
        (RANGE, {"storage": "host"}, "for rollouts whose steps are all real"),
        (
            played({"index": np.arange(5)}),
            {"sample": "prioritized"},
            "adds 'index', but elements have that key already",
        ),
        (
            played({"key": jax.random.split(jax.random.key(0), 5)}),
            {},
            "random keys cannot be stored",
        ),
        (cereal.DatasetSource(["a", "b"]), {}, "stores arrays"),
        (walk(), {"sequence": 4, "period": 50}, "begins so rarely.*from 20 to at least 53"),
    ],
)
def test_sources(source: Any, options: Any, words: str) -> None:
    with pytest.raises(cereal.PipelineError, match=words):
        over(source, **options)


def test_steps_that_a_filter_left_out() -> None:
    some = cereal.FilterTransform(lambda step: step["reward"] > 0)
    with pytest.raises(cereal.PipelineError, match="masks some of them"):
        cereal.DataLoader([played(STEPS), some, cereal.ReplayTransform(20, 4, sequence=2)])


def test_a_schedule_that_returns_no_number() -> None:
    with pytest.raises(cereal.PipelineError, match="`beta` must return one number"):
        over(played(STEPS), sample="prioritized", beta=lambda batches: jnp.ones(3))


def test_a_state_that_is_none() -> None:
    loader = over(played(STEPS))
    with pytest.raises(cereal.StateError, match="Make a state"):
        loader.next_batch(jnp.zeros(3))


@pytest.mark.parametrize(
    "stage",
    [
        cereal.rl.RewardToGoTransform(),
        cereal.rl.GAETransform(value_fn=lambda observation, policy_state: observation),
        cereal.rl.EpisodeStatisticsTransform(),
        cereal.ReplayTransform(20, 4, sequence=2),
    ],
    ids=lambda stage: type(stage).__name__,
)
@pytest.mark.parametrize(
    "buffer",
    [cereal.ReplayTransform(20, 4), cereal.BufferTransform(20, 4, 4, mode="shuffled")],
    ids=["replay", "buffer"],
)
def test_stages_that_need_steps_in_a_row_after_a_buffer(stage: Any, buffer: Any) -> None:
    with pytest.raises(cereal.PipelineError, match="drawn from a buffer, in any order"):
        cereal.DataLoader([walk(), buffer, stage])


def test_a_batch_larger_than_the_data() -> None:
    with pytest.raises(cereal.PipelineError, match="more than the length of the data, 10"):
        over(RANGE, capacity=None, batch_size=11, collect=0)


def test_more_items_than_can_be_counted() -> None:
    with pytest.raises(cereal.PipelineError, match=r"`capacity` must be .* to 1073741824"):
        cereal.BufferTransform(2**31, prefill=4)
    with pytest.raises(cereal.PipelineError, match=r"`capacity` must be .* to 1073741824"):
        cereal.ReplayTransform(2**31, 4)
    with pytest.raises(cereal.PipelineError, match="has 1500000000 items, more than"):
        over(cereal.RangeSource(1_500_000_000), capacity=None, collect=0)


@pytest.mark.parametrize(
    "stages",
    [
        [cereal.ReplayTransform(20, 4)],
        [cereal.BufferTransform(8, prefill=2)],
        [cereal.UnbatchTransform(), cereal.ReplayTransform(20, 4)],
    ],
)
def test_a_buffer_does_not_lose_sequences_that_end_with_their_episode(stages: Any) -> None:
    sequences = [played(numbered(40, ends=(3, 9))), cereal.ReplayTransform(20, 4, sequence=4)]
    words = r"a mask inside, of shape \[4\], which a buffer does not keep; leave `sequence=` to"
    with pytest.raises(cereal.PipelineError, match=words):
        cereal.DataLoader([*sequences, *stages])


def test_states_of_vmap_outside_of_it() -> None:
    replay = cereal.ReplayTransform(20, 4, sample="prioritized")
    loader = cereal.DataLoader([played({"x": np.arange(9)}), replay])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 3))
    words = r"axes \[3\] in front, as `jax.vmap` makes them; write `jax.vmap\("
    with pytest.raises(cereal.StateError, match=words):
        loader.next_batch(states)
    with pytest.raises(cereal.StateError, match=words):
        cereal.rl.set_priorities(states, jnp.zeros((3, 4), jnp.uint32), jnp.ones((3, 4)))
    with pytest.raises(cereal.StateError, match=words):
        cereal.rl.fill_replay(states, {"x": np.arange(3)})
