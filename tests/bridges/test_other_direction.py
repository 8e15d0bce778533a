"""Sources of cereal as datasets of torch and of Grain."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    DataLoader,
    DatasetSource,
    HostMapTransform,
    MemmapSource,
    save_arrays,
)

from .checks import BATCH, IMAGES, LABELS, N

pytestmark = pytest.mark.bridges
torch = import_module("torch")
data = import_module("torch.utils.data")
grain = import_module("grain")

WANTED = {"image": IMAGES, "label": LABELS}


def mapped(folder: Any) -> Any:
    save_arrays(folder / "data", WANTED, overwrite=True)
    return MemmapSource(folder / "data", ordering="shuffle")


def plain(element: Any) -> Any:
    return {"image": element["image"].astype(np.float32), "label": int(element["label"])}


def sources(folder: Any) -> dict[str, Any]:
    rows = [{"image": x, "label": y} for x, y in zip(IMAGES, LABELS, strict=True)]
    return {
        "arrays": ArraySampleSource(WANTED),
        "files": mapped(folder),
        "dataset": DatasetSource(rows),
        "with a stage": HostMapTransform(plain)(mapped(folder)),
    }


@pytest.mark.parametrize("name", ["arrays", "files", "dataset", "with a stage"])
def test_torchs_loader_reads_it(name: str, tmp_path: Any) -> None:
    source = sources(tmp_path)[name]
    batches = list(data.DataLoader(source, batch_size=BATCH))
    assert [len(batch["label"]) for batch in batches] == [4, 4, 2]
    found = torch.cat([batch["image"] for batch in batches]).numpy()
    np.testing.assert_array_equal(found, IMAGES)
    shuffled = data.DataLoader(source, batch_size=5, shuffle=True)
    labels = torch.cat([batch["label"] for batch in shuffled])
    assert sorted(labels.tolist()) == LABELS.tolist()
    parts = data.random_split(source, [3, 7])
    labels = [int(part[at]["label"]) for part in parts for at in range(len(part))]
    assert sorted(labels) == LABELS.tolist()


def test_torch_asks_for_a_batch_at_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = mapped(tmp_path), []
    take = MemmapSource.__getitems__

    def counted(self: Any, indices: Any) -> Any:
        asked.append(list(indices))
        return take(self, indices)

    monkeypatch.setattr(MemmapSource, "__getitems__", counted)
    list(data.DataLoader(source, batch_size=BATCH))
    assert asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_torchs_worker_processes_read_it(tmp_path: Any) -> None:
    source = HostMapTransform(plain)(mapped(tmp_path))
    loader = data.DataLoader(
        source, batch_size=BATCH, num_workers=1, multiprocessing_context="spawn"
    )
    found = torch.cat([batch["image"] for batch in loader]).numpy()
    np.testing.assert_array_equal(found, IMAGES)


@pytest.mark.parametrize("name", ["arrays", "files", "dataset", "with a stage"])
def test_grain_reads_it(name: str, tmp_path: Any) -> None:
    source = sources(tmp_path)[name]
    dataset = grain.MapDataset.source(source)
    shuffled = dataset.shuffle(seed=1)  # by index: its iterators leave threads behind
    assert sorted(int(shuffled[at]["label"]) for at in range(N)) == LABELS.tolist()
    batches = [dataset.batch(5)[at] for at in range(2)]
    np.testing.assert_array_equal(np.concatenate([each["image"] for each in batches]), IMAGES)


def test_grains_loader_reads_it(tmp_path: Any) -> None:
    source = mapped(tmp_path)
    sampler = grain.samplers.IndexSampler(N, grain.sharding.NoSharding(), num_epochs=1)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # its threads do not end
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, worker_count=0, read_options=options
    )
    assert [int(each["label"]) for each in loader] == LABELS.tolist()


def test_there_and_back(tmp_path: Any) -> None:
    """A source, through Grain, through cereal: the same elements."""
    again = grain.MapDataset.source(mapped(tmp_path))
    found = [int(element["label"]) for element, _ in DataLoader([again])]
    assert found == LABELS.tolist()
