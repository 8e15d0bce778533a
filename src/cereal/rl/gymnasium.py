"""Environments that Python runs, called by compiled programs.

    the loader's state and the environments both hold two numbers: [ generation | steps made ]

    init_state ──► begin(seed)             a new generation, no steps
    a step     ──► advance(place, action)  the same generation, one step more

A compiled program may run again from an old state, but these environments cannot go back. So a
state is accepted only if both of its numbers are those of the environments now.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ..base.errors import PipelineError, StateError, UsageError, in_one_line
from ..base.fitting import canonical, narrowed
from ..base.foreign_errors import ran_inside_program
from ..base.spec import Spec, format_spec
from ..device.device_count import device_count_of_program
from ..host.callbacks import as_numpy, guarded, poison
from ..host.host_data import HostData, living
from .environment import Step

_NOWHERE = 0  # the generation in the state that a failed step returns
# Begins at a random number, so that states of other processes match no generation here.
_generations = itertools.count(secrets.randbits(32))
_PLACE = jax.ShapeDtypeStruct((2,), jnp.uint32)
_ANEW = "begin again: `state = loader.init_state(key)`, and set the policy state again"


class Parts(NamedTuple):
    """A vector environment of gymnasium, with its spaces and its way of resetting."""

    envs: Any
    observations: Any  # the space of one observation
    actions: Any  # the space of one action
    resets_itself: bool


class GymnasiumEnvironments(HostData):
    """A vector environment of gymnasium, which can only go forward.

    A RolloutSource reads the shapes from `reset` and `step`, as for any `Environment`. While it
    traces, it calls `begin_all` and `step_all`; the compiled program then calls `begin` and
    `advance` in Python.
    """

    def __init__(self, make: Callable[[], Parts], name: str, ours: bool) -> None:
        super().__init__()
        self.name, self._ours, self._make = name, ours, make
        self._lock = threading.Lock()
        self._generation, self._steps, self._failure = _NOWHERE, 0, ""
        parts = make()
        self._parts: Parts | None = parts
        self.num_envs = int(parts.envs.num_envs)
        self._to_close: list[Any] = [parts.envs] if ours else []
        weakref.finalize(self, _end, self._to_close)
        try:
            self.observation = Spec(spec_of_space(parts.observations, "an observation", name))
            self.action = Spec(spec_of_space(parts.actions, "an action", name))
        except PipelineError:
            self.close()
            raise

    # One environment, as zeros of the right shapes: for the checks when a pipeline is built

    def reset(self, key: Any) -> tuple[Any, Any]:
        del key
        return self.observation.zeros(), jnp.zeros(_PLACE.shape, _PLACE.dtype)

    def step(self, key: Any, state: Any, action: Any) -> Step:
        del key, action
        seen, no = self.observation.zeros(), jnp.bool_(False)
        return Step(seen, state, jnp.float32(0), no, no, {}, (seen, state))

    def action_spec(self) -> Any:
        return self.action.tree

    # Called while a program is traced

    @property
    def identity(self) -> Any:
        """A name for the callbacks of these environments, different from all others."""
        return ("gymnasium", self.number)

    def begin_all(self, seed: Any) -> tuple[Any, Any]:
        """Resets all environments: (observation, place)."""
        return self._called("begin", (self._all_of(self.observation), _PLACE), seed)

    def step_all(self, place: Any, action: Any) -> Step:
        """One step of all environments."""
        seen = self._all_of(self.observation)
        reward, flag = (jax.ShapeDtypeStruct(self._lanes, dtype) for dtype in (np.float32, bool))
        promised = (seen, seen, reward, flag, flag, _PLACE)
        made = self._called("advance", promised, place, action)
        last, first, reward, terminated, truncated, after = made
        done = terminated | truncated
        # If the episode also ends by itself in this step, the time limit has cut nothing off.
        return Step(last, after, reward, done, truncated & ~terminated, {}, (first, after))

    def _called(self, method: str, promised: Any, *args: Any) -> Any:
        number = self.number  # a compiled program must not keep the environments alive
        self.enter_program()

        def call(*args: Any) -> Any:
            return getattr(living(number), method)(*as_numpy(args))

        call = guarded(call, self.identity, lambda *_: poison(promised))
        return io_callback(call, promised, device_count_of_program(args[0]), *args, ordered=True)

    @property
    def _lanes(self) -> tuple[int, ...]:
        return () if self.num_envs == 1 else (self.num_envs,)

    def _all_of(self, spec: Spec) -> Any:
        return spec.tree if self.num_envs == 1 else spec.batched(self.num_envs).tree

    # Called by programs, in Python

    def begin(self, seed: Any) -> tuple[Any, Any]:
        """Resets all environments, with `seed`, `seed + 1`, ..., as a new generation."""
        with self._lock:
            self._generation = next(_generations) % 0xFFFF_FFFF + 1
            self._steps, self._failure = 0, ""
            with self._running("`reset`") as parts:
                found = parts.envs.reset(seed=int(seed))[0]
                return self._one(self._observed(parts, found, "reset")), self._place

    def advance(self, place: Any, action: Any) -> tuple[Any, ...]:
        """One step from a place.

        Returns the last observation, the next one, rewards, terminations, truncations, and the new
        place.
        """
        with self._lock:
            self._check(int(place[0]), int(place[1]))
            with self._running(f"step {self._steps}") as parts:
                made = self._stepped(parts, action)
            self._steps += 1
            return *(self._one(part) for part in made), self._place

    def close(self) -> None:
        """Closes the environments that the source made; `begin` makes them again."""
        with self._lock:
            if self._ours:
                self._parts = None
                _end(self._to_close)

    def __reduce__(self) -> Any:
        raise UsageError(
            f"{self.name} is running here, and cannot be copied or sent to another process; build "
            f"the source where it is needed."
        )

    @contextlib.contextmanager
    def _running(self, where: str) -> Iterator[Parts]:
        """A `with` block that gives the environments, made again if closed, and notes errors."""
        try:
            with jax.no_execution():
                if self._parts is None:
                    self._parts = self._make()
                    self._to_close.append(self._parts.envs)
                yield self._parts
        except BaseException as error:
            self._failed(error, where)
            raise

    @property
    def _place(self) -> np.ndarray:
        return np.array([self._generation, self._steps & 0xFFFF_FFFF], np.uint32)

    def _one(self, tree: Any) -> Any:
        """The tree without its axis of environments, if there is only one environment."""
        return jax.tree.map(lambda x: x[0], tree) if self.num_envs == 1 else tree

    def _failed(self, error: BaseException, where: str) -> None:
        self._failure = f"{where} failed with {in_one_line(error)}"
        error.add_note(
            f"raised in {where} of {self.name}, whose observations are "
            f"{format_spec(self.observation.tree)} and whose actions are "
            f"{format_spec(self.action.tree)}, per environment"
        )
        if ran_inside_program(error):
            error.add_note(
                "an environment that computes with JAX cannot run inside of a compiled program; "
                "write it as a `cereal.rl.Environment` for a RolloutSource."
            )

    def _check(self, generation: int, steps: int) -> None:
        """Refuses a state whose two numbers are not those of the environments now."""
        here = self._steps & 0xFFFF_FFFF
        if self._failure and generation in (_NOWHERE, self._generation):
            raise StateError(f"{self.name} stopped: {self._failure}; {_ANEW}.")
        if generation != self._generation:
            raise StateError(
                f"this state is not of the episodes that {self.name} is playing: since it was "
                f"made, `init_state` was called again, or it comes from another source or "
                f"process, or from a step that failed. Environments that Python runs cannot be "
                f"resumed; {_ANEW}."
            )
        if steps != here:
            raise StateError(
                f"this state was used already: it is of step {steps}, and {self.name} is at step "
                f"{here}. Environments that Python runs cannot go back: go on with the state that "
                f"the last step returned (one iterator at a time, and no padded batches), or "
                f"{_ANEW}."
            )
        if self._parts is None:
            raise StateError(f"{self.name} was closed, and a state does not outlive it; {_ANEW}.")

    def _stepped(self, parts: Parts, action: Any) -> tuple[Any, ...]:
        action = jax.tree.map(lambda x: x[None], action) if self.num_envs == 1 else action
        envs = parts.envs
        made = envs.step(map_space(_as_action, parts.actions, action))
        observed, reward, terminated, truncated, info = made
        first = last = self._observed(parts, observed, "step")
        reward = self._numbers(reward, np.float32, "rewards")
        terminated = self._numbers(terminated, np.bool_, "terminations")
        truncated = self._numbers(truncated, np.bool_, "truncations")
        done = terminated | truncated
        if done.any() and parts.resets_itself:
            last = jax.tree.map(np.copy, first)
            for lane in np.flatnonzero(done).tolist():
                self._write_last(parts, last, info, lane)
        elif done.any():
            found = envs.reset(options={"reset_mask": done.copy()})[0]
            first = self._observed(parts, found, "reset")
        return last, first, reward, terminated, truncated

    def _write_last(self, parts: Parts, last: Any, info: Any, lane: int) -> None:
        found = info.get("final_obs")
        found = None if found is None else found[lane]
        if found is None:
            raise PipelineError(
                f"{self.name} says that it resets itself in the same step, but an episode of "
                f"environment {lane} ended and there is no last observation in "
                f'`info["final_obs"]`.'
            )
        one = self._observed(parts, found, "final_obs", axes=())
        for whole, row in zip(jax.tree.leaves(last), jax.tree.leaves(one), strict=True):
            whole[lane] = row

    def _observed(
        self, parts: Parts, found: Any, what: str, axes: tuple[int, ...] | None = None
    ) -> Any:
        """Copies of observations, checked against their space, with dtypes that JAX has."""
        axes, name = (self.num_envs,) if axes is None else axes, f"`{what}` of {self.name}"

        def as_promised(space: Any, found: Any) -> np.ndarray:
            array, shape = np.asarray(found), (*axes, *space.shape)
            if array.shape != shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
                wanted = jax.ShapeDtypeStruct(shape, space.dtype)
                raise PipelineError(
                    f"{name} gave {format_spec(array)}, but its observation space promises "
                    f"{format_spec(wanted)}; correct the space or the environment."
                )
            return narrowed(array.astype(space.dtype), canonical(space.dtype), name)

        return map_space(as_promised, parts.observations, found)

    def _numbers(self, found: Any, dtype: Any, what: str) -> np.ndarray:
        array = np.asarray(found)
        if array.shape != (self.num_envs,):
            raise PipelineError(
                f"`step` of {self.name} gave {what} of shape {array.shape}; it must give one per "
                f"environment, ({self.num_envs},)."
            )
        if array.dtype.kind == "f" and dtype == np.float32:
            return narrowed(array, np.dtype(np.float32), f"{what} of {self.name}").copy()
        return array.astype(dtype)


def _end(envs: list[Any]) -> None:
    while envs:
        envs.pop().close()


def map_space(fn: Callable[..., Any], space: Any, *values: Any) -> Any:
    """Calls `fn(space, *values)` for each part of a space that may have dicts and tuples."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: map_space(fn, part, *(v[key] for v in values)) for key, part in parts.items()}
    if parts is not None:
        each = enumerate(parts)
        return tuple(map_space(fn, part, *(v[i] for v in values)) for i, part in each)
    return fn(space, *values)


