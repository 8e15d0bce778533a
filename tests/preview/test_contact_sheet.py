from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFont, _util

from cereal import PipelineError, UsageError
from cereal.preview.contact_sheet import ContactSheet, contact_sheet

COLOURS = [(200, 10, 10), (10, 180, 10), (10, 10, 220), (220, 200, 10), (180, 10, 180)]


def plain(place: int, *shape: int) -> np.ndarray:
    """An image of one colour."""
    return np.full((*(shape or (8, 8)), 3), COLOURS[place], np.uint8)


def pixels(sheet: ContactSheet) -> np.ndarray:
    with Image.open(io.BytesIO(sheet.png)) as picture:
        assert picture.format == "PNG"
        assert picture.mode == "RGB"
        return np.asarray(picture)


def box(sheet: ContactSheet, place: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of what has a colour, which must be a full rectangle."""
    rows, columns = np.nonzero((pixels(sheet) == COLOURS[place]).all(axis=2))
    left, top, width, height = columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1
    assert len(rows) == width * height
    return int(left), int(top), int(width), int(height)


def test_images_lie_in_rows() -> None:
    sheet = contact_sheet([plain(i) for i in range(5)], ["a"] * 5, columns=3)
    boxes = [box(sheet, i) for i in range(5)]
    lefts, tops = [b[0] for b in boxes], [b[1] for b in boxes]
    assert lefts == [lefts[0], lefts[1], lefts[2], lefts[0], lefts[1]]
    assert lefts[0] < lefts[1] < lefts[2]
    assert tops == [tops[0]] * 3 + [tops[3]] * 2
    assert tops[3] > tops[0] + boxes[0][3]
    assert pixels(sheet).shape == (sheet.size[1], sheet.size[0], 3)
    assert (pixels(sheet)[:5] == 255).all()


def test_small_images_are_enlarged_in_whole_pixels() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[:4] = image[:, :4] = COLOURS[0]
    image[4:, 4:] = COLOURS[1]
    sheet = contact_sheet([image], ["a"])
    assert box(sheet, 1)[2:] == (36, 36)  # 9 times


@pytest.mark.parametrize(
    ("shape", "scale", "drawn"),
    [
        ((8, 8), None, (72, 72)),
        ((28, 28), None, (84, 84)),
        ((100, 50), None, (50, 100)),
        ((320, 640), None, (160, 80)),
        ((1, 1), None, (72, 72)),
        ((8, 8), 2, (16, 16)),
        ((8, 8), 2.5, (20, 20)),
        ((100, 100), 0.5, (50, 50)),
        ((3, 1000), None, (160, 1)),
    ],
)
def test_images_are_brought_to_a_readable_size(shape: Any, scale: Any, drawn: Any) -> None:
    sheet = contact_sheet([plain(0, *shape)], ["a"], scale=scale)
    assert box(sheet, 0)[2:] == drawn


def test_images_of_different_sizes_are_centred_in_their_cells() -> None:
    sheet = contact_sheet([plain(0, 100, 40), plain(1, 60, 120)], ["a", "b"], columns=2)
    tall, wide = box(sheet, 0), box(sheet, 1)
    assert tall[2:] == (40, 100)
    assert wide[2:] == (120, 60)
    assert abs((tall[1] + 50) - (wide[1] + 30)) <= 1
    distance = (wide[0] + 60) - (tall[0] + 20)
    assert abs(distance - 128) <= 1  # a cell of 120 and a gap of 8


@pytest.mark.parametrize(("n", "columns"), [(1, 1), (4, 2), (10, 5), (32, 8), (64, 8), (100, 10)])
def test_without_columns_rows_are_full(n: int, columns: int) -> None:
    sheet = contact_sheet([plain(0)] * n, [""] * n)
    assert sheet.size[0] == columns * 80 - 8 + 28


def test_captions_are_under_their_images() -> None:
    without = contact_sheet([plain(0), plain(1)], ["", ""], columns=2)
    written = contact_sheet([plain(0), plain(1)], ["", "cat"], columns=2)
    rows, columns = np.nonzero((pixels(without) != pixels(written)).any(axis=2))
    left, top, width, height = box(written, 1)
    assert rows.min() > top + height
    assert abs((columns.min() + columns.max()) / 2 - (left + width / 2)) <= 2


def test_long_captions_stay_in_their_cell() -> None:
    without = contact_sheet([plain(0), plain(1), plain(2)], ["", "", ""], columns=3)
    written = contact_sheet([plain(0), plain(1), plain(2)], ["", "W" * 500, ""], columns=3)
    _, columns = np.nonzero((pixels(without) != pixels(written)).any(axis=2))
    left, _, width, _ = box(written, 1)
    assert left - 4 <= columns.min()
    assert columns.max() < left + width + 4


def test_a_caption_of_two_lines_makes_room() -> None:
    one = contact_sheet([plain(0)] * 2, ["a", "b"], columns=1)
    two = contact_sheet([plain(0)] * 2, ["a", "b\nc"], columns=1)
    assert two.size[1] == one.size[1] + 2 * 16


def test_title_and_note_widen_a_narrow_sheet_and_are_cut_in_the_end() -> None:
    narrow = contact_sheet([plain(0)], [""])
    titled = contact_sheet([plain(0)], [""], title="a rather long title", note="values")
    endless = contact_sheet([plain(0)], [""], title="a title " * 500)
    assert narrow.size[0] < titled.size[0] < endless.size[0] == 520 + 28
    assert narrow.size[1] < titled.size[1]
    assert (pixels(endless)[:, -14:] == 255).all()


def test_padding_is_faded_and_crossed_out() -> None:
    images = [plain(0), plain(1)]
    sheet = contact_sheet(images, ["a", "b"], [True, False], columns=2)
    left, top, width, height = box(sheet, 0)
    assert not (pixels(sheet) == COLOURS[1]).all(axis=2).any()
    right = pixels(sheet)[top : top + height, left + 80 : left + 80 + width].astype(int)
    faded = np.array(COLOURS[1]) * 0.35 + 255 * 0.65
    assert np.abs(right[10, width // 2] - faded).max() <= 2
    for x, y in ((1, 1), (width // 2, height // 2), (width - 2, 1), (1, height - 2)):
        assert np.abs(right[y, x] - 105).max() <= 2, "the cross"
    other = contact_sheet(images, ["a", "something else"], [True, False], columns=2)
    assert other.png == sheet.png, "the caption is `padding`, whatever the label"


def test_an_element_that_is_not_there_leaves_a_grey_cell() -> None:
    sheet = contact_sheet([plain(0), None], ["a", "b"], columns=2)
    left, top, _, _ = box(sheet, 0)
    assert pixels(sheet)[top + 5, left + 85].tolist() == [222, 222, 222]
    assert contact_sheet([None], [""], [False]).size[0] > 44


def test_the_same_input_gives_the_same_bytes() -> None:
    once, again = (contact_sheet([plain(0)], ["a"], title="t", note="n") for _ in range(2))
    assert once.png == again.png


def test_counts_that_differ_are_refused() -> None:
    with pytest.raises(PipelineError, match="2 images, 1 captions and 2 of the mask"):
        contact_sheet([plain(0)] * 2, ["a"])
    with pytest.raises(PipelineError, match="at least one; got 0 images"):
        contact_sheet([], [])


def test_a_sheet_beyond_all_size_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"pixels is too large.*`count=` or `scale=`"):
        contact_sheet([plain(0)] * 100, ["a"] * 100, scale=1000)


def test_without_freetype_letters_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = _util.DeferredError(ImportError("The _imagingft C module is not installed"))
    monkeypatch.setattr(ImageFont, "core", missing)
    sheet = contact_sheet([plain(0)], ["a very long caption … お"], title="title")
    assert box(sheet, 0)[2:] == (72, 72)


def test_without_pillow_the_line_to_install_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        UsageError, match=r"preview needs 'PIL'.*pip install 'cereal-jax\[images\]'"
    ):
        contact_sheet([plain(0)], ["a"])


def test_a_sheet_saves_itself_and_shows_in_notebooks(tmp_path: Path) -> None:
    sheet = contact_sheet([plain(0)], ["a"], title="some digits")
    assert sheet._repr_png_() == sheet.png
    target = tmp_path / "new" / "sheet.png"
    assert sheet.save(str(target)) == target
    assert target.read_bytes() == sheet.png
    assert [path.name for path in target.parent.iterdir()] == ["sheet.png"]
    size = f"{sheet.size[0]} x {sheet.size[1]}"
    assert repr(sheet) == f"ContactSheet: some digits; {size} pixels"


def test_a_path_that_says_another_format_is_refused(tmp_path: Path) -> None:
    sheet = contact_sheet([plain(0)], ["a"])
    with pytest.raises(UsageError, match=r"is a PNG, and the path is .*write '.*sheet\.png'"):
        sheet.save(tmp_path / "sheet.jpg")
    assert not list(tmp_path.iterdir())
    assert sheet.save(tmp_path / "sheet").read_bytes() == sheet.png


def test_a_sheet_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    sheet = contact_sheet([plain(0)], ["a"])
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(OSError, match="taken"):
        sheet.save(tmp_path / "taken.png")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]
