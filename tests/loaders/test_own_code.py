"""Sources and policies that users write are as they are now, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations
from tests.rl.corridor import Corridor

import cereal
from cereal import BatchTransform, ConcatSource, DataLoader, evaluate

CONFIG = SimpleNamespace(scale=1.0)
SCALE: Any = 1.0


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONFIG, "scale", 1.0)
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    monkeypatch.setattr(Constant, "scale", 1.0)


@cereal.pytree_dataclass
class _Numbers(cereal.IndexedSource[Any]):
    ordering: str = cereal.static_field(default="sequential")

    def __len__(self) -> int:
        return 4

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.float32)

    def take(self, indices: Any) -> Any:
        return indices.astype(jnp.float32)


@cereal.pytree_dataclass
class Configured(_Numbers):
    def take(self, indices: Any) -> Any:
        return indices.astype(jnp.float32) * CONFIG.scale


@cereal.pytree_dataclass
class Global(_Numbers):
    def take(self, indices: Any) -> Any:
        return indices.astype(jnp.float32) * SCALE


@cereal.pytree_dataclass
class Constant(_Numbers):
    scale = 1.0

    def take(self, indices: Any) -> Any:
        return indices.astype(jnp.float32) * self.scale


@cereal.pytree_dataclass
class Walk(cereal.Source[Any]):
    steps_per_epoch: int = cereal.static_field(default=4)

    def element_spec(self) -> Any:
        return jax.ShapeDtypeStruct((), np.float32)

    def init_state(self, key: Any) -> Any:
        del key
        return jnp.float32(0)

    def next(self, state: Any) -> tuple[Any, Any, Any]:
        return state * CONFIG.scale, jnp.bool_(True), state + 1


CHANGES: dict[Any, Any] = {
    Configured: lambda value: setattr(CONFIG, "scale", value),
    Global: lambda value: globals().__setitem__("SCALE", value),
    Constant: lambda value: setattr(Constant, "scale", value),
}


def epochs(loader: DataLoader[Any]) -> dict[str, list[float]]:
    state = loader.init_state(0)
    scanned = loader.scan_epoch(state, 0, lambda c, b, m: (c, b))[2]
    return {
        "iterate": np.concatenate([np.asarray(b) for b, _ in loader.iterate(state)]).tolist(),
        "scan_epoch": np.asarray(scanned).ravel().tolist(),
        "evaluate": [float(evaluate(loader, lambda batch: batch))],
    }


def expected(scale: float, repeats: int = 1) -> dict[str, list[float]]:
    once = [scale * number for number in range(4)] * repeats
    return {"iterate": once, "scan_epoch": once, "evaluate": [scale * 1.5]}


@pytest.mark.parametrize("kind", CHANGES, ids=lambda kind: kind.__name__)
def test_a_users_source_does_what_it_refers_to_now(kind: Any) -> None:
    loader = DataLoader([kind(), BatchTransform(2)])
    for scale in (1.0, 3.0, 1.0):
        CHANGES[kind](scale)
        assert epochs(loader) == expected(scale)
        assert loader.next_batch(loader.init_state(0))[0].tolist() == [0.0, scale]
        assert epochs(DataLoader([kind(), BatchTransform(2)])) == expected(scale)


def test_so_does_one_inside_a_combination() -> None:
    loader = DataLoader([ConcatSource([Configured(), _Numbers()]), BatchTransform(4)])
    for scale in (1.0, 3.0):
        CONFIG.scale = scale
        batches = [batch.tolist() for batch, _ in loader]
        assert batches == [[scale * number for number in range(4)], [0.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize("source", [_Numbers(), Walk()], ids=["source", "stream"])
def test_so_does_a_stage_over_one(source: Any) -> None:
    box = SimpleNamespace(scale=1.0)
    stage = cereal.MapTransform(lambda x: x * box.scale)
    loader = DataLoader([source, stage, BatchTransform(2)])
    for scale in (1.0, 3.0, 1.0):
        box.scale = scale
        assert epochs(loader) == expected(scale)
        assert loader.next_batch(loader.init_state(0))[0].tolist() == [0.0, scale]


def seen(batch: Any, mask: Any) -> None:
    SEEN.append(float(batch.sum()))


SEEN: list[float] = []
READ = cereal.DiskSampleSource(4, np.float32, ordering="sequential")
BESIDE: dict[str, Any] = {
    "a callback": lambda: [Configured(), BatchTransform(2), cereal.HostCallbackTransform(seen)],
    "a stream and a callback": lambda: [
        Walk(),
        BatchTransform(2),
        cereal.HostCallbackTransform(seen),
    ],
    "data on the host": lambda: [ConcatSource([Configured(), READ]), BatchTransform(2)],
}


@pytest.mark.parametrize("kind", BESIDE)
def test_so_does_one_beside_what_python_runs(kind: str) -> None:
    with DataLoader(BESIDE[kind]()) as loader:
        for scale in (1.0, 3.0, 1.0):
            CONFIG.scale = scale
            for found in list(epochs(loader).values())[:2]:
                assert found[:4] == [scale * number for number in range(4)]
            batch = next(loader.iterate(loader.init_state(0)))[0]
            assert batch.tolist() == [0.0, scale]
        with compilations() as made:
            epochs(loader)
    assert made() == 0


def test_so_do_read_element_and_select() -> None:
    box = SimpleNamespace(scale=1.0)
    source = cereal.MapTransform(lambda x: x * box.scale)(_Numbers())
    loader = DataLoader([source, BatchTransform(2)])
    assert float(loader.read_element(3)) == 3.0
    box.scale = 3.0
    assert float(loader.read_element(3)) == 9.0
    large = lambda x: x * box.scale > 1.5  # noqa: E731
    assert len(cereal.select(source, large)) == 3
    box.scale = 1.0
    assert len(cereal.select(source, large)) == 2


def test_a_cache_holds_what_the_functions_above_it_were_when_it_was_built() -> None:
    box = SimpleNamespace(scale=1.0)
    stage = cereal.MapTransform(lambda x: x * box.scale)
    loader = DataLoader([_Numbers(), stage, cereal.CacheTransform("host"), BatchTransform(2)])
    first = loader.batch_at(0, 0)[0].tolist()
    box.scale = 3.0
    assert [*first, *loader.batch_at(0, 1)[0].tolist()] == [0.0, 1.0, 2.0, 3.0]


def test_so_does_a_users_stream() -> None:
    loader = DataLoader([Walk(), BatchTransform(2)])
    for scale in (1.0, 3.0, 1.0):
        CONFIG.scale = scale
        assert epochs(loader) == expected(scale)


def test_what_was_compiled_before_is_found_again() -> None:
    loader = DataLoader([Configured(), BatchTransform(2)])
    for scale in (1.0, 3.0):
        CONFIG.scale = scale
        epochs(loader)
    with compilations() as made:
        for scale in (1.0, 3.0, 1.0):
            CONFIG.scale = scale
            epochs(loader)
            epochs(DataLoader([Configured(), BatchTransform(2)]))
    assert made() == 0


def test_a_policy_does_what_it_refers_to_now() -> None:
    def act(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        del observation, new_episode, key
        return jnp.int32(CONFIG.scale), policy_state

    source = cereal.rl.RolloutSource(Corridor(), act, None, steps_per_epoch=4)
    loader = DataLoader([source, BatchTransform(4)])
    for stride in (1.0, 2.0, 1.0):
        CONFIG.scale = stride
        state = loader.init_state(0)
        scanned = loader.scan_epoch(state, 0, lambda c, b, m: (c, b["action"]))[2]
        assert np.unique(np.asarray(scanned)).tolist() == [stride]
        batch, _ = next(loader.iterate(state))
        assert np.unique(np.asarray(batch["action"])).tolist() == [stride]


def test_so_does_an_environment_that_begins() -> None:
    @cereal.pytree_dataclass
    class Begins(Corridor):
        def reset(self, key: Any) -> tuple[Any, Any]:
            del key
            return jnp.float32(CONFIG.scale), jnp.int32(0)

    def act(observation: Any, policy_state: Any, new: Any, key: Any) -> Any:
        del observation, new, key
        return jnp.int32(1), policy_state

    source = cereal.rl.RolloutSource(Begins(), act, None, steps_per_epoch=4)
    loader = DataLoader([source, BatchTransform(4)])
    for scale in (1.0, 3.0, 1.0):
        CONFIG.scale = scale
        batch, _, _ = loader.next_batch(loader.init_state(0))
        assert float(batch["state"][0]) == scale
