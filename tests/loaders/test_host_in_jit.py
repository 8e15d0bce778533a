"""Host data inside the user's own compiled programs: every transformation, read ahead, exact."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.slowly import slowly

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    HostMapTransform,
    HostRandomMapTransform,
    MapTransform,
)
from cereal.testing import assert_same, check_loader, check_resume

pytestmark = pytest.mark.optimized

N, B = 22, 4
GUARD = 60.0
Loader = DataLoader[Any]


class Reader:
    """Reads element `i`, and counts how often."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.lock = threading.Lock()

    def __call__(self, i: int) -> dict[str, Any]:
        with self.lock:
            self.counts[i] += 1
        return {"x": np.array([i, i * i], np.float32), "n": i}


def make(reader: Any = None, ordering: Any = "shuffle", **options: Any) -> Loader:
    options = {"workers": 2, **options}
    source = DiskSampleSource(N, reader or Reader(), ordering=ordering)
    double = MapTransform(lambda batch: {**batch, "twice": batch["n"] * 2})
    return DataLoader([source, BatchTransform(B), double], **options)


def plain(indices: np.ndarray) -> dict[str, np.ndarray]:
    """A batch, as a plain loop makes it."""
    rows = np.array([[i, i * i] for i in indices.tolist()], np.float32)
    return {"x": rows, "n": indices.astype(np.int32), "twice": indices.astype(np.int32) * 2}


def expected(loader: Loader, key: Any, steps: int, begin: int = 0) -> list[dict[str, Any]]:
    return [plain(loader.indices_at(key, step)) for step in range(begin, begin + steps)]


def stacked(batches: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: np.stack(parts), *batches)


def test_sequential_elements_come_in_order_through_epochs() -> None:
    with make(ordering="sequential") as loader:
        step, state = jax.jit(loader.next_batch), loader.init_state(0)
        for number in range(12):
            batch, state, mask = step(state)
            at = np.arange(number * B, (number + 1) * B) % N
            assert_same(batch, plain(at), f"step {number}")
            assert mask.all()
            assert mask.shape == (B,)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (1, 0), (3, 1), (1, 5)])
def test_all_roads_are_one_whatever_reads(workers: int, prefetch: int) -> None:
    def noisy(element: Any, rng: np.random.Generator) -> Any:
        return {**element, "r": rng.integers(1000)}

    source = DiskSampleSource(7, Reader(), ordering="shuffle")
    stages = [HostRandomMapTransform(noisy), BatchTransform(3, pad_last_batch=True)]
    with DataLoader([source, *stages], workers=workers, prefetch=prefetch) as loader:
        check_loader(loader)


def test_a_loader_resumes_after_programs_have_walked_through_it() -> None:
    source = DiskSampleSource(5, Reader(), ordering="shuffle")
    with DataLoader([source, BatchTransform(2)], workers=1) as loader:
        jax.block_until_ready(jax.jit(loader.next_batch)(loader.init_state(0)))
        check_resume(loader)


# Loops that the user writes


def by_scan(loader: Loader, state: Any, steps: int) -> Any:
    def one(state: Any, nothing: None) -> Any:
        batch, state, _ = loader.next_batch(state)
        return state, batch

    return lax.scan(one, state, length=steps)


def by_scan_epoch(loader: Loader, state: Any, steps: int) -> Any:
    body = lambda carry, batch, mask: (carry, batch)  # noqa: E731
    state, _, batches = loader.scan_epoch(state, 0, body, steps=steps)
    return state, batches


def _room(loader: Loader, steps: int) -> Any:
    return jax.tree.map(lambda s: jnp.zeros((steps, *s.shape), s.dtype), loader.element_spec())


def by_fori_loop(loader: Loader, state: Any, steps: int) -> Any:
    def one(number: Any, loop: Any) -> Any:
        batch, state, _ = loader.next_batch(loop[0])
        return state, jax.tree.map(lambda r, x: r.at[number].set(x), loop[1], batch)

    return lax.fori_loop(0, steps, one, (state, _room(loader, steps)))


def by_while_loop(loader: Loader, state: Any, steps: int) -> Any:
    def one(loop: Any) -> Any:
        number, state, room = loop
        batch, state, _ = loader.next_batch(state)
        return number + 1, state, jax.tree.map(lambda r, x: r.at[number].set(x), room, batch)

    begin = (0, state, _room(loader, steps))
    return lax.while_loop(lambda loop: loop[0] < steps, one, begin)[1:]


def by_calls(loader: Loader, state: Any, steps: int) -> Any:
    batches = []
    for _ in range(steps):
        batch, state, _ = loader.next_batch(state)
        batches.append(batch)
    return state, jax.tree.map(lambda *parts: jnp.stack(parts), *batches)


ROADS: list[Any] = [by_scan, by_scan_epoch, by_fori_loop, by_while_loop, by_calls]
CASES = [(road, "passed") for road in ROADS]
CASES += [(by_scan, "jax.jit"), (by_scan, "cereal.jit"), (by_scan_epoch, "cereal.jit")]


