"""What `set_state` refuses: states of other pipelines, of newer versions, damaged ones."""

from __future__ import annotations

import copy
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.pipeline.counter import Counter
from tests.rl.corridor import ONE, walk

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    IterableSource,
    MapTransform,
    RandomMapTransform,
    UnbatchTransform,
)
from cereal.loaders.iterators.saved_state import sealed


def arrays(n: int = 20, ordering: Any = "shuffle", *stages: Any) -> Any:
    source = ArraySampleSource(np.arange(float(n)), ordering=ordering)
    return DataLoader([source, *stages, BatchTransform(4)])


def rollouts(num_envs: int = 2) -> Any:
    return DataLoader([walk(num_envs=num_envs), BatchTransform(4)])


def unbatched(n: int) -> Any:
    centred = MapTransform(lambda batch: batch - batch.mean())
    source = ArraySampleSource(np.arange(float(n)))
    return DataLoader([source, BatchTransform(5), centred, UnbatchTransform(), BatchTransform(4)])


def begun(loader: Any, policy: Any = None) -> Any:
    batches = loader.iterate(loader.init_state(3, policy), epochs=None)
    next(batches)
    return batches


def resealed(saved: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """A state that was changed by somebody who knows about the checksum."""
    left = {name: value for name, value in saved.items() if name not in ("version", "checksum")}
    return sealed(left.pop("kind"), {**left, **changed})


def refuses(batches: Any, saved: Any, message: str) -> None:
    """The state is refused in these words, and the iterator goes on where it was."""
    before = batches.get_state()
    with pytest.raises(cereal.StateError, match=message):
        batches.set_state(saved)
    assert batches.get_state() == before
    next(batches)


# Another pipeline


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (arrays(30), "it has length=30, this one has length=20"),
        (arrays(20, "sequential"), "it has ordering=sequential, this one has ordering=shuffle"),
        (
            arrays(20, np.arange(20)),
            r"it has ordering=indices\(20, \w+\), this one has ordering=sh",
        ),
        (
            arrays(20, "shuffle", RandomMapTransform(lambda x, key: x)),
            "it has random_stages=1, this one has random_stages=0",
        ),
    ],
)
def test_the_state_of_another_pipeline_is_refused_by_what_differs(other: Any, message: str) -> None:
    saved = begun(other).get_state()
    refuses(begun(arrays()), saved, f"belongs to another pipeline: {message}.*`init_state")


def test_orders_of_the_same_name_are_told_apart() -> None:
    saved = begun(arrays(20, np.arange(20))).get_state()
    refuses(begun(arrays(20, np.arange(20)[::-1].copy())), saved, "it has ordering=indices")


def test_streams_and_positions_are_not_mixed_up() -> None:
    stream = DataLoader([Counter(20), BatchTransform(4)])
    message = "it is of an indexed pipeline, and this is a stream; restore it with a loader like"
    refuses(begun(stream), begun(arrays()).get_state(), message)
    message = "it is of a stream, and this is an indexed pipeline; restore it with a loader like"
    refuses(begun(arrays()), begun(stream).get_state(), message)


def test_streams_of_other_arrays_are_refused() -> None:
    saved = begun(rollouts(), ONE).get_state()
    message = r"`state\.[\w.]*` is \w+\[2\] of \d+ bytes in the saved state, and \w+\[3\] here"
    refuses(begun(rollouts(3), ONE), saved, message)
    message = r"another pipeline: it has `state\.\w+.*, this one has `state.*; restore it with"
    refuses(begun(DataLoader([Counter(20), BatchTransform(4)])), saved, message)


def test_streams_over_positions_of_another_pipeline_are_refused() -> None:
    saved = begun(unbatched(20)).get_state()
    refuses(begun(unbatched(30)), saved, "it has length=20, this one has length=30")


def test_an_offset_after_the_end_is_refused() -> None:
    batches = begun(arrays())
    saved = resealed(batches.get_state(), offset=20)
    refuses(batches, saved, "at element 20 of an epoch that has 20: no step ends there")


# Another version


def test_a_newer_version_is_refused_whatever_it_wrote() -> None:
    batches = begun(arrays())
    message = "newer version of cereal: its format is 2, and this .* reads 1; write `pip install -"
    refuses(batches, {**batches.get_state(), "version": 2}, message)
    refuses(batches, {"version": np.int64(2), "place": 3.5}, message)


@pytest.mark.parametrize(
    "saved", [{}, {"step": 3}, {"version": 0}, {"version": -1}, {"version": "1"}]
)
def test_what_has_no_version_is_refused(saved: Any) -> None:
    refuses(begun(arrays()), saved, "has no version, so it is none of `get_state.*: it holds")


# Damage


