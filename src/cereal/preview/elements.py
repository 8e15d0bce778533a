"""Reads the elements that a preview draws: from a loader, a source, a dataset, or arrays.

For a loader, a copy without workers reads them in the caller's thread: nothing is read ahead, the
loader itself does not change, and no thread is left running.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.errors import PipelineError, UsageError
from ..base.spec import format_spec
from ..loaders.drawing import first_of
from ..loaders.iterators.batch_iterator import BatchIterator
from ..loaders.loader import DataLoader
from ..order.position import starts, steps_left
from ..pipeline.execute import routed_rows, run
from ..pipeline.positional import Positional
from ..pipeline.source import Source
from ..pipeline.stage import Transform
from ..pipeline.state import check_state, host_words, make_words
from ..reading.leaves import OBJECT
from ..reading.read_context import SKIPPED
from ..sources.dataset import is_dataset
from .captions import is_names
from .contents import Columns, named_leaves

_MOST = 64


@dataclasses.dataclass
class PreviewElements:
    """Elements as columns: for each part, by its name, a list of values."""

    columns: Columns
    mask: list[bool]
    places: list[str]  # "#" and the index of each element in its data
    owner: str  # the name of the data, for errors
    title: str
    names: Any = None  # the names of labels, if the data has them


def preview_elements(
    data: Any, count: int | None, state: Any, key: Any, step: int | None
) -> PreviewElements:
    """At most `count` elements: from a step of a loader on, or the first ones of other data.

    Without a count: one batch, or the first elements; at most 64.
    """
    batches = 1 if count is None else math.inf
    count = _MOST if count is None else count
    if isinstance(data, list | tuple) and any(isinstance(x, Source | Transform) for x in data):
        data = DataLoader(data, workers=0)
    if isinstance(data, DataLoader | Source):
        source = data.source if isinstance(data, DataLoader) else data
        start = _start(source, state, key, step)
        where = f"step {step or 0:,}" if state is None else _position(source, state)
        objects = any(leaf.dtype == OBJECT for leaf in jax.tree.leaves(source.element_spec()))
        if objects and not source.traits.lanes:
            return _of_python(source, count, start, where)
        most = batches if source.traits.lanes else math.inf
        return _of_loader(_without_workers(data), count, most, start, where)
    if state is not None or key is not None or step is not None:
        raise UsageError(
            f"preview: `state=`, `key=` and `step=` are for loaders, and {type(data).__name__} is "
            f"none: its first elements are drawn. Write `preview(DataLoader([data, ...]), step=0)`."
        )
    if _is_with_mask(data):
        return _of_arrays(data[0], count, np.asarray(data[1]))
    if _is_arrays(data):
        return _of_arrays(data, count, None)
    return _of_dataset(data, count)


# Loaders and sources


def _without_workers(data: DataLoader[Any] | Source[Any]) -> DataLoader[Any]:
    """A loader of the same pipeline that reads in the caller's thread."""
    if isinstance(data, Source):
        return DataLoader(data, workers=0)
    service = data.service
    on_error = "raise" if service is None else service.options.on_error
    return DataLoader(data.source, workers=0, on_error=on_error)


def _start(source: Source[Any], state: Any, key: Any, step: int | None) -> Any:
    if state is not None:
        if key is not None or step is not None:
            raise UsageError("preview: pass `state=`, or `key=` and `step=`, not both.")
        if isinstance(source, Positional):
            check_state(state, source._fingerprint)
        return state
    key, step = 0 if key is None else key, step or 0
    if not isinstance(source, Positional):
        state = source.init_state(jax.random.key(key) if isinstance(key, int) else key)
        for _ in range(step):
            state = run(source, state)[2]
        return state
    first = source.init_state(key)
    at = starts(np, 0, 0, step, **source._plan.arithmetic)
    key0, key1, _, _ = host_words(first)
    return first.replaced(jnp.asarray(make_words((key0, key1), int(at[0]), int(at[1]))))


def _position(source: Source[Any], state: Any) -> str:
    if not isinstance(source, Positional):
        return "from a state"
    _, _, epoch, offset = host_words(state)
    return f"epoch {epoch:,} from {offset:,}"


