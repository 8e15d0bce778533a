"""What the processes of the tests do. Each function runs in every process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, MapTransform

LENGTH, WIDTH = 64, 16


def rows() -> dict[str, np.ndarray]:
    x = np.arange(LENGTH * WIDTH, dtype=np.int32).reshape(LENGTH, WIDTH)
    return {"x": x, "y": np.arange(LENGTH, dtype=np.int32)}


def mesh_of(name: str, *, explicit: bool = False, order: str = "as it is") -> Mesh:
    """`data`, `data x model`, or `data x seq`: the second axis has two devices, if there are."""
    devices = np.array(jax.devices())
    if order == "mixed":  # neighbours in the mesh belong to different processes
        devices = devices.reshape(jax.process_count(), -1).T.reshape(-1)
    second = 1 if len(devices) % 2 else 2
    kind = AxisType.Explicit if explicit else AxisType.Auto
    if name == "data":
        return Mesh(devices, ("data",), axis_types=(kind,))
    axes = tuple(name.split(" x "))
    return Mesh(devices.reshape(-1, second), axes, axis_types=(kind, kind))


def spec_of(name: str) -> Any:
    return {"x": P("data", "seq"), "y": P("data")} if name == "data x seq" else P("data")


def _mapped() -> Any:
    """The rows in files of this process's own."""
    import tempfile

    folder = f"{tempfile.mkdtemp()}/rows"
    cereal.save_arrays(folder, rows())
    return folder


def gathered(tree: Any) -> Any:
    """Global arrays as NumPy arrays, whole in every process."""
    return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)


def all_alike(mesh: str, source: str, stage: bool, explicit: bool, order: str, size: int) -> Any:
    """Every way of running gives the batches of a loader in one process."""
    seen: list[int] = []

    def read(index: int) -> Any:
        seen.append(index)
        return {"x": rows()["x"][index], "y": np.int32(index)}

    def pipeline(read: Any) -> list[Any]:
        sources = {
            "function": lambda: DiskSampleSource(LENGTH, read, ordering="shuffle"),
            "arrays": lambda: cereal.ArraySampleSource(rows(), ordering="shuffle"),
            "memory map": lambda: cereal.MemmapSource(_mapped(), ordering="shuffle"),
        }
        stages = [MapTransform(lambda b: {**b, "x": 2 * b["x"]})] if stage else []
        return [sources[source](), BatchTransform(size, pad_last_batch=True), *stages]

    alone = DataLoader(
        pipeline(lambda i: {"x": rows()["x"][i], "y": np.int32(i)}),
        workers=None if source == "arrays" else 0,
    )
    found = mesh_of(mesh, explicit=explicit, order=order)
    loader = DataLoader(
        pipeline(read), sharding=(found, spec_of(mesh)), workers=None if source == "arrays" else 1
    )
    want = [jax.device_get(pair) for pair in alone.iterate(alone.init_state(5), steps=10)]
    seen.clear()
    state = loader.init_state(5)
    batches = loader.iterate(state, steps=10)
    for step, (batch, mask) in enumerate(batches):
        whole, real = gathered((batch, mask))
        np.testing.assert_array_equal(real[:size], want[step][1])
        assert not real[size:].any()
        for name in whole:
            np.testing.assert_array_equal(whole[name][:size], want[step][0][name])
    reads = len(seen)
    batch, state, mask = loader.next_batch(state)
    np.testing.assert_array_equal(gathered(batch)["x"][:size], want[0][0]["x"])
    batch, state, mask = loader.next_batch(state)
    np.testing.assert_array_equal(gathered(batch)["x"][:size], want[1][0]["x"])

    def add(total: Any, batch: Any, mask: Any) -> Any:
        return total + jax.numpy.sum(jax.numpy.where(mask, batch["y"], 0)), None

    _, total, _ = loader.scan_epoch(loader.init_state(5), jax.numpy.int32(0), add, steps=10)
    assert int(total) == sum(int((pair[0]["y"] * pair[1]).sum()) for pair in want)
    loader.close()
    return {"reads": reads, "epoch": int(batches.state.epoch)}


