"""RLDS read from its records: the same as what TFDS decodes, without TensorFlow."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.bridges.quiet_tensorflow import tfds

from cereal import DatasetError, PipelineError
from cereal.rl import RLDSSource
from cereal.rl.offline import rlds, rlds_records

pytestmark = pytest.mark.bridges
pillow = import_module("PIL.Image")
f = tfds.features
FLAGS = ("is_first", "is_last", "is_terminal")
FORMATS = ("tfrecord", "array_record", "parquet")


def with_flags(steps: list[Any]) -> list[Any]:
    last = len(steps) - 1
    return [
        {**step, "is_first": t == 0, "is_last": t == last, "is_terminal": t == last}
        for t, step in enumerate(steps)
    ]


def store(folder: Path, steps: Any, episodes: Any, kind: str, name: str = "made") -> Path:
    """Writes episodes, each a list of steps without flags; the last step ends it."""

    def examples() -> Any:
        for number, each in enumerate(episodes):
            yield number, {"steps": with_flags(each), "text": f"episode {number}"}

    steps = {**steps, **dict.fromkeys(FLAGS, f.Scalar(np.bool_))}
    tfds.disable_progress_bar()
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=f.FeaturesDict({"steps": f.Dataset(steps), "text": f.Text()}),
        split_datasets={"train": examples()},
        data_dir=folder,
        file_format=kind,
        disable_shuffling=True,
    )
    return Path(builder.data_dir)


def both(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, Any]:
    """The source from records, and as TFDS decodes them."""
    ours = RLDSSource(folder, **options)
    with monkeypatch.context() as patch:
        patch.setattr(rlds, "episodes_of_files", lambda *_: None)
        patch.setattr(rlds, "episodes_of_source", lambda *_: None)
        theirs = RLDSSource(folder, **options)
    return ours, theirs


def check_same(one: Any, other: Any, jpeg: int = 0) -> None:
    """`jpeg`: by how much pixels of such images may differ."""
    assert len(one) == len(other)
    found, wanted = (source.take(np.arange(len(one))) for source in (one, other))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True
    ):
        assert a.dtype == b.dtype
        if "jpeg" in jax.tree_util.keystr(path):
            assert np.abs(a.astype(int) - b.astype(int)).max() <= jpeg
        else:
            np.testing.assert_array_equal(a, b)


KINDS: dict[str, Any] = {
    "float32": (f.Tensor(shape=(2, 3), dtype=np.float32), lambda r: r.normal(size=(2, 3))),
    "float64": (f.Tensor(shape=(3,), dtype=np.float64), lambda r: r.normal(size=3)),
    "uint8": (f.Tensor(shape=(4, 4), dtype=np.uint8), lambda r: r.integers(0, 256, (4, 4))),
    "int64": (f.Scalar(np.int64), lambda r: r.integers(-(2**31), 2**31)),
    "bool": (f.Tensor(shape=(5,), dtype=np.bool_), lambda r: r.random(5) < 0.5),
    "class": (f.ClassLabel(num_classes=7), lambda r: int(r.integers(7))),
    "png": (f.Image(shape=(6, 5, 3)), lambda r: r.integers(0, 256, (6, 5, 3), np.uint8)),
    "jpeg": (
        f.Image(shape=(8, 8, 3), encoding_format="jpeg"),
        lambda r: r.integers(0, 256, (8, 8, 3), np.uint8),
    ),
    "zlib": (
        f.Tensor(shape=(3,), dtype=np.float32, encoding=f.Encoding.ZLIB),
        lambda r: r.normal(size=3),
    ),
}
NOT_OURS = ("zlib",)


def cast(feature: Any, value: Any) -> Any:
    dtype = getattr(feature, "np_dtype", None)
    return value if dtype is None or isinstance(value, int) else np.asarray(value, dtype)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_feature_is_as_tfds_decodes_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    plain = {name: pair for name, pair in KINDS.items() if name not in NOT_OURS}
    steps = {
        "observation": {"inner": {name: feature for name, (feature, _) in plain.items()}},
        "action": f.Scalar(np.int32),
        "reward": f.Scalar(np.float32),
        "said": f.Text(),
    }

    def step() -> Any:
        seen = {name: cast(feature, make(rng)) for name, (feature, make) in plain.items()}
        action, reward = np.int32(rng.integers(9)), np.float32(rng.normal())
        return {
            "observation": {"inner": seen},
            "action": action,
            "reward": reward,
            "said": "left",
        }

    episodes = [[step() for _ in range(n)] for n in (4, 2, 90, 3)]
    folder = store(tmp_path, steps, episodes, kind)
    monkeypatch.setattr(rlds, "_as_minari", _seen := Seen(rlds._as_minari))
    ours, theirs = both(folder, monkeypatch)
    # TensorFlow's decoder of JPEG is not the one that TFDS has for NumPy, which is used here.
    check_same(ours, theirs, jpeg=16 if kind == "tfrecord" else 0)
    assert all(isinstance(steps, dict) for steps in _seen.steps[:4])  # stacked: by us
    assert not any(isinstance(steps, dict) for steps in _seen.steps[4:])
    assert "said" not in _seen.steps[0]  # what is not asked for is not decoded


class Seen:
    """What a function was called with."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.steps = fn, []

    def __call__(self, episode: Any, *args: Any) -> Any:
        self.steps.append(episode["steps"])
        return self.fn(episode, *args)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_only_tfds_can_decode_is_decoded_by_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for name in NOT_OURS:
        feature, make = KINDS[name]
        steps = {
            "observation": feature,
            "action": f.Scalar(np.int32),
            "reward": f.Scalar(np.float32),
        }
        one = lambda: {  # noqa: E731
            "observation": np.asarray(make(rng), np.float32),  # noqa: B023
            "action": np.int32(1),
            "reward": np.float32(2),
        }
        folder = store(tmp_path, steps, [[one() for _ in range(n)] for n in (3, 5)], kind, name)
        check_same(*both(folder, monkeypatch))
        assert len(RLDSSource(folder)) == 6


