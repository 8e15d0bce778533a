"""Puts a policy state into a state, and gets it back; see `cereal.loaders.policy_slot`."""

from __future__ import annotations

from typing import Any

from ..loaders.policy_slot import get_policy_state as get_policy_state
from ..loaders.policy_slot import set_policy_state


def set_loader_policy_state(state: Any, policy_state: Any) -> Any:
    """A copy of a loader's state that holds this policy state.

        state = loader.init_state(key)
        state = cereal.rl.set_loader_policy_state(state, policy_state)

    It is the same as `loader.set_policy_state(state, policy_state)`. The tree is copied, so a later
    `policy_state.update(...)` does not change the state.
    """
    return set_policy_state(state, policy_state)


def set_source_policy_state(state: Any, policy_state: Any) -> Any:
    """A copy of a source's state that holds this policy state; see `source.set_policy_state`.

        state = source.init_state(key)
        state = cereal.rl.set_source_policy_state(state, policy_state)
        transition, mask, state = source.next(state)

    The tree is copied.
    """
    return set_policy_state(state, policy_state)