def elements_left_out(by_function: bool) -> Any:
    """A number does not fit, in a part of a row that one of the processes need not read."""
    import tempfile

    x = np.arange(1, LENGTH * WIDTH + 1).reshape(LENGTH, WIDTH)
    x[5, -1] = 2**40
    folder = f"{tempfile.mkdtemp()}/rows"
    cereal.save_arrays(folder, {"x": x})
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1).T  # seq: the processes
    mesh = Mesh(devices, ("data", "seq"), axis_types=(AxisType.Auto,) * 2)
    other = {"x": np.full(WIDTH, -7)}
    pipeline = [cereal.MemmapSource(folder, ordering="sequential"), BatchTransform(8)]
    options: Any = {"on_error": (lambda _: other) if by_function else "skip", "workers": 1}
    with (
        DataLoader(pipeline, **options) as alone,
        DataLoader(pipeline, sharding=(mesh, {"x": P("data", "seq")}), **options) as loader,
    ):
        want, real = jax.device_get(next(alone.iterate(alone.init_state(0))))
        batch, mask = next(loader.iterate(loader.init_state(0)))
    np.testing.assert_array_equal(gathered(batch)["x"], want["x"])
    for shard in mask.addressable_shards:
        np.testing.assert_array_equal(shard.data, real[shard.index])
    return {"skipped": loader.skipped, "row": want["x"][5].tolist(), "real": bool(real[5])}


def _loader(**options: Any) -> DataLoader[Any]:
    source = DiskSampleSource(LENGTH, lambda i: {"x": rows()["x"][i]}, ordering="shuffle")
    mesh = mesh_of(options.pop("mesh", "data"))
    return DataLoader([source, BatchTransform(8)], sharding=(mesh, "data"), workers=1, **options)


def _raised(work: Any) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def different_loaders(what: str) -> str:
    """Processes that did not build the same loader, or begin elsewhere."""
    me = jax.process_index()
    data = rows()["y"] + (me if what in ("data", "evaluate") else 0)
    source: Any = cereal.ArraySampleSource(data, ordering="shuffle")
    if what == "order" and me:
        source = cereal.ArraySampleSource(data, ordering="sequential")
    size = 4 if what == "batch" and me else 8
    devices = jax.devices()[::-1] if what == "mesh" and me else jax.devices()
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    loader = DataLoader([source, BatchTransform(size)], sharding=(mesh, "data"))
    state = loader.init_state(me if "state" in what else 0)
    if what == "evaluate":
        return _raised(lambda: cereal.evaluate(loader, lambda batch: batch))
    if "scan" in what:
        steps = 2 + me if "steps" in what else 2
        return _raised(lambda: loader.scan_epoch(state, np.int32(0), _add, steps=steps))
    return _raised(lambda: next(loader.iterate(state)))


def _add(total: Any, batch: Any, mask: Any) -> Any:
    del mask
    return total + batch.sum(), None


def scans_in_a_program() -> list[int]:
    """Scans inside of `jit`, and from states that were put on one device of each process."""
    loader = DataLoader(
        [cereal.ArraySampleSource(rows()["y"], ordering="shuffle"), BatchTransform(8)],
        sharding=(mesh_of("data"), "data"),
    )

    @jax.jit
    def scan(loader: Any, state: Any) -> Any:
        return loader.scan_epoch(state, jax.numpy.int32(0), _add)[1]

    here = jax.device_put(np.asarray(loader.init_state(0).words), jax.local_devices()[0])
    state = cereal.PipelineState(here, loader.init_state(0).fingerprint)
    first = loader.next_batch(state)[1]
    carry = {"total": jax.numpy.int32(0), "key": jax.random.key(0)}
    add = lambda c, batch, mask: ({**c, "total": _add(c["total"], batch, mask)[0]}, None)  # noqa: E731
    last, carry, _ = loader.scan_epoch(state, carry, add)
    total = carry["total"]
    return [int(scan(loader, loader.init_state(0))), int(total), int(first.offset), int(last.epoch)]


