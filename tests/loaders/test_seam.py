"""Where the host part ends: what may follow what, what crosses, and the drawing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    DataLoader,
    DevicePutTransform,
    DiskSampleSource,
    FilterTransform,
    HostCallbackTransform,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    MapTransform,
    NormalizeImageTransform,
    PipelineError,
    RandomMapTransform,
    RangeSource,
    RenameTransform,
    UnbatchTransform,
    WindowSource,
    pad_collate,
)

N, SIZE = 10, 4
WORKERS = [0, 1, 4]


def some(stages: list[Any], steps: int = 3, **options: Any) -> list[Any]:
    with DataLoader(stages, **options) as loader:
        return [batch for batch, _ in loader.iterate(loader.init_state(0), steps=steps)]


def lanes(steps: int = 3, n: int = N) -> list[list[int]]:
    return [[(step * SIZE + lane) % n for lane in range(SIZE)] for step in range(steps)]


def same(x: Any) -> Any:
    return x


# Order

IMAGES = {"image": np.zeros((N, 4, 4), np.uint8), "label": np.arange(N)}
COMPILED: dict[str, Any] = {
    "MapTransform": MapTransform(same),
    "RandomMapTransform": RandomMapTransform(lambda x, key: x),
    "FilterTransform": FilterTransform(lambda x: x["label"] > 2),
    "NormalizeImageTransform": NormalizeImageTransform(),
    "RenameTransform": RenameTransform({"label": "class"}),
    "DevicePutTransform": DevicePutTransform(),
    "HostCallbackTransform": HostCallbackTransform(lambda batch, mask: None),
}
HOST: dict[str, Any] = {
    "HostMapTransform": HostMapTransform(same),
    "HostRandomMapTransform": HostRandomMapTransform(lambda x, rng: x),
    "HostFilterTransform": HostFilterTransform(lambda x: True),
}


@pytest.mark.parametrize("host", HOST)
@pytest.mark.parametrize("compiled", COMPILED)
def test_a_host_stage_after_a_compiled_one_says_how_to_reorder(compiled: str, host: str) -> None:
    dicts = [{"image": np.zeros((4, 4), np.uint8), "label": i} for i in range(N)]
    for source in (ArraySampleSource(IMAGES), dicts):
        stages = [BatchTransform(SIZE), COMPILED[compiled], MapTransform(same), HOST[host]]
        with pytest.raises(PipelineError, match=rf"stage 4: {host}\(.*comes after {compiled}") as e:
            DataLoader([source, *stages])
        assert f"Move it before {compiled}" in str(e.value)


@pytest.mark.parametrize("host", HOST)
def test_a_host_stage_after_a_stream_is_refused(host: str) -> None:
    stream = [RangeSource(8), BatchTransform(2), MapTransform(lambda x: x[::-1])]
    with pytest.raises(PipelineError, match=f"stage 4: {host}.*a stream of compiled code"):
        DataLoader([*stream, UnbatchTransform(), HOST[host]])


def test_a_host_stage_over_a_cache_on_the_device_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"CacheTransform\('device'\) is read by compiled code"):
        DataLoader([RangeSource(8), CacheTransform("device"), HostMapTransform(same)])


def test_a_host_stage_over_windows_in_memory_sees_the_windows() -> None:
    windows = WindowSource(np.arange(12.0), 3, ordering="sequential")
    found = some([windows, HostMapTransform(lambda x: x.sum()), BatchTransform(2)], 2)
    assert [batch.tolist() for batch in found] == [[3.0, 6.0], [9.0, 12.0]]


@pytest.mark.parametrize("host", HOST)
def test_a_host_stage_is_called_with_a_source(host: str) -> None:
    with pytest.raises(PipelineError, match=f"{host}.* must be called with a source, got int"):
        HOST[host](3)


# Objects at the seam

OBJECTS = [{"x": i, "name": f"{i}"} for i in range(N)]
NEEDS_ARRAYS: dict[str, list[Any]] = {
    "BatchTransform": [BatchTransform(SIZE)],
    "MapTransform": [MapTransform(lambda e: e["x"]), BatchTransform(SIZE)],
    "RandomMapTransform": [RandomMapTransform(lambda e, key: e["x"]), BatchTransform(SIZE)],
    "FilterTransform": [FilterTransform(lambda e: e["x"] > 1), MapTransform(lambda e: e["x"])],
    "CacheTransform": [CacheTransform("host"), HostMapTransform(lambda e: e["x"])],
}


@pytest.mark.parametrize("name", NEEDS_ARRAYS)
def test_a_python_object_that_reaches_a_compiled_stage_is_named(name: str) -> None:
    with pytest.raises(PipelineError, match=r"stage 1: .*\['name'\]` is a Python object"):
        DataLoader([OBJECTS, *NEEDS_ARRAYS[name]])


def test_a_python_object_at_the_end_of_the_pipeline_is_named() -> None:
    for stages in ([], [HostMapTransform(same)]):
        with pytest.raises(PipelineError, match=r"the last stage.*\['name'\]` is a Python object"):
            DataLoader([OBJECTS, *stages])


def test_a_python_object_after_batching_is_named() -> None:
    texts = HostMapTransform(lambda batch: [str(x) for x in batch])
    stages = [list(range(N)), BatchTransform(SIZE), texts]
    with pytest.raises(PipelineError, match="is a Python object"):
        DataLoader(stages)
    with pytest.raises(PipelineError, match="is a Python object"):
        DataLoader([*stages, HostMapTransform(lambda batch: len(batch))])


# Objects of Grain's kind


class Double:
    def map(self, element: Any) -> Any:
        return element * 2


class Noise:
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element * 1000 + rng.integers(1000)


class Even:
    def filter(self, element: Any) -> bool:
        return bool(element % 4 == 0)


class Base:
    def __init__(self, by: int) -> None:
        self.by = by


class Times(Base):
    def map(self, element: Any) -> Any:
        return element * self.by


def test_objects_with_grains_methods_are_the_host_stages() -> None:
    theirs = [list(range(N)), Double(), Even(), Noise(), Times(3), BatchTransform(SIZE)]
    ours = [
        list(range(N)),
        HostMapTransform(lambda x: x * 2),
        HostFilterTransform(lambda x: x % 4 == 0),
        HostRandomMapTransform(lambda x, rng: x * 1000 + rng.integers(1000)),
        HostMapTransform(lambda x: x * 3),
        BatchTransform(SIZE),
    ]
    mine, expected = (DataLoader(stages, workers=2) for stages in (theirs, ours))
    for step in range(5):
        (a, seen), (b, mask) = mine.batch_at(6, step), expected.batch_at(6, step)
        assert a.tolist() == b.tolist()
        assert seen.tolist() == mask.tolist() == [i % 2 == 0 for i in lanes(5)[step]]
        for value, i, real in zip(a.tolist(), lanes(5)[step], mask, strict=True):
            assert not real or value // 3000 == i * 2
    assert "HostRandomMapTransform(" in repr(mine)
    mine.close()
    expected.close()


def test_they_work_after_batching_too() -> None:
    found = some([list(range(N)), BatchTransform(SIZE), Double(), Times(5)])
    assert [batch.tolist() for batch in found] == [[i * 10 for i in step] for step in lanes()]


def test_a_class_of_grains_kind_is_not_an_instance() -> None:
    with pytest.raises(PipelineError, match="stage 1 is the class Double, not an instance"):
        DataLoader([list(range(N)), Double, BatchTransform(SIZE)])


def test_the_drawing_tells_them_apart() -> None:
    drawn = repr(DataLoader([list(range(N)), Double(), Times(3), BatchTransform(SIZE)]))
    assert "Double" in drawn
    assert "Times" in drawn


# The drawing


def read_image(index: int) -> Any:
    return {"image": np.zeros((4, 4), np.uint8), "label": index}


def crop(element: Any, rng: np.random.Generator) -> Any:
    return {**element, "image": element["image"][:2, :2]}


DRAWN: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "images": (
        [
            DiskSampleSource(N, read_image, prefetch_size=12),
            HostRandomMapTransform(crop),
            BatchTransform(SIZE),
            MapTransform(same),
        ],
        {"workers": 2},
        """\
