"""Streaming from disk: data that need not fit in memory, and how fast it comes.

    python examples/disk_stream.py --files 1000

Three ways to digits: arrays in memory; arrays in files that are mapped into memory, with
`make_disk_source`; a folder of JPEGs that your own function opens and shrinks, on 1, 2 and 4
threads. One JPEG is cut short, as happens: `on_error="skip"` masks that element and counts it.
Batches do not depend on how many threads read them; the digest in the table shows it. On two
CPU cores:

                          elements/s  skipped  digest
    in memory              1,717,180        0  bb664beb
    mapped file            1,462,387        0  bb664beb
    JPEGs, workers=1           1,317        1  50815516
    JPEGs, workers=2           2,233        1  50815516
    JPEGs, workers=4           2,127        1  50815516
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

import cereal


def write_files(data: dict[str, np.ndarray], count: int, folder: Path) -> None:
    """Photographs of digits, as it were: 448 pixels wide, the class in the name of the file."""
    for index in range(count):
        image = Image.fromarray(data["image"][index, :, :, 0]).resize((448, 448))
        image.save(folder / f"{index:05d}_{data['label'][index]}.jpg")
    broken = folder / f"{count // 2:05d}_{data['label'][count // 2]}.jpg"
    broken.write_bytes(broken.read_bytes()[:1000])


def open_folder(folder: Path) -> cereal.DiskSampleSource:
    """A source of your own files is a length, and a function that reads number `index`."""
    paths = sorted(folder.glob("*.jpg"))

    def read(index: int) -> dict[str, Any]:
        with Image.open(paths[index]) as image:
            small = np.asarray(image.resize((28, 28)))
        return {"image": small[:, :, None], "label": int(paths[index].stem[-1])}

    return cereal.DiskSampleSource(length=len(paths), sample_fn=read, ordering="shuffle")


def measure(name: str, source: Any, epochs: int, **options: Any) -> dict[str, Any]:
    """Reads shuffled batches as training would, and says how fast, and what they were."""
    stages = [cereal.BatchTransform(100, pad_last_batch=True), cereal.NormalizeImageTransform()]
    elements, digest = 0, hashlib.sha256()
    with cereal.DataLoader([source, *stages], **options) as loader:
        state = loader.init_state(jax.random.key(0))
        batches = loader.iterate(state, epochs=epochs)
        for batch, mask in batches:  # once untimed: this compiles
            for leaf in jax.tree.leaves((batch, mask)):
                digest.update(np.asarray(leaf).tobytes())
        state, begin = batches.state, time.perf_counter()
        for batch, mask in loader.iterate(state, epochs=epochs, progress=name):
            jax.block_until_ready(batch)
            elements += np.count_nonzero(mask)
        rate = elements / (time.perf_counter() - begin)
        skipped = loader.skipped / (2 * epochs)
    return {"source": name, "rate": rate, "skipped": skipped, "digest": digest.hexdigest()[:8]}


def main(dataset: Any, files: int, epochs: int, workers: tuple[int, ...]) -> list[dict[str, Any]]:
    data = dataset("train").as_array_dict()
    in_memory = cereal.ArraySampleSource(data, ordering="shuffle")
    mapped = dataset.make_disk_source(split="train", ordering="shuffle", prefetch_size=1024)
    rows = [measure("in memory", in_memory, epochs), measure("mapped file", mapped, epochs)]
    with tempfile.TemporaryDirectory() as folder:
        write_files(data, files, Path(folder))
        source = open_folder(Path(folder))
        for count in workers:
            options = {"workers": count, "prefetch": 4, "on_error": "skip"}
            rows.append(measure(f"JPEGs, workers={count}", source, epochs, **options))
    print(f"{'':20}{'elements/s':>12}{'skipped':>9}  digest")
    for row in rows:
        print("{source:20}{rate:12,.0f}{skipped:9.0f}  {digest}".format(**row))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    main(cereal.MNISTDataset, **vars(parser.parse_args()))
