"""torch's tensors: read without a copy, or refused with what to write. Its loaders and samplers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import cereal
from cereal import ArraySampleSource, BatchTransform, DataLoader, DatasetSource, PipelineError
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import BATCH, IMAGES, LABELS, N, check_values, equal, loader_of, rows

pytestmark = pytest.mark.bridges
torch = import_module("torch")
data = import_module("torch.utils.data")

X, Y = torch.from_numpy(IMAGES), torch.from_numpy(LABELS).long()
FLOATS = X.float()


def pairs() -> Any:
    return data.TensorDataset(X, Y)


def table_of(source: Any) -> Any:
    return source.data.table


def test_the_memory_of_tensors_is_shared() -> None:
    images = X.clone()
    source = DatasetSource(data.TensorDataset(images, Y))
    images[0] = 7
    found = rows(loader_of(source))
    assert (found[0][0] == 7).all()
    leaves = table_of(source)._arrays.leaves
    assert np.shares_memory(leaves[0], images.numpy())


def test_the_source_keeps_its_promises() -> None:
    source = DatasetSource(pairs(), ordering="shuffle")
    check_source(source)
    check_all_ways(DataLoader([source, BatchTransform(3)]))


SOME = data.Subset(pairs(), [7, -1, 2, 2, 0])
NESTED: dict[str, tuple[Any, Any]] = {
    "Subset": (SOME, (IMAGES[[7, 9, 2, 2, 0]], LABELS[[7, 9, 2, 2, 0]])),
    "Subset of a Subset": (data.Subset(SOME, range(1, 3)), (IMAGES[[9, 2]], LABELS[[9, 2]])),
    "by a tensor": (data.Subset(pairs(), torch.tensor([3, 1])), (IMAGES[[3, 1]], LABELS[[3, 1]])),
    "ConcatDataset": (
        data.ConcatDataset([SOME, pairs()]),
        (
            np.concatenate([IMAGES[[7, 9, 2, 2, 0]], IMAGES]),
            np.concatenate([LABELS[[7, 9, 2, 2, 0]], LABELS]),
        ),
    ),
    "StackDataset": (data.StackDataset(pairs(), pairs()), ((IMAGES, LABELS), (IMAGES, LABELS))),
    "StackDataset, named": (
        data.StackDataset(b=data.TensorDataset(Y), a=pairs()),
        {"a": (IMAGES, LABELS), "b": (LABELS,)},
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_datasets_made_of_tensor_datasets_are_tables_too(name: str) -> None:
    dataset, wanted = NESTED[name]
    assert table_of(DatasetSource(dataset)).quick
    assert table_of(DatasetSource(dataset)).digest()
    check_values(dataset, wanted)
    with DataLoader([dataset, BatchTransform(2)], workers=1, worker_type="process") as loader:
        equal(rows(DataLoader([dataset, BatchTransform(len(dataset))])), wanted)
        next(iter(loader))


class Doubled(data.TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * each for each in super().__getitem__(index))


def test_a_subclass_that_reads_in_its_own_way_is_asked() -> None:
    check_values(Doubled(Y), (2 * LABELS,))
    check_values(data.Subset(Doubled(Y), [3, 4]), (2 * LABELS[3:5],))
    mixed = data.ConcatDataset([data.TensorDataset(Y), Doubled(Y)])
    check_values(mixed, (np.concatenate([LABELS, 2 * LABELS]),))


TYPES: dict[str, tuple[Any, Any]] = {
    "bfloat16": (FLOATS.bfloat16(), IMAGES.astype(ml_dtypes.bfloat16)),
    "float8": (FLOATS.to(torch.float8_e5m2), IMAGES.astype(ml_dtypes.float8_e5m2)),
    "requires_grad": (FLOATS.clone().requires_grad_(), IMAGES.astype(np.float32)),
    "Parameter": (torch.nn.Parameter(FLOATS), IMAGES.astype(np.float32)),
    "conjugate": (torch.complex(FLOATS, FLOATS).conj(), (IMAGES - 1j * IMAGES).astype("c8")),
    "turned": (X.permute(0, 2, 1), IMAGES.transpose(0, 2, 1)),
    "bool": (X > 9, IMAGES > 9),
    "half": (FLOATS.half(), IMAGES.astype(np.float16)),
}


@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_any_type_are_read_whole_and_as_elements(name: str) -> None:
    tensor, wanted = TYPES[name]
    check_values(data.TensorDataset(tensor), (wanted,))
    check_values([{"x": row} for row in tensor], {"x": wanted})


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (X.to("meta"), r"is on meta, and cereal reads the memory of the host; .*`tensor.cpu\(\)`"),
        (FLOATS.to_sparse(), r"is sparse \(torch.sparse_coo\); write `tensor.to_dense\(\)`"),
    ],
    ids=["device", "sparse"],
)
def test_memory_that_numpy_cannot_share_is_refused(tensor: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=f"tensor 0 of the TensorDataset {words}"):
        loader_of(data.TensorDataset(tensor, Y))
    with pytest.raises(PipelineError, match=rf"`data\['x'\]` {words}"):
        loader_of({"x": tensor, "y": Y})
    with pytest.raises(PipelineError, match=rf"element\['x'\]`: the tensor {words}"):
        loader_of([{"x": each} for each in tensor])


def test_a_number_that_does_not_fit_names_its_tensor_and_element() -> None:
    large = Y.clone()
    large[6] = 2**40
    with pytest.raises(PipelineError, match=r"TensorDataset\[1\]: the integer 1099511") as caught:
        rows(loader_of(data.TensorDataset(X, large)))
    assert caught.value.element.index == 6  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("indices", "words"),
    [([1, 10], r"`indices\[1\]` of a Subset is 10, .* has 10 elements"), ([0.5], "integers")],
)
def test_indices_outside_are_refused(indices: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        loader_of(data.Subset(pairs(), indices))


def test_datasets_of_nothing_are_refused() -> None:
    with pytest.raises(PipelineError, match="holds no tensors"):
        loader_of(data.TensorDataset())
    with pytest.raises(PipelineError, match="has 0 elements"):
        loader_of(data.Subset(pairs(), []))


# Trees of tensors


def test_a_tree_of_tensors_is_data_like_arrays() -> None:
    for tree, wanted in (
        ((X, Y), (IMAGES, LABELS)),
        ({"image": X, "label": LABELS}, {"image": IMAGES, "label": LABELS}),
        (X, IMAGES),
    ):
        equal(rows(DataLoader([tree, BatchTransform(BATCH, pad_last_batch=True)])), wanted)
        source = ArraySampleSource(tree, ordering="sequential")
        equal(rows(DataLoader([source, BatchTransform(5)])), wanted)
        equal(cereal.dataset_to_jax(tree), wanted)


def test_host_stages_get_arrays() -> None:
    seen: list[type] = []

    def double(element: Any) -> Any:
        seen.append(type(element[0]))
        return 2 * element[0].astype(np.int32)

    loader = DataLoader([pairs(), cereal.HostMapTransform(double), BatchTransform(5)], workers=0)
    equal(rows(loader), 2 * IMAGES.astype(np.int32))
    assert set(seen) == {np.ndarray}


def test_a_cache_is_named_by_the_values(tmp_path: Any) -> None:
    def labels_of(labels: Any) -> Any:
        cache = cereal.CacheTransform(tmp_path)
        with DataLoader([data.TensorDataset(labels), cache, BatchTransform(5)]) as loader:
            return rows(loader)[0].tolist()

    assert labels_of(Y) == labels_of(Y) == LABELS.tolist()
    assert len(list(tmp_path.iterdir())) == 1
    assert labels_of(Y + 1) == (LABELS + 1).tolist()


# Loaders and samplers, given by mistake


def loader(**options: Any) -> Any:
    return data.DataLoader(pairs(), **options)


WEIGHTED = data.WeightedRandomSampler(np.ones(N), 4)
LOADERS: list[tuple[Any, str]] = [
    (loader(batch_size=6), "DataLoader([loader.dataset, BatchTransform(6)])"),
    (
        loader(batch_size=4, shuffle=True, drop_last=True, num_workers=2),
        'DataLoader([DatasetSource(loader.dataset, ordering="shuffle"), '
        "BatchTransform(4, drop_last=True)], workers=2)",
    ),
    (loader(batch_size=None), "DataLoader([loader.dataset])"),
    (
        loader(batch_size=2, collate_fn=tuple),
        "DataLoader([loader.dataset, BatchTransform(2, collate=loader.collate_fn)])",
    ),
    (
        loader(sampler=WEIGHTED, batch_size=2),
        "DataLoader([DatasetSource(loader.dataset, ordering=WeightedSampling("
        "loader.sampler.weights, length=4)), BatchTransform(2)])",
    ),
    (
        loader(sampler=[3, 1], batch_size=2),
        "DataLoader([DatasetSource(loader.dataset, ordering=list(loader.sampler)), "
        "BatchTransform(2)])",
    ),
    (
        loader(sampler=data.SubsetRandomSampler([1, 2]), batch_size=2),
        "DataLoader([SliceSource(DatasetSource(loader.dataset), loader.sampler.indices, "
        'ordering="shuffle"), BatchTransform(2)])',
    ),
    (
        loader(batch_sampler=data.BatchSampler(data.SequentialSampler(range(N)), 5, False)),
        "DataLoader([DatasetSource(loader.dataset, ordering=[i for batch in loader.batch_sampler "
        "for i in batch]), BatchTransform(5)])",
    ),
]


@pytest.mark.parametrize(("given", "line"), LOADERS, ids=[line for _, line in LOADERS])
def test_a_loader_of_torch_gets_the_line_to_write_and_the_line_runs(given: Any, line: str) -> None:
    for wrong in (loader_of, DataLoader, DatasetSource):
        with pytest.raises(PipelineError) as caught:
            wrong(given)
        assert f"write `{line}`" in str(caught.value)
    written = line if "collate" not in line else line.replace("loader.collate_fn", "stacked")
    names = {**vars(cereal), "loader": given, "stacked": stacked}
    with eval(written, names) as ours:
        assert len(list(ours.iterate(ours.init_state(0)))) > 0


def stacked(elements: Any) -> Any:
    return jax.tree.map(lambda *each: np.stack(each), *elements)


@pytest.mark.parametrize(
    ("sampler", "line"),
    [
        (data.SequentialSampler(Y), "[dataset, BatchTransform(128)]"),
        (data.RandomSampler(Y), 'DatasetSource(dataset, ordering="shuffle")'),
        (data.RandomSampler(Y, replacement=True), "ordering=Bootstrap()"),
        (WEIGHTED, "ordering=WeightedSampling(sampler.weights, length=4)"),
        (
            data.BatchSampler(data.RandomSampler(Y), 6, True),
            'ordering="shuffle"), BatchTransform(6, drop_last=True)]',
        ),
        (data.DistributedSampler(Y, 2, 0), 'BatchTransform(128)], shard="jax")'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sampler_gets_the_line_to_write(sampler: Any, line: str) -> None:
    for wrong in (lambda: loader_of(sampler), lambda: DatasetSource(pairs(), ordering=sampler)):
        with pytest.raises(PipelineError) as caught:
            wrong()
        assert line in str(caught.value)


def test_torchs_options_are_answered_with_one_line() -> None:
    options: Any = {"batch_size": 64, "shuffle": True, "num_workers": 2, "drop_last": True}
    with pytest.raises(cereal.UsageError) as caught:
        DataLoader(pairs(), **options)
    assert (
        'DataLoader([DatasetSource(data, ordering="shuffle"), BatchTransform(64, drop_last=True)], '
        "workers=2)" in str(caught.value)
    )
