"""States in flax's bytes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from tests.rl.corridor import walk

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    IterableSource,
    RandomMapTransform,
    UnbatchTransform,
)
from cereal.testing import assert_same

ONE = {"stride": jnp.int32(1)}


def arrays(n: int = 20) -> list[Any]:
    return [ArraySampleSource(np.arange(float(n))), BatchTransform(4)]


def noisy(x: Any, key: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + jax.random.randint(key, (), 0, 9, leaf.dtype), x)


def iterated() -> list[Any]:
    numbers = [{"x": float(i)} for i in range(8)]
    return [IterableSource(lambda: iter(numbers)), BatchTransform(2)]


def unbatched() -> list[Any]:
    add_mean = cereal.MapTransform(lambda batch: batch - batch.mean())
    return [*arrays(), add_mean, UnbatchTransform(), BatchTransform(3, pad_last_batch=True)]


def rollout() -> list[Any]:
    observe = cereal.MapTransform(lambda step: {"seen": step["state"]})
    random = RandomMapTransform(lambda each, key: {"seen": each["seen"] + jax.random.uniform(key)})
    return [walk(num_envs=2), observe, random, BatchTransform(2)]


PIPELINES = {"arrays": arrays, "iterated": iterated, "unbatched": unbatched, "rollout": rollout}


def started(loader: DataLoader[Any], key: int) -> Any:
    state = loader.init_state(key)
    slots = [node for node in jax.tree.leaves(state, is_leaf=_is_slot) if _is_slot(node)]
    return loader.set_policy_state(state, ONE) if slots else state


def _is_slot(node: Any) -> bool:
    return type(node).__name__ == "PolicySlot"


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a_run_goes_on_from_bytes(make: Any) -> None:
    with DataLoader(make()) as loader, DataLoader(make()) as other:
        state = started(loader, 3)
        for _ in range(3):
            _, state, _ = loader.next_batch(state)
        data = serialization.to_bytes({"step": 3, "data": state})
        back = serialization.from_bytes({"step": 0, "data": other.init_state(0)}, data)
        assert back["step"] == 3
        found = other.next_batch(back["data"])
        assert_same(found, loader.next_batch(state), "the next step")
        for leaf in jax.tree.leaves(back["data"]):
            assert isinstance(leaf, jax.Array)


def test_bytes_of_another_pipeline_are_refused_where_they_are_used() -> None:
    loader, other = DataLoader(arrays(20)), DataLoader(arrays(30))
    data = serialization.to_bytes(loader.init_state(0))
    back = serialization.from_bytes(other.init_state(0), data)
    with pytest.raises(cereal.StateError, match="it has length=20, this one has length=30"):
        other.next_batch(back)


def test_bytes_of_something_else_are_refused() -> None:
    state = DataLoader(arrays()).init_state(0)
    with pytest.raises(cereal.StateError, match=r"bytes hold \['words'\] where a PipelineState"):
        serialization.from_state_dict(state, {"words": np.zeros(5, np.uint32)})
    whole: Any = serialization.to_state_dict(state)
    with pytest.raises(cereal.StateError, match=r"float32\[5\] for `words` of a PipelineState"):
        serialization.from_state_dict(state, {**whole, "words": np.zeros(5, np.float32)})


def test_a_users_own_state_is_written_too() -> None:
    @cereal.pytree_dataclass
    class Walk:
        at: jax.Array
        name: str = cereal.static_field(default="walk")

    DataLoader(arrays()).init_state(0)
    data = serialization.to_bytes(Walk(jnp.arange(3), "mine"))
    back: Any = serialization.from_bytes(Walk(jnp.zeros(3, jnp.int32), "here"), data)
    assert back.at.tolist() == [0, 1, 2]
    assert back.name == "here"


@pytest.mark.slow  # a process
def test_it_does_not_matter_who_is_imported_first_and_flax_is_not_imported_by_cereal() -> None:
    script = """
        import sys, numpy as np, cereal
        from cereal import ArraySampleSource, BatchTransform, DataLoader
        loader = DataLoader([ArraySampleSource(np.arange(8.0)), BatchTransform(4)])
        state = loader.init_state(0)
        assert "flax" not in sys.modules
        from flax import serialization
        _, state, _ = loader.next_batch(state)
        data = serialization.to_bytes(state)
        print(serialization.from_bytes(loader.init_state(1), data))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout.strip() == "PipelineState(key=(0, 0), epoch=0, offset=4)", ran.stderr
