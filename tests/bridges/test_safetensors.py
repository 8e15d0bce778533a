"""Files that the library of safetensors wrote."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, MemmapSource, PipelineError
from cereal.testing import check_loader as check_all_ways
from cereal.testing import check_source

from .checks import (
    IMAGES,
    LABELS,
    N,
    check_in_jit,
    check_resume,
    check_shuffled,
    check_values,
    rows,
)

pytestmark = pytest.mark.bridges
of_numpy = import_module("safetensors.numpy")
torch = import_module("torch")
of_torch = import_module("safetensors.torch")

WANTED = {"image": IMAGES, "label": LABELS, "odd.name": IMAGES[:, 0].astype(np.float32) / 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    of_numpy.save_file(WANTED, tmp_path / "data.safetensors", metadata={"made": "here"})
    return tmp_path / "data.safetensors"


def test_its_tensors_are_rows_by_every_road(path: Path) -> None:
    def source(ordering: str = "sequential") -> Any:
        return MemmapSource(path, ordering)

    check_values(source(), WANTED)
    check_resume(source, WANTED)
    check_in_jit(source(), WANTED)
    check_shuffled(source("shuffle"), WANTED, lambda found: found["label"])
    check_source(source("shuffle"))
    check_all_ways(DataLoader([source("shuffle"), BatchTransform(3)]))


def test_worker_processes_map_it_again(path: Path) -> None:
    stages = [MemmapSource(path, "sequential"), BatchTransform(5)]
    with DataLoader(stages, workers=2, worker_type="process") as loader:
        np.testing.assert_array_equal(rows(loader)["odd.name"], WANTED["odd.name"])


KINDS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float16": np.float16,
    "int64": np.int32,
    "bool": np.bool_,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_torch_saved(kind: str, tmp_path: Path) -> None:
    tensor = torch.arange(2 * N).reshape(N, 2).to(getattr(torch, kind))
    of_torch.save_file({"t": tensor, "z": tensor[:, 0].contiguous()}, tmp_path / "t.safetensors")
    loader = DataLoader([MemmapSource(tmp_path / "t.safetensors", "sequential"), BatchTransform(N)])
    ((batch, _),) = loader
    assert batch["t"].dtype == jnp.dtype(KINDS[kind])
    wanted = tensor.to(torch.float32).numpy()
    np.testing.assert_array_equal(np.asarray(batch["t"]).astype(np.float32), wanted)


def test_a_file_that_the_library_refuses_is_refused_here(path: Path) -> None:
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"x", whole[:20], b"\xff" * 8 + whole[8:]):
        path.write_bytes(damaged)
        with pytest.raises(Exception, match=r"."):
            of_numpy.load_file(path)
        with pytest.raises(PipelineError, match="MemmapSource"):
            MemmapSource(path)
