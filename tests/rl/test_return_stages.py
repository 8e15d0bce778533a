"""Returns and advantages as stages: per segment, over streams, stored steps and rollouts."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.loops import loop_gae, loop_n_step, loop_to_go, per_column
from tests.rl.played import played, written_steps
from tests.slowly import slowly

import cereal
from cereal import PipelineError
from cereal.rl import reward_to_go
from cereal.rl.return_stages import GAETransform, NStepReturnTransform, RewardToGoTransform
from cereal.testing import check_loader, check_resume

close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
BATCH = cereal.BatchTransform(4)
T, N = 12, 2


def batches_of(*stages: Any, steps: int = 3) -> list[Any]:
    loader = cereal.DataLoader(list(stages))
    return [jax.device_get(pair) for pair in loader.iterate(loader.init_state(0), steps=steps)]


def stored(data: Any) -> cereal.ArraySampleSource:
    return cereal.ArraySampleSource(data, ordering="sequential")


def with_values(steps: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shape = steps["reward"].shape
    value, after = rng.normal(size=(2, *shape)).astype(np.float32)
    return {**steps, "value": value, "next_value": after}


def expected_gae(batch: Any, value: Any, after: Any, gamma: float, lam: float) -> Any:
    terminated = batch["info"].get("terminated", batch["done"])
    return per_column(
        lambda r, d, v, w, e: loop_gae((r, d, v, w), gamma, lam, e),
        *(batch["reward"], batch["done"], value, after, terminated),
    )


# Over a stream, per segment


def test_reward_to_go_is_added_to_segments_and_the_rest_is_left() -> None:
    steps = written_steps(0, T, N)
    found = batches_of(played(steps), BATCH, RewardToGoTransform(0.9))
    for k, (batch, _) in enumerate(found):
        part = jax.tree.map(lambda x, k=k: x[4 * k : 4 * k + 4], steps)
        expected = per_column(lambda r, d: loop_to_go(r, d, 0.9), part["reward"], part["done"])
        close(batch.pop("return"), expected)
        jax.tree.map(np.testing.assert_array_equal, batch, part)


def test_n_step_returns_are_added_with_what_to_bootstrap_from() -> None:
    steps = written_steps(1, T, N)
    for k, (batch, _) in enumerate(batches_of(played(steps), BATCH, NStepReturnTransform(3))):
        part = jax.tree.map(lambda x, k=k: x[4 * k : 4 * k + 4], steps)
        total, last, discount = per_column(
            lambda r, d, e: loop_n_step(r, d, 3, 0.99, e),
            *(part["reward"], part["done"], part["info"]["terminated"]),
        )
        close(batch["n_step_return"], total)
        close(batch["bootstrap_discount"], discount)
        after = np.take_along_axis(part["next_state"], last[..., None], axis=0)
        np.testing.assert_array_equal(batch["bootstrap_state"], after)


def test_gae_reads_values_from_the_batch_and_knows_truncations() -> None:
    steps = with_values(written_steps(2, T, N, stop=0.4))
    assert steps["info"]["truncated"].any()
    for batch, _ in batches_of(played(steps), BATCH, GAETransform(0.9, 0.8)):
        advantage, returned = expected_gae(batch, batch["value"], batch["next_value"], 0.9, 0.8)
        close(batch["advantage"], advantage)
        close(batch["return"], returned)


def test_without_info_every_done_is_a_termination() -> None:
    steps = with_values(written_steps(3, T, N))
    steps["info"] = {"lives": np.ones((T, N), np.int32)}
    for batch, _ in batches_of(played(steps), BATCH, GAETransform(0.9, 0.8)):
        expected = expected_gae(batch, batch["value"], batch["next_value"], 0.9, 0.8)
        close(batch["advantage"], expected[0])


@pytest.mark.parametrize(
    "stage",
    [RewardToGoTransform(0.9), NStepReturnTransform(2), GAETransform()],
    ids=["to go", "n-step", "gae"],
)
def test_batches_of_segments_are_worked_on_segment_by_segment(stage: Any) -> None:
    source = played(with_values(written_steps(4, T, N)))
    one = batches_of(source, BATCH, stage)
    inner = batches_of(source, BATCH, stage, cereal.BatchTransform(3), steps=1)[0]
    outer = batches_of(source, BATCH, cereal.BatchTransform(3), stage, steps=1)[0]
    stacked = jax.tree.map(lambda *x: np.stack(x), *one)
    for found in (inner, outer):
        jax.tree.map(close, found, stacked)


def test_one_environment_needs_no_axis() -> None:
    steps = written_steps(5, T)
    for k, (batch, _) in enumerate(batches_of(played(steps), BATCH, RewardToGoTransform(0.5))):
        part = slice(4 * k, 4 * k + 4)
        close(batch["return"], loop_to_go(steps["reward"][part], steps["done"][part], 0.5))


def test_padding_of_a_stream_is_left_out() -> None:
    steps = written_steps(6, 6, N, stop=0.0)
    batch = cereal.BatchTransform(4, pad_last_batch=True)
    (_, last) = batches_of(played(steps), batch, RewardToGoTransform(0.5), steps=2)
    assert last[1].tolist() == [True, True, False, False]
    rest = steps["reward"][4:]
    close(last[0]["return"][0], rest[0] + 0.5 * rest[1])
    close(last[0]["return"][1:], np.stack([rest[1], 0 * rest[1], 0 * rest[1]]))


# Over stored steps


@pytest.mark.parametrize("rule", ["drop_last", "pad_last_batch"])
def test_stored_steps_are_segments_too(rule: str) -> None:
    steps = with_values(written_steps(7, 10))
    batch = cereal.BatchTransform(4, **{rule: True})  # type: ignore[arg-type]
    found = batches_of(stored(steps), batch, GAETransform(0.9, 0.8), steps=3)
    for k, (made, mask) in enumerate(found[:2] if rule == "drop_last" else found):
        part = slice(4 * k, min(4 * k + 4, 10))
        arrays = [steps[name][part] for name in ("reward", "done", "value", "next_value")]
        expected = loop_gae(
            tuple(arrays),
            0.9,
            0.8,
            steps["info"]["terminated"][part],  # type: ignore[arg-type]
        )
        close(made["advantage"][mask], expected[0])
        assert (made["advantage"][~mask] == 0).all()


def test_shuffled_windows_are_segments_in_a_map() -> None:
    steps = written_steps(8, 20)

    def with_return(segment: Any) -> Any:
        return {**segment, "return": reward_to_go(segment["reward"], segment["done"], gamma=0.9)}

    windows = cereal.WindowSource(steps, 5)
    for batch, _ in batches_of(windows, cereal.MapTransform(with_return), BATCH):
        for k in range(4):
            close(batch["return"][k], loop_to_go(batch["reward"][k], batch["done"][k], 0.9))


# Contracts


@pytest.mark.parametrize("make", [slowly(stored), played], ids=["stored", "stream"])
def test_the_stages_keep_the_contract(make: Any) -> None:
    steps = with_values(written_steps(9, 8, N))
    stages = [NStepReturnTransform(2), GAETransform()]
    loader = cereal.DataLoader([make(steps), BATCH, *stages])
    check_loader(loader)
    check_resume(loader)
    assert "GAETransform(gamma=0.99, lam=0.95)" in repr(loader)


def test_gamma_may_be_mapped_over() -> None:
    steps = written_steps(10, T, N)

    def first(gamma: Any) -> Any:
        loader = cereal.DataLoader([played(steps), BATCH, RewardToGoTransform(gamma)])
        return loader.next_batch(loader.init_state(0))[0]["return"]

    found = jax.vmap(first)(jnp.array([0.5, 1.0]))
    for k, gamma in enumerate((0.5, 1.0)):
        arrays = (steps["reward"][:4], steps["done"][:4])
        close(found[k], per_column(lambda r, d, g=gamma: loop_to_go(r, d, g), *arrays))


def test_another_gamma_compiles_nothing_anew() -> None:
    steps, traced = written_steps(11, T, N), []

    @jax.jit
    def first(loader: Any, state: Any) -> Any:
        traced.append(1)
        return loader.next_batch(state)[0]["return"]

    for gamma in (0.5, 0.9):
        loader = cereal.DataLoader([played(steps), BATCH, RewardToGoTransform(gamma)])
        found = first(loader, loader.init_state(0))
        arrays = (steps["reward"][:4], steps["done"][:4])
        close(found, per_column(lambda r, d, g=gamma: loop_to_go(r, d, g), *arrays))
    assert len(traced) == 1


# Bad input


def test_before_batching_it_says_where_to_stand() -> None:
    steps = with_values(written_steps(0, T, N))
    for stage in (RewardToGoTransform(), NStepReturnTransform(2), GAETransform()):
        for source in (played(steps), stored(steps)):
            with pytest.raises(PipelineError, match=r"put it after the `BatchTransform\(T\)`"):
                cereal.DataLoader([source, stage])


@pytest.mark.parametrize(
    ("stage", "key", "said"),
    [
        (RewardToGoTransform(), "reward", "no key 'reward', they have .*RenameTransform"),
        (NStepReturnTransform(2), "next_state", "no key 'next_state'"),
        (GAETransform(), "next_value", "no key 'next_value'.*pass `value_fn=`"),
    ],
)
def test_a_missing_key_is_named(stage: Any, key: str, said: str) -> None:
    steps = with_values(written_steps(0, T))
    del steps[key]
    for source in (played(steps), stored(steps)):
        with pytest.raises(PipelineError, match=said):
            cereal.DataLoader([source, BATCH, stage])


def test_a_key_that_is_there_already_is_named() -> None:
    steps = with_values(written_steps(0, T))
    with pytest.raises(PipelineError, match="adds 'return', but batches have that key already"):
        cereal.DataLoader([played(steps), BATCH, RewardToGoTransform(), GAETransform()])
    with pytest.raises(PipelineError, match=r"needs batches that are dicts.*got Array|Tracer"):
        cereal.DataLoader([cereal.RangeSource(8), BATCH, RewardToGoTransform()])


def test_stored_steps_must_follow_each_other() -> None:
    steps = written_steps(0, 10)
    shuffled = cereal.ArraySampleSource(steps, ordering="shuffle")
    with pytest.raises(PipelineError, match=r'needs steps in a row.*`ordering="sequential"`'):
        cereal.DataLoader([shuffled, BATCH, RewardToGoTransform()])
    with pytest.raises(PipelineError, match=r"10 steps are no whole number of segments of 4.*pad"):
        cereal.DataLoader([stored(steps), BATCH, RewardToGoTransform()])


def test_numbers_out_of_range_are_refused_when_built() -> None:
    with pytest.raises(PipelineError, match="RewardToGoTransform: `gamma` must be a number from 0"):
        RewardToGoTransform(gamma=1.5)
    with pytest.raises(PipelineError, match=r"GAETransform: `lam` must be .* got -1"):
        GAETransform(lam=-1)
    with pytest.raises(PipelineError, match="NStepReturnTransform: `n` must be an integer"):
        NStepReturnTransform(0)
