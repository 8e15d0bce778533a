"""The state of a stream as a dict, and back: any tree of arrays, each as text.

    {"version": 1, "kind": "stream", "pipelines": [],
     "leaves": [{"name": ".step", "dtype": "int32", "shape": [], "data": "BwAAAA=="}],
     "checksum": 1103415029}

Only arrays are written. Their structure comes from the state that the iterator has when it is told
to go on from such a dict. `pipelines` are the fingerprints of positions inside, if there are any.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.errors import StateError, format_spec
from ...device.transfer import to_device, to_host
from ...pipeline.state import PipelineState
from .saved_state import WHAT_TO_DO, check_pipeline, opened, saved_pipeline, sealed


def saved_stream(state: Any) -> dict[str, Any]:
    """The state of a stream, as a dict; waits for its arrays."""
    leaves = [{"name": name, **_written(name, leaf)} for name, leaf in _named(state)]
    pipelines = [saved_pipeline(each.fingerprint) for each in _positions(state)]
    return sealed("stream", {"leaves": leaves, "pipelines": pipelines})


def stream_from(saved: Any, state: Any) -> Any:
    """The state in such a dict, with the structure of `state`."""
    found = opened(saved, "stream")
    ours, named, structure = _positions(state), _named(state), jax.tree.structure(state)
    leaves, pipelines = found["leaves"], found["pipelines"]
    try:
        names = [each["name"] for each in leaves]
        same = len(pipelines) == len(ours)  # if not, the names of the arrays differ, too
    except (LookupError, TypeError):
        raise StateError(f"the saved state holds no list of arrays; {WHAT_TO_DO}.") from None
    for each, position in zip(pipelines if same else (), ours if same else (), strict=True):
        check_pipeline(each, position.fingerprint)
    _check_names(names, [name for name, _ in named])
    made = [_read(name, each, like) for each, (name, like) in zip(leaves, named, strict=True)]
    return jax.tree.unflatten(structure, made)


def _named(state: Any) -> list[tuple[str, Any]]:
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in paths]


def _positions(state: Any) -> list[PipelineState]:
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, PipelineState))
    return [leaf for leaf in leaves if isinstance(leaf, PipelineState)]


def _check_names(theirs: list[str], ours: list[str]) -> None:
    if theirs == ours:
        return
    has = [f"it has `state{name}`" for name in theirs if name not in ours]
    wants = [f"this one has `state{name}`" for name in ours if name not in theirs]
    only = ", ".join([*has[:2], *wants[:2]]) or "its arrays are in another order"
    raise StateError(
        f"the saved state belongs to another pipeline: {only}; restore it with a loader like the "
        f"one that was saved."
    )


# One array


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _written(name: str, leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        raise StateError(
            f"`state{name}` is spread over several hosts, and no host has all of it; save "
            f"`batches.state` itself, by `ocp.args.StandardSave(batches.state)`."
        )
    array = to_host(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape), "data": data}


def _read(name: str, found: Any, like: Any) -> Any:
    """The array in a dict, checked against the one that is there now, and where that one is."""
    # (The array that is there now may have been overwritten: only its shape is asked for.)
    words = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    try:
        data = base64.b64decode(found["data"], validate=True)
        has = f"{found['dtype']}[{','.join(map(str, found['shape']))}]"
    except (binascii.Error, LookupError, TypeError, ValueError):
        data, has = b"", "no array"
    wants = format_spec(like)
    if has != wants or len(data) != words.size * np.dtype(words.dtype).itemsize:
        raise StateError(
            f"`state{name}` is {has} of {len(data)} bytes in the saved state, and {wants} here; "
            f"restore it with a loader like the one that was saved."
        )
    array: Any = np.frombuffer(data, words.dtype).reshape(words.shape)
    if _is_key(like):
        array = jax.random.wrap_key_data(to_device(array), impl=jax.random.key_impl(like))
    if getattr(like, "weak_type", False):
        return like.at[...].set(array)
    if getattr(like, "committed", False):
        return jax.device_put(array, like.sharding)
    return array if _is_key(like) else to_device(array)
