"""torch datasets, first in a loader's list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import cereal
from cereal import BatchTransform, DataLoader, DatasetSource, IterableSource, PipelineError

from .checks import (
    BATCH,
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    equal,
    loader_of,
    rows,
)

pytestmark = pytest.mark.bridges
torch = import_module("torch")
data = import_module("torch.utils.data")


class Arrays(data.Dataset):
    """NumPy arrays and numbers, as most datasets of images give them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return IMAGES[index].astype(np.float32), int(LABELS[index])


class Tensors(data.Dataset):
    """Tensors in a dict."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.from_numpy(IMAGES[index]), "label": torch.tensor(index)}


class ManyAtOnce(Tensors):
    """With `__getitems__`, which torch's own loader calls with the indices of a batch."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked.append(indices)
        return [self[index] for index in indices]


def tensor_dataset() -> Any:
    return data.TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS).long())


PAIRS, SOME = (IMAGES, LABELS), [7, 2, 2]
DATASETS: dict[str, tuple[Callable[[], Any], Any]] = {
    "arrays": (Arrays, (IMAGES.astype(np.float32), LABELS)),
    "tensors": (Tensors, {"image": IMAGES, "label": LABELS}),
    "many at once": (ManyAtOnce, {"image": IMAGES, "label": LABELS}),
    "TensorDataset": (tensor_dataset, PAIRS),
    "Subset": (lambda: data.Subset(tensor_dataset(), SOME), (IMAGES[SOME], LABELS[SOME])),
    "ConcatDataset": (
        lambda: data.ConcatDataset([tensor_dataset(), tensor_dataset()]),
        (np.concatenate([IMAGES, IMAGES]), np.concatenate([LABELS, LABELS])),
    ),
    "StackDataset": (
        lambda: data.StackDataset(a=tensor_dataset(), b=Tensors()),
        {"a": PAIRS, "b": {"image": IMAGES, "label": LABELS}},
    ),
}
WHOLE = ["arrays", "tensors", "many at once", "TensorDataset"]


@pytest.mark.parametrize("name", DATASETS)
def test_a_bare_dataset_gives_its_elements(name: str) -> None:
    make, wanted = DATASETS[name]
    check_values(make(), wanted)


@pytest.mark.parametrize("name", WHOLE)
def test_a_shuffled_epoch_is_complete(name: str) -> None:
    make, wanted = DATASETS[name]

    def label(found: Any) -> Any:
        return found["label"] if isinstance(found, dict) else found[1]

    check_shuffled(DatasetSource(make(), ordering="shuffle"), wanted, label)


@pytest.mark.parametrize("name", WHOLE)
def test_it_goes_on_in_the_middle_of_an_epoch(name: str) -> None:
    check_resume(*DATASETS[name])


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_read_inside_of_jit(name: str) -> None:
    make, wanted = DATASETS[name]
    check_in_jit(make(), wanted)


def test_batches_are_those_of_torchs_own_loader() -> None:
    own = [[x.numpy() for x in batch] for batch in data.DataLoader(tensor_dataset(), batch_size=5)]
    ours = list(DataLoader([tensor_dataset(), BatchTransform(5)]))
    assert len(own) == len(ours) == 2
    for (images, labels), (batch, mask) in zip(own, ours, strict=True):
        assert np.asarray(mask).all()
        equal(batch, (images, labels.astype(np.int32)))


