"""The table of a Hugging Face dataset, read as the dataset itself would give its rows.

    format      numbers       lists, Array2D, ...             images        what functions get
    none        as stored     as stored                       as decoded    arrays; Pillow's images
    "numpy"     as stored     int64, float32, bool            as decoded    the same arrays
    "torch"     int64, float32, bool                          [c,h,w]       tensors of torch
    "jax"       int64, float32, bool                          as decoded    arrays of JAX

Then 64-bit numbers become 32-bit numbers, as everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.extras import needs
from ...base.fitting import canonical
from ..arrow.arrow_columns import form_of_pieces
from ..arrow.arrow_storage import ArrowStorage
from ..images.stored import Layout, StoredImages
from ..leaves import OBJECT, ArrayForm
from ..structure import flatten
from ..tables.table import Table, objects

_LAYOUTS: dict[str, Layout] = {"": "image", "torch": "channels first"}
_TRIES = 64  # rows among which an image is looked for


def table_of(dataset: Any, owner: str, column: Any = None, path: tuple[str, ...] = ()) -> Any:
    """A table; the dataset to read in its place, row by row; or None: it is read as it is.

    The rows may be those of a `column`, to which the names in `path` lead.
    """
    known, columns = dataset.format, list(dataset.features)
    chosen = [name for name in columns if name in known["columns"]]
    kind = known["type"] or ""
    plain = not known["format_kwargs"] and (not known["output_all_columns"] or chosen == columns)
    if kind == "custom" or not plain or not len(dataset) or not chosen:
        return None
    chosen = list(path[:1]) or chosen
    features = {name: dataset.features[name] for name in chosen}
    if kind in ("", "numpy", "torch", "jax"):
        if not all(map(_is_quick, features.values())):
            return None
        storage = ArrowStorage(dataset.data, chosen, owner)
        if _is_whole(storage, tensors=bool(kind)):
            table = DatasetTable(dataset, features, storage, kind, owner)
            return ColumnTable(table, path, column) if path else table
    return None if path else RowByRow(dataset)


class RowByRow:
    """A dataset whose rows are read one by one: in a batch, it would give others."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


RowByRow.__name__ = "Dataset"  # what errors call it


def _is_quick(feature: Any) -> bool:
    """Whether its values can be read without the library's Python."""
    if isinstance(feature, dict):
        return all(map(_is_quick, feature.values()))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is not None:
        return _is_quick(inner) and not _has_image(inner)
    return _has_image(feature) or not _is_decoded(feature)


def _has_image(feature: Any) -> bool:
    if isinstance(feature, dict):
        return any(map(_has_image, feature.values()))
    return type(feature).__name__ == "Image" and _is_decoded(feature)


def _is_decoded(feature: Any) -> bool:
    return hasattr(feature, "decode_example") and getattr(feature, "decode", True)


def _is_whole(storage: ArrowStorage, *, tensors: bool) -> bool:
    """Whether values are missing only where a column can say so; elsewhere the library decides."""
    look = _is_whole_as_tensors if tensors else _has_whole_structs
    return all(look(column) for batch in storage.batches for column in batch.columns)


def _is_image(kind: Any) -> bool:
    return [field.name for field in kind] == ["bytes", "path"]


def _has_whole_structs(array: Any) -> bool:
    """A struct that is missing would be a dict of missing values."""
    pa = needs("pyarrow", "arrow", "a Hugging Face dataset")
    if not pa.types.is_struct(array.type) or _is_image(array.type):
        return True
    return not array.null_count and all(map(_has_whole_structs, array.flatten()))


def _is_whole_as_tensors(array: Any) -> bool:
    """The library gives NaN for a float that is missing, and other types for all the rest."""
    pa = needs("pyarrow", "arrow", "a Hugging Face dataset")
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_whole_as_tensors(array.storage)
    if types.is_float32(kind) or types.is_float64(kind):
        return True
    if array.null_count:
        return False
    if types.is_struct(kind):
        parts = [] if _is_image(kind) else array.flatten()
        return all(not part.null_count and _is_whole_as_tensors(part) for part in parts)
    inner = array
    while types.is_list(inner.type) or types.is_large_list(inner.type) or _is_fixed(inner.type):
        inner = inner.values
        if inner.null_count:
            return False
    if types.is_integer(inner.type) or types.is_floating(inner.type):
        return True
    return types.is_boolean(inner.type) or (inner is array and types.is_string(kind))


def _is_fixed(kind: Any) -> bool:
    return needs("pyarrow", "arrow", "a Hugging Face dataset").types.is_fixed_size_list(kind)


# What becomes of the columns of Arrow


@dataclasses.dataclass(frozen=True)
class AsStored:
    """A column as it is."""

    inner = 1  # columns of Arrow

    def form(self, form: ArrayForm) -> ArrayForm:
        return form

    def __call__(self, column: Any) -> Any:
        return column


