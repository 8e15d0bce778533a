from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import cereal
from cereal import BatchTransform, DataLoader, PipelineError, UsageError
from cereal.preview.contact_sheet import ContactSheet
from cereal.preview.preview import preview

COLOURS = np.array([[200, 10, 10], [10, 180, 10], [10, 10, 220], [220, 200, 10]], np.uint8)
IMAGES = np.tile(COLOURS[:, None, None], (1, 8, 8, 1))  # one colour each
DATA = {"image": IMAGES, "label": np.arange(4, dtype=np.int32)}


def pixels(sheet: ContactSheet) -> np.ndarray:
    with Image.open(io.BytesIO(sheet.png)) as picture:
        return np.asarray(picture).astype(int)


def boxes(sheet: ContactSheet) -> list[tuple[int, int, int]]:
    """Of every colour that is on the sheet: top and left, from the first one on, and pixels."""
    found = []
    for colour in COLOURS:
        rows, columns = np.nonzero((pixels(sheet) == colour).all(axis=2))
        if len(rows):
            found.append((int(rows.min()), int(columns.min()), len(rows)))
    return [(y - found[0][0], x - found[0][1], n) for y, x, n in found]


def note_differs(a: ContactSheet, b: ContactSheet) -> bool:
    """Whether the line below the images is another one."""
    rows = slice(-30, None)
    return not np.array_equal(pixels(a)[rows], pixels(b)[rows])


def loader(*stages: Any, data: Any = DATA, size: int = 4) -> DataLoader[Any]:
    source = cereal.ArraySampleSource(data, ordering="sequential")
    return DataLoader([source, BatchTransform(size, pad_last_batch=True), *stages])


def test_every_element_of_a_batch_is_drawn_in_its_order() -> None:
    found = boxes(preview(loader()))
    assert [count for *_, count in found] == [72 * 72] * 4  # 9 times 8
    assert [place[:2] for place in found] == sorted(place[:2] for place in found)


def test_a_dataset_arrays_and_a_batch_look_the_same() -> None:
    elements = [{"image": image, "label": i} for i, image in enumerate(IMAGES)]
    batch, mask = loader().batch_at(0, 0)
    for data in (elements, DATA, batch, (batch, mask), list(zip(IMAGES, range(4), strict=True))):
        assert boxes(preview(data)) == boxes(preview(loader()))


def test_padding_is_marked() -> None:
    sheet = preview(loader(size=3), step=1)
    assert [count for *_, count in boxes(sheet)] == [72 * 72]
    assert sheet.png != preview(loader(size=3), step=0).png


def test_nothing_is_written_unless_a_path_is_given(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    preview(loader())
    assert not list(tmp_path.iterdir())
    sheet = preview(loader(), path="sheet.png")
    assert (tmp_path / "sheet.png").read_bytes() == sheet.png == sheet._repr_png_()
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_a_bad_path_is_refused_before_anything_is_read() -> None:
    class Unread:
        def __len__(self) -> int:
            raise AssertionError("it was read")

        __getitem__ = __len__

    with pytest.raises(UsageError, match="a contact sheet is a PNG"):
        preview(Unread(), path="sheet.jpg")


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3), (8, 8, 4), (3, 8, 8), (64,)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool, np.int32])
def test_images_of_all_shapes_and_types_are_drawn(shape: Any, dtype: Any) -> None:
    white = 255 if np.issubdtype(dtype, np.integer) else 1
    images = np.full((2, *shape), white, dtype)
    images[1] = 0
    if shape == (8, 8, 4):
        images[1, ..., 3] = white  # opaque
    sheet = pixels(preview({"image": images}, columns=2))
    dark = (sheet == 0).all(axis=2)
    assert dark.sum() == 72 * 72
    assert np.ptp(np.nonzero(dark)[1]) == 71


