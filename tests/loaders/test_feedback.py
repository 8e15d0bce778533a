"""`scan_epoch(feedback=)`: the loader's state changes inside the scan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations
from tests.rl.corridor import ONE, walk

import cereal


def rollouts(size: int = 2, steps: int = 12, **options: Any) -> cereal.DataLoader[Any]:
    options = {"length": 1000, **options}
    return cereal.DataLoader([walk(steps_per_epoch=steps, **options), cereal.BatchTransform(size)])


def faster(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    del mask
    return carry + 1, batch["action"]


def test_the_new_policy_acts_in_the_next_batch() -> None:
    loader = rollouts()
    state = loader.set_policy_state(loader.init_state(0), ONE)

    def feedback(state: Any, carry: Any, output: Any) -> Any:
        assert output.shape == (2,)
        return loader.set_policy_state(state, {"stride": carry})

    state, carry, actions = loader.scan_epoch(state, 1, faster, feedback=feedback)
    assert actions.tolist() == [[n, n] for n in (1, 2, 3, 4, 5, 6)]
    assert int(carry) == 7
    assert int(loader.get_policy_state(state)["stride"]) == 7
    assert float(loader.next_batch(state)[0]["state"][0]) == 2 * (1 + 2 + 3 + 4 + 5 + 6)


def test_a_loop_by_hand_and_an_iterator_whose_state_is_set_do_the_same() -> None:
    loader = rollouts()
    state = loader.set_policy_state(loader.init_state(0), ONE)
    batches, seen = loader.iterate(state), []
    for number, (batch, _) in enumerate(batches, start=2):
        seen.append(batch["action"].tolist())
        batches.state = loader.set_policy_state(batches.state, {"stride": number})
    assert seen == [[n, n] for n in (1, 2, 3, 4, 5, 6)]
    by_hand = []
    for number in range(2, 8):
        batch, state, _ = loader.next_batch(state)
        by_hand.append(batch["action"].tolist())
        state = loader.set_policy_state(state, {"stride": number})
    assert by_hand == seen


def test_a_whole_training_is_mapped_over_seeds() -> None:
    loader = rollouts()

    def train(key: Any, speed: Any) -> Any:
        state = loader.set_policy_state(loader.init_state(key), ONE)

        def body(carry: Any, batch: Any, mask: Any) -> Any:
            del mask
            return carry + speed, batch["next_state"][-1]

        return loader.scan_epoch(
            state,
            jnp.int32(1),
            body,
            feedback=lambda s, carry, _: loader.set_policy_state(s, {"stride": carry}),
        )

    keys, speeds = jax.random.split(jax.random.key(0), 16), jnp.arange(16)
    _, carries, places = jax.vmap(train)(keys, speeds)
    assert carries.tolist() == [1 + 6 * speed for speed in range(16)]
    expected = [[2 * sum(1 + k * s for k in range(n + 1)) for n in range(6)] for s in range(16)]
    assert places.tolist() == expected
    _, _, again = jax.jit(jax.vmap(train))(keys, speeds)
    assert again.tolist() == expected


def test_a_second_call_with_new_functions_compiles_nothing() -> None:
    loader = rollouts()
    state = loader.set_policy_state(loader.init_state(0), ONE)

    def epoch(state: Any) -> Any:
        def feedback(state: Any, carry: Any, output: Any) -> Any:
            return loader.set_policy_state(state, {"stride": carry})

        return loader.scan_epoch(state, 1, lambda c, b, m: (c + 1, None), feedback=feedback)

    state, _, _ = epoch(state)
    with compilations() as made:
        for _ in range(3):
            state, _, _ = epoch(state)
    assert made() == 0

    other = loader.scan_epoch(state, 1, lambda c, b, m: (c + 1, None), feedback=None)
    assert int(loader.get_policy_state(other[0])["stride"]) == 7


def test_an_indexed_pipeline_may_be_moved() -> None:
    loader = cereal.DataLoader([cereal.RangeSource(100), cereal.BatchTransform(5)])

    def skip(state: Any, carry: Any, output: Any) -> Any:
        del carry, output
        return cereal.PipelineState(state.words.at[4].add(10), state.fingerprint)

    def first(carry: Any, batch: Any, mask: Any) -> Any:
        del mask
        return carry, batch[0]

    state, _, firsts = loader.scan_epoch(loader.init_state(0), 0, first, steps=4, feedback=skip)
    assert firsts.tolist() == [0, 15, 30, 45]
    assert int(state.offset) == 60
    same = loader.scan_epoch(loader.init_state(0), 0, first, feedback=lambda s, c, o: s)
    plain = loader.scan_epoch(loader.init_state(0), 0, first)
    assert np.array_equal(same[2], plain[2])
    assert np.array_equal(same[0].words, plain[0].words)


def test_data_that_python_reads_may_be_fed_back_to() -> None:
    rows = cereal.HostMapTransform(lambda x: np.int32(x) * 2)
    loader = cereal.DataLoader([list(range(20)), rows, cereal.BatchTransform(5)], workers=1)

    def back(state: Any, carry: Any, output: Any) -> Any:
        del carry, output
        return cereal.PipelineState(state.words.at[4].add(-5), state.fingerprint)

    def first(carry: Any, batch: Any, mask: Any) -> Any:
        del mask
        return carry, batch[0]

    with loader:
        _, _, firsts = loader.scan_epoch(loader.init_state(0), 0, first, steps=3, feedback=back)
        assert firsts.tolist() == [0, 0, 0]


def test_bad_feedback_is_refused_with_what_to_write() -> None:
    loader = rollouts()
    state = loader.set_policy_state(loader.init_state(0), ONE)

    def run(feedback: Any) -> Any:
        return loader.scan_epoch(state, 1, faster, feedback=feedback)

    with pytest.raises(cereal.UsageError, match=r"`feedback` must be callable, got int; write"):
        run(3)
    with pytest.raises(cereal.UsageError, match=r"\(state, carry, output\).*does not take"):
        run(lambda state: state)
    with pytest.raises(cereal.UsageError, match=r"must return the loader's state.*NoneType"):
        run(lambda state, carry, output: None)
    with pytest.raises(cereal.UsageError, match=r"returned tuple"):
        run(lambda state, carry, output: (state, carry))
    with pytest.raises(cereal.StateError, match=r"\['stride'\]` is float32"):
        run(lambda s, carry, _: loader.set_policy_state(s, {"stride": carry * 1.5}))

    def wider(state: Any, carry: Any, output: Any) -> Any:
        del carry, output
        return jax.tree.map(lambda x: jnp.stack([x, x]), state)

    with pytest.raises(cereal.UsageError, match=r"of one shape and dtype"):
        run(wider)
