"""What a stage promises when the pipeline is built, and whether it keeps it when traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from .errors import CerealError, PipelineError, in_one_line
from .rows import KEY_TYPE
from .source import Source
from .spec import Spec, format_spec, strong
from .taken import check_arrays
from .traced_stage import checked, spec_of_result, traced_stage

if TYPE_CHECKING:
    from .stage import Stage


def infer_spec(stage: Stage[Any, Any], source: Source[Any]) -> tuple[Stage[Any, Any], Spec]:
    """The stage as it is traced, and what it makes of the source's elements."""
    check_arrays(
        source.element_spec(),
        f"{stage._label} is compiled",
        "turn it into arrays or numbers in a HostMapTransform before",
    )
    keys, lanes = None, source.traits.lanes
    if stage.traits.random:
        keys = jax.eval_shape(
            lambda: jax.random.split(jax.random.key(0, impl=KEY_TYPE), lanes or (1,))
        )
        keys = keys if lanes else jax.eval_shape(lambda k: k[0], keys)
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
    """The values as arrays, after checking that they are what the built pipeline promised.

    None has a weak type: `batch * bfloat16` must not depend on who asks for the batch.
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
    """A stage that works on the elements of a batch needs values per element."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(sample)[0]:
        if leaf.shape[: len(lanes)] != lanes:
            name = "batch" + jax.tree_util.keystr(path)
            raise PipelineError(
                f"{label} works on elements, but `{name}` of shape {leaf.shape} is one value for a "
                f"whole batch of {lanes}; put this stage before the one that makes it."
            )