DataLoader: 10 elements, 3 steps an epoch
DiskSampleSource(read_image, ordering=shuffle)  {image: uint8[4,4], label: int32[]}
└─ HostRandomMapTransform(crop)                 {image: uint8[2,2], label: int32[]}
   └─ BatchTransform(4)                         {image: uint8[4,2,2], label: int32[4]}
~~~~ host above, read by 2 threads, 3 batches ahead, until others are measured; compiled below ~~~~
      └─ MapTransform(same)                     {image: uint8[4,2,2], label: int32[4]}""",
    ),
    "texts, collated, by the caller": (
        [["a", "bb"], HostMapTransform(len), BatchTransform(2, collate=np.stack)],
        {"workers": 0},
        """\
DataLoader: 2 elements, the data in its own order, 1 steps an epoch
DatasetSource(list[2], ordering=sequential)  object[]
└─ HostMapTransform(len)                     int32[]
   └─ BatchTransform(2, collate=stack)       int32[2]
~~~~ host above, read by the caller; compiled below ~~~~""",
    ),
    "one thread": (
        [RangeSource(4), BatchTransform(2), HostFilterTransform(bool), MapTransform(same)],
        {"workers": 1, "prefetch": 5},
        """\
DataLoader: 4 elements, the data in its own order, 2 steps an epoch
RangeSource(0, 4, ordering=sequential)  int32[]
└─ BatchTransform(2)                    int32[2]
   └─ HostFilterTransform(bool)         int32[2]
