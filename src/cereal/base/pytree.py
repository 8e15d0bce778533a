"""Frozen dataclasses that are pytrees: every config, source, loader and state is one.

    @pytree_dataclass
    class Scaled(Transform):
        scale: jax.Array                       # a leaf: traced, donated, moved, mapped over
        image_key: str = static_field(default="image")  # part of the structure: hashed and compared

`jax.tree_util.register_dataclass` is similar, but it calls `__init__` whenever JAX rebuilds the
object, and `__init__` would check tracers. Here checks run once, when the user builds the object.
"""

from __future__ import annotations

import dataclasses
import functools
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

import jax

from .unseen import raise_unseen

C = TypeVar("C")
# Values that a node computes from its fields and keeps; `set_fields` drops them.
_FOUND_OUT = {"_flat", "traits", "_order", "_plan", "_fingerprint", "_spec"}
_FOUND_OUT |= {"_reader", "_program", "_host_stages", "_by_numpy"}
made_classes: list[type] = []
"""All classes that `pytree_dataclass` made."""


def static_field(*, default: Any = dataclasses.MISSING, **kwargs: Any) -> Any:
    """A field that is part of the structure, not a leaf: `size: int = static_field()`.

    >>> import cereal, jax
    >>> @cereal.pytree_dataclass
    ... class Window:
    ...     size: int = cereal.static_field(default=3)
    >>> jax.tree.leaves(Window())
    []
    """
    return dataclasses.field(default=default, metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static_field, dataclasses.field))
def pytree_dataclass(cls: type[C]) -> type[C]:
    """Makes a frozen dataclass whose fields are children, except those made by `static_field`.

    >>> import cereal, jax
    >>> @cereal.pytree_dataclass
    ... class Scaled:
    ...     scale: float
    ...     name: str = cereal.static_field(default="image")
    >>> jax.tree.map(lambda leaf: leaf * 2, Scaled(1.5)).scale
    3.0
    """
    return register_pytree_dataclass(dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls))


def register_pytree_dataclass(made: type[C]) -> type[C]:
    """Makes a pytree of a class that is a frozen dataclass already, as `pytree_dataclass` does."""
    data, static = _fields(made)
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in data)
    names, new = data + static, object.__new__
    with_code = _carries_code(made)

    def flatten(node: Any) -> tuple[Any, Any]:
        get = node.__dict__.__getitem__
        structure = tuple(map(get, static))
        if with_code:
            structure += (node.__dict__.get("_code", 0),)
        return tuple(map(get, data)), structure

    named = getattr(made, "_path_names", None)

    def flatten_with_keys(node: Any) -> tuple[Any, Any]:
        children, structure = node._flat
        own = keys if named is None else tuple(map(jax.tree_util.GetAttrKey, named(node)))
        return tuple(zip(own, children, strict=True)), structure

    def unflatten(structure: Any, children: Any) -> Any:
        node = new(made)
        fields = node.__dict__
        fields.update(zip(names, (*children, *structure)))  # noqa: B905 (hot)
        fields["_flat"] = (children, structure)
        if with_code:
            fields["_code"] = structure[-1]
        return node

    if hasattr(made, "_check_fields"):
        made._check_fields(names)  # type: ignore[attr-defined]
    made_classes.append(made)
    made._numbered = with_code  # type: ignore[attr-defined]
    return _register(made, flatten, flatten_with_keys, unflatten)


def is_numbered(node: Any) -> bool:
    """Whether the structure of this node has a place for the number of its code (`user_code`).

    Pytrees of other libraries (Equinox, Flax) do not have it.
    """
    return vars(type(node)).get("_numbered", False)


def _carries_code(cls: type) -> bool:
    """Whether nodes of this class have such a place.

    They do if the class is the user's, or if its nodes hold a function of the user's.
    """
    return getattr(cls, "holds_code", cls.__module__.partition(".")[0] != "cereal")


def data_fields(cls: type) -> tuple[str, ...]:
    """The names of the fields that are children."""
    return _fields(cls)[0]


@dataclass_transform(frozen_default=True, field_specifiers=(static_field, dataclasses.field))
def sealed_pytree_dataclass(cls: type[C]) -> type[C]:
    """A `pytree_dataclass` of one field. It computes the flat list of all its leaves once.

    A pipeline has a dozen nodes, and JAX asks every node for its children at every call of a
    program. A loader is one node instead, which answers with a tuple that it keeps.
    """
    made = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    ((name,), ()) = _fields(made)

    def flatten(node: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(node.__dict__[name])
        return tuple(leaves), structure

    def flatten_with_keys(node: Any) -> tuple[Any, Any]:
        children, structure = node._flat
        numbered = jax.tree.unflatten(structure, range(len(children)))
        paths, _ = jax.tree_util.tree_flatten_with_path(numbered)
        keys = (jax.tree_util.GetAttrKey(name + jax.tree_util.keystr(path)) for path, _ in paths)
        return tuple(zip(keys, children, strict=True)), structure

    def unflatten(structure: Any, children: Any) -> Any:
        # The children are kept as they came. `tree.map` may have replaced a leaf by None, say, and
        # flattening the field again would not find it.
        node = object.__new__(made)
        node.__dict__[name] = jax.tree.unflatten(structure, children)
        node.__dict__["_flat"] = (children, structure)
        return node

    return _register(made, flatten, flatten_with_keys, unflatten)


def _register(made: Any, flatten: Any, flatten_with_keys: Any, unflatten: Any) -> Any:
    """Registers a class with JAX. Its flattening is kept, since JAX asks for it at every call.

    `attrgetter` reads the kept pair: it is C code and calls no Python. Loaders and states are the
    arguments of compiled loops: they also raise errors that an earlier call could not (`unseen`).
    """
    made._flat = functools.cached_property(flatten)
    made._flat.__set_name__(made, "_flat")
    get = _get_or_raise if getattr(made, "raises_unseen", False) else attrgetter("_flat")
    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, get)
    return made


def _get_or_raise(node: Any) -> tuple[Any, Any]:
    raise_unseen()
    return node._flat


def _fields(made: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    fields = dataclasses.fields(made)
    data = tuple(f.name for f in fields if not f.metadata.get("static"))
    return data, tuple(f.name for f in fields if f.metadata.get("static"))


def set_copy(node: Any, **changed: Any) -> Any:
    """A copy of a node with other fields, made without its constructor."""
    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    assert changed.keys() <= fields.keys(), changed.keys() - fields.keys()
    copy = object.__new__(type(node))
    set_fields(copy, **{**fields, **changed})
    return copy


def set_fields(node: Any, **fields: Any) -> None:
    """Sets the fields of a frozen node, in its own constructor."""
    for name in _FOUND_OUT - node.__dataclass_fields__.keys():
        node.__dict__.pop(name, None)
    node.__dict__.update(fields)


def is_pytree(node: Any) -> bool:
    """Whether JAX sees inside this object, so that it can be passed to `jit`."""
    return not jax.tree_util.all_leaves([node])
