"""`DataLoader(sharding=...)` in one process with four devices: the same batches, spread."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.slowly import quickly, slowly

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    DataLoader,
    DiskSampleSource,
    FilterTransform,
    HostMapTransform,
    MapTransform,
    MemmapSource,
    RandomMapTransform,
    WindowSource,
)

N, WIDTH, STEPS = 60, 8, 10
ROWS = {"x": np.arange(N * WIDTH, dtype=np.int32).reshape(N, WIDTH), "y": np.arange(N)}
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def mesh_of(kind: str = "auto", shape: tuple[int, ...] = (2, 2)) -> Any:
    names = ("data", "model")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(KINDS[kind],) * len(shape))


def spec_of(array: Any) -> Any:
    return array.sharding.spec


def read(index: int) -> Any:
    return {"x": ROWS["x"][index], "y": np.int32(index)}


def add(element: Any, key: Any) -> Any:
    return {**element, "x": element["x"] + jax.random.randint(key, (), 0, 100)}


STAGES: dict[str, list[Any]] = {
    "none": [],
    "of batches": [MapTransform(lambda b: {**b, "x": b["x"] - b["y"].max()})],
    "random": [RandomMapTransform(add), FilterTransform(lambda e: e["y"] % 3 > 0)],
}


def source_of(name: str, folder: Path) -> Any:
    if name == "memory map":
        if not folder.exists():
            cereal.save_arrays(folder, {**ROWS, "y": ROWS["y"].astype(np.int32)})
        return MemmapSource(folder)
    made = {
        "function": lambda: DiskSampleSource(N, read, ordering="shuffle"),
        "arrays": lambda: ArraySampleSource(ROWS, ordering="shuffle"),
    }
    return made[name]()


def check_same(found: Any, wanted: Any, size: int) -> None:
    """A batch and its mask, maybe with padding after the first `size` lanes."""
    (batch, mask), (ours, real) = jax.device_get((found, wanted))
    np.testing.assert_array_equal(mask[:size], real)
    assert not mask[size:].any()
    for name in ours:
        np.testing.assert_array_equal(batch[name][:size], ours[name])


def keep(carry: Any, batch: Any, mask: Any) -> Any:
    return carry + batch["y"].sum(), (batch, mask)


@pytest.mark.parametrize(
    "spec", [P("data", "model"), slowly(P("data")), slowly(P(("data", "model")))], ids=str
)
@pytest.mark.parametrize("stages", ["random", slowly("none"), slowly("of batches")])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        slowly("function", "explicit"),
        ("arrays", "auto"),
        slowly("memory map", "auto"),
        slowly("function", "auto"),
        slowly("arrays", "explicit"),
        slowly("memory map", "explicit"),
    ],
)
def test_batches_are_those_of_a_loader_without_a_mesh(
    tmp_path: Path, name: str, stages: str, spec: P, kind: str
) -> None:
    source, mesh = source_of(name, tmp_path / "rows"), mesh_of(kind)
    for size in (8, 10):
        pipeline = [source, BatchTransform(size, pad_last_batch=size == 10), *STAGES[stages]]
        plain, loader = DataLoader(pipeline), DataLoader(pipeline, sharding=(mesh, spec))
        wanted = list(plain.iterate(plain.init_state(3), steps=STEPS))
        state = loader.init_state(3)
        for found, want in zip(loader.iterate(state, steps=STEPS), wanted, strict=True):
            check_same(found, want, size)
            check_places(loader, found)
        batch, state, mask = loader.next_batch(state)
        check_same((batch, mask), wanted[0], size)
        check_places(loader, (batch, mask))
        loader.close()
        plain.close()


def check_places(loader: DataLoader[Any], found: Any) -> None:
    promised = loader.abstract_batch()
    assert jax.tree.structure(promised) == jax.tree.structure(found)
    for array, spec in zip(jax.tree.leaves(found), jax.tree.leaves(promised), strict=True):
        assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
        assert array.sharding.is_equivalent_to(spec.sharding, array.ndim), array.sharding


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("arrays", "explicit"),
        slowly("function", "auto"),
        slowly("function", "explicit"),
        slowly("arrays", "auto"),
    ],
)
@pytest.mark.parametrize("stages", ["random", slowly("none")])
def test_scans_and_evaluation_are_spread(tmp_path: Path, name: str, stages: str, kind: str) -> None:
    pipeline = [source_of(name, tmp_path), BatchTransform(12), *STAGES[stages]]
    plain, loader = DataLoader(pipeline), DataLoader(pipeline, sharding=(mesh_of(kind), "data"))
    zero = jnp.int32(0)
    _, total, wanted = plain.scan_epoch(plain.init_state(1), zero, keep, steps=STEPS)
    state, found, outputs = loader.scan_epoch(loader.init_state(1), zero, keep, steps=STEPS)
    assert int(found) == int(total)
    jax.tree.map(np.testing.assert_array_equal, outputs, wanted)
    state, _, _ = loader.scan_epoch(state, zero, keep, steps=2)  # the state that it gave goes on
    assert (int(state.epoch), int(state.offset)) == (2, 24)
    if kind == "auto":
        metric = lambda batch: batch["y"]  # noqa: E731
        assert float(cereal.evaluate(loader, metric)) == float(cereal.evaluate(plain, metric))


@pytest.mark.parametrize("kind", KINDS)
def test_in_your_own_jit_batches_stay_where_they_belong(kind: str) -> None:
    mesh = mesh_of(kind)
    pipeline = [ArraySampleSource(ROWS, ordering="shuffle"), BatchTransform(12)]
    plain, loader = DataLoader(pipeline), DataLoader(pipeline, sharding=(mesh, P("data", "model")))
    state, other = loader.init_state(2), plain.init_state(2)
    step: Any = jax.jit(lambda loader, state: loader.next_batch(state))
    found = []
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            batch, state, mask = step(loader, state)
            check_places(loader, (batch, mask))
            found.append((batch, mask))
    for pair, wanted in zip(found, plain.iterate(other, steps=3), strict=True):
        check_same(pair, wanted, 12)


@pytest.mark.parametrize("name", [slowly("function"), "arrays"])
def test_no_surprise_transfers(tmp_path: Path, name: str) -> None:
    pipeline = [source_of(name, tmp_path), BatchTransform(12), *STAGES["random"]]
    loader = DataLoader(pipeline, sharding=(mesh_of(), "data"))
    state = loader.init_state(0)
    list(loader.iterate(state, steps=2))
    with jax.transfer_guard("disallow"):
        batches = list(loader.iterate(state, steps=4))
        batch, state, _ = loader.next_batch(state)
    check_same(batches[0], (batch, batches[0][1]), 12)


def test_a_sharding_for_each_array() -> None:
    mesh = mesh_of()
    tree = {"x": NamedSharding(mesh, P("data", "model")), "y": NamedSharding(mesh, P())}
    source = DiskSampleSource(N, read, ordering="sequential")
    loader = DataLoader([source, BatchTransform(4)], sharding=tree)
    batch, mask = next(loader.iterate())
    assert batch["x"].sharding.spec == P("data", "model")
    assert batch["y"].is_fully_replicated
    assert spec_of(mask) == P("data")  # it follows the batch axis
    np.testing.assert_array_equal(batch["x"], ROWS["x"][:4])


def test_a_number_for_the_whole_batch_is_on_every_device() -> None:
    count = HostMapTransform(lambda b: {**b, "total": b["y"].sum()})
    source = DiskSampleSource(N, read, ordering="sequential")
    loader = DataLoader([source, BatchTransform(4), count], sharding=(mesh_of(), "data"))
    batch, _ = next(loader.iterate())
    assert (int(batch["total"]), batch["total"].is_fully_replicated) == (6, True)


@pytest.mark.parametrize("name", ["function", slowly("arrays"), "memory map"])
def test_micro_batches_are_divided_along_the_batch(tmp_path: Path, name: str) -> None:
    source, mesh = source_of(name, tmp_path / "rows"), mesh_of(shape=(4,))
    pipeline = [source, BatchTransform(8), BatchTransform(3)]
    plain, loader = DataLoader(pipeline), DataLoader(pipeline, sharding=(mesh, P(None, "data")))
    pairs = zip(
        loader.iterate(loader.init_state(0), steps=4),
        plain.iterate(plain.init_state(0), steps=4),
        strict=True,
    )
    for (batch, mask), (ours, _) in pairs:
        assert batch["x"].sharding.spec == P(None, "data")
        assert (batch["x"].shape, spec_of(mask)) == ((3, 8, WIDTH), P(None, "data"))
        np.testing.assert_array_equal(batch["x"], ours["x"])


@pytest.mark.parametrize("predict", [slowly(0), 4])
def test_windows_of_a_memory_map_are_divided_along_time(tmp_path: Path, predict: int) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(400, dtype=np.uint16))
    tokens = np.load(path, mmap_mode="r")
    windows = WindowSource(tokens, 16, 4, predict=predict, ordering="shuffle")
    pipeline = [windows, BatchTransform(8)]
    plain = DataLoader(pipeline)
    loader = DataLoader(pipeline, sharding=(mesh_of(), P("data", "model")))
    pairs = zip(
        loader.iterate(loader.init_state(0), steps=9),
        plain.iterate(plain.init_state(0), steps=9),
        strict=True,
    )
    for (found, _), (wanted, _) in pairs:
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


def numbers_from(n: int) -> Any:
    return DiskSampleSource(n, lambda i: {"y": np.int32(i + 100 * n)})


COMBINED: dict[str, Any] = {
    "mixed arrays": lambda: cereal.MixSource(
        [ArraySampleSource({"y": np.arange(n) + 100 * n}) for n in (20, 40)], weights=(3, 1)
    ),
    "mixed files": lambda: cereal.MixSource([numbers_from(20), numbers_from(40)], weights=(3, 1)),
    "weighted": lambda: DiskSampleSource(
        N, read, ordering=cereal.WeightedSampling(np.arange(1.0, N + 1))
    ),
    "balanced": lambda: DiskSampleSource(N, read, ordering=cereal.ClassBalanced(ROWS["y"] % 7)),
    "split": lambda: cereal.split(DiskSampleSource(N, read), (0.7, 0.3))[0],
}


@pytest.mark.parametrize("kind", quickly(COMBINED, "mixed files", "balanced"))
def test_combined_sources_are_spread_like_any_other(kind: str) -> None:
    source = COMBINED[kind]()
    plain = DataLoader([source, BatchTransform(8)])
    loader = DataLoader([source, BatchTransform(8)], sharding=(mesh_of(), "data"))
    pairs = itertools.zip_longest(
        loader.iterate(loader.init_state(5), steps=12),
        plain.iterate(plain.init_state(5), steps=12),
    )
    for found, wanted in pairs:
        check_same(found, wanted, 8)
    loader.close()


def test_a_state_goes_on_with_any_mesh_and_without_one() -> None:
    pipeline = [DiskSampleSource(N, read, ordering="shuffle"), BatchTransform(8)]
    plain = DataLoader(pipeline)
    wanted = list(plain.iterate(plain.init_state(4), steps=8))
    state: Any = plain.init_state(4)
    shardings = [None, (mesh_of(), "data"), (mesh_of(shape=(4,)), "data"), (mesh_of(), "model")]
    found = []
    for sharding in shardings:
        loader = DataLoader(pipeline, sharding=sharding)
        batches = loader.iterate(jax.device_get(state), steps=2)
        found += list(batches)
        state = batches.state
    for pair, want in zip(found, wanted, strict=True):
        check_same(pair, want, 8)


@pytest.mark.parametrize("name", [slowly("function"), "arrays"])
def test_a_state_of_another_mesh_goes_on_in_every_way(tmp_path: Path, name: str) -> None:
    pipeline = [source_of(name, tmp_path), BatchTransform(12)]
    first = DataLoader(pipeline, sharding=(mesh_of(), "data"))
    small = jax.make_mesh((2,), ("data",), devices=jax.devices()[1:3])
    second = DataLoader(pipeline, sharding=(small, "data"))
    _, state, _ = first.next_batch(first.init_state(0))
    want, _, mask = first.next_batch(state)
    found, _, real = second.next_batch(state)
    check_same((found, real), (want, mask), 12)
    _, _, outputs = second.scan_epoch(state, jnp.int32(0), keep, steps=1)
    check_same(jax.tree.map(lambda x: x[0], outputs), (want, mask), 12)


def test_a_changed_function_is_seen() -> None:
    factor = {"by": 1}
    source = ArraySampleSource({"y": np.arange(8)}, ordering="sequential")
    scaled = MapTransform(lambda b: {"y": b["y"] * factor["by"]})
    loader = DataLoader([source, BatchTransform(8), scaled], sharding=(mesh_of(), "data"))
    assert int(next(loader.iterate())[0]["y"][7]) == 7
    factor["by"] = 10
    assert int(next(loader.iterate())[0]["y"][7]) == 70


def test_ahead_of_time_compilation() -> None:
    mesh = mesh_of()
    source = ArraySampleSource({"y": np.arange(32, dtype=np.float32)}, ordering="shuffle")
    loader = DataLoader([source, BatchTransform(8)], sharding=(mesh, "data"))
    step = jax.jit(lambda total, batch, mask: total + jnp.where(mask, batch["y"], 0).sum())
    total = jax.device_put(jnp.float32(0), NamedSharding(mesh, P()))
    compiled = step.lower(total, *loader.abstract_batch()).compile()
    for batch, mask in loader.iterate(loader.init_state(0)):
        total = compiled(total, batch, mask)
    assert float(total) == sum(range(32))
    plain, mask = DataLoader([source, BatchTransform(8)]).abstract_batch()
    assert (plain["y"].shape, mask.shape, plain["y"].sharding) == ((8,), (8,), None)


@pytest.mark.slow
def test_worker_processes_read_a_part_of_a_row(tmp_path: Path) -> None:
    source = source_of("memory map", tmp_path / "rows")
    pipeline = [source, BatchTransform(8)]
    plain = DataLoader(pipeline)
    sharding = (mesh_of(), P("data", "model"))
    loader = DataLoader(pipeline, sharding=sharding, workers=1, worker_type="process")
    with loader.iterate(loader.init_state(0), steps=4) as batches:
        pairs = zip(batches, plain.iterate(plain.init_state(0), steps=4), strict=True)
        for found, wanted in pairs:
            check_same(found, wanted, 8)
    loader.close()


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        slowly("auto", P("data", "model")),
        ("explicit", P("data")),
        slowly("auto", P("data")),
        slowly("explicit", P("data", "model")),
    ],
    ids=str,
)
def test_data_that_is_itself_spread_over_the_mesh(kind: str, spec: P) -> None:
    mesh = mesh_of(kind)
    images = np.arange(64 * 8 * 8, dtype=np.uint32).reshape(64, 8, 8).astype(np.uint8)
    data = {"x": images, "y": np.arange(64, dtype=np.int32)}
    places = {"x": NamedSharding(mesh, spec), "y": NamedSharding(mesh, P("data"))}
    plain = DataLoader([ArraySampleSource(data, ordering="shuffle"), BatchTransform(8)])
    source = ArraySampleSource(jax.device_put(data, places), ordering="shuffle")
    loader = DataLoader([source, BatchTransform(8)], sharding=(mesh, "data"))
    wanted = list(plain.iterate(plain.init_state(1), steps=4))
    state = loader.init_state(1)
    for found, want in zip(loader.iterate(state, steps=4), wanted, strict=True):
        check_same(found, want, 8)
        check_places(loader, found)
    batch, _, mask = jax.jit(lambda loader, state: loader.next_batch(state))(loader, state)
    check_same((batch, mask), wanted[0], 8)
    _, total, _ = loader.scan_epoch(state, jnp.int32(0), keep, steps=4)
    assert int(total) == sum(int(batch["y"].sum()) for batch, _ in wanted)
