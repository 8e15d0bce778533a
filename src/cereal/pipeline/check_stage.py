"""Finds the spec of a stage's result when a pipeline is built, and checks it in later traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..base.errors import CerealError, PipelineError, in_one_line
from ..base.spec import Spec, format_spec, strong
from ..functions.traced_stage import checked, spec_of_result, traced_stage
from ..host.element_spec import check_arrays
from ..order.rows import KEY_TYPE
from .source import Source

if TYPE_CHECKING:
    from .stage import Stage


def infer_spec(stage: Stage[Any, Any], source: Source[Any]) -> tuple[Stage[Any, Any], Spec]:
    """The stage (traced, if it has functions), and the spec of what it makes from the source."""
    check_arrays(
        source.element_spec(),
        f"{stage._label} is compiled",
        "turn it into arrays or numbers in a HostMapTransform before",
    )
    keys, lanes = None, source.traits.lanes
    if stage.traits.random:
        keys = jax.eval_shape(lambda: jax.random.key(0, impl=KEY_TYPE))
        # Of a mesh that was set, nothing is kept: batches may lie elsewhere.
        keys = jax.ShapeDtypeStruct(lanes, keys.dtype)
    mask = jax.ShapeDtypeStruct(source.traits.mask_shape, jnp.bool_)
    spec = source.element_spec()
    try:
        stage = traced_stage(stage, (spec, mask, keys), lanes)
        out = spec_of_result(stage, (spec, mask, keys), lanes)
    except CerealError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{stage._label} failed on {format_spec(spec)}: {in_one_line(error)}"
        ) from error
    return stage, Spec(out)


def as_built(stage: Stage[Any, Any], values: Any, spec: Spec, drop: int) -> Any:
    """The values as arrays, or an error if their spec is not the one from when it was built.

    No array has a weak type: `batch * bfloat16` must be the same, however the batch was made.
    """
    values = jax.tree.map(strong, checked(stage, values))
    now = Spec(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[drop:], x.dtype), values))
    if now != spec:
        raise PipelineError(
            f"{stage._label} now returns {now}, but returned {spec} when the pipeline was built; "
            f"its result must depend on nothing but its arguments."
        )
    return values


def check_per_element(sample: Any, lanes: tuple[int, ...], label: str) -> None:
    """Refuses values that have no axis of elements, if a stage works on the elements of a batch."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(sample)[0]:
        if leaf.shape[: len(lanes)] != lanes:
            name = "batch" + jax.tree_util.keystr(path)
            raise PipelineError(
                f"{label} works on elements, but `{name}` of shape {leaf.shape} is one value for a "
                f"whole batch of {lanes}; put this stage before the one that makes it."
            )