def image_file(mode: str, size: int = 6) -> bytes:
    """A file of pixels in another form than the features say; TFDS stores it as it is."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, size, 4), np.uint8)
    file = io.BytesIO()
    pillow.fromarray(pixels[..., :3]).convert(mode).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("P", "image 0 is a PNG file with a palette"),
        ("1", "image 0 is a PNG file of 1 bits"),
        ("RGBA", r"image 0 has the shape \(5, 6, 4\), not \(5, 6, 3\)"),
    ],
)
def test_images_of_another_form_are_what_tensorflow_decodes(
    tmp_path: Path, mode: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {**SIMPLE, "observation": f.Image(shape=(5, 6, 3))}
    make = lambda: [  # noqa: E731
        {**each, "observation": image_file(mode)} for each in simple(0, 3)
    ]
    check_same(*both(store(tmp_path, steps, [make()], "tfrecord"), monkeypatch))
    with pytest.raises(DatasetError, match=f"record 0 of .* without TensorFlow: {words}"):
        RLDSSource(store(tmp_path, steps, [make()], "array_record", "other"))


def test_an_image_of_another_form_in_a_later_record_is_named(tmp_path: Path) -> None:
    steps = {**SIMPLE, "observation": f.Image(shape=(5, None, 3))}
    modes = [("RGB", 6), ("RGBA", 6)]
    episodes = [
        [{**each, "observation": image_file(mode, n)} for each in simple(0, 3)] for mode, n in modes
    ]
    with pytest.raises(DatasetError, match=r"record 1 of .*: image 0 has the shape \(5, 6, 4\)"):
        RLDSSource(store(tmp_path, steps, episodes, "tfrecord"))
    sizes = [
        [{**each, "observation": image_file("RGB", 6 + t)} for t, each in enumerate(ep)]
        for ep in [simple(0, 3)]
    ]
    for kind in ("tfrecord", "array_record"):
        with pytest.raises(PipelineError, match=r"episode 0 of .* its steps cannot be stacked"):
            RLDSSource(store(tmp_path, steps, sizes, kind, kind))


SIMPLE = {
    "observation": f.Tensor(shape=(2,), dtype=np.float32),
    "action": f.Scalar(np.int32),
    "reward": f.Scalar(np.float32),
    "said": f.Text(),
}


def simple(number: int, n: int) -> list[Any]:
    reward = [np.float32(100 * number + t) for t in range(n)]
    return [
        {"observation": np.full(2, r, np.float32), "action": np.int32(0), "reward": r, "said": "x"}
        for r in reward
    ]


def test_a_feature_without_numbers_does_not_end_the_process(tmp_path: Path) -> None:
    steps = {**SIMPLE, "observation": f.Tensor(shape=(0, 3), dtype=np.float32)}
    made = [{**each, "observation": np.zeros((0, 3), np.float32)} for each in simple(0, 3)]
    folder = store(tmp_path, steps, [made], "tfrecord")
    with pytest.raises(PipelineError, match=r"feature 'steps/observation' has the shape \(0, 3\)"):
        RLDSSource(folder)


def test_parts_of_splits_and_many_files_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "many" / "1.0.0"
    builder = _sharded(tmp_path, shards=3, episodes=10)
    assert len(builder.info.splits["train"].file_instructions) == 3
    for split, wanted in {
        "train": range(10),
        "train[:5]": range(5),
        "train[4:9]": range(4, 9),
        "train[90%:]": range(9, 10),
    }.items():
        source = RLDSSource(folder, split=split, ordering="sequential")
        found = source.take(np.arange(len(source)))["reward"] // 100
        assert sorted(set(found.tolist())) == sorted(map(float, wanted)), split
        assert found.tolist() == sorted(found.tolist())


def test_files_that_are_missing_or_do_not_fit_what_is_written_of_them(tmp_path: Path) -> None:
    _sharded(tmp_path, shards=3, episodes=10)
    folder = tmp_path / "many" / "1.0.0"
    first, second, _ = sorted(folder.glob("many-train*"))
    data = first.read_bytes()
    first.write_bytes(data + data[: 16 + int.from_bytes(data[:8], "little")])
    with pytest.raises(DatasetError, match=r"has 4 records, and 'dataset_info.json' says 3"):
        RLDSSource(folder)
    first.write_bytes(data)
    second.unlink()
    with pytest.raises(DatasetError, match=r"the file '.*-00001-of-00003' is missing"):
        RLDSSource(folder)
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(PipelineError, match=r"'dataset_info.json' or 'features.json' cannot be re"):
        RLDSSource(folder)


def test_a_file_that_lacks_records_does_not_give_those_of_the_next(tmp_path: Path) -> None:
    builder = _sharded(tmp_path, shards=3, episodes=10)
    file = Path(builder.info.splits["train"].file_instructions[0].filename)
    data = file.read_bytes()
    first = 16 + int.from_bytes(data[:8], "little")  # the size of the first record
    file.write_bytes(data[:first])
    with pytest.raises(DatasetError, match=r"has 1 records, and \d are needed; it was cut off"):
        RLDSSource(tmp_path / "many" / "1.0.0")


@pytest.mark.parametrize("kind", ["array_record", "parquet"])
def test_a_part_of_a_split_is_that_part_or_refused(tmp_path: Path, kind: str) -> None:
    folder = store(tmp_path, SIMPLE, [simple(number, 3) for number in range(10)], kind)
    if kind == "parquet":
        with pytest.raises(PipelineError, match="gives 10 episodes, and 5 were asked for"):
            RLDSSource(folder, split="train[4:9]")
        words = r"split 'train\[:50%\]': .* 5 were .*`RLDSSource\(\[source\[i\] for i in range\(5\)"
        with pytest.raises(PipelineError, match=words):
            RLDSSource(tfds.builder_from_directory(folder).as_data_source("train[:50%]"))
        source = tfds.builder_from_directory(folder).as_data_source("train")
        assert len(RLDSSource([source[i] for i in range(5)])) == 10
        assert len(RLDSSource(source)) == 20
    else:
        assert len(RLDSSource(folder, split="train[4:9]")) == 10  # of 5 episodes


def _sharded(folder: Path, shards: int, episodes: int) -> Any:
    features = f.FeaturesDict(
        {"steps": f.Dataset({**SIMPLE, **dict.fromkeys(FLAGS, f.Scalar(np.bool_))})}
    )

    keywords = {"skip_registration": True}  # pyright refuses it as a keyword of an unknown class

    class Many(tfds.core.GeneratorBasedBuilder, **keywords):
        VERSION = tfds.core.Version("1.0.0")
        name = "many"
        pkg_dir_path = folder

        def _info(self) -> Any:
            return self.dataset_info_from_configs(features=features, disable_shuffling=True)

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for number in range(episodes):
                yield number, {"steps": with_flags(simple(number, 3))}

    (folder / "CITATIONS.bib").write_text("")
    (folder / "README.md").write_text("")
    (folder / "TAGS.txt").write_text("")
    builder = Many(data_dir=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tfds.download.DownloadConfig(num_shards=shards)
        builder.download_and_prepare(download_config=config)
    return builder


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    folder = store(tmp_path, SIMPLE, [simple(0, 3)], "tfrecord")
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from cereal.rl import RLDSSource\n"
        f"assert len(RLDSSource({str(folder)!r})) == 2\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_records_unlike_their_features_are_left_to_tfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store(tmp_path, SIMPLE, [simple(0, 3), simple(1, 4)], "array_record")
    right = RLDSSource(folder)
    plain = rlds_records.plain_steps

    def wrong(*args: Any) -> Any:
        specs, images = plain(*args)  # type: ignore[misc]
        specs["steps"]["reward"] = ((None, 7), np.dtype("float32"))
        return specs, images

    monkeypatch.setattr(rlds_records, "plain_steps", wrong)
    check_same(RLDSSource(folder), right)


def test_a_damaged_record_and_keys_that_are_not_there_are_named(tmp_path: Path) -> None:
    folder = store(tmp_path, SIMPLE, [simple(0, 3), simple(1, 4)], "tfrecord")
    with pytest.raises(PipelineError, match=r"has no info 'speed'; it has \['said'\]"):
        RLDSSource(folder, infos=["speed"])
    with pytest.raises(PipelineError, match="said"):
        RLDSSource(folder, infos=["said"])  # text is no array
    file = next(folder.glob("*tfrecord*-of-*"))
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=r"record 1 of '.*', at byte \d+, is damaged"):
        RLDSSource(folder)