~~~~ host above, read by 1 thread, 5 batches ahead, until others are measured; compiled below ~~~~
      └─ MapTransform(same)             int32[2]""",
    ),
    "batched by compiled code": (
        [[1.5, 2.5], MapTransform(same), BatchTransform(2)],
        {"workers": 0},
        """\
DataLoader: 2 elements, the data in its own order, 1 steps an epoch
DatasetSource(list[2], ordering=sequential)  float32[]
~~~~ host above, read by the caller; compiled below ~~~~
└─ MapTransform(same)                        float32[]
   └─ BatchTransform(2)                      float32[2]""",
    ),
    "padded texts": (
        [[[1, 2], [3]], BatchTransform(2, collate=pad_collate(3))],
        {"workers": 3, "prefetch": 1, "worker_type": "thread"},
        """\
DataLoader: 2 elements, the data in its own order, 1 steps an epoch
DatasetSource(list[2], ordering=sequential)     int32[2]
└─ BatchTransform(2, collate=pad_collate(3))    {lengths: int32[2], values: int32[2,3]}
~~~~ host above, read by 3 threads, 1 batch ahead; compiled below ~~~~""",
    ),
    "nothing on the host": (
        [RangeSource(4), BatchTransform(2)],
        {},
        """\
DataLoader: 4 elements, the data in its own order, 2 steps an epoch
RangeSource(0, 4, ordering=sequential)  int32[]
└─ BatchTransform(2)                    int32[2]""",
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_drawing_shows_the_seam(name: str) -> None:
    stages, options, expected = DRAWN[name]
    found = repr(DataLoader(stages, **options))
    assert [line.split() for line in found.split("\n")] == [
        line.split() for line in expected.split("\n")
    ]


# Compiled stages after the host part


@pytest.mark.parametrize("workers", [0, 3])
def test_a_callback_after_the_host_part_runs_once_per_batch_in_order(workers: int) -> None:
    seen: list[list[int]] = []
    log = HostCallbackTransform(lambda batch, mask: seen.append(np.asarray(batch).tolist()))
    stages = [HostMapTransform(lambda x: x * 2), BatchTransform(SIZE), log]
    loader = DataLoader([list(range(N)), *stages], workers=workers)
    expected = [[i * 2 for i in step] for step in lanes()]
    assert [batch.tolist() for batch, _ in loader.iterate(steps=3)] == expected
    assert seen == expected
    seen.clear()
    loader.scan_epoch(loader.init_state(0), jnp.int32(0), lambda c, batch, mask: (c, None))
    assert seen == expected
    loader.close()


def test_batches_go_to_the_devices_after_host_stages() -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    for place in (jax.devices()[2], NamedSharding(mesh, PartitionSpec("data"))):
        stages = [BatchTransform(SIZE), HostMapTransform(same), DevicePutTransform(place)]
        for batch, step in zip(some([list(range(N)), *stages]), lanes(), strict=True):
            devices = {place} if isinstance(place, jax.Device) else set(jax.devices())
            assert batch.devices() == devices
            assert batch.tolist() == step


# Functions that give the same buffer every time


def reusing() -> Callable[[Any], Any]:
    """Twice its argument, in a buffer per thread that it writes again at every call."""
    mine = threading.local()

    def fn(x: Any) -> Any:
        if not hasattr(mine, "room"):
            mine.room = np.empty(x.shape, x.dtype)
        np.multiply(x, 2, out=mine.room)
        return mine.room

    return fn


PLACES = [("before", 3), ("after", 3), ("after", 5_000), ("after", 40_000), ("collate", 40_000)]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("place", "width"), PLACES)  # 48 bytes, 80 KB and 640 KB a batch
def test_batches_that_are_kept_stay_right_over_a_buffer_used_again(
    place: str, width: int, workers: int
) -> None:
    data, fn, steps = [np.full(width, i, np.float32) for i in range(N)], reusing(), 30
    stages: list[Any] = {
        "before": [HostMapTransform(fn), BatchTransform(SIZE)],
        "after": [BatchTransform(SIZE), HostMapTransform(fn)],
        "collate": [BatchTransform(SIZE, collate=lambda many: fn(np.stack(many)))],
    }[place]
    kept = some([data, *stages], steps, workers=workers)
    for batch, step in zip(kept, lanes(steps), strict=True):
        np.testing.assert_array_equal(batch, np.stack([data[i] * 2 for i in step]))


@pytest.mark.parametrize("width", [3, 40_000])
def test_what_stands_in_for_failed_batches_may_be_one_buffer_too(width: int) -> None:
    room = np.empty((SIZE, width), np.float32)

    def fails(batch: Any) -> Any:
        if batch[0, 0] >= 4:
            raise ValueError
        return batch

    def answer(error: Exception) -> Any:
        room[:] = error.element.index  # type: ignore[attr-defined]
        return room

    data = [np.full(width, i, np.float32) for i in range(100)]
    stages = [data, BatchTransform(SIZE), HostMapTransform(fails)]
    kept = some(stages, 20, workers=0, on_error=answer)
    assert [float(batch[1, -1]) for batch in kept] == [1.0, *(4.0 * step for step in range(1, 20))]


def test_a_function_may_keep_and_give_back_batches_of_before() -> None:
    kept: list[Any] = []

    def late(batch: Any) -> Any:
        kept.append(batch)
        return kept[max(0, len(kept) - 3)]

    data = [np.full(20_000, i, np.float32) for i in range(N)]
    stages = [data, BatchTransform(SIZE), HostMapTransform(late)]
    found = some(stages, 20, workers=0)
    kept_at_build = len(kept) - 20
    assert kept_at_build >= 1
    for step, batch in enumerate(found[2:]):
        np.testing.assert_array_equal(batch, np.stack([data[i] for i in lanes(20)[step]]))