def impure(every: int, guilty: int) -> str:
    """One process has other rows than the process that shares them, from element 3 on."""
    me = jax.process_index()

    def read(index: int) -> Any:
        return {"y": np.int32(index), "x": np.int32(index + (me == guilty and index == 30))}

    source = DiskSampleSource(LENGTH, read, ordering="sequential")
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1).T  # model: the processes
    mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    loader = DataLoader(
        [source, BatchTransform(8)], sharding=(mesh, "data"), check_replicas=every, workers=1
    )
    got = []
    error = _raised(lambda: got.extend(1 for _ in loader.iterate(loader.init_state(0))))
    return f"{len(got)} {error}"


def comparing(across: bool) -> Any:
    """What a loader warns of when it is built with `check_replicas=`, and how often it compares."""
    import warnings

    from cereal.loaders.many_hosts import replicas

    known, calls = replicas.exchange, []
    replicas.exchange = lambda *given: calls.append(1) or known(*given)
    axes = ("model", "data") if across else ("data", "model")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), axes, axis_types=(AxisType.Auto,) * 2)
    source = cereal.ArraySampleSource(rows(), ordering="shuffle")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader([source, BatchTransform(8)], sharding=(mesh, "data"), check_replicas=2)
    for _ in loader.iterate(loader.init_state(0)):
        pass
    said = [f"{type(each.message).__name__}: {each.message}" for each in caught]
    files = [each.filename.rpartition("/")[2] for each in caught]
    return {"said": said, "files": files, "compared": len(calls)}


def typed_keys() -> int:
    """Data in memory with random keys, which are compared, too."""
    keys = jax.random.split(jax.random.key(0), LENGTH)
    source = cereal.ArraySampleSource({"y": rows()["y"], "key": keys}, ordering="shuffle")
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1).T  # model: the processes
    mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    loader = DataLoader([source, BatchTransform(8)], sharding=(mesh, "data"), check_replicas=1)
    total = 0
    for batch, _ in loader.iterate(loader.init_state(0)):
        parts = (batch[name].addressable_shards for name in ("y", "key"))
        for y, key in zip(*parts, strict=True):
            words = np.asarray(jax.random.key_data(keys))[np.asarray(y.data)]
            np.testing.assert_array_equal(jax.random.key_data(key.data), words)
            total += len(words)
    return total