def parts_of(saved: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in a state."""
    inside = saved.items() if isinstance(saved, dict) else enumerate(saved)
    found = []
    for name, value in inside:
        found.append((*path, name))
        if isinstance(value, dict | list):
            found += parts_of(value, (*path, name))
    return found


def with_value(saved: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(saved)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value(inner[path[-1]])
    return changed


KINDS = {
    "position": lambda: begun(arrays()),
    "stream": lambda: begun(rollouts(), ONE),
    "nested": lambda: begun(unbatched(20)),
    "iterable": lambda: begun(DataLoader([IterableSource(lambda: iter([1.0] * 9))])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "value",
    [
        lambda old: None,
        lambda old: 1.5,
        lambda old: True,
        lambda old: [old, old],
        lambda old: {"x": old},
        lambda old: "" if isinstance(old, int | list | dict) else old + "x",
        lambda old: old + 1 if isinstance(old, int) else 7,
    ],
)
def test_a_change_anywhere_is_refused(kind: str, value: Any) -> None:
    batches = KINDS[kind]()
    saved = batches.get_state()
    places = parts_of(saved)
    assert len(places) >= 8
    for path in places:
        changed = with_value(saved, path, value)
        with pytest.raises(cereal.StateError, match=r"saved state .*; |newer version"):
            batches.set_state(changed)
    assert batches.get_state() == saved


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_without_one_of_its_parts_is_refused(kind: str) -> None:
    batches = KINDS[kind]()
    saved = batches.get_state()
    for name in set(saved) - {"version", "kind"}:
        less = {each: value for each, value in saved.items() if each != name}
        refuses(batches, less, f"is damaged: it is without `{name}`; pass a dict as")
    refuses(batches, {**saved, "more": 1}, "is damaged: it is with `more`, which no state has")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": [1]}, r"has the key \[1\], not two words"),
        ({"key": 7}, "has the key 7, not two words"),
        ({"key": [1, 2**32]}, "has the key 4294967296, which is no number of 32 bits"),
        ({"epoch": -1}, "has the epoch -1, which is no number of 32 bits"),
        ({"epoch": "1"}, "has the epoch '1', which is no number of 32 bits"),
        ({"offset": 2**63}, "has the offset .*, which is no number of 63 bits"),
        ({"pipeline": {"length": 20}}, "names no pipeline; pass a dict as"),
        ({"pipeline": 3}, "names no pipeline; pass a dict as"),
        ({"bookmark": "[1, "}, "a bookmark that cannot be read"),
        ({"bookmark": "{}"}, "a bookmark that cannot be read"),
        ({"bookmark": 3}, "a bookmark that cannot be read"),
        ({"bookmark": '[0, "x", 1]'}, "a bookmark that cannot be read"),
        ({"bookmark": "[" + "0, " * 2000 + "0]"}, "a bookmark that cannot be read"),
    ],
)
def test_wrong_numbers_are_refused_even_with_the_right_checksum(changed: Any, message: str) -> None:
    batches = begun(arrays())
    refuses(batches, resealed(batches.get_state(), **changed), message)


@pytest.mark.parametrize(
    "leaves",
    [3, [], [3], [{}], [{"name": 1}], [{"name": "", "dtype": "int32", "shape": [], "data": "AA="}]],
)
def test_wrong_arrays_are_refused_even_with_the_right_checksum(leaves: Any) -> None:
    batches = begun(DataLoader([Counter(20), BatchTransform(4)]))
    refuses(batches, resealed(batches.get_state(), leaves=leaves), "saved state")
    refuses(batches, resealed(batches.get_state(), pipelines=3), "saved state")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (None, "got NoneType; save `batches.get_state"),
        (7, "got int; save `batches.get_state"),
        ([1, 2], "got list; save `batches.get_state"),
        ("{}", r"got str; for its JSON, write `batches.set_state\(json.loads"),
        (b"{}", r"got bytes; for its JSON, write `batches.set_state\(json.loads"),
        (arrays().init_state(0), "got PipelineState; for a state as it is, write `batches.state ="),
    ],
)
def test_what_is_no_dict_is_refused_with_the_line_to_write(saved: Any, message: str) -> None:
    refuses(begun(arrays()), saved, message)


def test_a_dict_in_place_of_a_state_is_refused_with_the_line_to_write() -> None:
    batches = begun(arrays())
    with pytest.raises(cereal.StateError, match=r"got dict; .* write `batches.set_state\(saved\)`"):
        batches.state = batches.get_state()
    with pytest.raises(cereal.StateError, match=r"got dict; .* write `batches.set_state\(saved\)`"):
        arrays().iterate(batches.get_state())


# What is not damage


def test_numbers_of_numpy_and_jax_are_welcome_and_order_does_not_matter() -> None:
    batches = begun(arrays())
    saved: Any = json.loads(json.dumps(batches.get_state(), sort_keys=True))
    odd = {**saved, "epoch": np.int64(0), "offset": jnp.int32(4), "key": (np.uint32(0), 3)}
    expected = jax.device_get(next(batches))
    batches.set_state(dict(reversed(odd.items())))
    np.testing.assert_array_equal(next(batches)[0], expected[0])
