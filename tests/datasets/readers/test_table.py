"""Columns of tables: numbers as written, and the line of each that is none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.files import write_csv

from cereal import DatasetError
from cereal.datasets.readers.table import read_column

VALUES = [20.7, -3.0, 0.0, 1e-3, 17.25]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "series.csv"


def refused(path: Path, text: str | bytes, message: str) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DatasetError, match="^" + re.escape(str(path)) + message):
        read_column(path, "Temp")


# Values


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [False, True])
def test_numbers_in_quotes_are_read(path: Path, end: str, bom: bool) -> None:
    write_csv(path, "Temp", VALUES, end=end, bom=bom)
    found = read_column(path, "Temp")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(VALUES, np.float32))


@pytest.mark.parametrize(
    "text",
    [
        "Temp\n1\n2.5\n",
        "Date,Temp\na,1\nb,2.5",
        "Temp,Date\n1,a\n2.5,b\n",
        "\ufeffTemp,Date\n1,a\n2.5,b\n",
        'Date,"Temp"\n"a, b","1"\n\n"c\nd", 2.5 \n\n',
        "Date,Temp,More\na,1\nb,25e-1,x,y\n",
    ],
)
def test_the_column_is_found_by_its_name(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(read_column(path, "Temp"), np.array([1, 2.5], "f4"))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_any_float32_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    path = tmp_path_factory.mktemp("table") / "series.csv"
    write_csv(path, "Temp", values)
    np.testing.assert_array_equal(read_column(path, "Temp"), np.array(values, np.float32))


def test_text_that_is_no_utf8_elsewhere_in_the_table_does_no_harm(path: Path) -> None:
    path.write_bytes("Ort,Temp\nKöln,1.5\n".encode("latin-1"))
    np.testing.assert_array_equal(read_column(path, "Temp"), np.array([1.5], "f4"))


# Bad input


@pytest.mark.parametrize("cell", ["?", "?0.2", "", "nan", "NaN", "inf", "-inf", "1,5", "1e999"])
def test_what_is_no_finite_number_is_named_with_its_line(path: Path, cell: str) -> None:
    rows = f'Date,Temp\na,1\nb,2\n"c","{cell}"\nd,4\n'
    says = f", line 4: 'Temp' is {cell!r}, which is no finite number. Mend or remove the line"
    refused(path, rows, re.escape(says))


def test_a_number_too_large_for_float32_is_not_finite(path: Path) -> None:
    refused(path, "Temp\n1\n1e39\n", ", line 3: 'Temp' is '1e39', which is no finite number")


def test_a_row_that_is_too_short_has_no_number(path: Path) -> None:
    refused(path, "Date,Temp\na,1\nb\n", ", line 3: 'Temp' is '', which is no finite number")


def test_lines_are_counted_as_an_editor_counts_them(path: Path) -> None:
    refused(path, 'Date,Temp\n"a\nb",1\n\nc,x\n', ", line 5: 'Temp' is 'x'")


def test_a_missing_column_is_named_with_those_that_there_are(path: Path) -> None:
    says = r" has no column 'Temp', but \['Date', 'temp'\]; is it another file\?$"
    refused(path, "Date,temp\na,1\n", says)


@pytest.mark.parametrize("text", ["", "\n", "<!DOCTYPE html>\n<html>Log in</html>\n"])
def test_an_empty_file_or_a_web_page_has_no_such_column(path: Path, text: str) -> None:
    refused(path, text, r" has no column 'Temp', but \[.*\]; is it another file\?$")


@pytest.mark.parametrize("text", ["Temp", "Temp\n", "Date,Temp\r\n\r\n\r\n"])
def test_a_table_without_rows_is_refused(path: Path, text: str) -> None:
    refused(path, text, r" has no rows below its header; fetch it again\.$")


def test_a_file_that_is_no_table_is_refused(path: Path) -> None:
    """One line that is longer than any cell may be; zeros; a quote that never ends."""
    refused(path, b"x" * 200_000, " .*; is it another file")
    refused(path, bytes(range(256)) * 1000, " ")
    refused(path, "Date,Temp\na,1\n" + 'b,"2' + "0\n" * 100_000, " ")