def test_stretching_takes_one_range_for_the_sheet_and_is_written_below() -> None:
    images = np.stack([np.full((8, 8), value, np.float32) for value in (-3.0, 1.0, 5.0)])
    stretched = preview({"image": images}, columns=3)
    sheet = pixels(stretched)
    for value, wanted in ((0, 0), (1, 128), (2, 255)):
        x = 14 + (stretched.size[0] - 28 - 232) // 2 + 36 + 80 * value
        assert sheet[60, x].tolist() == [wanted] * 3
    plain = preview({"image": (images + 3) / 8}, columns=3)
    assert note_differs(stretched, plain)


def test_padding_does_not_change_the_range() -> None:
    values = np.array([0.0, 0.5, 99.0], np.float32)
    images = np.tile(values[:, None, None], (1, 8, 8))
    mask = np.array([True, True, False])
    sheet = pixels(preview(({"image": images}, mask), columns=3))
    assert (sheet == 128).all(axis=2).sum() >= 72 * 72


def test_flattened_images_are_squares() -> None:
    grey = {"image": IMAGES[..., 0], "label": DATA["label"]}
    flat = preview(loader(cereal.FlattenImageTransform(), data=grey))
    square = preview(loader(data=grey))
    assert np.array_equal(pixels(flat)[:-30], pixels(square)[:-30])
    with pytest.raises(PipelineError, match=r"of shape \[30\], which is no square"):
        preview({"image": np.zeros((4, 30), np.uint8)})


def test_microbatches_are_drawn_one_by_one() -> None:
    halves = DataLoader(
        [
            cereal.ArraySampleSource(DATA, ordering="sequential"),
            BatchTransform(2),
            BatchTransform(2),
        ]
    )
    assert boxes(preview(halves)) == boxes(preview(loader()))


def test_labels_change_the_captions_and_names_are_used() -> None:
    numbers = preview(DATA)
    named = preview(DATA, classes=["cat", "dog", "fox", "owl"])
    assert numbers.png != named.png
    texts = {"image": IMAGES, "label": ["cat", "dog", "fox", "owl"]}
    assert preview(texts).png == named.png
    one_hot = {"image": IMAGES, "label": np.eye(4, dtype=np.float32)}
    assert preview(one_hot).png == numbers.png
    assert preview(one_hot, classes=["cat", "dog", "fox", "owl"]).png == named.png
    assert preview(DATA, label_key=()).png != numbers.png


def test_a_dataset_names_its_labels_itself() -> None:
    class Animals:
        classes = ("cat", "dog", "fox", "owl")

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return IMAGES[index], index

    class Unnamed(Animals):
        classes = ()

    Unnamed.__name__ = "Animals"
    numbers = preview(Unnamed())
    assert preview(Animals()).png != numbers.png
    assert preview(Unnamed(), classes=["cat", "dog", "fox", "owl"]).png == preview(Animals()).png


def test_names_of_a_label_that_is_not_there_are_refused() -> None:
    with pytest.raises(
        PipelineError, match=r"has names for 'labl', and the labels are \['label'\]"
    ):
        preview(DATA, classes={"labl": ["cat"]})


