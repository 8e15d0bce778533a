"""Putting a policy into a state, and taking it out; see `core.policy`."""

from __future__ import annotations

from typing import Any

from ..loaders.policy_slot import get_policy_state as get_policy_state
from ..loaders.policy_slot import set_policy_state


def set_loader_policy_state(state: Any, policy_state: Any) -> Any:
    """A loader's state with this policy in it, whatever stages are around the source.

        state = loader.init_state(key)
        state = cereal.rl.set_loader_policy_state(state, policy_state)

    The tree is copied, so a later `policy_state.update(...)` does not reach the state. The same as
    `loader.set_policy_state(state, policy_state)`.
    """
    return set_policy_state(state, policy_state)


def set_source_policy_state(state: Any, policy_state: Any) -> Any:
    """A source's state with this policy in it; the same as `source.set_policy_state`.

        state = source.init_state(key)
        state = cereal.rl.set_source_policy_state(state, policy_state)
        transition, mask, state = source.next(state)

    The tree is copied.
    """
    return set_policy_state(state, policy_state)
