"""Tables and datasets of other libraries, converted once and read as mapped arrays."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, PipelineError, convert, pad_collate
from cereal.order.rows import routed_at

pa: Any = importlib.import_module("pyarrow")
torch: Any = importlib.import_module("torch")
datasets: Any = importlib.import_module("datasets")

pytestmark = pytest.mark.bridges

N = 1000
ROWS: dict[str, Any] = {
    "x": np.arange(N) / 8,
    "name": [f"é{i}" for i in range(N)],
    "tokens": [list(range(i % 4)) for i in range(N)],
    "raw": [bytes([i % 256]) * (i % 3) for i in range(N)],
}


def element(source: Any, index: int) -> Any:
    return source._produce(routed_at(source, np.array([index]))).element(0)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2, "worker_type": "process"}])
def test_an_arrow_table_with_text_and_lists(options: dict[str, Any], tmp_path: Path) -> None:
    source = convert(pa.table(ROWS), tmp_path / "out", progress=False, **options)
    assert len(source) == N
    for index in (0, 1, 2, 3, 500, N - 1):
        found = element(source, index)
        assert found["x"] == ROWS["x"][index]
        assert found["name"] == ROWS["name"][index]
        assert found["raw"] == ROWS["raw"][index]
        assert found["tokens"].tolist() == ROWS["tokens"][index]
        assert found["tokens"].dtype == np.int32


def test_a_table_of_numbers_is_read_as_arrays(tmp_path: Path) -> None:
    source = convert(pa.table({"x": ROWS["x"]}), tmp_path / "out", progress=False)
    batch, _ = next(iter(DataLoader([source, BatchTransform(N)])))
    np.testing.assert_array_equal(batch["x"], ROWS["x"].astype(np.float32))


def test_a_null_is_named(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0] * 50 + [None]})
    with pytest.raises(PipelineError, match=r"element 50: `element\['x'\]` is None, a missing"):
        convert(table, tmp_path / "out", progress=False)


class Words(torch.utils.data.Dataset):
    """A torch dataset of tensors of different lengths."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return torch.arange(index), torch.tensor(index % 2)


def test_a_torch_dataset_of_ragged_tensors(tmp_path: Path) -> None:
    source = convert(Words(), tmp_path / "out", progress=False)
    stages = [source, BatchTransform(30, collate=pad_collate(max_length=30))]
    batch, _ = next(iter(DataLoader(stages)))
    assert batch[0].sum() == sum(sum(range(k)) for k in range(30))


def test_a_hugging_face_dataset(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"ids": ROWS["tokens"], "label": list(range(N))})
    source = convert(data, tmp_path / "out", progress=False)
    assert len(source) == N
    found = element(source, 999)
    assert found["ids"].tolist() == [0, 1, 2]
    assert found["label"] == 999
