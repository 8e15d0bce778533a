"""Host sources and host stages inside, around and after all other sources and stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cereal
from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    DatasetSource,
    FilterTransform,
    HostFilterTransform,
    HostMapTransform,
    HostRandomMapTransform,
    MapTransform,
    MemmapSource,
    MixSource,
    RandomMapTransform,
    RangeSource,
    RepeatSource,
    SliceSource,
    TimeSeriesBatchTransform,
    UnbatchTransform,
    WindowSource,
    ZipSource,
)
from cereal.testing import assert_same, check_loader, check_source

pytestmark = pytest.mark.slow
A, B = list(range(7)), list(range(100, 111))
N, SIZE = 10, 4
Make = Callable[[Any, Any], Any]


def texts(numbers: list[int], ordering: str = "sequential") -> DatasetSource:
    return DatasetSource([f"<{number}>" for number in numbers], ordering=ordering)


def number(text: Any) -> Any:
    """Texts to numbers; of pairs, both."""
    return jax.tree.map(lambda each: int(each[1:-1]), text)


NUMBER = HostMapTransform(number)
BATCH = BatchTransform(SIZE)
# The elements of a combination by index, as Python has them
COMBINED: dict[str, tuple[Make, Any]] = {
    "concat": (lambda a, b: ConcatSource([a, b]), A + B),
    "concat, shuffled": (lambda a, b: ConcatSource([b, a], ordering="shuffle"), B + A),
    "concat of a concat": (
        lambda a, b: ConcatSource([ConcatSource([a, b]), SliceSource(a, range(3))]),
        A + B + A[:3],
    ),
    "slice": (lambda a, b: SliceSource(b, range(9, 1, -2)), B[9:1:-2]),
    "listed": (lambda a, b: SliceSource(b, [5, 5, 0, 2]), [B[5], B[5], B[0], B[2]]),
    "repeat": (lambda a, b: RepeatSource(a, 3), A * 3),
    "zip": (
        lambda a, b: ZipSource({"a": a, "b": SliceSource(b, range(7))}, ordering="shuffle"),
        [{"a": x, "b": y} for x, y in zip(A, B, strict=False)],
    ),
    "split": (lambda a, b: cereal.split(b, (6, 5))[1], B[6:]),
    "part": (lambda a, b: SliceSource(ConcatSource([a, b]), range(5, 9)), (A + B)[5:9]),
}


def check_by_index(loader: DataLoader[Any], elements: list[Any], steps: int = 5) -> None:
    """Every batch is that of the elements at the loader's indices."""
    with loader:
        batches = list(loader.iterate(loader.init_state(3), steps=steps))
    for step, (batch, mask) in enumerate(batches):
        expected = [elements[index] for index in loader.indices_at(3, step)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.int32), *expected)
        kept = jax.tree.map(lambda x, mask=mask: np.asarray(x)[np.asarray(mask)], batch)
        assert_same(kept, stacked, f"step {step}")


@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("place", ["below", "above", "after batching"])
def test_combined_texts_are_the_elements_at_their_indices(name: str, place: str) -> None:
    make, elements = COMBINED[name]
    twice = HostMapTransform(lambda x: jax.tree.map(lambda y: y * 2, x))
    doubled = [jax.tree.map(lambda y: y * 2, x) for x in elements]
    stages = {
        "below": [make(NUMBER(texts(A)), NUMBER(texts(B))), twice, BATCH],
        "above": [make(texts(A), texts(B)), NUMBER, twice, BATCH],
        "after batching": [make(texts(A), texts(B)), NUMBER, BATCH, twice],
    }[place]
    check_by_index(DataLoader(stages, workers=2), doubled)


@pytest.mark.parametrize("name", ["concat, shuffled", "concat of a concat", "zip", "slice"])
def test_a_part_on_the_host_beside_one_in_memory(name: str) -> None:
    make, elements = COMBINED[name]
    host, array = NUMBER(texts(A)), ArraySampleSource(np.array(B), ordering="sequential")
    same = HostMapTransform(lambda x: x)
    check_by_index(DataLoader([make(host, array), BATCH]), elements)
    check_by_index(DataLoader([make(host, array), same, BATCH]), elements)
    check_by_index(DataLoader([make(RangeSource(7), array), same, BATCH]), elements)


def test_random_splits_and_folds_of_texts_have_every_element_once() -> None:
    for parts in (
        cereal.split(texts(B), (0.3, 0.7), key=5),
        [cereal.kfold(texts(B), 3, fold, key=2)[1] for fold in range(3)],
    ):
        found: list[int] = []
        for part in parts:
            loader = DataLoader([part, NUMBER, BatchTransform(len(part))])
            found += loader.batch_at(1, 0)[0].tolist()
            loader.close()
        assert sorted(found) == B


