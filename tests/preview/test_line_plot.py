from __future__ import annotations

import numpy as np

from cereal.preview.line_plot import line_plots

BLUE, ORANGE = (38, 102, 176), (225, 110, 20)


def near(plot: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Where a plot has this colour, or nearly: [row, column] of each pixel."""
    return np.argwhere(np.abs(plot.astype(int) - colour).max(axis=2) < 40)


def test_a_line_follows_its_values() -> None:
    (rising, falling), note = line_plots([[np.arange(20.0)], [np.arange(20.0)[::-1]]])
    assert rising.dtype == np.uint8
    assert rising.shape == falling.shape == (72, 144, 3)
    rows, columns = near(rising, BLUE).T
    assert np.corrcoef(columns, rows)[0, 1] < -0.99  # rows count from the top
    rows, columns = near(falling, BLUE).T
    assert np.corrcoef(columns, rows)[0, 1] > 0.99
    assert note == "values 0 to 19"


def test_all_plots_share_one_range() -> None:
    (low, high), _ = line_plots([[np.zeros(5)], [np.full(5, 10.0)]])
    assert near(low, BLUE)[:, 0].mean() > 0.85 * 72
    assert near(high, BLUE)[:, 0].mean() < 0.15 * 72


def test_what_comes_after_has_another_colour_and_is_to_the_right() -> None:
    (plot,), _ = line_plots([[np.zeros(30), np.ones((10, 1))]])
    assert near(plot, BLUE)[:, 1].max() < 0.75 * 144 + 3
    assert near(plot, ORANGE)[:, 1].min() > 0.70 * 144
    assert near(plot, ORANGE)[:, 0].min() < 12


def test_a_single_number_is_a_dot() -> None:
    (plot,), _ = line_plots([[np.array(3, np.float32)]])
    rows, columns = near(plot, BLUE).T
    assert 1 <= np.ptp(rows) <= 5
    assert 1 <= np.ptp(columns) <= 5


def test_gaps_are_left_where_values_are_not_finite() -> None:
    values = np.zeros(30)
    values[10:20] = np.nan
    (plot,), note = line_plots([[values]])
    columns = set(near(plot, BLUE)[:, 1].tolist())
    assert not columns & set(range(55, 90))
    assert min(columns) < 10
    assert max(columns) > 134
    assert note == "values 0 to 0; not finite, left out: 10"
    (empty,), _ = line_plots([[np.full(4, np.nan)]])
    assert (empty == 255).all()


def test_features_have_colours_and_too_many_are_counted() -> None:
    two = np.stack([np.zeros(9), np.ones(9)], axis=1)
    (plot,), _ = line_plots([[two]])
    assert len(near(plot, BLUE))
    assert len(near(plot, (46, 139, 87)))
    _, note = line_plots([[np.zeros((9, 20))]])
    assert note.endswith("5 of 20 features")


def test_scale_makes_plots_larger() -> None:
    (plot,), _ = line_plots([[np.arange(4, dtype=np.int64)]], 2)
    assert plot.shape == (144, 288, 3)


def test_the_widest_floats_do_not_overflow() -> None:
    most = np.finfo(np.float64).max
    (plot,), _ = line_plots([[np.array([-most, most])]])
    assert len(near(plot, BLUE))
