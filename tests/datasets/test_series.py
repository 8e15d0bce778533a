"""Series in windows: the splits are stretches of time, and targets are never shared."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.files import assert_arrays, assert_holds, with_own_hashes, write_csv

import cereal
from cereal import (
    BatchTransform,
    DailyMinTemperaturesDataset,
    DataLoader,
    DatasetError,
    PipelineError,
    SunspotsDataset,
)
from cereal.testing import check_resume

N = 100
VALUES = np.arange(N, dtype=np.float32) / 4 - 3
FILES = {
    "daily-min-temperatures.csv": (DailyMinTemperaturesDataset, "Temp"),
    "daily_temperature_australia.csv": (DailyMinTemperaturesDataset, "Min_Temp"),
    "monthly-sunspots.csv": (SunspotsDataset, "Sunspots"),
    "monthly_sunspot.csv": (SunspotsDataset, "Sunspots"),
}
SPLITS = ("train", "val", "test")


def windows(begin: int, end: int, context: int, target: int) -> dict[str, np.ndarray]:
    """Cut by hand: targets begin at `begin` or later and end at `end` or before."""
    first = max(begin, context)
    places = range(first, end - target + 1)
    return {
        "context": np.stack([VALUES[at - context : at] for at in places]),
        "target": np.stack([VALUES[at : at + target] for at in places]),
    }


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    write_csv(tmp_path / "series" / "daily-min-temperatures.csv", "Temp", VALUES)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a property, which runs many times in one folder."""
    path = tmp_path_factory.mktemp("cache")
    write_csv(path / "series" / "daily-min-temperatures.csv", "Temp", VALUES)
    return path


def temperatures(cache: Path, split: Any = "train", **options: Any) -> DailyMinTemperaturesDataset:
    return DailyMinTemperaturesDataset(split, cache, verify=False, **options)


# Values


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_a_series_is_read(name: str, tmp_path: Path) -> None:
    dataset, column = FILES[name]
    write_csv(tmp_path / "series" / name, column, VALUES, bom=True)
    found = dataset("train", tmp_path, verify=False)
    assert_holds(found, windows(0, 80, 30, 1))
    assert repr(found) == f"{dataset.__name__}('train'): 50 elements"
    np.testing.assert_array_equal(found.series, VALUES[:80])


@pytest.mark.parametrize(
    ("split", "span"), [("train", (0, 80)), ("val", (80, 90)), ("test", (90, 100))]
)
@pytest.mark.parametrize(("context", "target"), [(30, 1), (1, 1), (7, 4), (5, 10)])
def test_splits_are_stretches_whose_contexts_reach_back(
    split: Any, span: tuple[int, int], context: int, target: int, cache: Path
) -> None:
    found = temperatures(cache, split, context_length=context, prediction_length=target)
    assert_arrays(found.as_array_dict(), windows(*span, context, target))
    assert (found.context_length, found.prediction_length) == (context, target)
    assert found[0]["context"].shape == (context,)
    assert found[0]["target"].shape == (target,)


@given(
    context=st.integers(1, 20),
    target=st.integers(1, 4),
    train=st.floats(0.3, 0.7),
    val=st.floats(0.1, 0.25),
)
def test_every_value_is_the_target_of_one_split_at_most(
    whole: Path, context: int, target: int, train: float, val: float
) -> None:
    options: Any = {"context_length": context, "prediction_length": target}
    options |= {"train_fraction": train, "val_fraction": val}
    ends = [0, round(N * train), round(N * (train + val)), N]
    for at, split in enumerate(SPLITS):
        found = temperatures(whole, split, **options).as_array_dict()
        assert_arrays(found, windows(ends[at], ends[at + 1], context, target))


def test_fractions_move_the_borders(cache: Path) -> None:
    options: Any = {"context_length": 4, "train_fraction": 0.5, "val_fraction": 0.25}
    for split, span in (("train", (0, 50)), ("val", (50, 75)), ("test", (75, 100))):
        assert_arrays(temperatures(cache, split, **options).as_array_dict(), windows(*span, 4, 1))
    whole = temperatures(cache, train_fraction=1.0, val_fraction=0.0)
    assert_arrays(whole.as_array_dict(), windows(0, 100, 30, 1))


