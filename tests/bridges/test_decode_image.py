"""JPEG by simplejpeg: the same pixels as by Pillow, which takes over what simplejpeg refuses."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image
from tests.transforms.images import by_pillow, difference, encoded, photo

from cereal import BatchTransform, DataLoader, DatasetError, DatasetSource, DecodeImageTransform
from cereal.testing import check_resume

pytestmark = pytest.mark.bridges
simplejpeg = import_module("simplejpeg")

TOLERANCE = 2.0  # as in tests/transforms/test_decode_image.py
SIZE = (32, 48)
JPEG = encoded(photo(240, 320), quality=92)


def test_it_is_used_where_it_is_installed() -> None:
    assert DecodeImageTransform().decoder.codec == "simplejpeg"
    assert DecodeImageTransform(codec="pillow").decoder.codec == "pillow"


@pytest.mark.parametrize("subsampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [None, (200, 300), (100, 100), (48, 64), SIZE, (15, 20)])
@pytest.mark.parametrize("progressive", [False, True])
def test_it_gives_the_pixels_of_pillow(
    subsampling: int, mode: Any, size: Any, progressive: bool
) -> None:
    data = encoded(photo(241, 321), subsampling=subsampling, progressive=progressive)
    crop = None if size is None else "center"
    ours, theirs = (
        DecodeImageTransform(size, crop, mode=mode, codec=codec).decoder(data)
        for codec in ("simplejpeg", "pillow")
    )
    assert ours.shape == theirs.shape
    assert ours.dtype == np.uint8
    assert difference(ours, theirs) < 0.1  # two builds of one library
    if size is not None and mode == "RGB":
        assert difference(ours, by_pillow(data, size, crop)) < TOLERANCE


def test_a_random_part_is_the_same_one_by_either() -> None:
    found = []
    for codec in ("simplejpeg", "pillow"):
        stage = DecodeImageTransform(SIZE, "random", codec=codec)
        loader = DataLoader([[JPEG] * 8, stage, BatchTransform(8)], workers=0)
        found.append(np.asarray(loader.batch_at(0, 0)[0]))
    assert difference(*found) < 0.1
    assert difference(found[0], found[0][::-1]) > 5


def test_grey_and_print_colours() -> None:
    grey = encoded(photo(60, 80)[:, :, 0])
    assert (np.ptp(DecodeImageTransform(SIZE).decoder(grey), axis=2) == 0).all()
    file = io.BytesIO()
    Image.fromarray(photo(60, 80)).convert("CMYK").save(file, "JPEG")
    wanted = np.asarray(Image.open(file).convert("RGB"))
    np.testing.assert_array_equal(DecodeImageTransform().decoder(file.getvalue()), wanted)


def test_upright_is_left_to_pillow() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(60, 80), exif=exif)
    assert DecodeImageTransform(upright=True).decoder(data).shape == (80, 60, 3)
    assert DecodeImageTransform().decoder(data).shape == (60, 80, 3)


def test_what_libjpeg_only_warns_of_is_decoded_as_by_pillow() -> None:
    at = JPEG.index(b"\xff\xda")  # where the pixels begin
    odd = JPEG[:at] + b"\x00\x00" + JPEG[at:]
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(odd)
    wanted = np.asarray(Image.open(io.BytesIO(odd)).convert("RGB"))
    np.testing.assert_array_equal(DecodeImageTransform().decoder(odd), wanted)


@pytest.mark.parametrize("length", [0.02, 0.5, 0.95])
def test_half_a_file_is_an_error(length: float) -> None:
    with pytest.raises(DatasetError, match="cannot be decoded"):
        DecodeImageTransform(SIZE).decoder(JPEG[: int(len(JPEG) * length)])


def test_an_image_that_is_too_large_is_refused_as_by_pillow(monkeypatch: Any) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DatasetError, match="DecompressionBombError"):
        DecodeImageTransform(SIZE).decoder(JPEG)


def loader(crop: str, **options: Any) -> DataLoader[Any]:
    data = [{"image": encoded(photo(90 + i, 120 - i, i)), "label": i} for i in range(10)]
    source = DatasetSource(data, ordering="shuffle")
    return DataLoader([source, DecodeImageTransform(SIZE, crop), BatchTransform(4)], **options)


@pytest.mark.parametrize("crop", ["center", "random"])
def test_threads_and_processes_and_a_resume(crop: str) -> None:
    found = []
    for options in ({"workers": 0}, {"workers": 2}, {"workers": 2, "worker_type": "process"}):
        with loader(crop, **options) as read:
            found.append([jax.device_get(b) for b, _ in read.iterate(read.init_state(3), epochs=2)])
    jax.tree.map(np.testing.assert_array_equal, found[0], found[1])
    jax.tree.map(np.testing.assert_array_equal, found[0], found[2])
    check_resume(loader(crop))
