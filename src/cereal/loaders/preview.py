"""Looking at data: some elements, drawn on one sheet.

a loader, a source, a list of stages     the elements of a step, and whether they are real
a dataset, arrays, a batch               its first elements
                                         --which parts-->  images, labels  --draw-->  PNG
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from ..core.capture import eager
from ..core.errors import PipelineError, UsageError
from ..core.numbers import as_optional_count
from ..monitor.sheet.captions import as_names, captions
from ..monitor.sheet.contact_sheet import ContactSheet, checked_path, contact_sheet, pillow
from ..monitor.sheet.contents import Contents, describe, find_contents
from ..monitor.sheet.line_plot import line_plots
from ..monitor.sheet.pixels import IMAGE_SHAPES, as_image, numeric, range_of, to_pixels
from .preview_elements import PreviewElements, preview_elements


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
    """A contact sheet of a loader's batch, or of a dataset's first elements.

        +---+ +---+ +---+
        | 7 | | 2 | | X |     labels under the images, padding crossed out
        +---+ +---+ +---+
          7     2    padding

    A notebook shows what it returns; `save(path)`, or `path=`, writes it as a PNG. Nothing else
    changes: a loader is read by the caller's thread, from a state of its own.

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
        state: Of a loader: draws the batch that comes next.
        key: Of a loader, with `step`: draws that batch; key 0 and step 0 if not given.
        step: The number of the batch, from 0, through all epochs.
        count: So many elements; those that a batch does not have come from the batches after it,
            to the end of the epoch. By default one batch, or the first elements: 64 at most.
        columns: How many are side by side.
        scale: How much larger images are drawn; by default small ones are enlarged, and large
            ones shrunk.
        image_key: The part that is the image, if it is not found by itself: a key, `"a.b"` for one
            within another, or a number for a place in a tuple.
        series_key: The same for series, drawn as lines; several follow each other in time.
        label_key: The parts that are written below; `()` for none.
        classes: Names of the labels 0, 1, 2, ..., or a dict of such by label; by default the
            `classes` that a dataset has.
        path: Where to write it.
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
    """The pixels of every element, and what the sheet says below."""
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