@pytest.mark.parametrize("weights", [(1, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("place", ["below", "above"])
def test_a_mixture_of_texts_is_the_mixture_of_their_numbers(place: str, weights: Any) -> None:
    make = lambda a, b: MixSource([a, b], weights, ordering="shuffle")  # noqa: E731
    arrays = [ArraySampleSource(np.array(part)) for part in (A, B)]
    expected = DataLoader([make(*arrays), BATCH])
    if place == "below":
        mine = DataLoader([make(NUMBER(texts(A)), NUMBER(texts(B))), BATCH], workers=2)
    else:
        mine = DataLoader([make(texts(A), texts(B)), NUMBER, BATCH], workers=2)
    found = [batch.tolist() for batch, _ in mine.iterate(mine.init_state(4), steps=11)]
    assert found == [b.tolist() for b, _ in expected.iterate(expected.init_state(4), steps=11)]
    flat = [x for batch in found for x in batch]
    first = [x for x in flat if x < 100]
    assert sorted(first[:7]) == A
    share = weights[0] / sum(weights)
    assert all(abs(sum(x < 100 for x in flat[:n]) - n * share) <= 1 for n in range(1, 44))
    mine.close()


@pytest.mark.filterwarnings("ignore:.*is larger than the data")
def test_a_selection_of_host_elements_reads_survivors_only() -> None:
    chosen = cereal.select(NUMBER(texts(B)), lambda x: x % 3 == 0)
    check_by_index(DataLoader([chosen, HostMapTransform(lambda x: x), BATCH]),
                   [x for x in B if x % 3 == 0])  # fmt: skip


# Random host stages

RANDOM: dict[str, Make] = {
    "mix": lambda a, b: MixSource([a, b], (1, 2), ordering="shuffle"),
    **{name: make for name, (make, _) in COMBINED.items() if name != "concat of a concat"},
}


def raw(x: Any, rng: np.random.Generator) -> Any:
    return rng.integers(0, 1 << 31, 2)


def words_of(x: Any, key: jax.Array) -> Any:
    return jax.random.key_data(key)


def of_words(words: Any) -> Any:
    flat = np.asarray(words).reshape(-1, 2)
    keys = [(int(high) << 32) | int(low) for high, low in flat]
    drawn = [np.random.Generator(np.random.Philox(key=key)).integers(0, 1 << 31, 2) for key in keys]
    return np.stack(drawn).reshape(np.shape(words)).astype(np.int32)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *((name, "below") for name in RANDOM),
        *((name, "above") for name in ("concat", "zip", "mix")),
    ],
)
def test_random_host_stages_have_the_keys_of_traced_ones(name: str, place: str) -> None:
    make, host, traced = RANDOM[name], HostRandomMapTransform(raw), RandomMapTransform(words_of)
    arrays = [ArraySampleSource(np.array(part), ordering="sequential") for part in (A, B)]
    if place == "below":
        mine = [make(host(texts(A)), host(texts(B))), BATCH]
        theirs = [make(*map(traced, arrays)), BATCH]
    else:
        mine = [make(texts(A), texts(B)), host, BATCH]
        theirs = [make(*arrays), traced, BATCH]
    loader, expected = DataLoader(mine, workers=2), DataLoader(theirs)
    for step, (batch, _) in enumerate(loader.iterate(loader.init_state(8), steps=6)):
        words = expected.batch_at(8, step)[0]
        assert_same(batch, jax.tree.map(of_words, words), f"step {step}")
    loader.close()


@pytest.mark.parametrize("name", ["concat", "zip", "mix", "repeat"])
def test_every_road_over_random_host_parts_is_the_same(name: str) -> None:
    stage = HostRandomMapTransform(raw)
    source = RANDOM[name](stage(texts(A)), stage(texts(B)))
    loader = DataLoader([source, BatchTransform(7, pad_last_batch=True)])
    check_loader(loader)
    loader.close()


def test_a_random_part_under_a_compiled_or_a_host_stage_is_the_same() -> None:
    stage = HostRandomMapTransform(raw)
    parts = ConcatSource([stage(texts(A)), stage(texts(B))])
    plain, host, compiled = (
        DataLoader([parts, *above, BATCH])
        for above in ([], [HostMapTransform(lambda x: x)], [MapTransform(lambda x: x)])
    )
    for step in range(5):
        expected = plain.batch_at(2, step)
        assert_same(host.batch_at(2, step), expected, "host")
        assert_same(compiled.batch_at(2, step), expected, "compiled")


def test_filtered_parts_are_masked_in_combinations() -> None:
    even = HostFilterTransform(lambda x: x % 2 == 0)
    a, b = even(NUMBER(texts(A))), NUMBER(texts(B))
    for source, elements in (
        (ConcatSource([a, b]), A + B),
        (SliceSource(ConcatSource([b, a]), range(17, 7, -1)), (B + A)[17:7:-1]),
        (RepeatSource(a, 2), A * 2),
        (cereal.UnbatchTransform()(HostMapTransform(lambda x: [x, x])(a)), sorted(A * 2)),
    ):
        loader = DataLoader([source, BATCH])
        for step in range(4):
            batch, mask = loader.batch_at(0, step)
            expected = [elements[index] for index in loader.indices_at(0, step)]
            kept = [x >= 100 or x % 2 == 0 for x in expected]
            assert mask.tolist() == kept
            assert batch[mask].tolist() == [x for x, k in zip(expected, kept, strict=True) if k]
        loader.close()


# Files, caches, streams, metrics


def test_windows_of_a_file_go_through_host_stages(tmp_path: Path) -> None:
    series = np.arange(40, dtype=np.float32)
    series.tofile(tmp_path / "series.bin")
    mapped = np.memmap(tmp_path / "series.bin", np.float32, "r")
    windows = WindowSource(mapped, 5, 2, predict=1)
    stages = [HostMapTransform(lambda w: {"context": w["context"] * 2}), BATCH]
    loader = DataLoader([windows, *stages, TimeSeriesBatchTransform(mode="packed")], workers=2)
    for step in range(6):
        batch, at = loader.batch_at(1, step)[0], loader.indices_at(1, step)
        expected = np.concatenate([series[2 * i : 2 * i + 5] * 2 for i in at])[:, None]
        np.testing.assert_array_equal(batch["context"], expected)
        assert batch["sequence_start"].tolist() == [True, *[False] * 4] * SIZE
    loader.close()


def test_a_mapped_file_beside_texts_goes_through_host_stages(tmp_path: Path) -> None:
    rows = np.arange(28, dtype=np.int32).reshape(7, 4)
    cereal.save_arrays(tmp_path / "rows.npy", rows)
    pairs = ZipSource([MemmapSource(tmp_path / "rows.npy", ordering="shuffle"), texts(A)])
    joined = HostMapTransform(lambda pair: [int(x) for x in pair[0]] + [number(pair[1])])
    check_by_index(
        DataLoader([pairs, joined, BATCH]), [np.array([*rows[i], A[i]]) for i in range(7)]
    )


def squares_in(path: Path) -> Callable[[Any], Any]:
    """Squares; every call is a line of a file."""
    name = str(path)

    def square(x: Any) -> Any:
        with open(name, "a") as file:
            file.write(f"{x}\n")
        return x * x

    return square


@pytest.mark.parametrize("where", ["host", "folder"])
def test_a_cache_after_a_host_stage_calls_it_once_per_element(where: str, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "cache"
    square = HostMapTransform(squares_in(log))
    cache = CacheTransform(folder if where == "folder" else "host")
    stages = [DatasetSource(A, ordering="shuffle"), square, cache]
    loader = DataLoader([*stages, HostMapTransform(lambda x: x + 1), BATCH], workers=3)
    check_by_index(loader, [x * x + 1 for x in A], steps=8)
    jax.block_until_ready(jax.jit(loader.next_batch)(loader.init_state(0)))
    loader.close()
    called = sorted(map(int, log.read_text().split()))
    assert called in (A, [0, *A])  # building looks at element 0
    if where == "folder":
        check_by_index(DataLoader([*stages, BATCH]), [x * x for x in A])
        assert len(log.read_text().split()) <= len(called) + 5  # opening a cache checks a few


def squared(x: Any) -> Any:
    return x * x


def test_a_cache_in_files_knows_the_host_function_above_it(tmp_path: Path) -> None:
    for fn in (squared, abs, squared):
        stages = [DatasetSource(A), HostMapTransform(fn), CacheTransform(tmp_path)]
        check_by_index(DataLoader([*stages, BATCH]), [fn(x) for x in A])
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_of_filtered_elements_keeps_their_masks() -> None:
    even = HostFilterTransform(lambda x: x % 2 == 0)
    stages = [DatasetSource(A), even, CacheTransform("host"), BATCH]
    with DataLoader(stages) as loader:
        for step, (batch, mask) in enumerate(loader.iterate(steps=5)):
            at = [x % 7 for x in range(step * SIZE, step * SIZE + SIZE)]
            assert mask.tolist() == [x % 2 == 0 for x in at]
            assert batch[mask].tolist() == [x for x in at if x % 2 == 0]


def test_batches_of_host_stages_are_taken_apart_again() -> None:
    swap = HostMapTransform(lambda batch: batch[::-1].copy())
    loader = DataLoader([A, BatchTransform(2), swap, UnbatchTransform(), BatchTransform(3)])
    found = [batch.tolist() for batch, _ in loader.iterate(steps=4)]
    flat = [x for i in range(0, 12, 2) for x in ((i + 1) % 7, i % 7)]
    assert found == [flat[i : i + 3] for i in range(0, 12, 3)]
    check_loader(loader)


def test_elements_that_are_batches_are_taken_apart() -> None:
    rows = HostMapTransform(lambda text: [number(text), -number(text)])
    source = UnbatchTransform()(rows(texts(B, "shuffle")))
    check_by_index(DataLoader([source, BATCH]), [y for x in B for y in (x, -x)])


def test_compiled_filters_and_random_stages_follow_host_parts() -> None:
    small = FilterTransform(lambda x: x < 105)
    noise = RandomMapTransform(lambda x, key: x * 100 + jax.random.randint(key, (), 0, 100))
    mine = DataLoader([texts(B), NUMBER, small, BATCH, noise], workers=2)
    theirs = DataLoader([ArraySampleSource(np.array(B), "sequential"), small, BATCH, noise])
    for step in range(5):
        batch, mask = mine.batch_at(6, step)
        assert_same((batch, mask), theirs.batch_at(6, step), f"step {step}")
        at = mine.indices_at(6, step)
        assert mask.tolist() == [B[i] < 105 for i in at]
        assert (batch // 100).tolist() == [B[i] for i in at]
    mine.close()


@pytest.mark.parametrize("rule", [{}, {"pad_last_batch": True}, {"drop_last": True}], ids=str)
def test_metrics_over_host_parts_count_every_element_once(rule: dict[str, Any]) -> None:
    stages = [ConcatSource([texts(A), texts(B)]), NUMBER, BatchTransform(SIZE, **rule)]
    with DataLoader(stages, workers=2) as loader:
        found = cereal.evaluate(loader, lambda batch: {"mean": batch, "odd": batch % 2 == 1})
    assert float(found["mean"]) == pytest.approx(np.mean(A + B))
    assert float(found["odd"]) == pytest.approx(np.mean(np.array(A + B) % 2))


@pytest.mark.parametrize("name", ["concat", "zip"])
def test_combined_host_sources_keep_the_contract(name: str) -> None:
    source = COMBINED[name][0](NUMBER(texts(A)), NUMBER(texts(B)))
    check_source(source)


# Sources in memory before host stages


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (32, 32, 3), (5,)], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_small_images_arrive_as_they_are_however_they_are_stored(
    workers: int, shape: tuple[int, ...]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (N, *shape), np.uint8)
    data = {"image": images, "label": np.arange(N, dtype=np.int16)}
    source = ArraySampleSource(data, ordering="shuffle", index_key="index")

    def check(element: Any) -> Any:
        assert element["image"].dtype == np.uint8
        assert element["image"].shape == shape
        np.testing.assert_array_equal(element["image"], images[element["index"]])
        return {**element, "total": element["image"].sum(dtype=np.int32)}

    with DataLoader(
        [source, HostMapTransform(check), BatchTransform(SIZE)], workers=workers
    ) as loader:
        for step, (batch, _) in enumerate(loader.iterate(loader.init_state(2), steps=5)):
            at = loader.indices_at(2, step)
            np.testing.assert_array_equal(batch["image"], images[at])
            np.testing.assert_array_equal(batch["index"], at)
            np.testing.assert_array_equal(batch["label"], at)
            np.testing.assert_array_equal(
                batch["total"], images[at].reshape(SIZE, -1).sum(1, np.int32)
            )


def test_a_range_with_its_index_before_host_stages() -> None:
    source = RangeSource(100, 100 + N, ordering="shuffle", index_key="index")
    loader = DataLoader([source, HostMapTransform(lambda e: {**e, "twice": e["value"] * 2}),
                         BatchTransform(SIZE)])  # fmt: skip
    for step in range(5):
        batch, at = loader.batch_at(1, step)[0], loader.indices_at(1, step)
        np.testing.assert_array_equal(batch["index"], at)
        np.testing.assert_array_equal(batch["value"], at + 100)
        np.testing.assert_array_equal(batch["twice"], 2 * (at + 100))
    loader.close()
