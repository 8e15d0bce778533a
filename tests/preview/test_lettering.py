from __future__ import annotations

import pytest
from PIL import Image, ImageDraw, ImageFont, _util

from cereal.preview.lettering import Lettering

LONG = "a caption that is much longer than the image above it"


@pytest.fixture(params=["FreeType", "plain letters"])
def letters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lettering:
    if request.param == "plain letters":  # what Pillow does where it was built without FreeType
        missing = _util.DeferredError(ImportError("The _imagingft C module is not installed"))
        monkeypatch.setattr(ImageFont, "core", missing)
        with pytest.raises(ImportError):
            ImageFont.load_default(12)
    return Lettering(ImageFont)


def test_a_text_that_fits_stays_whole(letters: Lettering) -> None:
    assert letters.fit("cat", 100, 12) == "cat"


@pytest.mark.parametrize("width", [20, 40, 75, 150])
def test_a_text_that_does_not_fit_ends_in_dots(letters: Lettering, width: int) -> None:
    line = letters.fit(LONG, width, 12)
    assert letters.width(line, 12) <= width
    kept = line.rstrip(".…")
    assert kept != line
    assert LONG.startswith(kept)
    one_more = LONG[: len(kept) + 2]
    assert letters.width(f"{one_more}…", 12) > width


def test_endless_texts_take_no_time(letters: Lettering) -> None:
    assert len(letters.fit("word " * 1_000_000, 100, 12)) < 40


def test_lines_and_accents_become_plain_letters(letters: Lettering) -> None:
    assert letters.fit("Café\tcrème\nbrûlée", 1000, 12) == "Cafe creme brulee"


def test_any_letter_can_be_written(letters: Lettering) -> None:
    sheet = Image.new("L", (200, 40))
    letters.write(ImageDraw.Draw(sheet), "お 犬 🐕 …", (0, 0), 200, 12, 255)
    assert sheet.getbbox() is not None


def test_a_centred_line_is_in_the_middle(letters: Lettering) -> None:
    sheet = Image.new("L", (200, 40))
    letters.write_centred(ImageDraw.Draw(sheet), "HHHH", (100, 5), 200, 12, 255)
    box = sheet.getbbox()
    assert box is not None
    assert abs((box[0] + box[2]) / 2 - 100) <= 2


def test_nothing_is_nothing(letters: Lettering) -> None:
    assert letters.fit("", 10, 12) == ""
    assert letters.width("", 12) == 0
