"""Tars that webdataset writes; what it reads from them is what we read."""

from __future__ import annotations

import gc
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.transforms.images import difference, photo

from cereal import BatchTransform, DataLoader, DecodeImageTransform, HostMapTransform, TarSource

from .checks import N, check_in_jit, check_resume, check_shuffled, check_values

pytestmark = pytest.mark.bridges
webdataset = import_module("webdataset")

IMAGES = [photo(30 + i, 40, i) for i in range(N)]


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Ten samples in shards of four, by webdataset's own writer."""
    pattern = str(tmp_path / "photos-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=4, verbose=0) as writer:
        for number, image in enumerate(IMAGES):
            writer.write(
                {
                    "__key__": f"train/{number:03}",
                    "png": image,
                    "jpg": image,
                    "cls": number,
                    "json": {"number": number, "even": number % 2 == 0},
                    "txt": f"photo {number}",
                    "npy": np.arange(4, dtype=np.float32) * number,
                    "left.cls": number + 1,
                }
            )
    return str(tmp_path / "photos-{000..002}.tar")


def by_webdataset(shards: str, *decoded: str | None) -> list[Any]:
    """What webdataset reads, decoded if something is passed. It leaves its files open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        data = webdataset.WebDataset(shards, shardshuffle=False)
        found = list(data.decode(*filter(None, decoded)) if decoded else data)
        del data
        gc.collect()
    return found


def elements(source: Any) -> list[Any]:
    found: list[Any] = []
    stage = HostMapTransform(lambda element: found.append(element) or 0)
    with DataLoader([source, stage, BatchTransform(1)], workers=0) as loader:
        found.clear()
        list(loader)
    return found


def test_the_samples_are_those_that_webdataset_reads(shards: str) -> None:
    theirs = by_webdataset(shards)
    ours = elements(TarSource(shards, None, "sequential"))
    assert len(ours) == len(theirs) == N
    for own, other in zip(ours, theirs, strict=True):
        assert own == {name: value for name, value in other.items() if name in own}
        assert set(other) - set(own) <= {"__url__", "__local_path__"}


def test_members_are_decoded_as_webdataset_decodes_them(shards: str) -> None:
    theirs = by_webdataset(shards, None)
    ours = elements(TarSource(shards, ordering="sequential"))
    for own, other in zip(ours, theirs, strict=True):
        for name in ("cls", "json", "txt", "left.cls", "__key__"):
            assert own[name] == other[name]
        np.testing.assert_array_equal(own["npy"], other["npy"])


def test_images_are_those_of_webdataset(shards: str) -> None:
    theirs = by_webdataset(shards, "pil")
    source = TarSource(shards, ordering="sequential", columns={"image": "png", "jpg": "jpg"})
    for own, other in zip(elements(source), theirs, strict=True):
        pixels = DecodeImageTransform().decoder(own)["image"]
        np.testing.assert_array_equal(pixels, np.asarray(other["png"]))
        jpeg = DecodeImageTransform().decoder(own["jpg"])
        assert difference(jpeg, np.asarray(other["jpg"])) < 0.1


WANTED = {
    "label": np.arange(N, dtype=np.int32),
    "npy": np.arange(4, dtype=np.float32) * np.arange(N, dtype=np.float32)[:, None],
}
COLUMNS = {"label": "cls", "npy": "npy"}


def test_the_checks_of_every_bridge(shards: str) -> None:
    def make() -> Any:
        return TarSource(shards, ordering="sequential", columns=COLUMNS)

    check_values(make(), WANTED)
    check_resume(make, WANTED)
    check_in_jit(make(), WANTED)
    check_shuffled(TarSource(shards, columns=COLUMNS), WANTED, lambda found: found["label"])


@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 2, "worker_type": "process"}])
def test_photos_in_a_loader_of_threads_or_processes(shards: str, how: Any) -> None:
    def batches(**options: Any) -> Any:
        source = TarSource(shards, columns={"image": "jpg;png", "label": "cls"})
        stages = [DecodeImageTransform((24, 24), "random"), BatchTransform(5)]
        with DataLoader([source, *stages], **options) as loader:
            return [jax.device_get(b) for b, _ in loader.iterate(loader.init_state(0), epochs=2)]

    found = batches(**how)
    assert found[0]["image"].shape == (5, 24, 24, 3)
    jax.tree.map(np.testing.assert_array_equal, found, batches(workers=0))


def test_a_shard_that_was_cut_short_is_refused(shards: str, tmp_path: Path) -> None:
    path = tmp_path / "photos-001.tar"
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(OSError, match=r"photos-001\.tar' is truncated"):
        TarSource(shards)


def test_decode_may_be_webdatasets_own(shards: str) -> None:
    handlers = [webdataset.autodecode.imagehandler("rgb8")]
    own = webdataset.autodecode.Decoder(handlers)

    def decode(member: Any) -> Any:
        made = own(dict(member))
        return {"image": made["png"][:30, :40], "label": made["cls"]}

    with DataLoader([TarSource(shards, decode, "sequential"), BatchTransform(5)]) as loader:
        batch, _ = next(iter(loader))
    np.testing.assert_array_equal(batch["image"][2], IMAGES[2][:30])