@pytest.mark.parametrize(("road", "captured"), CASES)
def test_a_loop_in_a_program_is_a_plain_loop(road: Callable[..., Any], captured: str) -> None:
    with make() as loader:
        state = loader.state_at(7, 2)
        if captured == "passed":
            found = jax.jit(road, static_argnums=2)(loader, state, 6)
        else:
            compiler: Any = jax.jit if captured == "jax.jit" else cereal.jit
            found = compiler(lambda state: road(loader, state, 6))(state)
        assert_same(found[1], stacked(expected(loader, 7, 6, 2)), captured)
        assert_same(found[0], loader.state_at(7, 8), "the state")


def test_each_element_is_read_once_by_a_scan_over_an_epoch_and_those_read_ahead() -> None:
    reader = Reader()
    with make(reader, "sequential", workers=1, prefetch=2) as loader:
        reader.counts.clear()
        found = jax.jit(by_scan, static_argnums=2)(loader, loader.init_state(0), 3)[1]
        jax.block_until_ready(found)
    assert found["n"].ravel().tolist() == list(range(12))
    assert set(reader.counts.values()) == {1}
    assert set(range(12)) <= set(reader.counts) <= set(range(12 + 2 * B))


@pytest.mark.parametrize("take", [False, True])
def test_a_branch_that_is_not_taken_reads_nothing(take: bool) -> None:
    reader = Reader()
    with make(reader) as loader:
        reader.counts.clear()

        @jax.jit
        def maybe(flag: Any, state: Any) -> Any:
            read = lambda: loader.next_batch(state)[:2]  # noqa: E731
            spec = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), loader.element_spec())
            return lax.cond(flag, read, lambda: (spec, state))

        batch, state = maybe(jnp.bool_(take), loader.init_state(1))
        if take:
            assert_same(batch, expected(loader, 1, 1)[0], "the batch")
            assert_same(state, loader.state_at(1, 1), "the state")
        else:
            assert batch["n"].tolist() == [0] * B
            assert not reader.counts


# Reading ahead


