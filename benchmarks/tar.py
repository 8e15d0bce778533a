"""A tar of 20,000 photos: ours in a shuffled order, webdataset in its own, from front to back.

    python benchmarks/tar.py --photos FOLDER

Each sample is a JPEG and a label. The photos are those of the folder, by default
`$CEREAL_DATA_DIR/photos`, again and again; without one, random bytes of the size of photos are
used, and nothing is decoded. The tar was just written, so it is in the memory of the system: what
is measured is the work, not the disk.

    bytes     both read all samples, look at the length of the photo, and make batches of labels
    decoded   both decode with Pillow and resize to 224 x 224 in one thread (some of the samples)
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import compare, machine, report, report_ratio

from cereal import BatchTransform, DataLoader, DecodeImageTransform, HostMapTransform, TarSource

BATCH, SIZE = 64, 224


def photos_in(folder: Path | None) -> list[bytes]:
    found = sorted(folder.glob("*.jpg")) if folder is not None and folder.is_dir() else []
    if not found:
        print("no photos: random bytes of 34 kB")
        rng = np.random.default_rng(0)
        return [rng.bytes(int(rng.integers(10_000, 58_000))) for _ in range(200)]
    return [path.read_bytes() for path in found]


def write_tar(path: str, photos: list[bytes], count: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number, photo in zip(range(count), itertools.cycle(photos), strict=False):
            for extension, data in (("jpg", photo), ("cls", str(number % 1000).encode())):
                member = tarfile.TarInfo(f"train/{number:08}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def lengths(element: Any) -> Any:
    return {"n": np.int32(len(element["image"])), "label": element["label"]}


def ours(
    path: str, stages: list[Any], steps: int | None = None, **options: Any
) -> Callable[[], Any]:
    source = TarSource(path, columns={"image": "jpg", "label": "cls"}, ordering="shuffle")
    loader = DataLoader([source, *stages, BatchTransform(BATCH)], **options)
    keys = itertools.count()

    def epoch() -> Any:
        last = None
        for batch, _ in loader.iterate(loader.init_state(next(keys)), steps=steps):
            last = batch
        return last

    return epoch


def theirs(path: str, decode: Callable[[Any], Any], steps: int | None = None) -> Callable[[], Any]:
    import webdataset  # pyright: ignore[reportMissingImports]

    def epoch() -> Any:
        data = webdataset.WebDataset(path, shardshuffle=False).map(decode)
        data = data.to_tuple("jpg", "cls").batched(BATCH, partial=False)
        last = None
        for batch in itertools.islice(data, steps):
            last = batch
        return last

    return epoch


def only_lengths(sample: Any) -> Any:
    return {"jpg": np.int32(len(sample["jpg"])), "cls": int(sample["cls"])}


def with_pillow(sample: Any) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(sample["jpg"])) as image:
        small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return {"jpg": np.asarray(small), "cls": int(sample["cls"])}


def figures(path: str, options: argparse.Namespace, decodes: bool) -> None:
    begin = time.perf_counter()
    TarSource(path)
    report(
        "the first pass, for the index", f"{time.perf_counter() - begin:.2f} s", "reported", True
    )
    begin = time.perf_counter()
    TarSource(path)
    again = 1e3 * (time.perf_counter() - begin)
    report("opened again, with the index that was kept", f"{again:.0f} ms", "reported", True)
    mine = {
        "by default": {},
        "one thread": {"workers": 1, "worker_type": "thread"},
        "workers=0": {"workers": 0},
    }
    steps = options.members // BATCH
    for name, how in mine.items():
        result = compare(
            ours(path, [HostMapTransform(lengths)], steps, **how),
            theirs(path, only_lengths, steps),
            options.pairs,
        )
        title = f"bytes of {options.members} photos, webdataset / ours shuffled, {name}"
        report_ratio(title, result, "at least 1x", result["ratio"] >= 1)
        rate = options.members / result["ours"]
        report("ours", f"{rate:,.0f} photos a second", "reported", True)
    if decodes:
        some = min(steps, 20)
        stage = DecodeImageTransform((SIZE, SIZE), codec="pillow")
        result = compare(
            ours(path, [stage], some, workers=0), theirs(path, with_pillow, some), options.pairs
        )
        title = f"{some * BATCH} photos decoded, webdataset / ours shuffled, workers=0"
        report_ratio(title, result, "reported", True)  # it is the decoder that is measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("CEREAL_DATA_DIR")
    parser.add_argument("--photos", type=Path, default=Path(known) / "photos" if known else None)
    parser.add_argument("--members", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    print(machine(), f"{os.cpu_count()} cores", sep=", ")
    photos = photos_in(options.photos)
    with tempfile.TemporaryDirectory() as folder:
        tar = os.path.join(folder, "photos.tar")
        write_tar(tar, photos, options.members)
        print(f"{os.path.getsize(tar) / 1e6:,.0f} MB")
        figures(tar, options, photos[0][:2] == b"\xff\xd8")
