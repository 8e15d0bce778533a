"""JPEG to uint8[224,224,3]: DecodeImageTransform against a loop with Pillow, and torchvision.

    python benchmarks/decode_image.py --photos FOLDER

The photos are those of the folder, by default `$CEREAL_DATA_DIR/photos`; without one they are made
(noise that compresses like a photo). Small ones are as they are (500 x 375). Large ones are made of
sixteen small ones (2000 x 1500), as cameras make them: there, decoding at a smaller scale helps.

    by hand       Image.open, convert, ImageOps.fit, np.asarray, np.stack, jax.device_put
    ours          a loader over the bytes, in the caller's thread, with Pillow and with simplejpeg
    ours, 2       the same with two threads
    torchvision   decode_jpeg, then resize with antialias and center_crop, in one thread

How far the results are from those by hand is printed too, in grey levels.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from host_photos import make_photos
from measure import compare, machine, report, report_ratio
from PIL import Image, ImageOps

from cereal import BatchTransform, DataLoader, DecodeImageTransform

SIZE, BATCH = 224, 16


def by_hand(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(
            ImageOps.fit(image.convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR)
        )


def by_torchvision() -> Callable[[bytes], np.ndarray] | None:
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from torchvision.io import decode_jpeg  # pyright: ignore[reportMissingImports]
        from torchvision.transforms.v2 import functional  # pyright: ignore[reportMissingImports]
    except Exception as error:  # it may be installed for another torch
        print(f"torchvision: cannot be imported ({type(error).__name__}: {error})")
        return None

    def decode(data: bytes) -> np.ndarray:
        pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        small = functional.resize(pixels, [SIZE], antialias=True)
        return functional.center_crop(small, [SIZE, SIZE]).permute(1, 2, 0).numpy()

    return decode


def loop(data: list[bytes], decode: Callable[[bytes], np.ndarray]) -> Callable[[], Any]:
    def epoch() -> Any:
        last = None
        for begin in range(0, len(data), BATCH):
            last = jax.device_put(np.stack([decode(each) for each in data[begin : begin + BATCH]]))
        return last

    return epoch


def ours(data: list[bytes], codec: str, workers: int) -> Callable[[], Any]:
    stages = [DecodeImageTransform((SIZE, SIZE), "center", codec=codec), BatchTransform(BATCH)]
    loader = DataLoader([data, *stages], workers=workers, worker_type="thread" if workers else None)

    def epoch() -> Any:
        last = None
        for batch, _ in loader:
            last = batch
        return last

    return epoch


def large(photos: list[bytes], count: int) -> list[bytes]:
    """Photos of sixteen small ones each."""
    found = []
    for number in range(count):
        image = Image.new("RGB", (2000, 1500))
        for tile in range(16):
            with Image.open(io.BytesIO(photos[(number * 16 + tile) % len(photos)])) as small:
                image.paste(small, (tile % 4 * 500, tile // 4 * 375))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=88)
        found.append(file.getvalue())
    return found


def difference(data: list[bytes], codec: str) -> str:
    decode = DecodeImageTransform((SIZE, SIZE), "center", codec=codec).decoder
    found = [np.abs(decode(x).astype(int) - by_hand(x)).mean() for x in data]
    return f"mean {np.mean(found):.2f}, at most {max(found):.2f} grey levels"


def figures(name: str, data: list[bytes], codecs: list[str], pairs: int) -> None:
    wanted = 2.0 if name == "large" else 0.95
    for codec in codecs:
        for workers in (0, 2):
            result = compare(ours(data, codec, workers), loop(data, by_hand), pairs)
            title = f"{len(data)} {name} photos, {codec}, workers={workers}, by hand / ours"
            report_ratio(title, result, f"at least {wanted}x", result["ratio"] >= wanted)
            rate = len(data) / result["ours"]
            report("ours", f"{rate:,.0f} photos a second", "reported", True)
        report(f"{name}, {codec}, from by hand", difference(data[:48], codec), "reported", True)
    if (decode := by_torchvision()) is not None:
        result = compare(ours(data, codecs[-1], 0), loop(data, decode), pairs)
        report_ratio(f"{name} photos, torchvision / ours, workers=0", result, "reported", True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("CEREAL_DATA_DIR")
    parser.add_argument("--photos", type=Path, default=Path(known) / "photos" if known else None)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    print(machine(), f"Pillow {Image.__version__}", f"{os.cpu_count()} cores", sep=", ")
    try:
        import simplejpeg  # noqa: F401  # pyright: ignore[reportMissingImports]

        codecs = ["pillow", "simplejpeg"]
    except ImportError:
        print("simplejpeg: not installed")
        codecs = ["pillow"]
    with tempfile.TemporaryDirectory() as folder:
        if options.photos is None or not options.photos.is_dir():
            print("made photos, no real ones")
            make_photos(Path(folder))
            options.photos = Path(folder)
        small = [path.read_bytes() for path in sorted(options.photos.glob("*.jpg"))]
    figures("small", small[: len(small) // BATCH * BATCH], codecs, options.pairs)
    figures("large", large(small, 32), codecs, options.pairs)
