"""One digest for every way to run a pipeline; `make elastic` runs all cells."""

from __future__ import annotations

import pytest
from benchmarks.digest import GOLDEN, Cell, digest, few_cells


@pytest.mark.slow
@pytest.mark.parametrize("cell", few_cells(), ids=str)
def test_every_way_to_run_a_pipeline_has_the_golden_digest(cell: Cell) -> None:
    assert digest(cell) == GOLDEN