def _steps_left(source: Source[Any], state: Any) -> float:
    """The number of steps to the end of the epoch, at least one."""
    if not isinstance(source, Positional):
        return max(1, source.steps_per_epoch)
    if source.traits.unknown_length:
        return math.inf
    return max(1, steps_left(host_words(state)[3], 1, **source._plan.arithmetic))


def _of_loader(
    loader: DataLoader[Any], count: int, most: float, state: Any, where: str
) -> PreviewElements:
    source = loader.source
    lanes, owner = source.traits.lanes, first_of(source)._label
    size = math.prod(lanes)
    columns: Columns = {}
    mask: list[bool] = []
    places: list[str] = []
    for _ in range(int(min(most, -(-count // size), _steps_left(source, state)))):
        numbers = range(len(mask), len(mask) + size)
        if isinstance(source, Positional):
            rows = source._plan.rows_for(np.asarray(state.words), 1)[0]
            numbers = rows.index.reshape(-1).tolist()
        batch, state, real = loader.next_batch(state)
        real = np.logical_or.reduce(np.asarray(real).reshape(size, -1), axis=1)
        if source.traits.unknown_length and not real.any():
            break  # the iterator has ended
        for name, values in _per_element(batch, lanes).items():
            columns.setdefault(name, []).extend(values)
        mask.extend(real.tolist())
        places.extend(f"#{index}" for index in numbers)
    if not columns:
        raise PipelineError(
            f"preview: there is nothing to draw for single elements of {owner}: a step gives "
            f"{format_spec(source.element_spec())}, and no part begins with {list(lanes)}, the "
            f"axes of its elements; preview the loader without its last stages."
        )
    title = _title(f"{owner}, {where}", count, size if len(mask) == size else min(count, len(mask)))
    columns = {name: values[:count] for name, values in columns.items()}
    return PreviewElements(columns, mask[:count], places[:count], owner, title)


def _per_element(batch: Any, lanes: tuple[int, ...]) -> Columns:
    """The parts of a batch with one value for each element; all axes of the batch become one."""
    found: Columns = {}
    for name, leaf in named_leaves(batch).items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # random keys
            continue
        if leaf.shape[: len(lanes)] == lanes:
            found[name] = list(np.array(leaf).reshape((-1, *leaf.shape[len(lanes) :])))
    return found


def _of_python(source: Any, count: int, state: Any, where: str) -> PreviewElements:
    """Elements that are not arrays but Python objects."""
    n = int(min(count, _steps_left(source, state)))
    if source._iterators is not None:
        source._iterators.adopt(state.bookmark)
    rows, _ = routed_rows(source, state.words, n)
    taken = source._produce(rows)
    found = {index: taken.element(lane) for lane, index in enumerate(rows.index.tolist())}
    if source.traits.unknown_length:
        found = {index: element for index, element in found.items() if element is not SKIPPED}
    owner = first_of(source)._label
    return _as_columns(found, owner, _title(f"{owner}, {where}", len(found), len(found)))


def _as_columns(elements: dict[int, Any], owner: str, title: str) -> PreviewElements:
    """Elements, given by index, as columns; skipped elements are masked."""
    mask = [element is not SKIPPED for element in elements.values()]
    if not any(mask):
        raise PipelineError(f"preview: {owner} has no element to draw.")
    parts = [{} if x is SKIPPED else named_leaves(x) for x in elements.values()]
    names = next(part for part in parts if part)
    columns = {name: [part.get(name) for part in parts] for name in names}
    return PreviewElements(columns, mask, [f"#{index}" for index in elements], owner, title)


# Arrays and datasets


def _is_with_mask(data: Any) -> bool:
    """Whether this is `(batch, mask)`, as iterators and `batch_at` give it."""
    if type(data) is not tuple or len(data) != 2 or _is_array(data[0]):
        return False
    return _is_array(data[1]) and data[1].dtype == np.bool_ and data[1].ndim > 0


def _is_arrays(data: Any) -> bool:
    if isinstance(data, Mapping):
        return True
    if isinstance(data, list) or hasattr(data, "__next__"):
        return False
    leaves = jax.tree.leaves(data)
    return bool(leaves) and all(_is_array(leaf) and leaf.ndim for leaf in leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array)


def _of_arrays(data: Any, count: int, mask: np.ndarray | None) -> PreviewElements:
    leaves = named_leaves(dict(data) if isinstance(data, Mapping) else data, lists=False)
    for name, leaf in leaves.items():
        if not isinstance(leaf, list) and not getattr(leaf, "shape", ()):
            raise PipelineError(
                f"preview: a dict is taken for arrays with an element per row, and {name!r} is "
                f"{type(leaf).__name__}; pass arrays, or one of the datasets in it."
            )
    owner = "these arrays" if mask is None else "this batch"
    if mask is not None:
        columns = {k: v[:count] for k, v in _per_element(data, mask.shape).items()}
        n, real = mask.size, mask.reshape(-1)[:count].tolist()
    else:
        lengths = {name: len(leaf) for name, leaf in leaves.items()}
        if len(set(lengths.values())) != 1:
            raise PipelineError(
                f"preview: arrays must have one length, the number of elements, and have "
                f"{lengths or 'none'}."
            )
        n = next(iter(lengths.values()))
        columns = {
            name: leaf[:count] if isinstance(leaf, list) else list(np.array(leaf[:count]))
            for name, leaf in leaves.items()
        }
        real = [True] * min(count, n)
    if not columns or not n:
        raise PipelineError(f"preview: {owner} have no elements.")
    places = [f"#{index}" for index in range(min(count, n))]
    title = _title("arrays" if mask is None else "batch", count, n)
    return PreviewElements(columns, real, places, owner, title)


def _title(what: str, count: int, n: int) -> str:
    shown = min(count, n)
    of = f" of {n:,}" if shown < n else ""
    return f"{what}, {shown:,}{of} {'elements' if n > 1 else 'element'}"


def _of_dataset(data: Any, count: int) -> PreviewElements:
    owner, n, elements = type(data).__name__, _length(data), {}
    for index in range(min(count, n)):
        try:
            elements[index] = data[index]
        except Exception as error:
            error.add_note(f"cereal: preview, element {index} of {owner}")
            raise
    split = getattr(data, "split", None)
    what = f"{owner} {split}" if isinstance(split, str) else owner
    found = _as_columns(elements, owner, _title(what, count, n))
    return dataclasses.replace(found, names=_names(data, found.columns))


def _length(data: Any) -> int:
    hint = "pass a loader, a source, a dataset with `__len__` and `__getitem__`, or arrays"
    name = type(data).__name__
    if isinstance(data, type) or not is_dataset(data):
        if isinstance(data, type):
            hint = f"that is a class: write `{data.__name__}(...)`"
        elif isinstance(data, BatchIterator):
            hint = "pass its loader, and where it is: `preview(loader, state=batches.state)`"
        elif hasattr(data, "__next__"):
            hint = "read elements of it first: `preview(list(itertools.islice(data, 64)))`"
        raise UsageError(f"preview: cannot look at {name}; {hint}.")
    try:
        n = len(data)
    except TypeError as error:
        raise UsageError(f"preview: {name} has no length ({error}); {hint}.") from error
    if n < 1:
        raise PipelineError(f"preview: {name} has no elements.")
    return n


def _names(data: Any, columns: Columns) -> Any:
    """The names that a dataset has for its labels, by label key; the key None is the first label.

    They come from `classes`; for `coarse_label` from `coarse_classes`; and from the `features` of
    Hugging Face.
    """
    features: Any = getattr(data, "features", None)
    found: dict[str | None, Any] = {None: getattr(data, "classes", None)}
    for key in columns:
        feature = features.get(key) if isinstance(features, Mapping) else None
        found[key] = getattr(feature, "names", None)
        if "label" in key and found[key] is None:
            found[key] = getattr(data, key.replace("label", "classes"), None)
    return {key: names for key, names in found.items() if is_names(names)}
