"""CIFAR-10 and CIFAR-100: small colour photographs; a record describes each."""

from __future__ import annotations

import re
from typing import Literal

from .base import RecordedDataset
from .readers.cifar import from_pickles, from_records, reader
from .record import Form, Record, RemoteFile, mirrored

Split = Literal["train", "test"]
_PLACES = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
_BATCHES = {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}
_PARTS = {"train": ["train"], "test": ["test"]}
_BINARY_HASHES = {
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR10_NAMES = re.findall(r"\w+", "airplane automobile bird cat deer dog frog horse ship truck")
_CIFAR100_NAMES = re.findall(
    r"\w+",
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house
    kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
    shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
    tank telephone television tiger tractor train trout tulip turtle wardrobe whale
    willow_tree wolf woman worm
    """,
)


def _archive(name: str, hash: str) -> dict[str, tuple[RemoteFile, ...]]:
    return dict.fromkeys(_BATCHES, (mirrored(_PLACES, name, hash),))


def _inside(folder: str, batches: dict[str, list[str]], suffix: str = "") -> dict[str, list[str]]:
    return {split: [f"{folder}/{n}{suffix}" for n in names] for split, names in batches.items()}


def _unpacked(names: list[str]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{name}.bin", _BINARY_HASHES[f"{name}.bin"]) for name in names)


class CIFAR10Dataset(RecordedDataset[Split]):
    """Colour photographs in ten classes: 50,000 for training, 10,000 for testing.

        CIFAR10Dataset(split="test").as_array_dict()
        {"image": uint8[10000,32,32,3], "label": int32[10000]}

    The files (170 MB) are downloaded and kept as for `MNISTDataset`. If you already have the
    archive of pickles or the unpacked `.bin` files, they are read instead; no code in a pickle
    runs. By A. Krizhevsky.
    """

    record = Record(
        "CIFAR-10",
        "cifar10",
        ("train", "test"),
        (
            Form(
                reader(from_records, ["label"], _inside("cifar-10-batches-bin", _BATCHES, ".bin")),
                _archive(
                    "cifar-10-binary.tar.gz",
                    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
            Form(
                reader(from_pickles, {"label": "labels"}, _inside("cifar-10-batches-py", _BATCHES)),
                _archive(
                    "cifar-10-python.tar.gz",
                    "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                ),
            ),
            Form(
                reader(from_records, ["label"]),
                {split: _unpacked(names) for split, names in _BATCHES.items()},
            ),
        ),
        tuple(_CIFAR10_NAMES),
    )


_CIFAR100_GROUPS = (
    *("aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables"),
    *("household electrical devices", "household furniture", "insects", "large carnivores"),
    *("large man-made outdoor things", "large natural outdoor scenes"),
    *("large omnivores and herbivores", "medium-sized mammals", "non-insect invertebrates"),
    *("people", "reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2"),
)


class CIFAR100Dataset(RecordedDataset[Split]):
    """Colour photographs in 100 classes and 20 groups: 50,000 for training, 10,000 for testing.

        CIFAR100Dataset(split="test").as_array_dict()
        {"image": uint8[10000,32,32,3], "label": int32[10000], "coarse_label": int32[10000]}

    The files (169 MB) are downloaded and kept as for `MNISTDataset`; if you already have the
    archive of pickles, it is read instead. `classes` are the names of `label`, `coarse_classes`
    those of `coarse_label`.
    """

    coarse_classes = _CIFAR100_GROUPS

    record = Record(
        "CIFAR-100",
        "cifar100",
        ("train", "test"),
        (
            Form(
                reader(
                    from_records,
                    ["coarse_label", "label"],
                    _inside("cifar-100-binary", _PARTS, ".bin"),
                ),
                _archive("cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),
            ),
            Form(
                reader(
                    from_pickles,
                    {"coarse_label": "coarse_labels", "label": "fine_labels"},
                    _inside("cifar-100-python", _PARTS),
                ),
                _archive(
                    "cifar-100-python.tar.gz",
                    "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                ),
            ),
        ),
        tuple(_CIFAR100_NAMES),
    )
