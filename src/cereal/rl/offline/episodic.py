"""What all sources of recorded episodes are: arrays in memory, of which a batch takes rows.

index  ->  the step, or the steps of a window  ->  rows of the arrays
observations are stored once: `next_state` is the row after `state`
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base.errors import PipelineError
from ...base.numbers import as_count, as_flag
from ...base.pytree import pytree_dataclass, set_fields, static_field
from ...base.spec import Spec, without_weak_types
from ...device.explicit_axes import reshaped
from ...device.gather import take_rows
from ...device.storage import place_array, settle
from ...device.words import WordRows
from ...order.ordering import Order, Sequential, as_order
from ...order.rows import Rows, narrow
from ...pipeline.positional import IndexedSource
from ...pipeline.traits import Traits
from ...sources.index_key import check_index_key, with_index
from ..n_step import n_step_of_window
from ..returns import as_fraction
from ..transition import Transition
from .episode import Rules
from .joined import TERMINATED, TRUNCATED, check_countable, join, rows_of_steps, windows
from .on_host import Column, as_rows, on_host

_MANY = 1 << 16  # steps whose returns are computed at once
_MADE = ("n_step_return", "bootstrap_state", "bootstrap_discount")
_KEYS = dict.fromkeys(["state", "action", "reward", "next_state", "done", "info", *_MADE])


@pytree_dataclass
class Episodic(IndexedSource[Transition]):
    """A source of recorded episodes; subclasses say where episodes come from."""

    _observations: Any
    _steps: Any  # action, reward, flags, infos
    _places: Any  # for each element: the row of its observation; or what `windows` says
    _gamma: Any
    _ahead_by: int | None = static_field()
    _window: int | None = static_field()
    _period: int = static_field()
    _pad: bool = static_field()
    index_key: str | None = static_field()
    spec: Spec = static_field()
    ordering: Order = Sequential()  # the constructor sets it

    def __len__(self) -> int:
        return self._places.shape[0]

    def element_spec(self) -> Any:
        return self.spec.tree

    @property
    def _label(self) -> str:
        said = [f"{len(self)} {'windows' if self._window else 'transitions'}"]
        said += [f"n_step={self._ahead_by}"] if self._ahead_by else []
        said += [f"window={self._window}"] if self._window else []
        said += [f"period={self._period}"] if self._window and self._period != 1 else []
        said += [f"index_key={self.index_key!r}"] if self.index_key else []
        return f"{type(self).__name__}({', '.join(said)}, ordering={self._order.name})"

    def _describe(self) -> Traits:
        reach = (self._window or 1) + (self._ahead_by or 1) - 1  # steps whose data an element has
        overlap = reach if self._period < reach else 0
        if self._window is None:
            return self._describe_as(light=True, by_python=True, episodes=True, overlap=overlap)
        known = {"light": True, "windows": True, "episodes": True, "overlap": overlap}
        if not self._pad:
            return self._describe_as(by_python=True, **known)
        return self._describe_as(masks=True, mask_shape=(self._window,), **known)

    @property
    def _roots(self) -> frozenset[int]:
        # (Not `gamma`: two sources may have the same number.)
        data = jax.tree.leaves((self._observations, self._steps))
        return frozenset([id(self), *map(id, data)])

    def take(self, indices: Any) -> Any:
        return self._taken(indices)[0]

    def _read(self, rows: Rows) -> tuple[Any, Any]:
        if rows.index.ndim == 0:
            values, mask = self._read(rows.reshape(1))
            return jax.tree.map(lambda x: x[0], values), None if mask is None else mask[0]
        values, real = self._taken(rows.index)
        if real is not None and rows.valid is not None:
            real = real & rows.valid[:, None]
        return without_weak_types(values), rows.valid if real is None else real

    def _taken(self, indices: Any) -> tuple[Any, Any]:
        """The elements; and which of their steps are real, if they are windows with padding."""
        indices = narrow(indices)
        found = take_rows(self._places, indices)
        if self._window is None:
            values = self._at(indices, found)
            return with_index(values, indices, self.index_key), None
        start, row, count = found[..., :1], found[..., 1:2], found[..., 2:]
        number = jnp.arange(self._window, dtype=found.dtype).reshape((1,) * indices.ndim + (-1,))
        offset = jnp.minimum(number, count - 1)  # padding repeats the last step
        values = self._at(start + offset, row + offset)
        real = number < count if self._pad else None
        return with_index(values, indices, self.index_key), real

    def _at(self, step: Any, row: Any) -> dict[str, Any]:
        """The transitions at these steps; `row` are the rows of their observations."""
        steps = _rows(self._steps, step)
        terminated, truncated = _ends(steps["flags"])
        made = {
            "state": _rows(self._observations, row),
            "action": steps["action"],
            "reward": steps["reward"],
            "next_state": _rows(self._observations, row + 1),
            "done": terminated | truncated,
            "info": {"terminated": terminated, "truncated": truncated, **steps["infos"]},
        }
        return (
            made if self._ahead_by is None else {**made, **self._ahead(step, row, self._ahead_by)}
        )

    def _ahead(self, step: Any, row: Any, n: int) -> dict[str, Any]:
        returns, last, discount = self._n_step(step, n)
        after = _rows(self._observations, row + last.astype(row.dtype) + 1)
        return dict(zip(_MADE, (returns, after, discount), strict=True))

    def _n_step(self, step: Any, n: int) -> tuple[Any, Any, Any]:
        """The n-step return of each step. Windows end with their episode, whose end is marked."""
        total = self._steps["reward"].shape[0]
        later = jnp.arange(n, dtype=step.dtype).reshape((1,) * step.ndim + (n,))
        number = jnp.minimum(step[..., None] + later, jnp.asarray(total - 1, step.dtype))
        ahead = _rows({name: self._steps[name] for name in ("reward", "flags")}, number)
        terminated, truncated = _ends(ahead["flags"])
        return n_step_of_window(ahead["reward"], terminated | truncated, terminated, n, self._gamma)

    def _n_step_of_all(self, total: int, n: int) -> list[np.ndarray]:
        """The same for all steps, in NumPy; a part of them at a time."""
        parts = [
            jax.device_get(self._n_step(jnp.arange(begin, min(begin + _MANY, total)), n))
            for begin in range(0, total, _MANY)
        ]
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def _as_host(self) -> Any:
        """The same elements for host stages, which may not follow windows with padding: Python has
        no masks inside of elements. N-step returns are computed now, for all steps."""

        def columns(rowed: Any, tree: Any) -> Any:
            return jax.tree.map(lambda leaf: Column(rowed, leaf), tree, is_leaf=_is_words)

        terminated, truncated = _ends(as_rows(self._steps["flags"]))
        info = {"terminated": terminated, "truncated": truncated, **self._steps["infos"]}
        made = {
            "state": columns("row", self._observations),
            **{name: columns("step", self._steps[name]) for name in ("action", "reward")},
            "next_state": columns("next", self._observations),
            "done": Column("step", terminated | truncated),
            "info": columns("step", info),
        }
        ahead = np.zeros(0, np.int32)
        if self._ahead_by is not None:
            returns, last, discount = self._n_step_of_all(len(terminated), self._ahead_by)
            after, ahead = columns("last", self._observations), last + 1
            parts = (Column("step", returns), after, Column("step", discount))
            made |= dict(zip(_MADE, parts, strict=True))
        made = with_index(made, Column("index", None), self.index_key)
        return on_host(self, made, ahead)


def _rows(tree: Any, index: Any) -> Any:
    """The rows of all arrays at indices of any shape."""

    def rows(leaf: Any) -> Any:
        if index.ndim == 1:
            return take_rows(leaf, index)
        taken = take_rows(leaf, reshaped(index, index.size))
        return reshaped(taken, *index.shape, *leaf.shape[1:])

    return jax.tree.map(rows, tree, is_leaf=_is_words)


def _is_words(leaf: Any) -> bool:
    return isinstance(leaf, WordRows)


def _ends(flags: Any) -> tuple[Any, Any]:
    return (flags & np.uint8(TERMINATED)) != 0, (flags & np.uint8(TRUNCATED)) != 0


def set_episodic(
    source: Any,
    episodes: Iterable[tuple[str, Any]],
    rules: Rules,
    *,
    n_step: Any,
    gamma: Any,
    window: Any,
    period: Any,
    pad: Any,
    ordering: Any,
    index_key: Any,
) -> None:
    """Sets the fields of a source of episodes; its constructor calls this."""
    owner = rules.owner
    n_step = None if n_step is None else as_count(n_step, "n_step", owner)
    window = None if window is None else as_count(window, "window", owner)
    period, gamma = as_count(period, "period", owner), as_fraction(gamma, "gamma", owner)
    pad = as_flag(pad, "pad", owner)
    if window is None and (period != 1 or not pad):
        option = "period" if period != 1 else "pad"
        raise PipelineError(f"{owner}: `{option}=` is for windows; pass `window=` too.")
    joined = join(episodes, rules)
    check_countable(joined.lengths, max(n_step or 0, window or 0), owner)
    if window is None:
        places = rows_of_steps(joined.lengths)
    else:
        places = windows(joined.lengths, window, period, pad, owner)
    check_index_key(_KEYS, index_key, owner)
    set_fields(
        source,
        _observations=jax.tree.map(settle, joined.observations),
        _steps=jax.tree.map(settle, joined.steps),
        _places=place_array(places.astype(np.int32)),
        _gamma=gamma if isinstance(gamma, jax.Array) else place_array(np.asarray(gamma)),
        ordering=as_order(ordering, len(places), owner),
        _ahead_by=n_step,
        _window=window,
        _period=period,
        _pad=pad,
        index_key=index_key,
    )
    one = jax.eval_shape(lambda: source.take(jnp.zeros(1, jnp.int32)))
    alone = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), one)
    set_fields(source, spec=Spec(alone))