def test_a_batch_is_one_call_of_getitems() -> None:
    dataset = ManyAtOnce()
    with loader_of(dataset, workers=1) as loader:
        rows(loader)
    assert len(dataset.asked) == -(-N // BATCH)
    assert {index for indices in dataset.asked for index in indices} == set(range(N))


def test_the_parts_of_a_random_split_are_disjoint() -> None:
    parts = data.random_split(tensor_dataset(), [6, 4])
    found = [rows(loader_of(part))[1].tolist() for part in parts]
    assert sorted(found[0] + found[1]) == list(range(N))
    assert [found[0], found[1]] == [part.indices for part in parts]


def test_read_once_it_trains_in_one_program() -> None:
    stages = [tensor_dataset(), cereal.CacheTransform("device"), BatchTransform(5)]
    loader = DataLoader(stages)

    def add(total: Any, batch: Any, mask: Any) -> Any:
        return total + batch[0].astype(np.int32).sum(), batch[1]

    _, total, labels = loader.scan_epoch(loader.init_state(0), 0, add)
    assert int(total) == int(IMAGES.astype(np.int64).sum())
    assert labels.reshape(-1).tolist() == LABELS.tolist()


def test_it_becomes_arrays_in_one_call() -> None:
    equal(cereal.dataset_to_jax(tensor_dataset()), PAIRS)


# What only iterates


class Stream(data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        yield from ({"image": torch.from_numpy(IMAGES[i]), "label": i} for i in range(N))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return N


@pytest.mark.parametrize("length", [None, N])
def test_an_iterable_dataset_is_read_through_a_function_that_makes_it(length: int | None) -> None:
    def source() -> Any:
        return IterableSource(lambda: Stream(), length=length)

    wanted = {"image": IMAGES, "label": LABELS}
    check_values(source(), wanted)
    check_resume(source, wanted)
    check_in_jit(source(), wanted)


def test_one_iterable_dataset_serves_every_epoch() -> None:
    dataset = Stream()
    loader = loader_of(IterableSource(lambda: dataset))
    assert rows(loader, epochs=3)["label"].tolist() == LABELS.tolist() * 3


@pytest.mark.parametrize("kind", [Stream, StreamWithLength])
def test_a_bare_iterable_dataset_is_a_stream(kind: Any) -> None:
    wanted = {"image": IMAGES, "label": LABELS}
    check_values(kind(), wanted)
    check_resume(kind, wanted)
    assert str(loader_of(kind()).source).startswith("BatchTransform")
    assert f"IterableSource({kind.__name__}" in repr(loader_of(kind()))


class Epochs(data.IterableDataset):
    """In every epoch another order, once it is told the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(np.random.default_rng(self.epoch).permutation(N).astype(np.int32))


def test_a_stream_is_told_its_epoch() -> None:
    dataset = Epochs()
    loader = DataLoader([dataset, BatchTransform(5)])
    batches = loader.iterate(loader.init_state(0), epochs=3)
    found = np.concatenate([batch for batch, _ in batches]).reshape(3, N)
    wanted = [np.random.default_rng(epoch).permutation(N) for epoch in range(3)]
    assert found.tolist() == [order.tolist() for order in wanted]
    assert dataset.epoch == 0  # the user's own is left alone


def test_an_explicit_source_over_a_stream_is_told_where_to_go() -> None:
    with pytest.raises(PipelineError, match=r"a Stream can only be iterated.*as it is"):
        DatasetSource(Stream())


# What is wrong


def test_a_class_is_told_to_be_an_instance() -> None:
    with pytest.raises(PipelineError, match=r"stage 0 is the class Arrays, not an instance"):
        loader_of(Arrays)


def test_an_error_in_the_dataset_names_the_element() -> None:
    class Broken(Arrays):
        def __getitem__(self, index: int) -> Any:
            if index == 6:
                raise OSError("a file is gone")
            return super().__getitem__(index)

    batches = loader_of(Broken()).iterate()
    next(batches)
    with pytest.raises(OSError, match="a file is gone") as caught:
        next(batches)
    assert caught.value.element.index == 6  # type: ignore[attr-defined]
    batches.close()


def test_images_of_different_sizes_name_the_element_and_the_fix() -> None:
    class Photos(Arrays):
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return image[: 4 if index == 6 else 5], label

    with pytest.raises(PipelineError, match=r"float32\[4,6\].*resize them in a HostMap") as caught:
        rows(loader_of(Photos()))
    assert caught.value.element.index == 6  # type: ignore[attr-defined]


class LikeTorchvision(data.Dataset):
    """As torchvision's datasets are: tensors inside, PIL images and a transform outside."""

    def __init__(self, transform: Any = None) -> None:
        self.data, self.targets, self.transform = torch.from_numpy(IMAGES), LABELS, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.data[index].numpy())
        return image if self.transform is None else self.transform(image), int(self.targets[index])


def flat(image: Any) -> np.ndarray:
    return np.ravel(np.array(image, np.float32))


def test_datasets_like_torchvisions_with_a_transform_and_without() -> None:
    check_values(LikeTorchvision(flat), (IMAGES.reshape(N, -1).astype(np.float32), LABELS))
    check_values(LikeTorchvision(), PAIRS)  # PIL images


def test_worker_processes_read_it() -> None:
    for dataset in (tensor_dataset(), Tensors()):
        loader = DataLoader([dataset, BatchTransform(5)], workers=2, worker_type="process")
        with loader:
            found = rows(loader)
        label = found["label"] if isinstance(found, dict) else found[1]
        assert label.tolist() == LABELS.tolist()


def test_elements_may_pass_compiled_stages() -> None:
    def bright(batch: Any) -> Any:
        return jax.numpy.mean(batch[0].astype(np.float32), axis=(1, 2))

    stages = [tensor_dataset(), BatchTransform(5), cereal.MapTransform(bright)]
    found = np.concatenate([batch for batch, _ in DataLoader(stages)])
    np.testing.assert_allclose(found, IMAGES.mean(axis=(1, 2)), rtol=1e-6)
