"""The specs of elements, as JAX has them, and the forms that readers check elements against."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from ..base.errors import PipelineError
from ..base.spec import Spec
from ..reading.form import Form, check_form, leaves_of
from ..reading.leaves import OBJECT, ArrayForm, form_of_leaf, is_leaf
from ..reading.structure import structure_of


def spec_of_element(element: Any) -> Any:
    """The spec of an element; Python objects have the dtype `object`."""

    def look(leaf: Any) -> jax.ShapeDtypeStruct:
        form = form_of_leaf(leaf)
        return jax.ShapeDtypeStruct(form.shape, form.dtype)

    try:
        return jax.tree.map(look, element, is_leaf=is_leaf)
    except ValueError as error:
        if isinstance(error, PipelineError):
            raise
        return jax.ShapeDtypeStruct((), OBJECT)  # JAX cannot flatten it: keys that do not sort, say


def _form_of(spec: Spec) -> Form:
    structure = structure_of(jax.tree.unflatten(spec.structure, range(len(spec.leaves))))
    return Form(structure, [ArrayForm(leaf.shape, leaf.dtype) for leaf in spec.leaves])


@functools.lru_cache(maxsize=256)
def form_of(spec: Spec) -> Form:
    """The same without JAX; of arrays."""
    return _form_of(spec)


def as_arrays(made: Any, spec: Spec) -> Any:
    """What a function returned, as a tree of arrays of exactly this spec."""
    return jax.tree.unflatten(spec.structure, leaves_of(made, form_of(spec)))


def check_arrays(spec: Any, what: str, fix: str) -> None:
    """Refuses Python objects where arrays are needed."""
    check_form(_form_of(Spec(spec)), what, fix)  # the words about an object are its own


def repeated(element: Any, lanes: tuple[int, ...]) -> Any:
    """A batch in which all elements are this one."""
    spec = Spec(spec_of_element(element))
    check_arrays(spec.tree, "a stage after batching", "return arrays and numbers")
    leaves = leaves_of(element, form_of(spec))
    stacked = [np.broadcast_to(x, (*lanes, *x.shape)) for x in leaves]
    return jax.tree.unflatten(spec.structure, stacked)