@dataclasses.dataclass(frozen=True)
class AsTensor:
    """A column of numbers as the library's tensors have them; `kept`: numbers as stored."""

    kept: bool
    inner = 1

    def form(self, form: ArrayForm) -> ArrayForm:
        return form if form.dtype == OBJECT else ArrayForm(form.shape, self._dtype(form.dtype))

    def _dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        if self.kept or dtype.kind not in "iuf":
            return dtype
        return np.dtype(np.float32 if dtype.kind == "f" else np.int64)

    def _cast(self, array: np.ndarray) -> np.ndarray:
        dtype = self._dtype(array.dtype)
        narrow = canonical(dtype)
        fits = np.can_cast(array.dtype, narrow)  # whatever the numbers are
        return array.astype(narrow if fits else dtype, copy=False)

    def __call__(self, column: Any) -> Any:
        if isinstance(column, np.ndarray):
            return self._cast(column)
        if any(value is None for value in column):  # floats
            known = next((value.dtype for value in column if value is not None), np.float32)
            filled = [np.nan if value is None else value for value in column]
            return self._cast(np.array(filled, known))
        return [self._cast(x) if isinstance(x, np.ndarray) else x for x in column]


@dataclasses.dataclass(frozen=True)
class AsImages:
    """The bytes and the paths of images, to be decoded on workers."""

    mode: str | None
    layout: Layout
    inner = 2

    def form(self, form: Any) -> ArrayForm:
        del form
        return objects("an image, and all of the first ones are missing")

    def __call__(self, data: Any, paths: Any) -> StoredImages:
        return StoredImages(data, paths, self.mode, self.layout)


Rule = AsStored | AsTensor | AsImages


def _rules(feature: Any, form: Any, kind: str, *, nested: bool = False) -> Any:
    """What to do with each column of Arrow, as a tree with the leaves of an element."""
    if isinstance(feature, dict):
        return {name: _rules(each, form[name], kind, nested=True) for name, each in feature.items()}
    if _has_image(feature):
        return AsImages(feature.mode, _LAYOUTS.get(kind, "array"))
    if isinstance(form, dict):  # structs that the library does not look into
        return {name: _rules(None, each, kind, nested=True) for name, each in form.items()}
    if not kind:
        return AsStored()
    return AsTensor(kept=kind == "numpy" and form.shape == () and not nested)


class DatasetTable(Table):
    """The rows of a dataset's Arrow table, in the order of its indices."""

    name = "Dataset"

    def __init__(
        self, dataset: Any, features: dict[str, Any], storage: ArrowStorage, kind: str, owner: str
    ) -> None:
        self._storage, self._kind = storage, kind
        indices, self._n = dataset._indices, len(dataset)
        self._mapping = None if indices is None else ArrowStorage(indices, ["indices"], owner)
        pieces = map(storage.piece, range(len(storage.lengths)))
        inner = form_of_pieces(storage.batches[0].schema, pieces)
        rules = {name: _rules(features[name], inner[name], kind) for name in features}
        self._rules, self._structure = flatten(rules)
        self.classes = dict(_classes(features))
        forms, places = flatten(inner)[0], np.cumsum([0, *(rule.inner for rule in self._rules)])
        self._places = places.tolist()
        self._forms = [
            self._image_form(at) if isinstance(rule, AsImages) else rule.form(forms[places[at]])
            for at, rule in enumerate(self._rules)
        ]
        self.form = self._structure.unflatten(self._forms)
        self.quick = not any(form.dtype == OBJECT for form in self._forms) and not any(
            isinstance(rule, AsImages) for rule in self._rules
        )
        if kind in ("torch", "jax"):
            self.elements = dataset

    def _image_form(self, at: int) -> ArrayForm:
        """The form of the first image that is there and can be decoded."""
        images = self.take(np.arange(min(_TRIES, self._n)))[at]
        for lane in range(min(_TRIES, self._n)):
            with contextlib.suppress(OSError, ValueError, SyntaxError):
                array = images.array(lane)
                if array is not None:
                    return ArrayForm(array.shape, array.dtype)
        return self._rules[at].form(None)

    def __len__(self) -> int:
        return self._n

    def take(self, indices: np.ndarray) -> list[Any]:
        self._storage.check()
        if self._mapping is not None:
            self._mapping.check()
            indices = self._mapping.take(indices)[0]
        columns, places = self._storage.take(indices), self._places
        return [rule(*columns[places[at] : places[at + 1]]) for at, rule in enumerate(self._rules)]

    def digest(self) -> Any:
        mapping = None if self._mapping is None else self._mapping.digest()
        return [self._kind, repr(self._rules), self._storage.digest(), mapping]


def _classes(features: Any, above: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, feature in features.items():
        if isinstance(feature, dict):
            yield from _classes(feature, f"{above}{name}.")
        elif type(feature).__name__ == "ClassLabel" and feature.names:
            yield above + name, tuple(feature.names)


class ColumnTable(Table):
    """One column of a table; `path` leads to it."""

    name = "Column"

    def __init__(self, table: Table, path: tuple[str, ...], column: Any) -> None:
        leaves, structure = flatten(table.form)
        chosen = structure.unflatten(range(len(leaves)))
        form = table.form
        for name in path:
            chosen, form = chosen[name], form[name]
        self._table, self._chosen, self.form = table, flatten(chosen)[0], form
        self.quick, self.classes = table.quick, table.classes
        if table.elements is not None:
            self.elements = column

    def __len__(self) -> int:
        return len(self._table)

    def take(self, indices: np.ndarray) -> list[Any]:
        columns = self._table.take(indices)
        return [columns[at] for at in self._chosen]

    def digest(self) -> Any:
        return [self._chosen, self._table.digest()]