_ARRAYS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def spec_of_space(space: Any, what: str, name: str) -> Any:
    """The shapes and dtypes of a space's elements, with dtypes that JAX has."""
    names = [kind.__name__ for kind in type(space).__mro__]
    if not any(kind in names for kind in _ARRAYS):
        raise PipelineError(
            f"GymnasiumSource: {what} of {name} is {type(space).__name__}, which is no array of "
            f"one shape; a program can hold {', '.join(_ARRAYS)}. Wrap the environment so that it "
            f"shows one of them."
        )
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: spec_of_space(part, f"{what} at {key!r}", name) for key, part in parts.items()}
    if parts is not None:
        each = enumerate(parts)
        return tuple(spec_of_space(part, f"{what} at {i}", name) for i, part in each)
    return jax.ShapeDtypeStruct(space.shape, canonical(space.dtype))


def _as_action(space: Any, found: np.ndarray) -> np.ndarray:
    """A copy of an action, with the dtype of its space; refuses one outside of the space."""
    start = getattr(space, "start", None)
    if start is not None:  # numbers of actions: Discrete and MultiDiscrete
        count = getattr(space, "nvec", None)
        end = start + (space.n if count is None else count)
        if ((found < start) | (found >= end)).any():
            raise PipelineError(
                f"the policy gave the action {found.tolist()}, outside of {space}, whose actions "
                f"are {np.asarray(start).tolist()} to {np.asarray(end - 1).tolist()}."
            )
    return np.array(found, space.dtype)
