"""Draws some elements of data on one sheet.

a loader, a source, a list of stages     the elements of a step, and whether they are real
a dataset, arrays, a batch               its first elements
                                         --which parts-->  images, labels  --draw-->  PNG
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from ..base.capture import eager
from ..base.errors import PipelineError, UsageError
from ..base.numbers import as_optional_count
from .captions import as_names, captions
from .contact_sheet import ContactSheet, checked_path, contact_sheet, pillow
from .contents import Contents, describe, find_contents
from .elements import PreviewElements, preview_elements
from .line_plot import line_plots
from .pixels import IMAGE_SHAPES, as_image, numeric, range_of, to_pixels


def preview(
    data: Any,
    *,
    state: Any = None,
    key: Any = None,
    step: int | None = None,
    count: int | None = None,
    columns: int | None = None,
    scale: float | None = None,
    image_key: str | int | None = None,
    series_key: str | int | Sequence[str | int] | None = None,
    label_key: str | int | Sequence[str | int] | None = None,
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    path: str | PathLike[str] | None = None,
) -> ContactSheet:
    """Draws a batch of a loader, or the first elements of a dataset, as one picture.

        +---+ +---+ +---+
        | 7 | | 2 | | X |     labels under the images, padding crossed out
        +---+ +---+ +---+
          7     2    padding

    A notebook shows the returned sheet; `sheet.save(path)`, or `path=`, writes it as a PNG. The
    loader is not changed: a copy of it reads the batch in the calling thread.

    >>> import cereal, numpy as np
    >>> cereal.preview(cereal.DigitsDataset("train"), count=20).title
    'DigitsDataset train, 20 of 1,500 elements'
    >>> data = {"image": np.zeros((10, 8, 8), np.uint8), "label": np.arange(10)}
    >>> batches = cereal.BatchTransform(4, pad_last_batch=True)
    >>> loader = cereal.DataLoader([cereal.ArraySampleSource(data), batches])
    >>> cereal.preview(loader, key=0, step=2).title
    'ArraySampleSource(ordering=shuffle), step 2, 4 elements'

    Args:
        data: A loader, a source, a list of stages; a dataset with `__len__` and `__getitem__`; a
            tree of arrays, such as a batch, or `(batch, mask)`.
        state: For a loader: a state; the batch that follows it is drawn.
        key: For a loader: the key, instead of a state; 0 by default.
        step: For a loader: the number of the batch, from 0 and across epochs; 0 by default.
        count: How many elements to draw. If a batch has fewer, the next batches are drawn too, up
            to the end of the epoch. By default one batch, or the first elements: at most 64.
        columns: How many images are in a row.
        scale: The factor by which images are enlarged; by default small ones are enlarged and
            large ones shrunk.
        image_key: The part of an element that is the image, if `preview` does not find it: a key,
            `"a.b"` for a key inside another, or a number for a place in a tuple.
        series_key: The same for series, which are drawn as lines; several follow each other in
            time.
        label_key: The parts that are written under the images; `()` for none.
        classes: The names of the labels 0, 1, 2, ..., or a dict of such names by label key; by
            default the `classes` of the dataset.
        path: The file to write.
    """
    if not eager():
        raise UsageError(
            "`preview` draws a picture and cannot run inside a traced function; call it outside."
        )
    pillow()
    target = None if path is None else checked_path(path)
    columns, scale = _count(columns, "columns", 1), _positive(scale)
    names = as_names(classes)
    count, step = _count(count, "count", 1), _count(step, "step", 0)
    some = preview_elements(data, count, state, key, step)
    contents = find_contents(
        some.columns,
        image_key=image_key,
        series_key=series_key,
        label_key=label_key,
        owner=some.owner,
    )
    labels = {name: some.columns[name] for name in contents.labels}
    for name in names if isinstance(names, Mapping) else ():
        if name not in labels:
            raise PipelineError(
                f"preview: `classes` has names for {name!r}, and the labels are {list(labels)}."
            )
    texts = captions(labels, some.names if names is None else names, some.places)
    images, note = _drawn(contents, some, scale)
    sheet = contact_sheet(
        images,
        texts,
        some.mask,
        title=some.title,
        note=note,
        columns=columns,
        scale=scale if contents.image is not None else 1,
    )
    if target is not None:
        sheet.save(target)
    return sheet


def _drawn(contents: Contents, some: PreviewElements, scale: float | None) -> tuple[list[Any], str]:
    """The pixels of every element, and the note below the sheet."""
    drawn = {name: some.columns[name] for name in contents.drawn}
    shown = describe(drawn).strip("{}")
    arrays = [[numeric(part) for part in parts] for parts in zip(*drawn.values(), strict=True)]
    if contents.image is None:
        series = [[part for part in parts if part is not None] for parts in arrays]
        plots, note = line_plots(series, scale)
        return list(plots), f"{shown}; {note}"
    images = [_image(parts[0], contents.image, place) for place, parts in enumerate(arrays)]
    there = [
        (image, real) for image, real in zip(images, some.mask, strict=True) if image is not None
    ]
    values = range_of([x for x, real in there if real] or [x for x, _ in there])
    pixels = [None if x is None else to_pixels(x, values) for x in images]
    return pixels, f"{shown}; {values.note}"


def _image(array: Any, name: str, place: int) -> Any:
    image = None if array is None else as_image(array)
    if array is not None and image is None:
        raise PipelineError(
            f"preview: {name!r} of element {place} has the shape {list(array.shape)}, which is no "
            f"image; make it {IMAGE_SHAPES}, as the first one is."
        )
    return image


def _count(value: Any, name: str, least: int) -> int | None:
    return as_optional_count(value, name, "preview", least, error=UsageError)


def _positive(scale: Any) -> float | None:
    if scale is None:
        return None
    try:
        factor = float(scale)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 < factor < math.inf:
        raise UsageError(
            f"preview: `scale` must be a number above 0, such as 2 or 0.5, got {scale!r}."
        )
    return factor