def test_several_labels_take_several_lines() -> None:
    both = {**DATA, "coarse_label": DATA["label"] // 2}
    taller = preview(both, columns=2).size[1] - preview(DATA, columns=2).size[1]
    assert taller == 2 * 16
    assert preview(both, label_key="label").png == preview(DATA).png


def test_columns_and_scale_set_the_layout() -> None:
    sheet = preview(DATA, columns=4, scale=2)
    tops = {place[0] for place in boxes(sheet)}
    assert len(tops) == 1
    assert [count for *_, count in boxes(sheet)] == [16 * 16] * 4
    assert len({place[0] for place in boxes(preview(DATA, columns=1))}) == 4


def test_series_are_drawn_as_lines() -> None:
    series = np.sin(np.arange(200.0))
    windows = cereal.WindowSource(series, 30, predict=5, ordering="sequential")
    stages: list[Any] = [windows, BatchTransform(6), cereal.TimeSeriesBatchTransform()]
    lines = preview(DataLoader(stages))
    for sheet in (
        lines,
        preview(windows, count=6),
        preview(windows, count=6, series_key="context"),
    ):
        blue = (np.abs(pixels(sheet) - (38, 102, 176)) < 40).all(axis=2).sum()
        assert blue > 6 * 100
    assert lines.size[0] > 2 * 144
    assert preview(DataLoader(stages), scale=2, columns=3).size[0] == 3 * 288 + 2 * 8 + 2 * 14


def test_elements_that_were_filtered_out_are_marked() -> None:
    keep = cereal.HostFilterTransform(lambda element: element["label"] != 1)
    elements = [{"image": Image.fromarray(x), "label": i} for i, x in enumerate(IMAGES)]
    sheet = preview(keep(cereal.DatasetSource(elements)))
    assert len(boxes(sheet)) == 3


def test_a_loader_without_an_image_says_what_it_has() -> None:
    with pytest.raises(PipelineError) as error:
        preview(DataLoader([{"token": np.arange(4)}, BatchTransform(2)]))
    for part in ("ArraySampleSource", "{token: int32[]}", "`image_key="):
        assert part in str(error.value)
    with pytest.raises(PipelineError, match=r"no 'img': .*one of 'image', 'label'"):
        preview(loader(), image_key="img")


def test_an_element_of_another_shape_is_named() -> None:
    with pytest.raises(PipelineError, match=r"'image' of element 1 has the shape \[2, 8, 8, 3\]"):
        preview([{"image": IMAGES[0]}, {"image": IMAGES[:2]}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "`count` must be an integer of at least 1, got 0"),
        ({"count": 2.5}, "`count` must be an integer"),
        ({"columns": True}, "`columns` must be an integer"),
        ({"step": -1}, "`step` must be an integer of at least 0"),
        ({"scale": 0}, "`scale` must be a number above 0"),
        ({"scale": "2x"}, "`scale` must be a number above 0"),
        ({"scale": float("inf")}, "`scale` must be a number above 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        preview(loader(), **options)


def test_it_does_not_run_inside_a_traced_function() -> None:
    batches = loader()

    @jax.jit
    def look(x: jax.Array) -> jax.Array:
        preview(batches)
        return x

    for traced in (look, jax.vmap(look), jax.vmap(lambda key: preview(batches, key=key).size)):
        with pytest.raises(UsageError, match="cannot run inside a traced function"):
            traced(jnp.zeros(3))


def test_a_callback_runs_once_for_the_batch_that_is_drawn() -> None:
    seen = []
    count = cereal.HostCallbackTransform(lambda batch, mask: seen.append(batch["label"].tolist()))
    preview(loader(count, size=2), step=1)
    assert seen == [[2, 3]]


def test_several_threads_may_look_at_one_loader() -> None:
    rows = [{"image": image, "label": i} for i, image in enumerate(IMAGES)]
    shared = DataLoader([rows, BatchTransform(2)], workers=2)
    wanted = [preview(shared, step=step).png for step in range(2)]
    found: list[list[bytes]] = []

    def look() -> None:
        found.append([preview(shared, step=step).png for step in range(2)])

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [wanted] * 3


def test_the_digits_are_readable() -> None:
    sheet = preview(cereal.DigitsDataset("test"), count=6, columns=6)
    assert sheet.title == "DigitsDataset test, 6 of 297 elements"
    picture = pixels(sheet)
    left = 14 + (sheet.size[0] - 28 - 472) // 2
    images = cereal.DigitsDataset("test").as_array_dict()["image"].reshape(-1, 8, 8)
    for place in range(6):
        middle = picture[
            40 + 4 : 40 + 76 : 9, left + 80 * place + 4 : left + 80 * place + 76 : 9, 0
        ]
        np.testing.assert_array_equal(middle, images[place])
