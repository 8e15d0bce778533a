"""Encoded images become arrays of one size: the pixels that Pillow gives, in less time."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import cereal
from cereal import (
    BatchTransform,
    DataLoader,
    DatasetError,
    DecodeImageTransform,
    PipelineError,
    UsageError,
)
from cereal.reading.images.codecs import PillowPicture
from cereal.reading.images.parts import Part, anywhere, shrink_for
from cereal.testing import check_loader, check_resume

from .images import by_pillow, difference, encoded, photo

SIZE = (32, 48)
# How far decoding at 1/2, 1/4 and 1/8 may be from decoding it all: grey levels, in the mean.
TOLERANCE = 2.0


def decoded(element: Any, *args: Any, **options: Any) -> Any:
    """What the stage makes of one element."""
    return DecodeImageTransform(*args, codec="pillow", **options).decoder(element)


PHOTO = photo(120, 160)
JPEG, PNG = encoded(PHOTO, quality=90), encoded(PHOTO, "PNG")


# The pixels


def test_without_a_size_the_pixels_are_those_of_pillow() -> None:
    np.testing.assert_array_equal(decoded(PNG), PHOTO)
    np.testing.assert_array_equal(decoded(JPEG), np.asarray(Image.open(io.BytesIO(JPEG))))


@pytest.mark.parametrize("crop", [None, "center"])
@pytest.mark.parametrize("data", [PNG, JPEG], ids=["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(100, 100), (240, 200), (120, 160)])
def test_near_its_own_size_an_image_is_exactly_that_of_pillow(
    data: Any, crop: Any, size: Any
) -> None:
    np.testing.assert_array_equal(decoded(data, size, crop), by_pillow(data, size, crop))


@pytest.mark.parametrize("crop", [None, "center"])
@pytest.mark.parametrize("shape", [(97, 130), (201, 133), (263, 391), (516, 401)])
def test_a_shrunk_image_is_that_of_the_full_one_within_the_tolerance(shape: Any, crop: Any) -> None:
    data = encoded(photo(*shape), quality=90)
    found, wanted = decoded(data, SIZE, crop), by_pillow(data, SIZE, crop)
    assert found.shape == wanted.shape == (*SIZE, 3)
    assert difference(found, wanted) < TOLERANCE
    assert difference(found, wanted[:, ::-1]) > 20  # the measure tells images apart


@pytest.mark.parametrize(
    ("part", "shrink"),
    [
        (Part(0, 0, 48, 32), 1),
        (Part(0, 0, 95, 640), 1),
        (Part(0, 0, 96, 64), 2),
        (Part(5, 5, 192, 128), 4),
        (Part(0, 0, 383, 256), 4),
        (Part(0, 0, 4000, 3000), 8),
    ],
)
def test_a_jpeg_is_shrunk_while_it_is_decoded_but_never_below_the_size(
    part: Part, shrink: int
) -> None:
    assert shrink_for(part, SIZE) == shrink


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_pillow_shrinks_as_asked(shrink: int) -> None:
    data = encoded(photo(121, 167))
    picture = PillowPicture(Image.open(io.BytesIO(data)), "RGB", upright=False, own=True)
    assert (picture.height, picture.width) == (121, 167)
    image, shrunk = picture.image(shrink)
    assert image.size == (-(-167 // shrink), -(-121 // shrink))
    assert shrunk == shrink


# Kinds of images and elements


def test_an_image_comes_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    forms: list[Any] = [PNG, bytearray(PNG), memoryview(PNG), np.frombuffer(PNG, np.uint8)]
    forms += [str(path), path, Image.open(path), PHOTO, {"bytes": PNG, "path": None}]
    forms += [{"bytes": None, "path": str(path)}]
    for form in forms:
        for element in (form, {"image": form, "label": 3}):
            found = decoded(element, SIZE)
            if element is not form:
                assert found["label"] == 3
                found = found["image"]
            np.testing.assert_array_equal(found, by_pillow(PNG, SIZE, None))


def test_the_key_may_be_another_one_and_the_element_stays_as_it_was() -> None:
    element = {"jpg": PNG, "cls": 1}
    assert decoded(element, image_key="jpg")["jpg"].shape == (120, 160, 3)
    assert element == {"jpg": PNG, "cls": 1}


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr"])
def test_any_colours_become_those_that_are_asked_for(mode: Any) -> None:
    image = Image.fromarray(PHOTO).convert(mode)
    for wanted, channels in (("RGB", 3), ("L", 1)):
        found = decoded(image, mode=wanted)
        assert found.shape == (120, 160, channels)
        pixels = np.asarray(image.convert(wanted)).reshape(found.shape)
        np.testing.assert_array_equal(found, pixels)


def test_a_palette_with_transparency_is_no_warning() -> None:
    image = Image.fromarray(PHOTO).convert("P")
    data = io.BytesIO()
    image.save(data, "PNG", transparency=bytes(range(256)))
    np.testing.assert_array_equal(decoded(data.getvalue()), np.asarray(image.convert("RGB")))


def test_a_grey_jpeg_and_a_coloured_one_in_grey() -> None:
    grey = encoded(PHOTO[:, :, 0])
    assert (np.ptp(decoded(grey, SIZE), axis=2) == 0).all()
    found = decoded(encoded(PHOTO, quality=95), (15, 20), mode="L")  # shrunk on the way
    wanted = by_pillow(JPEG, (15, 20), None) @ [0.299, 0.587, 0.114]
    assert found.shape == (15, 20, 1)
    assert difference(found[:, :, 0], wanted.round()) < TOLERANCE


def lying(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(photo(240, 320), exif=exif, quality=95)


def test_a_photo_that_lies_on_its_side_stays_so_as_in_pillow() -> None:
    np.testing.assert_array_equal(decoded(lying(6)), decoded(lying(1)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_turns_it_as_its_exif_says(orientation: int) -> None:
    from PIL import ImageOps

    data = lying(orientation)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decoded(data, upright=True), np.asarray(turned))
    small = decoded(data, (40, 30), "center", upright=True)
    wanted = by_pillow(encoded(np.asarray(turned), "PNG"), (40, 30), "center")
    assert difference(small, wanted) < TOLERANCE


# In a loader


def shown(crop: Any = "center", n: int = 6, **options: Any) -> DataLoader[Any]:
    """Images of different sizes, in a loader."""
    data = [{"image": encoded(photo(60 + 7 * i, 90 - 5 * i, i)), "label": i} for i in range(n)]
    source = cereal.DatasetSource(data, ordering="shuffle")
    stages = [DecodeImageTransform(SIZE, crop), BatchTransform(4)]
    return DataLoader([source, *stages], **options)


@pytest.mark.parametrize("crop", ["center", pytest.param("random", marks=pytest.mark.slow)])
def test_the_conformance_kit(crop: Any) -> None:
    check_loader(shown(crop))
    check_resume(shown(crop))


def some(loader: DataLoader[Any], epochs: int = 2) -> list[Any]:
    with loader:
        return [
            jax.device_get(batch)
            for batch, _ in loader.iterate(loader.init_state(0), epochs=epochs)
        ]


@pytest.mark.parametrize("crop", [None, "random"])
def test_threads_and_the_callers_thread_give_the_same(crop: Any) -> None:
    alone = some(shown(crop, workers=0))
    assert alone[0]["image"].shape == (4, *SIZE, 3)
    assert alone[0]["image"].dtype == np.uint8
    jax.tree.map(np.testing.assert_array_equal, some(shown(crop, workers=2)), alone)


@pytest.mark.slow
@pytest.mark.parametrize("crop", ["center", "random"])
def test_processes_give_the_same(crop: Any) -> None:
    found = some(shown(crop, workers=2, worker_type="process"))
    jax.tree.map(np.testing.assert_array_equal, found, some(shown(crop, workers=0)))


def test_in_the_users_own_jit() -> None:
    loader = shown(workers=1)
    step = jax.jit(lambda loader, state: loader.next_batch(state))
    with loader:
        batch, _, _ = step(loader, loader.init_state(0))
        assert jax.tree.map(np.array_equal, batch, loader.batch_at(0, 0)[0])["image"]


def test_a_random_part_is_another_one_in_every_epoch_and_for_every_element() -> None:
    data = [PHOTO] * 3
    loader = DataLoader([data, DecodeImageTransform(SIZE, "random"), BatchTransform(3)], workers=0)
    first, second = (np.asarray(loader.batch_at(0, step)[0]) for step in (0, 1))
    images = [*first, *second]
    assert all(difference(a, b) > 1 for k, a in enumerate(images) for b in images[:k])
    np.testing.assert_array_equal(loader.batch_at(0, 1)[0], second)


@pytest.mark.parametrize("shape", [(100, 100), (30, 200), (400, 20), (1, 1), (1, 50)])
def test_a_random_part_lies_inside_of_the_image(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        left, top, right, bottom = anywhere(*shape, rng).box
        assert 0 <= left < right <= shape[1]
        assert 0 <= top < bottom <= shape[0]


def test_random_parts_are_of_all_sizes_and_places() -> None:
    rng = np.random.default_rng(0)
    parts = [anywhere(300, 400, rng) for _ in range(2000)]
    shares = np.array([part.width * part.height / 120_000 for part in parts])
    ratios = np.array([part.width / part.height for part in parts])
    assert shares.min() < 0.1 < 0.95 < shares.max()
    assert 0.38 < shares.mean() < 0.5
    assert 0.74 < ratios.min() < 0.8 < 1.25 < ratios.max() < 1.35
    centre = np.array([[part.left + part.width / 2, part.top + part.height / 2] for part in parts])
    assert np.abs(centre.mean(axis=0) - [200, 150]).max() < 10


def test_arrays_can_be_resized_after_batching_too() -> None:
    data = [{"image": photo(20, 30, i), "label": i} for i in range(4)]
    for crop in ("center", "random"):
        stage = DecodeImageTransform((8, 8), crop)
        before = DataLoader([data, stage, BatchTransform(2)], workers=0)
        after = DataLoader([data, BatchTransform(2), stage], workers=0)
        jax.tree.map(np.testing.assert_array_equal, before.batch_at(0, 1), after.batch_at(0, 1))


# What is wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 224}, r"height and a width, got 224; write `size=\(224, 224\)`"),
        ({"size": (0, 3)}, r"`size\[0\]` must be an integer of at least 1"),
        ({"size": (3, 3, 3)}, "height and a width"),
        ({"crop": "center"}, r"`crop='center'` needs a size; write"),
        ({"size": (3, 3), "crop": "middle"}, "`crop` must be one of 'center', 'random', None"),
        ({"mode": "BGR"}, "`mode` must be one of 'RGB', 'L'"),
        ({"codec": "opencv"}, "`codec` must be one of"),
        ({"image_key": 3}, "`image_key` must be the name"),
        ({"size": cereal.RangeSource(3)}, "the first argument is the size, got a source"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=f"DecodeImageTransform: .*{words}"):
        DecodeImageTransform(**arguments)


@pytest.mark.parametrize(("module", "extra"), [("PIL", "images"), ("simplejpeg", "jpeg")])
def test_a_library_that_is_missing_is_named_when_the_stage_is_made(
    module: str, extra: str, monkeypatch: Any
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"DecodeImageTransform needs '{module}'.*\[{extra}\]"):
        DecodeImageTransform(codec="simplejpeg")


@pytest.mark.parametrize("data", [JPEG[: len(JPEG) // 2], PNG[: len(PNG) // 2], JPEG[:30]])
def test_half_a_file_is_an_error_and_no_half_image(data: bytes) -> None:
    for size in (None, (15, 20)):
        with pytest.raises(DatasetError, match=r"the image cannot be decoded .*on_error=\"skip\""):
            decoded(data, size)


@pytest.mark.parametrize("data", [b"<html>not found</html>", b""])
def test_what_is_no_image_shows_how_it_begins(data: bytes) -> None:
    words = rf"'image' of 'n01/7' is no image .*: {len(data)} bytes, which begin with {data[:16]!r}"
    with pytest.raises(DatasetError, match=words):
        decoded({"image": data, "__key__": "n01/7"})


def test_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(JPEG[:100])
    with pytest.raises(DatasetError, match=r"bad\.jpg' cannot be decoded"):
        decoded({"image": str(path)})
    with pytest.raises(FileNotFoundError, match="gone"):
        decoded({"image": str(tmp_path / "gone.jpg")})


def test_numbers_with_more_than_eight_bits_are_not_cut_off() -> None:
    deep = encoded(np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000, "PNG")
    with pytest.raises(
        PipelineError, match=r"DecodeImageTransform: the image: .* more than 8 bits"
    ):
        decoded(deep)


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ({"img": PNG}, r"there is no 'image'; the element has \['img'\]; pass `image_key=`"),
        ({"image": 3}, r"must be encoded bytes, .*got int \(3\)"),
        (np.zeros((3, 4, 3), np.float32), r"got an array float32\[3,4,3\]"),
        (np.zeros((3, 4, 2), np.uint8), r"got an array uint8\[3,4,2\]"),
    ],
)
def test_an_element_without_an_image_is_an_error(element: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        decoded(element)


def test_the_pipeline_is_refused_when_it_is_built() -> None:
    with pytest.raises(DatasetError, match="is no image that Pillow knows"):
        DataLoader([[b"?"] * 4, DecodeImageTransform(), BatchTransform(2)])


def test_images_of_different_sizes_are_told_to_be_resized() -> None:
    data = [{"image": encoded(photo(20, width))} for width in (20, 20, 30)]
    loader = DataLoader([data, DecodeImageTransform(), BatchTransform(3)], workers=0)
    words = r"uint8\[20,30,3\].*resize them: `DecodeImageTransform\(size=\(224, 224\)\)`"
    with pytest.raises(PipelineError, match=words):
        next(iter(loader))


def test_a_batch_of_encoded_images_is_told_to_be_decoded() -> None:
    with pytest.raises(PipelineError, match=r"an encoded image: add `DecodeImageTransform\(size="):
        DataLoader([[{"image": PNG}] * 4, BatchTransform(2)])


def test_a_bad_image_can_be_skipped() -> None:
    data = [PNG, JPEG[:100], PNG, PNG]
    stages = [DecodeImageTransform(SIZE), BatchTransform(4)]
    loader = DataLoader([data, *stages], on_error="skip", workers=0)
    _, mask = next(iter(loader))
    assert mask.tolist() == [True, False, True, True]


def test_the_drawing_names_it() -> None:
    assert "DecodeImageTransform(size=(32, 48), crop='center')" in str(shown())
