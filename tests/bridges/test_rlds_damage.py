"""RLDS whose files are damaged, or not those of their 'dataset_info.json'."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.bridges.quiet_tensorflow import tfds
from tests.bridges.test_rlds_records import FORMATS, KINDS, SIMPLE, simple, store

from cereal import CerealError, DatasetError, PipelineError
from cereal.rl import RLDSSource

pytestmark = pytest.mark.bridges


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("said", [4, 12])
def test_a_file_has_the_records_that_are_written_of_it(
    tmp_path: Path, kind: str, said: int
) -> None:
    folder = store(tmp_path, SIMPLE, [simple(number, 3) for number in range(10)], kind)
    info = folder / "dataset_info.json"
    info.write_text(re.sub(r'"10"', f'"{said}"', info.read_text()))
    builder = tfds.builder_from_directory(folder)
    assert builder.info.splits["train"].num_examples == said
    words = r"has 10 (records|episodes), and .*so get both again"
    with pytest.raises(DatasetError, match=words):
        RLDSSource(folder)
    if kind != "tfrecord":
        with pytest.raises(DatasetError, match=words):
            RLDSSource(builder.as_data_source("train"))


@pytest.mark.parametrize("kind", ["array_record", "parquet"])
def test_what_tfds_cannot_decode_is_named(tmp_path: Path, kind: str) -> None:
    steps = {**SIMPLE, "observation": KINDS["zlib"][0]}
    made = [
        [{**each, "observation": np.zeros(3, np.float32)} for each in simple(number, 3)]
        for number in range(3)
    ]
    folder = store(tmp_path, steps, made, kind)
    features = folder / "features.json"
    features.write_text(features.read_text().replace('"3"', '"4"'))
    with pytest.raises(
        PipelineError, match=r"episode 0 of '.*', split 'train' cannot be read"
    ) as e:
        RLDSSource(folder)
    assert e.value.__cause__ is not None


@pytest.mark.parametrize("kind", ["parquet", "array_record"])
def test_damaged_bytes_are_no_error_of_a_library(tmp_path: Path, kind: str) -> None:
    """Wherever they are; neither of the formats finds all of them."""
    steps = {**SIMPLE, "observation": KINDS["zlib"][0]}
    rng = np.random.default_rng(0)
    made = [
        [{**each, "observation": rng.normal(size=3).astype(np.float32)} for each in simple(n, 6)]
        for n in range(3)
    ]
    folder = store(tmp_path, steps, made, kind)
    file = next(folder.glob(f"*{kind}*-of-*"))
    data, words = file.read_bytes(), []
    for at in range(4, len(data), len(data) // 20):
        file.write_bytes(
            data[:at] + bytes(255 - each for each in data[at : at + 16]) + data[at + 16 :]
        )
        try:
            RLDSSource(folder)
        except CerealError as error:
            words.append(str(error))
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(CerealError, match=rf"^RLDSSource: .*{folder}"):
        RLDSSource(folder)
    if kind == "parquet":
        assert any("split 'train' cannot be read" in each for each in words)
        assert any("get its files again" in each for each in words)
