"""A stage that gets the policy state, from the state of the stream below it.

state ──find──► policy state ─┐
  └────step───► values, mask ─┴─► the stage ─► values, mask
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import jax

from ..base.errors import CerealError, PipelineError, UsageError, in_one_line
from ..base.pytree import pytree_dataclass, static_field
from ..base.spec import Spec, format_spec
from ..loaders.policy_slot import PolicySlot, find_slot
from ..pipeline.check_stage import as_built
from ..pipeline.positional import Positional
from ..pipeline.source import Mask, Source, check_source
from ..pipeline.stream_stages import StreamWrapper
from ..pipeline.traits import Traits

T_co = TypeVar("T_co", covariant=True)


class UsesPolicy(Protocol):
    """A stage that needs the policy state as well."""

    @property
    def _label(self) -> str:
        """Its name in error messages."""
        ...

    def apply_with(
        self, policy_state: Any, values: Any, mask: Any, lanes: tuple[int, ...]
    ) -> tuple[Any, Any]:
        """New values and mask."""
        ...


@pytree_dataclass
class PolicyStage(StreamWrapper[T_co]):
    """A stage over a stream; it gets the policy state from before the step.

    A recurrent policy needs that one: its memory at the beginning of the segment.
    """

    source: Any
    stage: Any
    spec: Spec = static_field()

    @property
    def _label(self) -> str:
        return self.stage._label

    def _describe(self) -> Traits:
        return self.source.traits.but(light=False)

    def init_state(self, key: Any) -> Any:
        return self.source.init_state(key)

    def _step(self, state: Any) -> tuple[T_co, Mask, Any]:
        policy_state = find_slot(state).get()
        values, mask, state = self.source._step(state)
        values, mask = self.stage.apply_with(policy_state, values, mask, self.traits.lanes)
        return as_built(self.stage, values, self.spec, 0), mask, state


def policy_stage(stage: UsesPolicy, source: Source[Any]) -> Source[Any]:
    """The source with this stage around it; an error if the source has no policy."""
    check_source(source, stage._label)
    slot = _slot_below(stage, source)
    mask = jax.ShapeDtypeStruct(source.traits.lanes, bool)
    spec = source.element_spec()
    try:
        made = jax.eval_shape(
            lambda policy_state, values, mask: stage.apply_with(
                policy_state, values, mask, source.traits.lanes
            )[0],
            slot.spec.tree,
            spec,
            mask,
        )
    except CerealError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{stage._label} failed on {format_spec(spec)} and the policy state {slot.spec}: "
            f"{in_one_line(error)}"
        ) from error
    return PolicyStage(source, stage, Spec(made))


_OTHERWISE = "leave `value_fn` out, and add `value` and `next_value` in a MapTransform before"


def _slot_below(stage: UsesPolicy, source: Source[Any]) -> PolicySlot:
    if isinstance(source, Positional):
        raise PipelineError(
            f"{stage._label} needs the state of a policy, but {source._label} is an indexed "
            f"pipeline, which carries none; begin with a source of rollouts, such as GymnaxSource, "
            f"or {_OTHERWISE}."
        )
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        return find_slot(jax.eval_shape(source.init_state, key))
    except UsageError as error:
        raise PipelineError(
            f"{stage._label} needs the state of a policy: {error} Or {_OTHERWISE}."
        ) from error