def uneven_streams(lengths: list[int], drop: bool) -> Any:
    """Iterators of unknown, different lengths: all processes take the same number of steps."""
    import warnings

    n = lengths[jax.process_index() % len(lengths)]
    source = cereal.IterableSource(lambda: iter([{"y": np.int32(i)} for i in range(n)]))
    batch = BatchTransform(8, drop_last=drop, pad_last_batch=not drop)
    loader = DataLoader([source, batch], sharding=(mesh_of("data"), "data"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = loader.iterate(loader.init_state(0), epochs=2)
        found = [gathered(pair) for pair in batches]
    real = [np.where(mask, batch["y"], -1).tolist() for batch, mask in found]
    said = [str(each.message) for each in caught if "equally many" in str(each.message)]
    return {"batches": real, "warned": said[:1], "state": batches.get_state()["epoch"]}


def part_of_the_mesh() -> Any:
    """A mesh without devices of the last process, which takes part with empty data."""
    last = jax.process_count() - 1
    devices = [device for device in jax.devices() if device.process_index != last]
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    seen: list[int] = []

    def read(index: int) -> Any:
        seen.append(index)
        return {"y": np.int32(index)}

    source = DiskSampleSource(LENGTH, read, ordering="sequential")
    double = MapTransform(lambda batch: {"y": 2 * batch["y"]})
    total = 0
    for stages in ([], [double]):
        loader = DataLoader(
            [source, BatchTransform(8), *stages], sharding=(mesh, "data"), workers=1
        )
        seen.clear()
        for batch, _ in loader.iterate(loader.init_state(0)):
            total += sum(int(shard.data.sum()) for shard in batch["y"].addressable_shards)
    reads = len(seen)
    copies = DataLoader([source, BatchTransform(8)], sharding=(mesh, P()), workers=1)
    state = copies.next_batch(copies.init_state(0))[1]
    stream = cereal.IterableSource(lambda: iter([{"y": np.int32(i)} for i in range(9)]))
    lost = _raised(lambda: DataLoader([stream, BatchTransform(8)], sharding=(mesh, "data")))
    return {"reads": reads, "total": total, "offset": int(state.offset), "stream": lost}


def refused() -> list[str]:
    """A pipeline that Python reads, inside of a program over all processes."""
    source = DiskSampleSource(LENGTH, lambda i: {"y": np.int32(i)}, ordering="shuffle")
    plain = DataLoader([source, BatchTransform(8)], workers=1)
    everywhere = NamedSharding(mesh_of("data"), P())
    weights = jax.make_array_from_callback((8,), everywhere, lambda i: np.ones(8)[i])
    state = plain.init_state(0)

    def own(loader: Any, state: Any, weights: Any) -> Any:
        return (loader.next_batch(state)[0]["y"] * weights).sum()

    spread = DataLoader([source, BatchTransform(8)], workers=1, sharding=(mesh_of("data"), "data"))
    return [
        _raised(lambda: jax.jit(own)(plain, state, weights)),
        _raised(lambda: jax.jit(lambda s: spread.next_batch(s))(spread.init_state(0))),
    ]


def training(log: str, state: str | None, steps: int, pause: float) -> None:
    """Logs a digest of each global batch; process 0 saves the state every five steps."""
    import hashlib
    import json
    import time
    from pathlib import Path

    pipeline = [
        DiskSampleSource(LENGTH, lambda i: {"x": rows()["x"][i]}, ordering="shuffle"),
        BatchTransform(8),
        MapTransform(lambda b: {"x": b["x"] + 1}),
    ]
    loader = DataLoader(pipeline, sharding=(mesh_of("data"), "data"), workers=1)
    batches = loader.iterate(loader.init_state(3), epochs=None)
    step = 0
    if state is not None and Path(state).exists():
        saved = json.loads(Path(state).read_text())
        step = saved["step"]
        batches.set_state(saved["data"])
    while step < steps:
        batch, _ = next(batches)
        whole = gathered(batch["x"])  # a collective, as a training step has
        if jax.process_index() == 0:
            with open(log, "a") as file:
                file.write(json.dumps([step, hashlib.sha256(whole.tobytes()).hexdigest()]) + "\n")
        step += 1
        if state is not None and step % 5 == 0 and jax.process_index() == 0:
            Path(state).write_text(json.dumps({"step": step, "data": batches.get_state()}))
        time.sleep(pause)
    loader.close()


def under_a_mesh_that_was_set(explicit: bool, wide: bool) -> Any:
    """Loops under `jax.set_mesh`, which compare their loaders and their rows."""
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1).T
    kind = AxisType.Explicit if explicit else AxisType.Auto
    mesh = Mesh(devices, ("data", "model"), axis_types=(kind,) * 2)
    found = []
    with jax.set_mesh(mesh):
        for source in (
            DiskSampleSource(LENGTH, lambda i: {"y": np.int32(i)}, ordering="shuffle"),
            cereal.ArraySampleSource({"y": rows()["y"]}, ordering="shuffle"),
            cereal.IterableSource(lambda: iter([{"y": np.int32(i)} for i in range(LENGTH)])),
        ):
            stages = [MapTransform(lambda b: {"y": b["y"] + 1})] if wide else []
            loader = DataLoader(
                [source, BatchTransform(8), *stages], sharding=(mesh, "data"), check_replicas=2
            )
            total = 0
            for batch, _ in loader.iterate(loader.init_state(0)):
                total += int(gathered(batch)["y"].sum())
            found.append(total)
            loader.close()
    return found