@pytest.mark.parametrize("train", [0.1, 0.3, 0.55, 0.58, 0.7, 0.83, 0.9])
def test_fractions_that_are_all_of_one_are_taken(train: float, cache: Path) -> None:
    found = temperatures(
        cache, "val", context_length=2, train_fraction=train, val_fraction=1 - train
    )
    assert_arrays(found.as_array_dict(), windows(round(100 * train), 100, 2, 1))


def test_a_series_has_no_classes(cache: Path) -> None:
    dataset: Any = temperatures(cache)
    assert dataset.classes == ()


def test_numbers_cannot_be_changed(cache: Path) -> None:
    dataset = temperatures(cache)
    with pytest.raises(ValueError, match="read-only"):
        dataset.series[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        dataset[0]["target"][0] = 1


# In a loader


@pytest.mark.parametrize("split", SPLITS)
def test_the_source_on_disk_has_the_same_windows(split: Any, cache: Path) -> None:
    options: Any = {"context_length": 6, "prediction_length": 2, "verify": False}
    wanted = DailyMinTemperaturesDataset(split, cache, **options).as_array_dict()
    for ordering in ("sequential", "shuffle"):
        source = DailyMinTemperaturesDataset.make_disk_source(
            split, ordering, cache_dir=cache, **options
        )
        assert len(source) == len(wanted["context"])
        loader = DataLoader([source, BatchTransform(4)])
        for step, (batch, _) in enumerate(loader.iterate(loader.init_state(1))):
            index = loader.indices_at(1, step)
            found = jax.tree.map(np.asarray, batch)
            assert_arrays(found, {name: array[index] for name, array in wanted.items()})


def test_streaming_goes_on_where_it_stopped(cache: Path) -> None:
    source = SunspotsDataset.make_disk_source
    write_csv(cache / "series" / "monthly-sunspots.csv", "Sunspots", VALUES)
    loader = DataLoader([source("test", cache_dir=cache, verify=False), BatchTransform(4)])
    check_resume(loader, epochs=1)


def test_two_series_in_one_folder_do_not_mix(cache: Path) -> None:
    write_csv(cache / "series" / "monthly-sunspots.csv", "Sunspots", VALUES * 2)
    for dataset, factor in ((DailyMinTemperaturesDataset, 1), (SunspotsDataset, 2)):
        source = dataset.make_disk_source("train", "sequential", cache_dir=cache, verify=False)
        batch, _ = DataLoader([source, BatchTransform(3)]).batch_at(0, 0)
        np.testing.assert_array_equal(batch["target"][:, 0], VALUES[30:33] * factor)


def test_a_dataset_may_stand_first_in_a_loader_or_be_sent_elsewhere(cache: Path) -> None:
    dataset, wanted = temperatures(cache), windows(0, 80, 30, 1)
    batches = [batch for batch, _ in DataLoader([dataset, BatchTransform(25)])]
    np.testing.assert_array_equal(
        np.concatenate([batch["context"] for batch in batches]), wanted["context"]
    )
    assert_arrays(jax.tree.map(np.asarray, cereal.dataset_to_jax(dataset)), wanted)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert_arrays(pickle.loads(dumps(dataset)).as_array_dict(), wanted)


# Bad input


def both(cache: Path, split: Any, error: Any, message: str, **options: Any) -> None:
    """The dataset and its source on disk say the same."""
    with pytest.raises(error, match=r"(?s)^DailyMinTemperaturesDataset: " + message):
        DailyMinTemperaturesDataset(split, cache, verify=False, **options)
    owner = r"(?s)^DailyMinTemperaturesDataset\.make_disk_source: "
    with pytest.raises(error, match=owner + message):
        DailyMinTemperaturesDataset.make_disk_source(
            split, cache_dir=cache, verify=False, **options
        )


@pytest.mark.parametrize("split", ["valid", "validation", "Train", None, "whole"])
def test_an_unknown_split_is_refused_with_those_that_there_are(split: Any, cache: Path) -> None:
    says = rf"unknown split {split!r}; daily minimum temperatures has 'train', 'val', 'test'\.$"
    both(cache, split, PipelineError, says)


@pytest.mark.parametrize("name", ["context_length", "prediction_length"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 3.0, "3", None, True])
def test_lengths_must_be_positive_integers(name: str, value: Any, cache: Path) -> None:
    says = rf"`{name}` must be an integer of at least 1, got {re.escape(repr(value))}\.$"
    both(cache, "train", PipelineError, says, **{name: value})


def test_lengths_may_be_integers_of_numpy(cache: Path) -> None:
    found = temperatures(cache, context_length=np.int64(4), prediction_length=np.uint8(2))
    assert_arrays(found.as_array_dict(), windows(0, 80, 4, 2))


@pytest.mark.parametrize(
    ("split", "options", "count"),
    [
        ("train", {"context_length": 80}, 80),
        ("train", {"context_length": 79, "prediction_length": 2}, 80),
        ("val", {"prediction_length": 11}, 10),
        ("test", {"prediction_length": 11}, 10),
        ("test", {"context_length": 200}, 10),
        ("test", {"train_fraction": 0.9}, 0),
        ("test", {"train_fraction": 0.896, "val_fraction": 0.1}, 0),
        ("val", {"val_fraction": 0.0}, 0),
        ("train", {"train_fraction": 0.001}, 0),
    ],
)
def test_splits_that_are_too_short_are_refused(
    split: Any, options: dict[str, Any], count: int, cache: Path
) -> None:
    context, target = options.get("context_length", 30), options.get("prediction_length", 1)
    says = (
        rf"the split '{split}' has {count} of 100 values, too few for a context of {context} and "
    )
    says += rf"a target of {target}; change the lengths or the fractions\.$"
    both(cache, split, PipelineError, says, **options)


@pytest.mark.parametrize(
    ("train", "val"),
    [(0, 0.1), (-0.1, 0.1), (1.1, 0.1), (0.8, -0.1), (0.8, 1), (0.8, 0.3), (np.nan, 0.1), (80, 10)],
)
def test_fractions_must_be_parts_of_one(train: Any, val: Any, cache: Path) -> None:
    says = (
        r"`train_fraction` and `val_fraction` must be parts of 1, got .*; what is left of 1 is the"
    )
    both(cache, "train", PipelineError, says, train_fraction=train, val_fraction=val)


def test_fractions_must_be_numbers(cache: Path) -> None:
    says = r"`train_fraction` and `val_fraction` must be parts of 1, got '0\.8' and 0\.1"
    both(cache, "train", PipelineError, says, train_fraction="0.8")


@pytest.mark.parametrize("cell", ["NaN", "inf", "?", "", "?0.2"])
def test_a_cell_that_is_no_number_is_named_with_its_line(cell: str, cache: Path) -> None:
    path = cache / "series" / "daily-min-temperatures.csv"
    write_csv(path, "Temp", [1.5, 2.5, cell, 3.5])
    says = f"{path}, line 4: 'Temp' is {cell!r}, which is no finite number. Mend or remove the line"
    both(cache, "train", DatasetError, re.escape(says))


def test_a_file_of_something_else_is_named(cache: Path) -> None:
    path = cache / "series" / "daily-min-temperatures.csv"
    write_csv(path, "Sunspots", VALUES)
    says = f"{path} has no column 'Temp', but ['Date', 'Sunspots']; is it another file?"
    both(cache, "train", DatasetError, re.escape(says))
    write_csv(path, "Temp", [])
    both(cache, "train", DatasetError, re.escape(f"{path} has no rows below its header; fetch it"))
    path.write_text("")
    both(cache, "train", DatasetError, re.escape(f"{path} has no column 'Temp', but []"))
    path.write_text("<!DOCTYPE html>\n<html></html>")
    both(cache, "train", DatasetError, re.escape(f"{path} has no column 'Temp', but ['<!DOCTYPE"))


def test_missing_files_are_named_with_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = with_own_hashes(DailyMinTemperaturesDataset.record, tmp_path)
    monkeypatch.setattr(DailyMinTemperaturesDataset, "record", record)
    says = r"daily-min-temperatures\.csv could not be fetched.*put these files into .*series:"
    both(tmp_path, "train", DatasetError, says + r"\n  daily-min-temp.*CEREAL_DATA_DIR")
