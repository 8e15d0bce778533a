"""Policy states inside states, through whatever is around them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.corridor import ONE, stride, walk

import cereal
from cereal.rl import get_policy_state, set_loader_policy_state, set_source_policy_state


def noisy(element: Any, key: Any) -> Any:
    return {**element, "noise": jax.random.bits(key)}


STACKS = {
    "the source": [],
    "batched": [cereal.BatchTransform(4)],
    "padded": [cereal.BatchTransform(4, pad_last_batch=True)],
    "a random stage, twice": [
        cereal.RandomMapTransform(noisy),
        cereal.RandomMapTransform(noisy),
        cereal.BatchTransform(4, pad_last_batch=True),
        cereal.BatchTransform(2, pad_last_batch=True),
    ],
    "batched and taken apart": [cereal.BatchTransform(4), cereal.UnbatchTransform()],
    "a function of the user's": [lambda source: cereal.MapTransform(lambda e: e)(source)],
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_a_policy_is_found_through_any_stack(stack: list[Any]) -> None:
    loader = cereal.DataLoader([walk(steps_per_epoch=8), *stack])
    state = loader.set_policy_state(loader.init_state(0), {"stride": 2})
    assert int(loader.get_policy_state(state)["stride"]) == 2
    batch, state, _ = loader.next_batch(state)
    assert int(np.ravel(batch["action"])[0]) == 2
    assert int(get_policy_state(state)["stride"]) == 2
    assert jax.tree.structure(state) == jax.tree.structure(loader.set_policy_state(state, ONE))


def test_a_state_may_begin_with_its_policy() -> None:
    loader = cereal.DataLoader([walk(length=9), cereal.BatchTransform(4)])
    policy = {"stride": jnp.int32(2)}
    state = loader.init_state(0, policy_state=policy)
    policy.update(stride=jnp.int32(5))
    assert loader.next_batch(state)[0]["state"].tolist() == [0, 2, 4, 6]
    with pytest.raises(cereal.UsageError, match="carries no policy"):
        cereal.DataLoader(cereal.RangeSource(4)).init_state(0, policy)


def test_a_wrapper_of_the_users_own_hides_nothing() -> None:
    @cereal.pytree_dataclass
    class Twice(cereal.Source[Any]):
        below: Any
        steps_per_epoch: int = cereal.static_field(default=4)

        def element_spec(self) -> Any:
            return self.below.element_spec()

        def init_state(self, key: Any) -> Any:
            return ("mine", {"deep": [self.below.init_state(key), jnp.zeros(3)]})[1]

        def next(self, state: Any) -> Any:
            _, _, inner = self.below.next(state["deep"][0])
            element, mask, inner = self.below.next(inner)
            return element, mask, {"deep": [inner, state["deep"][1]]}

    loader = cereal.DataLoader([Twice(walk(length=9)), cereal.BatchTransform(3)])
    state = set_loader_policy_state(loader.init_state(0), {"stride": 1})
    batch, _, _ = loader.next_batch(state)
    assert batch["state"].tolist() == [1, 3, 5]


def test_setting_changes_nothing_but_the_copy() -> None:
    source = walk()
    empty = source.init_state(0)
    policy = {"stride": jnp.int32(1)}
    one = source.set_policy_state(empty, policy)
    policy.update(stride=jnp.int32(7))
    policy["more"] = jnp.int32(0)
    assert int(get_policy_state(one)["stride"]) == 1
    two = set_source_policy_state(one, {"stride": jnp.int32(2)})
    assert int(get_policy_state(one)["stride"]) == 1
    assert int(source.next(two)[0]["action"]) == 2
    taken = get_policy_state(two)
    taken.update(stride=jnp.int32(9))
    assert int(get_policy_state(two)["stride"]) == 2
    with pytest.raises(cereal.UsageError, match="no policy state was set"):
        source.next(empty)


def test_numpy_arrays_are_copied_since_they_may_be_written_to() -> None:
    def first(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return policy_state[0], policy_state

    source = walk(first, np.zeros(1024, np.int32))
    weights = np.ones(1024, np.int32)
    state = source.set_policy_state(source.init_state(0), weights)
    weights[:] = 3
    assert int(source.next(state)[0]["action"]) == 1


def test_numbers_are_taken_where_they_fit() -> None:
    source = walk()
    state = source.init_state(0)
    for good in (1, np.int32(1), np.array(1, np.int32), True):
        assert get_policy_state(source.set_policy_state(state, {"stride": good}))["stride"] == 1
    for bad in (1.5, jnp.float32(1), jnp.zeros(2, jnp.int32), "far"):
        with pytest.raises(cereal.StateError, match=r"policy_state\['stride'\]"):
            source.set_policy_state(state, {"stride": bad})


def test_many_policies_go_into_many_states_by_vmap() -> None:
    loader = cereal.DataLoader([walk(length=100), cereal.BatchTransform(3)])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(0), 3))
    policies = {"stride": jnp.arange(3)}
    with pytest.raises(cereal.StateError, match=r"jax\.vmap\(loader\.set_policy_state\)"):
        loader.set_policy_state(states, policies)
    states = jax.vmap(loader.set_policy_state)(states, policies)
    batch, _, _ = jax.vmap(loader.next_batch)(states)
    assert batch["next_state"][:, -1].tolist() == [0, 3, 6]


def test_what_is_wrong_is_said() -> None:
    loader = cereal.DataLoader([walk(), cereal.BatchTransform(2)])
    state = loader.init_state(0)
    with pytest.raises(cereal.UsageError, match=r"no policy state was set.*set_policy_state"):
        loader.next_batch(state)
    with pytest.raises(cereal.UsageError, match="no policy state was set"):
        next(loader.iterate(state))
    with pytest.raises(cereal.UsageError, match="no policy state was set"):
        loader.scan_epoch(state, 0, lambda carry, batch, mask: (carry, None))
    with pytest.raises(cereal.UsageError, match="no policy state was set"):
        loader.get_policy_state(state)
    with pytest.raises(cereal.StateError, match=r"\['stride'\]` is int32\[2\], but int32\[\] in"):
        loader.set_policy_state(state, {"stride": jnp.zeros(2, jnp.int32)})
    with pytest.raises(cereal.StateError, match=r"another structure.*stride.*get_policy_state"):
        loader.set_policy_state(state, {"params": jnp.int32(0)})
    with pytest.raises(cereal.StateError, match="another structure"):
        loader.set_policy_state(state, None)
    indexed = cereal.DataLoader(cereal.RangeSource(4))
    with pytest.raises(cereal.UsageError, match="carries no policy"):
        indexed.set_policy_state(indexed.init_state(0), ONE)
    with pytest.raises(cereal.UsageError, match="carries 2 policies"):
        set_loader_policy_state((state, state), ONE)


def test_states_of_other_sources_are_refused() -> None:
    source = walk()
    with pytest.raises(cereal.StateError, match="must be what `init_state"):
        source.next(cereal.DataLoader(cereal.RangeSource(4)).init_state(0))


def test_states_of_rollouts_unlike_this_one_are_refused() -> None:
    few, many = walk(num_envs=2), walk(num_envs=3)
    state = few.set_policy_state(few.init_state(0), ONE)
    with pytest.raises(cereal.StateError, match=r"environments of shape \(2,\), the source \(3,\)"):
        many.next(state)
    states = jax.vmap(few.init_state)(jax.random.split(jax.random.key(0), 4))
    states = jax.vmap(few.set_policy_state)(states, {"stride": jnp.ones(4, jnp.int32)})
    with pytest.raises(cereal.StateError, match=r"\(4, 2\), the source \(2,\).*jax\.vmap\(loader"):
        few.next(states)
    assert jax.vmap(few.next)(states)[0]["action"].shape == (4, 2)

    def two(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return policy_state["stride"] + policy_state["more"], policy_state

    other = walk(two, {"stride": jnp.int32(1), "more": jnp.int32(1)}, num_envs=2)
    with pytest.raises(cereal.StateError, match=r"for policies like \{stride: int32\[\]\}, this"):
        other.next(state)


def test_two_sources_of_one_state_are_set_apart() -> None:
    a, b = walk(), walk(stride, ONE)
    both = (a.init_state(0), b.init_state(1))
    both = (set_source_policy_state(both[0], {"stride": 1}), both[1])
    assert int(a.next(both[0])[0]["action"]) == 1