class Gate:
    """Elements from `first` on are read when the gate is opened; says that one has been asked."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.asked, self.open = threading.Event(), threading.Event()
        self.late: list[int] = []

    def __call__(self, i: int) -> np.int32:
        if i >= self.first:
            self.asked.set()
            if not self.open.wait(GUARD):
                self.late.append(i)
        return np.int32(i)


def gated(gate: Gate, **options: Any) -> Loader:
    spec = jax.ShapeDtypeStruct((), np.int32)
    source = DiskSampleSource(N, gate, sample_spec=spec, ordering="sequential")
    return DataLoader([source, BatchTransform(B)], **options)


def test_the_next_positions_element_is_asked_for_before_the_program_wants_it() -> None:
    gate = Gate(first=B)
    with gated(gate, workers=1, prefetch=1) as loader:
        step = jax.jit(loader.next_batch)
        batch, state, _ = step(loader.init_state(0))
        assert batch.tolist() == [0, 1, 2, 3]
        assert gate.asked.wait(GUARD), "nobody reads ahead"
        gate.open.set()
        assert step(state)[0].tolist() == [4, 5, 6, 7]
    assert not gate.late


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_no_more_is_read_ahead_than_prefetch_says(prefetch: int) -> None:
    reader = Reader()
    with make(reader, "sequential", workers=2, prefetch=prefetch) as loader:
        reader.counts.clear()
        step, state = jax.jit(loader.next_batch), loader.init_state(0)
        for number in range(1, 4):
            state = jax.block_until_ready(step(state))[1]
            ahead = max(reader.counts) // B + 1 - number
            assert ahead <= prefetch


def test_without_workers_nothing_is_read_ahead() -> None:
    reader = Reader()
    with make(reader, "sequential", workers=0) as loader:
        reader.counts.clear()
        jax.block_until_ready(jax.jit(loader.next_batch)(loader.init_state(0)))
        assert sorted(reader.counts) == list(range(B))


# vmap


def test_one_call_serves_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as loader:
        calls: list[int] = []
        readers: Any = loader.running.service  # type: ignore[attr-defined]
        serve = readers.serve
        monkeypatch.setattr(readers, "serve", lambda r: (calls.append(len(r)), serve(r))[1])
        keys = jax.random.split(jax.random.key(0), 5)
        states = jax.vmap(loader.init_state)(keys)
        batches, _, masks = jax.jit(jax.vmap(loader.next_batch))(states)
        assert_same(batches, stacked([expected(loader, k, 1)[0] for k in keys]), "vmap")
        assert masks.shape == (5, B)
        assert calls == [5]


@pytest.mark.parametrize("jitted", [False, True])
def test_states_at_different_positions_are_mapped_together(jitted: bool) -> None:
    with make() as loader:
        places = [(0, 3), (5, 0), (0, 4), (9, 11), (0, 3)]
        states = [loader.state_at(key, step) for key, step in places]
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        mapped = jax.vmap(loader.next_batch)
        for _ in range(2):
            batches, after, _ = (jax.jit(mapped) if jitted else mapped)(together)
            assert_same(batches, stacked([expected(loader, k, 1, s)[0] for k, s in places]), "now")
            together, places = after, [(key, step + 1) for key, step in places]


def test_nested_vmap_over_keys_and_positions() -> None:
    with make() as loader:
        keys = jax.random.split(jax.random.key(1), (2, 3))
        states = jax.vmap(jax.vmap(loader.init_state))(keys)
        run = lambda state: by_scan(loader, state, 2)[1]  # noqa: E731
        found = jax.jit(jax.vmap(jax.vmap(run)))(states)
        for i, j in np.ndindex(2, 3):
            one = jax.tree.map(lambda x, at=(i, j): x[at], found)
            assert_same(one, stacked(expected(loader, keys[i, j], 2)), f"lane {i}, {j}")


def test_more_keys_than_walks_are_remembered() -> None:
    with make() as loader:
        keys = jax.random.split(jax.random.key(2), 40)
        run = jax.jit(jax.vmap(lambda state: by_scan(loader, state, 3)[1]["n"]))
        found = run(jax.vmap(loader.init_state)(keys))
        for lane, key in enumerate(keys):
            assert found[lane].tolist() == [b["n"].tolist() for b in expected(loader, key, 3)]


# Gradients


def losses(loader: Loader, state: Any, wrap: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w: Any) -> Any:
        def one(loop: Any, _: None) -> Any:
            total, state = loop
            batch, state, mask = loader.next_batch(state)
            return (total + jnp.sum((batch["x"] @ w) ** 2 * mask), state), None

        return lax.scan(wrap(one), (jnp.float32(0), state), length=3)[0][0]

    return loss


@pytest.mark.parametrize("jitted", [slowly(False), True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "remat"])
def test_gradients_are_those_over_plain_data(wrap: Callable[..., Any], jitted: bool) -> None:
    with make() as loader:
        loss = losses(loader, loader.init_state(3), wrap)
        x = np.concatenate([b["x"] for b in expected(loader, 3, 3)])
        truth = jax.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))
        w = jnp.array([0.5, -0.01])
        mine = jax.value_and_grad(loss)
        assert_same((jax.jit(mine) if jitted else mine)(w), truth(w), "value and gradient")


def test_a_position_that_is_recomputed_is_not_read_again() -> None:
    reader = Reader()
    with make(reader, "sequential", workers=0) as loader:
        reader.counts.clear()
        grad = jax.jit(jax.grad(losses(loader, loader.init_state(0), jax.checkpoint)))
        jax.block_until_ready(grad(jnp.array([0.5, -0.01])))
        assert reader.counts == dict.fromkeys(range(3 * B), 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_passed_to_a_gradient_is_not_differentiated(workers: int) -> None:
    with make(workers=workers) as loader:

        @jax.jit
        def step(w: Any, loader: Any, state: Any) -> Any:
            def loss(w: Any) -> Any:
                batch, after, _ = loader.next_batch(state)
                return jnp.sum(batch["x"] * w), after

            (value, state_after), grad = jax.value_and_grad(loss, has_aux=True)(w)
            return w - grad, state_after, value

        w, state = jnp.float32(2), loader.init_state(4)
        for batch in expected(loader, 4, 3):
            before, (w, state, value) = w, step(w, loader, state)
            total = float(batch["x"].sum())
            np.testing.assert_allclose(value, total * before, rtol=1e-5)
            np.testing.assert_allclose(w, before - total, rtol=1e-5)


# More


def test_a_host_stage_after_batching_sees_one_batch_in_a_program() -> None:
    shapes: list[Any] = []

    def spread(batch: Any, mask: Any) -> Any:
        shapes.append((batch.shape, mask.tolist(), batch.flags.writeable))
        return batch - batch.min()

    stages = [BatchTransform(3, pad_last_batch=True), HostMapTransform(spread)]
    with DataLoader([list(range(10, 15)), *stages], workers=0) as loader:
        shapes.clear()
        states = jax.vmap(lambda k: loader.init_state(k))(jax.random.split(jax.random.key(0), 2))
        state, found = jax.vmap(lambda s: by_scan(loader, s, 2))(states)
        assert found.tolist() == [[[0, 1, 2], [3, 4, 0]]] * 2
        assert state.epoch.tolist() == [1, 1]
        assert ((3,), [True, True, False], False) in shapes
        assert {shape for shape, _, _ in shapes} == {(3,)}


def test_many_steps_are_exact_when_reading_turns_cheap_and_dear_by_turns() -> None:
    def sometimes_slow(i: int) -> int:
        if (i // 100) % 2:
            threading.Event().wait(0.001)
        return i

    source = DiskSampleSource(400, sometimes_slow, ordering="sequential")
    with DataLoader([source, BatchTransform(2)], workers=2, prefetch=3) as loader:
        step, state, found = jax.jit(loader.next_batch), loader.init_state(0), []
        for _ in range(300):
            batch, state, _ = step(state)
            found += batch.tolist()
        assert found == [i % 400 for i in range(600)]
        outside = [b.tolist() for b, _ in loader.iterate(steps=300)]
        assert list(itertools.chain(*outside)) == found
