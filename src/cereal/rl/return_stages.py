"""Returns and advantages as stages over segments: a segment is a batch of consecutive steps.

    RolloutSource -> BatchTransform(T) -> GAETransform(...)     {..., advantage, return}: [T, N]

Time is the innermost axis of the batch. In batches of batches, `[M, T, ...]`, each of the M
segments is computed separately.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..base.errors import PipelineError
from ..base.numbers import as_count
from ..base.pytree import pytree_dataclass, set_fields, static_field
from ..base.spec import format_spec
from ..functions.function import Function, as_function
from ..pipeline.positional import Positional
from ..pipeline.source import Source
from ..pipeline.stage import Stage
from .policy_stage import policy_stage
from .replay.items import refuse_drawn
from .returns import as_fraction, gae, n_step_returns, reward_to_go


class SegmentStage(Stage[Any, Any]):
    """A stage that adds keys to segments; other keys stay as they are."""

    reads: ClassVar[tuple[str, ...]]
    adds: ClassVar[tuple[str, ...]]

    @abstractmethod
    def of_segment(self, parts: dict[str, Any], mask: Any) -> dict[str, Any]:
        """The keys to add to a segment `[T, ...]`; `parts` holds the keys that it needs."""

    @property
    def needs(self) -> dict[str, str]:
        """The keys that it reads, each with what to do if it is missing."""
        return dict.fromkeys(self.reads, "give it that name with a RenameTransform")

    def __call__(self, source: Source[Any]) -> Source[Any]:
        refuse_drawn(source, self._label)
        if isinstance(source, Positional) and source.traits.lanes:
            self._check_steps_follow(source)
        return super().__call__(source)

    def apply(self, values: Any, mask: Any, keys: Any, lanes: tuple[int, ...]) -> tuple[Any, Any]:
        del keys
        self._check(values, lanes)
        parts = {name: values[name] for name in self.needs}
        info = values.get("info")
        if isinstance(info, dict) and "terminated" in info:
            parts["terminated"] = info["terminated"]
        fn = self.of_segment
        for _ in lanes[1:]:
            fn = jax.vmap(fn)
        return {**values, **fn(parts, mask)}, mask

    def _check(self, values: Any, lanes: tuple[int, ...]) -> None:
        if not lanes:
            raise PipelineError(
                f"{self._label} works on segments, steps in a row; put it after the "
                f"`BatchTransform(T)` that makes segments of T steps. If elements are segments "
                f"themselves, call {_FUNCTIONS} on them in a MapTransform."
            )
        if not isinstance(values, dict):
            raise PipelineError(
                f"{self._label} needs batches that are dicts, with the keys {sorted(self.needs)}; "
                f"got {type(values).__name__}."
            )
        for name, fix in self.needs.items():
            if name not in values:
                raise PipelineError(
                    f"{self._label}: batches have no key {name!r}, they have {sorted(values)}; "
                    f"{fix}."
                )
        twice = [name for name in self.adds if name in values]
        if twice:
            raise PipelineError(
                f"{self._label} adds {twice[0]!r}, but batches have that key already; rename it "
                f'before, with `RenameTransform({{"{twice[0]}": ...}})`.'
            )

    def _check_steps_follow(self, source: Positional[Any]) -> None:
        """Refuses a pipeline whose batches are not consecutive steps."""
        if source.traits.windows:
            raise PipelineError(
                f"{self._label} needs batches of steps in a row, but each element is a window of "
                f"steps itself; call {_FUNCTIONS} on windows in a MapTransform before batching."
            )
        if source._order.random:
            raise PipelineError(
                f"{self._label} needs steps in a row, but the order of the data is "
                f'{source._order.name}; pass `ordering="sequential"` to the source. To shuffle '
                f"segments, cut them with `WindowSource(data, T)` and call {_FUNCTIONS} in a "
                f"MapTransform before batching."
            )
        steps = source.traits.lanes[-1]
        traits = source.traits
        if traits.remainder == "wrap" and not traits.unknown_length and traits.length % steps:
            raise PipelineError(
                f"{self._label}: {traits.length} steps are no whole number of segments of {steps}, "
                f"and one would go on from the last step to the first; pass `pad_last_batch=True` "
                f"or `drop_last=True` to the BatchTransform."
            )


_FUNCTIONS = "`cereal.rl.reward_to_go`, `n_step_returns` or `gae`"


@pytree_dataclass
class RewardToGoTransform(SegmentStage):
    """Adds `return`: the discounted sum of rewards to the end of the episode, or of the segment.

        reward   1     1     1    |   1     1
        done     .     .     x    |   .     .        gamma=0.5
        return   1.75  1.5   1    |   1.5   1

    Put it after `BatchTransform(T)`; steps need `reward` and `done`. See `reward_to_go`.
    """

    reads: ClassVar[tuple[str, ...]] = ("reward", "done")
    adds: ClassVar[tuple[str, ...]] = ("return",)

    gamma: Any

    def __init__(self, gamma: Any = 1.0) -> None:
        set_fields(self, gamma=as_fraction(gamma, "gamma", "RewardToGoTransform"))

    @property
    def _label(self) -> str:
        return f"RewardToGoTransform(gamma={_shown(self.gamma)})"

    def of_segment(self, parts: dict[str, Any], mask: Any) -> dict[str, Any]:
        to_go = reward_to_go(parts["reward"], parts["done"], gamma=self.gamma, mask=mask)
        return {"return": to_go}


@pytree_dataclass
class NStepReturnTransform(SegmentStage):
    """Adds `n_step_return`, `bootstrap_state` and `bootstrap_discount`, for temporal differences.

        target = n_step_return + bootstrap_discount * value(bootstrap_state)

    Put it after `BatchTransform(T)`; steps need `reward`, `done` and `next_state`, and
    `info["terminated"]` is used if it is there. See `n_step_returns`. Near the end of a segment
    there are fewer than n steps: the discount is then that of the steps that are left.

    >>> import cereal, numpy as np
    >>> data = {"reward": np.ones(4), "done": np.arange(4) == 3, "next_state": np.arange(1, 5)}
    >>> two = cereal.rl.NStepReturnTransform(2, gamma=0.5)
    >>> source = cereal.ArraySampleSource(data, ordering="sequential")
    >>> batch, mask = cereal.DataLoader([source, cereal.BatchTransform(4), two]).batch_at(0, 0)
    >>> batch["n_step_return"].tolist(), batch["bootstrap_state"].tolist()
    ([1.5, 1.5, 1.5, 1.0], [2, 3, 4, 4])
    >>> batch["bootstrap_discount"].tolist()
    [0.25, 0.25, 0.0, 0.0]
    """

    reads: ClassVar[tuple[str, ...]] = ("reward", "done", "next_state")
    adds: ClassVar[tuple[str, ...]] = ("n_step_return", "bootstrap_state", "bootstrap_discount")

    gamma: Any
    n: int = static_field()

    def __init__(self, n: int, *, gamma: Any = 0.99) -> None:
        owner = "NStepReturnTransform"
        set_fields(self, n=as_count(n, "n", owner), gamma=as_fraction(gamma, "gamma", owner))

    @property
    def _label(self) -> str:
        return f"NStepReturnTransform({self.n}, gamma={_shown(self.gamma)})"

    def of_segment(self, parts: dict[str, Any], mask: Any) -> dict[str, Any]:
        made = n_step_returns(n=self.n, gamma=self.gamma, mask=mask, **parts)
        return dict(zip(self.adds, made, strict=True))


@pytree_dataclass
class GAETransform(SegmentStage):
    """Adds `advantage` and `return` by generalised advantage estimation; see `gae`.

        GAETransform(value_fn=critic)      values from the critic of the current policy state
        GAETransform()                     values from the batch: `value`, `next_value`

    Put it after `BatchTransform(T)`. `value_fn(observation, policy_state)` is called twice for each
    batch, with all observations `[T, N, ...]` at once: with `state` and with `next_state`. It
    returns one value for each observation. `policy_state` is the one in the loader's state before
    the batch, so the advantages come from the current critic.

    >>> import cereal, numpy as np
    >>> data = {"reward": np.ones(3), "done": np.array([False, True, False])}
    >>> data |= {"value": np.zeros(3), "next_value": np.array([0.0, 9.0, 2.0])}
    >>> source = cereal.ArraySampleSource(data, ordering="sequential")
    >>> stage = cereal.rl.GAETransform(gamma=1.0, lam=0.5)
    >>> batch, mask = cereal.DataLoader([source, cereal.BatchTransform(3), stage]).batch_at(0, 0)
    >>> batch["advantage"].tolist()
    [1.5, 1.0, 3.0]
    """

    reads: ClassVar[tuple[str, ...]] = ("reward", "done", "state", "next_state")
    adds: ClassVar[tuple[str, ...]] = ("advantage", "return")

    gamma: Any
    lam: Any
    value_fn: Function | None

    def __init__(
        self,
        gamma: Any = 0.99,
        lam: Any = 0.95,
        *,
        value_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        owner = "GAETransform"
        if value_fn is not None and not callable(value_fn):
            raise PipelineError(
                f"{owner}: `value_fn` must be callable, got {type(value_fn).__name__}; write "
                f"`{owner}(value_fn=lambda observation, policy_state: ...)`."
            )
        set_fields(
            self,
            gamma=as_fraction(gamma, "gamma", owner),
            lam=as_fraction(lam, "lam", owner),
            value_fn=None if value_fn is None else as_function(value_fn, owner),
        )

    @property
    def _label(self) -> str:
        value_fn = "" if self.value_fn is None else f", value_fn={self.value_fn.name}"
        return f"GAETransform(gamma={_shown(self.gamma)}, lam={_shown(self.lam)}{value_fn})"

    @property
    def needs(self) -> dict[str, str]:
        needs = super().needs
        if self.value_fn is None:
            fix = "pass `value_fn=`, or add `value` and `next_value` in a MapTransform before"
            needs = {"reward": needs["reward"], "done": needs["done"]}
            needs |= {"value": fix, "next_value": fix}
        return needs

    def __call__(self, source: Source[Any]) -> Source[Any]:
        refuse_drawn(source, self._label)
        return super().__call__(source) if self.value_fn is None else policy_stage(self, source)

    def apply_with(
        self, policy_state: Any, values: Any, mask: Any, lanes: tuple[int, ...]
    ) -> tuple[Any, Any]:
        """`apply`, with values that `value_fn` computes from this policy state."""
        self._check(values, lanes)
        shape = values["reward"].shape
        judged = {
            "value": self._judge(values["state"], policy_state, shape),
            "next_value": self._judge(values["next_state"], policy_state, shape),
        }
        plain = GAETransform(self.gamma, self.lam)
        whole = plain.apply({**values, **judged}, mask, None, lanes)[0]
        return {**values, **{name: whole[name] for name in self.adds}}, mask

    def _judge(self, observation: Any, policy_state: Any, shape: tuple[int, ...]) -> jax.Array:
        assert self.value_fn is not None
        made = self.value_fn(observation, policy_state)
        if getattr(made, "shape", None) != shape:
            found = format_spec(made) if hasattr(made, "dtype") else type(made).__name__
            last = getattr(made, "shape", None) == (*shape, 1)
            raise PipelineError(
                f"{self._label}: `value_fn` must return one array with one value per step, of "
                f"shape {shape}, returned {found}"
                + ("; write `[..., 0]` to take its last axis away." if last else ".")
            )
        return jnp.asarray(made)

    def of_segment(self, parts: dict[str, Any], mask: Any) -> dict[str, Any]:
        made = gae(gamma=self.gamma, lam=self.lam, mask=mask, **parts)
        return dict(zip(self.adds, made, strict=True))


def _shown(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else format_spec(number)
