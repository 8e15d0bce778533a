"""Files whose library is not installed: the error says what to install."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from cereal import ArrowSource, CSVSource, ParquetSource, UsageError


@pytest.mark.parametrize("source", [ArrowSource, CSVSource, ParquetSource])
def test_a_missing_pyarrow_is_named_with_the_line_to_type(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    message = rf"{source.__name__} needs 'pyarrow', .*`pip install 'cereal-jax\[arrow\]'`"
    with pytest.raises(UsageError, match=message):
        source("data")
