"""MNIST and datasets in its format, IDX files; a record describes each."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ..base.errors import PipelineError
from ..base.numbers import AHEAD
from ..pipeline.positional import IndexedSource
from .base import TRAIN, RecordedDataset
from .readers.idx import read_pair, read_zipped_pair
from .record import Arrays, Form, Record, RemoteFile, mirrored
from .storage import CacheDir

Split = Literal["train", "test"]
Subset = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
_BOTH = ("train", "test")
_KINDS = ("images-idx3", "labels-idx1")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def _record(
    name: str, folder: str, classes: Sequence[str], urls: Sequence[str], hashes: Sequence[str]
) -> Record:
    """The record of four IDX files that have the same names as those of MNIST."""
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in _KINDS]
    files = [
        mirrored(urls, file, f"sha256:{hash}") for file, hash in zip(names, hashes, strict=True)
    ]
    form = Form(read_pair, {"train": tuple(files[:2]), "test": tuple(files[2:])})
    return Record(name, folder, _BOTH, (form,), tuple(classes))


class MNISTDataset(RecordedDataset[Split]):
    """Handwritten digits: 60,000 for training, 10,000 for testing.

        MNISTDataset(split="train").as_array_dict()
        {"image": uint8[60000,28,28,1], "label": int32[60000]}

    The files (11 MB) are downloaded once and checked. They are kept in `cache_dir`; by default in
    the folder that the environment variable `CEREAL_DATA_DIR` names, or in the user's cache folder.
    `verify=False` uses existing files without a check: your own data in this format, for example.
    By Y. LeCun, C. Cortes and C. Burges.
    """

    record = _record(
        "MNIST",
        "mnist",
        string.digits,
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
        ),
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )


def MNISTDiskSource(  # noqa: N802
    split: Split = "train",
    ordering: Any = "shuffle",
    prefetch_size: int = AHEAD,
    cache_dir: CacheDir = None,
    *,
    verify: bool = True,
) -> IndexedSource[dict[str, Any]]:
    """MNIST, read from disk; the same as `MNISTDataset.make_disk_source`.

        MNISTDiskSource(split="train")  -->  {"image": uint8[28,28,1], "label": int32[]}

    The data stays in files; they are unpacked once, into the cache folder.
    """
    return MNISTDataset.make_disk_source(split, ordering, prefetch_size, cache_dir, verify=verify)


class FashionMNISTDataset(RecordedDataset[Split]):
    """Pieces of clothing in ten classes: 60,000 images for training, 10,000 for testing.

        FashionMNISTDataset(split="test").as_array_dict()
        {"image": uint8[10000,28,28,1], "label": int32[10000]}

    The files (30 MB) are downloaded and kept as for `MNISTDataset`. By Zalando SE, MIT licence.
    """

    record = _record(
        "Fashion-MNIST",
        "fashion_mnist",
        _CLOTHES,
        (
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ),
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    )


class KMNISTDataset(RecordedDataset[Split]):
    """Cursive Japanese characters in ten classes: 60,000 for training, 10,000 for testing.

        KMNISTDataset(split="test").as_array_dict()
        {"image": uint8[10000,28,28,1], "label": int32[10000]}

    The files (21 MB) are downloaded and kept as for `MNISTDataset`. By CODH, CC BY-SA 4.0,
    doi:10.20676/00000341.
    """

    record = _record(
        "KMNIST",
        "kmnist",
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        (
            "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        ),
        (
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        ),
    )


_EMNIST_FILE = RemoteFile(
    "gzip.zip",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
)
_ALL = string.digits + string.ascii_uppercase + string.ascii_lowercase
_MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
_CHARACTERS = {
    "balanced": _MERGED,
    "byclass": _ALL,
    "bymerge": _MERGED,
    "digits": string.digits,
    "letters": "-" + string.ascii_lowercase,  # its labels begin at 1
    "mnist": string.digits,
}


def _emnist(subset: str) -> Record:
    def read(paths: Sequence[Path], split: str) -> Arrays:
        names = [f"gzip/emnist-{subset}-{split}-{kind}-ubyte.gz" for kind in _KINDS]
        return read_zipped_pair(paths, names)

    form = Form(read, dict.fromkeys(_BOTH, (_EMNIST_FILE,)))
    return Record(f"EMNIST {subset}", "emnist", _BOTH, (form,), tuple(_CHARACTERS[subset]))


_EMNIST = {subset: _emnist(subset) for subset in _CHARACTERS}


class EMNISTDataset(RecordedDataset[Split]):
    """Handwritten characters, uint8[28,28,1], in six subsets of the NIST database.

        subset      classes   train     test
        "balanced"       47   112,800   18,800
        "byclass"        62   697,932  116,323
        "bymerge"        47   697,932  116,323
        "digits"         10   240,000   40,000
        "letters"        26   124,800   20,800      labels 1 to 26
        "mnist"          10    60,000   10,000

    In its files the two axes of the images are swapped; `image.swapaxes(-3, -2)` turns them
    upright. The files (536 MB) are downloaded and kept as for `MNISTDataset`. By G. Cohen and
    others, NIST.
    """

    record = _EMNIST["balanced"]

    def __init__(
        self,
        split: Split = TRAIN,
        cache_dir: CacheDir = None,
        *,
        subset: Subset = "balanced",
        verify: bool = True,
    ) -> None:
        self.subset = subset
        self._fill(_subset(subset, "EMNISTDataset"), split, cache_dir, verify)

    @classmethod
    def make_disk_source(
        cls,
        split: Split = TRAIN,
        ordering: Any = "shuffle",
        prefetch_size: int = AHEAD,
        cache_dir: CacheDir = None,
        *,
        subset: Subset = "balanced",
        verify: bool = True,
    ) -> IndexedSource[dict[str, Any]]:
        """Like `MNISTDataset.make_disk_source`, for one subset."""
        record = _subset(subset, "EMNISTDataset.make_disk_source")
        return cls._on_disk(record, ordering, prefetch_size, split, cache_dir, verify)

    def __repr__(self) -> str:
        return f"EMNISTDataset({self.split!r}, subset={self.subset!r}): {len(self):,} elements"


def _subset(subset: str, owner: str) -> Record:
    if not isinstance(subset, str) or subset not in _EMNIST:
        known = ", ".join(map(repr, _EMNIST))
        raise PipelineError(f"{owner}: unknown subset {subset!r}; EMNIST has {known}.")
    return _EMNIST[subset]
