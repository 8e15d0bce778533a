"""A stage with the user's functions, replaced by its trace.

    MapTransform(fn)  --built-->  steps (structure, compared by meaning)  +  arrays (leaves)

So equal loaders share one program, even if their lambdas are different objects. Arrays that a
function closes over are arguments of the program and belong to the loader. JAX's caches hold
neither the functions nor the arrays. Whenever the pipeline is used outside of a program, `current`
checks the functions: those that are not proved unchanged are traced again. A copy that
`jax.tree.map` or a program makes of a pipeline has no Python functions any more, and never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.capture import is_concrete
from ..base.errors import PipelineError
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import Spec, format_spec, is_array_like
from ..device.explicit_axes import without_explicit_axes
from ..device.placement import is_spread
from .function import Function
from .meaning import Traced, trace, tracing_context
from .unchanged import Proof, proof_of
from .user_code import with_code

N = TypeVar("N")


@pytree_dataclass
class TracedStage:
    """Stands in a pipeline for a stage: its trace for values of one spec."""

    arrays: Any  # of the stage itself, and those that its functions close over
    traced: Traced = static_field()
    traits: Any = static_field()
    _label: str = static_field()

    def mask_shape(self, before: tuple[int, ...], spec: Spec) -> tuple[int, ...]:
        """The shape of masks after this stage. Stages with functions do not change it."""
        del spec
        return before

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del lanes
        own, closed_over = self.arrays
        return self.traced(closed_over, jax.tree.leaves((own, values, mask, keys)))

    @property
    def watched(self) -> Watched | None:
        """The Python that this was traced from; None in a copy."""
        return self.__dict__.get("_watched")

    @property
    def python(self) -> Any:
        """The stage as the user wrote it."""
        if self.watched is None:
            raise PipelineError(
                f"{self._label} is part of a copy that JAX made of a pipeline, and has no Python "
                f"function any more; take the loader that it was copied from."
            )
        return self.watched.stage

    def __reduce__(self) -> tuple[Any, ...]:
        watched: Any = self.watched
        return traced_stage, (self.python, watched.inputs, watched.lanes)


class Watched(NamedTuple):
    """The Python of a stage, and what it was traced under."""

    stage: Any
    inputs: Any  # specs of values, mask and keys
    lanes: tuple[int, ...]
    proof: Proof | None
    context: Any

    def holds(self) -> bool:
        """Whether it is proved that a new trace would be the same."""
        proved = self.proof is not None and self.context == tracing_context()
        return proved and self.proof.holds()  # type: ignore[union-attr]


def functions_in(tree: Any) -> list[Any]:
    """The Python functions in a pytree that are part of its structure."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Function))
    return [x.fixed for x in found if isinstance(x, Function) and x.fixed is not None]


def traced_stage(stage: Any, inputs: Any, lanes: tuple[int, ...]) -> Any:
    """The stage as a `TracedStage` if it has functions that are compiled; else the stage."""
    functions = functions_in(stage)
    if stage.traits.callbacks or not functions or isinstance(stage, TracedStage):
        return stage
    own = jax.tree.leaves(stage)
    structure = jax.tree.structure(stage)
    proof = proof_of(*functions)

    def apply(own: Any, values: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
        again = jax.tree.unflatten(structure, own)
        values, mask = again.apply(values, mask, keys, lanes)
        return checked(stage, values), mask

    traced, consts = trace(apply, own, *inputs)
    closed_over = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in consts]
    made = TracedStage((own, closed_over), traced, stage.traits, stage._label)
    set_fields(made, _watched=Watched(stage, inputs, lanes, proof, tracing_context()))
    return made


def checked(stage: Any, values: Any) -> Any:
    """The values, or an error if they are not a tree of arrays."""
    leaves = jax.tree_util.tree_flatten_with_path(values)[0]
    for path, leaf in leaves:
        if not is_array_like(leaf):
            place = jax.tree_util.keystr(path) or "its result"
            raise PipelineError(
                f"{stage._label} must return a tree of arrays, but {place} is "
                f"{type(leaf).__name__} ({leaf!r:.60}); return arrays of fixed shape and dtype."
            )
    if not leaves:
        raise PipelineError(
            f"{stage._label} returned {values!r}, which holds no array; did `fn` forget to "
            f"`return` the batch?"
        )
    return values


def spec_of_result(stage: Any, inputs: Any, lanes: tuple[int, ...]) -> Any:
    """The spec of what the stage makes from inputs of these specs."""
    if isinstance(stage, TracedStage):
        return stage.traced.result[0]
    return jax.eval_shape(
        lambda values, mask, keys: checked(stage, stage.apply(values, mask, keys, lanes)[0]),
        *inputs,
    )


def with_arrays(source: N, change: Callable[[Any], Any]) -> N:
    """A copy of a pipeline with other arrays; unlike a copy by JAX, it keeps its functions."""

    def changed(node: Any) -> Any:
        if not _is_traced_stage(node):
            return change(node)
        made = TracedStage(change(node.arrays), node.traced, node.traits, node._label)
        if node.watched is not None:
            set_fields(made, _watched=node.watched)
        return made

    return jax.tree.map(changed, source, is_leaf=_is_traced_stage)


def current(source: N, state: Any, *, thorough: bool = True) -> N:
    """The pipeline with its functions as they are now; pass `thorough` before many steps."""
    return with_current_stages(with_code(source, state, thorough=thorough))


def with_current_stages(source: N) -> N:
    """The same for the stages alone, which need no state."""
    fields: Any = source.__dict__
    source = fields.get("_current", source)
    stages = source.__dict__.get("_traced_stages")
    if stages is None:
        stages = source.__dict__["_traced_stages"] = _traced_stages(source)
    if not stages:
        return source
    pipeline: Any = source
    placement = pipeline.traits.placement
    with without_explicit_axes(is_spread(placement) and placement.explicit):
        changed = {id(s): now for s in stages if (now := _now(s)) is not s}
    if not changed:
        return source
    made = jax.tree.map(lambda x: changed.get(id(x), x), source, is_leaf=_is_traced_stage)
    fields["_current"] = made
    return made


def _traced_stages(source: Any) -> list[TracedStage]:
    found = jax.tree.leaves(source, is_leaf=_is_traced_stage)
    return [x for x in found if _is_traced_stage(x) and x.watched is not None]


def _is_traced_stage(node: Any) -> bool:
    return isinstance(node, TracedStage)


def _now(stage: TracedStage) -> TracedStage:
    watched: Any = stage.watched
    if watched.holds():
        return stage
    made: Any = traced_stage(watched.stage, watched.inputs, watched.lanes)
    _check_spec(stage, made)
    if made.traced == stage.traced and all(map(_same, *_leaves(made, stage))):
        set_fields(stage, _watched=made.watched)  # nothing changed: keep the newer proof
        return stage
    return made


def _check_spec(before: TracedStage, after: TracedStage) -> None:
    was, now = before.traced.result, after.traced.result
    if Spec(was) != Spec(now):
        raise PipelineError(
            f"{after._label} now returns {format_spec(now[0])}, but returned {format_spec(was[0])} "
            f"when the pipeline was built; its result must depend on nothing but its arguments."
        )


def _leaves(*stages: TracedStage) -> tuple[list[Any], ...]:
    return tuple(jax.tree.leaves(stage.arrays) for stage in stages)


def _same(a: Any, b: Any) -> bool:
    """Whether two arrays are the same object, or have the same bits."""
    if a is b:
        return True
    if not is_concrete(a) or not is_concrete(b) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_deleted() or b.is_deleted() or jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return False
    one, other = (np.asarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return np.array_equal(one, other)
