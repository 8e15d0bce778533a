"""Hugging Face: every kind of feature, in every format, against what `dataset[i]` gives."""

from __future__ import annotations

import datetime
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest

from cereal import BatchTransform, DataLoader, DatasetSource, HostMapTransform, PipelineError

pytestmark = pytest.mark.bridges
datasets = import_module("datasets")
pil = import_module("PIL.Image")
import_module("torch")

N = 7
RNG = np.random.default_rng(0)
NUMBERS = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bool".split()  # noqa: SIM905
)
FORMATS = [None, "numpy", "torch", "jax"]


class OneByOne:
    """The oracle: what `dataset[i]` gives, read as any other dataset is."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def of_numbers(name: str) -> dict[str, tuple[Any, list[Any]]]:
    """Columns of one type of numbers: features, and values."""
    value, List = datasets.Value(name), datasets.List  # noqa: N806
    some = lambda *shape: RNG.integers(0, 100, shape).astype(name)  # noqa: E731
    rows = range(N)
    inner = lambda: {"a": some().item(), "b": some(3).tolist(), "c": {"d": some().item()}}  # noqa: E731
    found = {
        "number": (value, list(some(N))),
        "list": (List(value), [some(3) for _ in rows]),
        "list of a stated length": (List(value, length=3), [some(3) for _ in rows]),
        "list of lists": (List(List(value)), [some(2, 3).tolist() for _ in rows]),
        "large list": (datasets.LargeList(value), [some(3) for _ in rows]),
        "struct": ({"a": value, "b": List(value), "c": {"d": value}}, [inner() for _ in rows]),
    }
    if name != "float16":  # the library cannot write these
        arrays = [some(2, 3) for _ in rows]
        found["Array2D"] = (datasets.Array2D((2, 3), name), arrays)
        found["Array2D of any length"] = (datasets.Array2D((None, 3), name), arrays)
        found["Array3D"] = (datasets.Array3D((1, 2, 3), name), [some(1, 2, 3) for _ in rows])
    return found


def of_images() -> dict[str, tuple[Any, list[Any]]]:
    pixels = lambda *shape: [RNG.integers(0, 256, (5, 6, *shape), np.uint8) for _ in range(N)]  # noqa: E731
    image, deep = datasets.Image, [x.astype(np.uint16) * 200 for x in pixels()]
    nested = [{"im": x, "n": 3} for x in pixels()]
    return {
        "grey": (image(), pixels()),
        "RGB": (image(), pixels(3)),
        "RGBA": (image(), pixels(4)),
        "RGB as grey": (image(mode="L"), pixels(3)),
        "grey as RGB": (image(mode="RGB"), pixels()),
        "16 bits": (image(), deep),
        "floats": (image(), [x.astype(np.float32) / 7 for x in pixels()]),
        "bits": (image(), [x > 99 for x in pixels()]),
        "in a struct": ({"im": image(), "n": datasets.Value("int8")}, nested),
    }


def dataset_of(columns: dict[str, tuple[Any, list[Any]]], form: str | None) -> Any:
    features = datasets.Features({name: feature for name, (feature, _) in columns.items()})
    values = {name: values for name, (_, values) in columns.items()}
    return datasets.Dataset.from_dict(values, features=features).with_format(form)


def batch_of(first: Any) -> Any:
    ((batch, _),) = DataLoader([first, BatchTransform(N)], workers=0)
    return jax.tree.map(np.asarray, batch)


def same(found: Any, wanted: Any, *, widened: bool = False) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    for (path, a), b in pairs:
        np.testing.assert_array_equal(a, b, err_msg=str(path))
        assert a.dtype == b.dtype or widened, path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", [*NUMBERS, "images"])
def test_a_batch_holds_what_the_dataset_gives(form: str | None, name: str) -> None:
    columns = of_images() if name == "images" else of_numbers(name)
    dataset = dataset_of(columns, form)
    # Without a format the library gives Python's numbers; cereal keeps the types of the columns.
    same(batch_of(dataset), batch_of(OneByOne(dataset)), widened=form is None)
    if form is None and name != "images":
        assert {x.dtype for x in jax.tree.leaves(batch_of(dataset))} == {
            jax.dtypes.canonicalize_dtype(name)
        }


def test_it_is_read_in_batches_and_not_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in FORMATS:
        dataset = dataset_of({**of_numbers("uint8"), **of_images()}, form)
        source = DatasetSource(dataset)
        with monkeypatch.context() as patched:
            patched.setattr(datasets.Dataset, "_getitem", None)
            batch_of(source)


def test_functions_get_what_the_format_gives() -> None:
    columns = {"x": of_numbers("int16")["list"], "im": of_images()["RGB"]}
    for form in FORMATS:
        dataset = dataset_of(columns, form)
        kinds: list[Any] = []

        def look(element: Any, kinds: list[Any] = kinds) -> int:
            kinds.append((type(element["x"]), type(element["im"])))
            return 0

        batch_of(DataLoader([dataset, HostMapTransform(look)], workers=0).source)
        own = type(dataset[0]["x"]), type(dataset[0]["im"])
        if form is None:
            assert all(x is np.ndarray and issubclass(im, pil.Image) for x, im in kinds)
        else:
            assert set(kinds) == {own}


@pytest.mark.parametrize("form", FORMATS)
def test_an_image_for_a_function_is_as_the_library_decodes_it(form: str | None) -> None:
    dataset = dataset_of({"im": of_images()["grey as RGB"]}, form)
    pixels = HostMapTransform(lambda e: np.asarray(e["im"]).astype(np.float32) + 1)
    found = batch_of(DataLoader([dataset, pixels], workers=0).source)
    wanted = np.stack([np.asarray(dataset[i]["im"]) for i in range(N)])
    np.testing.assert_array_equal(found, wanted.astype(np.float32) + 1)


# Missing values


@pytest.mark.parametrize("form", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_a_float_that_is_missing_is_nan_in_a_format(form: str, name: str) -> None:
    values = [1.5, None, 2.5, None, 1.0, 2.0, 3.0]
    dataset = dataset_of({"x": (datasets.Value(name), values)}, form)
    same(batch_of(dataset), batch_of(OneByOne(dataset)))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["int", "list", "in a list", "bool", "struct", "image", "text"])
def test_other_missing_values_are_what_the_dataset_gives(form: str | None, kind: str) -> None:
    value, List = datasets.Value, datasets.List  # noqa: N806
    feature, there = {
        "int": (value("int32"), 3),
        "list": (List(value("int32")), [1, 2]),
        "in a list": (List(value("int32")), [1, 2]),
        "bool": (value("bool"), True),
        "struct": ({"a": value("int32")}, {"a": 1}),
        "image": (datasets.Image(), np.zeros((2, 2), np.uint8)),
        "text": (value("string"), "a"),
    }[kind]
    gone = [1, None] if kind == "in a list" else None
    dataset = dataset_of({"x": (feature, [there] * 4 + [gone, there, gone])}, form)
    seen = lambda x: str(np.asarray(x).tolist() if x is not None else None)  # noqa: E731
    found: list[str] = []

    def look(element: Any) -> int:
        found.append(seen(element["x"]))
        return 0

    batch_of(DataLoader([dataset, HostMapTransform(look)], workers=0).source)
    assert found[-N:] == [seen(dataset[i]["x"]) for i in range(N)]
    if kind != "text":
        with pytest.raises(PipelineError) as caught:
            batch_of(dataset)
        if form is None and kind == "in a list":
            assert "`element['x']` is a Python object" in str(caught.value)
            return
        assert caught.value.element.index == 4  # type: ignore[attr-defined]


# What is no array


def test_text_times_and_lists_of_structs_are_objects_with_words() -> None:
    now, value = datetime.datetime(2024, 1, 2), datasets.Value
    columns = {
        "text": (value("string"), ["é", "b", ""]),
        "bytes": (value("binary"), [b"a\0", b"", b"c"]),
        "time": (value("timestamp[us]"), [now] * 3),
        "parts": (datasets.List({"a": value("int32")}), [[{"a": 1}], [], [{"a": 2}]]),
        "words": (datasets.List(value("string")), [["a"], ["b"], []]),
    }
    for name, column in columns.items():
        dataset = dataset_of({name: column}, None)
        with pytest.raises(PipelineError, match=rf"element\['{name}'\]` is a Python object"):
            DataLoader([dataset, BatchTransform(2)])
        found: list[Any] = []
        keep = HostMapTransform(lambda e, name=name, found=found: (found.append(e[name]), 0)[1])
        list(DataLoader([dataset, keep, BatchTransform(3)], workers=0))
        assert found[-3:] == [dataset[i][name] for i in range(3)]


def test_text_stays_text_in_every_format() -> None:
    for form in FORMATS:
        dataset = dataset_of({"t": (datasets.Value("string"), ["é", "bb", ""])}, form)
        ((lengths, _),) = DataLoader(
            [dataset, HostMapTransform(lambda e: len(e["t"])), BatchTransform(3)], workers=0
        )
        assert lengths.tolist() == [1, 2, 0]


def test_class_labels_have_their_names() -> None:
    labels = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"y": labels, "in": {"z": labels}})
    columns = {"y": [0, 1, -1], "in": [{"z": 1}] * 3}
    source = DatasetSource(datasets.Dataset.from_dict(columns, features=features))
    assert source.classes == {"y": ("cat", "dog"), "in.z": ("cat", "dog")}
    ((batch, _),) = DataLoader([source, BatchTransform(3)])
    assert batch["y"].tolist() == [0, 1, -1]


def test_lists_of_different_lengths_are_told_how_to_be_padded() -> None:
    dataset = datasets.Dataset.from_dict({"r": [[1], [2, 3], []]})
    for form in FORMATS:
        with pytest.raises(PipelineError, match=r"lengths \(0 to 2\).*pad_collate\(2\)"):
            DataLoader([dataset.with_format(form), BatchTransform(2)])
