"""Policies and environments that cannot work are refused when the pipeline is built."""

from __future__ import annotations

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.cartpole import ENV, ENV_PARAMS, ZEROS, cartpole, policy_step
from tests.rl.corridor import ONE, Corridor, stride, walk

import cereal

INT = jnp.int32


# Numbers


@pytest.mark.parametrize("value", [0, -1, 1.5, "16", None, True])
@pytest.mark.parametrize("name", ["steps_per_epoch", "num_envs"])
def test_counts_are_positive_integers(name: str, value: Any) -> None:
    with pytest.raises(cereal.PipelineError, match=f"`{name}` must be an integer of at least 1"):
        cartpole(**{name: value})


def test_numpy_integers_are_integers() -> None:
    assert walk(steps_per_epoch=np.int64(8)).steps_per_epoch == 8


# Policies


def test_the_policy_of_older_versions_is_answered_with_the_wrapper_to_write() -> None:
    def policy_fn(obs: Any, params: Any, key: Any) -> Any:
        return jax.random.categorical(key, obs @ params)

    wrapper = r"def policy_step\(observation, policy_state, new_episode, key\):\n +return policy_fn"
    old: Any = cereal.GymnaxSource
    with pytest.raises(cereal.PipelineError, match=f"(?s)no `policy_fn=`.*{wrapper}"):
        old(env=ENV, env_params=ENV_PARAMS, policy_fn=policy_fn, steps_per_epoch=16)
    with pytest.raises(cereal.PipelineError, match=f"(?s)no `policy_fn=`.*{wrapper}"):
        old(ENV, ENV_PARAMS, policy_fn=policy_fn, policy_params=ZEROS)
    with pytest.raises(
        cereal.PipelineError, match=f"(?s)which `policy_fn.*does not take.*{wrapper}"
    ):
        old(ENV, ENV_PARAMS, policy_fn, ZEROS)

    def policy_step(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return policy_fn(observation, policy_state, key), policy_state

    source = cereal.GymnaxSource(
        ENV, ENV_PARAMS, policy_step, policy_state_template=ZEROS["params"]
    )
    state = source.set_policy_state(source.init_state(0), ZEROS["params"])
    assert source.next(state)[0]["action"].dtype == INT


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda fn: cereal.GymnaxSource(ENV, ENV_PARAMS, fn, ZEROS), r"env, env_params, policy"),
        (lambda fn: cereal.rl.RolloutSource(Corridor(), fn, ZEROS), r"Source\(env, policy_step"),
    ],
)
def test_the_wrapper_to_write_is_passed_to_the_source_as_that_takes_it(
    make: Any, words: str
) -> None:
    with pytest.raises(cereal.PipelineError, match=words):
        make(lambda observation: jnp.int32(0))


def test_other_options_and_missing_policies_are_refused() -> None:
    old: Any = cereal.GymnaxSource
    with pytest.raises(cereal.PipelineError, match="unknown option `batch_size=`"):
        old(ENV, ENV_PARAMS, policy_step, ZEROS, batch_size=4)
    with pytest.raises(cereal.PipelineError, match="needs a policy"):
        old(ENV, ENV_PARAMS)
    with pytest.raises(cereal.PipelineError, match="`policy_step_fn` must be callable, got dict"):
        old(ENV, ENV_PARAMS, ZEROS, policy_step)


def policy_returning(fn: Any) -> Any:
    def policy(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
        return fn(observation, policy_state, key)

    return policy


BAD_POLICIES = {
    "an action alone": (
        lambda o, p, k: INT(0),
        r"must return \(action, policy_state\).*returned DynamicJaxprTracer|returned",
    ),
    "four values": (lambda o, p, k: (INT(0), p, {}, {}), "returned a tuple of 4"),
    "a list": (lambda o, p, k: [INT(0), p], "returned list"),
    "logits": (
        lambda o, p, k: (o @ p["params"], p),
        r"action float32\[2\], but CartPole-v1 takes int32\[\].*categorical",
    ),
    "a float": (lambda o, p, k: (jnp.float32(1), p), r"action float32\[\], but .* takes int32\[\]"),
    "a truth": (lambda o, p, k: (jnp.bool_(1), p), r"action bool\[\], but .* takes int32\[\]"),
    "one in a list": (lambda o, p, k: (jnp.zeros(1, INT), p), r"action int32\[1\], but"),
    "a tree": (lambda o, p, k: ({"a": INT(0)}, p), r"action \{a: int32\[\]\}, but"),
    "a word": (lambda o, p, k: ("left", p), r"gave str \('left'\) where there must be an array"),
    "no policy state": (lambda o, p, k: (INT(0), None), "another policy state than it gets"),
    "a wider policy state": (
        lambda o, p, k: (INT(0), {"params": jnp.zeros((4, 3))}),
        r"of `\['params'\]` it gets float32\[4,2\], it returns float32\[4,3\]",
    ),
    "a policy state of another dtype": (
        lambda o, p, k: (INT(0), {"params": p["params"].astype(jnp.bfloat16)}),
        r"float32\[4,2\], it returns bfloat16",
    ),
    "an error": (lambda o, p, k: p["weights"], r"policy, called with .*failed: KeyError"),
    "shapes that do not fit": (lambda o, p, k: (p["params"] @ o, p), r"failed: TypeError"),
    "NumPy": (lambda o, p, k: (int(np.argmax(o)), p), r"failed: .*write it with `jax.numpy`"),
    "an `if`": (lambda o, p, k: (1 if o[0] > 0 else 0, p), r"failed: .*`jnp.where` in place of"),
}


@pytest.mark.parametrize(("fn", "message"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_a_policy_that_cannot_act_is_refused(fn: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=message):
        cartpole(policy_returning(fn))


def test_a_template_is_made_of_arrays() -> None:
    with pytest.raises(cereal.PipelineError, match=r"template\['activation'\]` is .*eqx.partition"):
        cartpole(template={**ZEROS, "activation": jax.nn.relu})
    source = cartpole(template={"params": jax.ShapeDtypeStruct((4, 2), jnp.float32)})
    assert source.next(source.set_policy_state(source.init_state(0), ZEROS))[1]


def test_a_policy_state_of_another_shape_than_the_template_is_refused() -> None:
    source = cartpole()
    with pytest.raises(cereal.StateError, match=r"float32\[4,3\], but float32\[4,2\] in the"):
        source.set_policy_state(source.init_state(0), {"params": jnp.zeros((4, 3))})


# Axes


def counting(observation: Any, policy_state: Any, new_episode: Any, key: Any) -> Any:
    count = jnp.where(new_episode, 0, policy_state["count"]) + 1
    return policy_state["stride"], {**policy_state, "count": count}


def test_what_environments_have_for_themselves_needs_an_axis() -> None:
    template = {**ONE, "count": jnp.int32(0)}
    with pytest.raises(
        cereal.PipelineError, match=r"a policy state of its own.*policy_state_axes="
    ):
        walk(counting, template, num_envs=4)
    axes = {"stride": None, "count": 0}
    with pytest.raises(
        cereal.PipelineError, match=r"\['count'\]` must be None or an axis of int32"
    ):
        walk(counting, template, num_envs=4, policy_state_axes={"stride": None, "count": 1})
    short = {**ONE, "count": jnp.zeros(3, INT)}
    with pytest.raises(cereal.PipelineError, match=r"int32\[3\], but .* to the 4 environments"):
        walk(counting, short, num_envs=4, policy_state_axes=axes)
    with pytest.raises(
        cereal.PipelineError, match=r"`policy_state_axes` must be None, 0, or a tree"
    ):
        walk(counting, template, num_envs=4, policy_state_axes={"count": 0})
    with pytest.raises(cereal.PipelineError, match=r"must be None or an axis of"):
        walk(counting, template, num_envs=4, policy_state_axes="count")
    good = {**ONE, "count": jnp.zeros(4, INT)}
    assert walk(counting, good, num_envs=4, policy_state_axes=axes).num_envs == 4


# Environments


def corridor_with(**methods: Any) -> Any:
    return cereal.pytree_dataclass(type("Strange", (Corridor,), methods))()


def step_of(fn: Any) -> Any:
    return lambda self, key, state, action: fn(Corridor.step(self, key, state, action))


BAD_ENVIRONMENTS = {
    "an observation of another dtype": (
        {"step": step_of(lambda s: s._replace(observation=s.observation.astype(INT)))},
        r"observation of Strange is not the same after `reset` and after `step`: reset "
        r"gives float32\[\], step gives int32\[\]",
    ),
    "a state of another dtype": (
        {"step": step_of(lambda s: s._replace(state=s.state.astype(jnp.float32)))},
        r"state of Strange is not the same .*reset gives int32\[\], step gives float32\[\]",
    ),
    "a state of another shape": (
        {"step": step_of(lambda s: s._replace(state=s.state[None]))},
        r"reset gives int32\[\], step gives int32\[1\]",
    ),
    "a tuple": ({"step": step_of(tuple)}, r"step must return a `cereal.rl.Step`, returned tuple"),
    "an end for each of two": (
        {"step": step_of(lambda s: s._replace(done=jnp.zeros(2, bool)))},
        r"gives `done` as bool\[2\]",
    ),
    "a step that raises": ({"step": step_of(lambda s: 1 / 0)}, "failed: ZeroDivisionError"),
    "a reset of one value": (
        {"reset": lambda self, key: jnp.float32(0)},
        r"reset must return \(observation, state\)",
    ),
}


@pytest.mark.parametrize(("methods", "message"), BAD_ENVIRONMENTS.values(), ids=BAD_ENVIRONMENTS)
def test_an_environment_that_cannot_go_on_is_refused(methods: Any, message: str) -> None:
    with pytest.raises(cereal.PipelineError, match=message):
        cereal.rl.RolloutSource(corridor_with(**methods), stride, ONE)


def test_gymnax_environments_whose_reset_and_step_differ_are_refused_by_name() -> None:
    class Half(gymnax.environments.classic_control.cartpole.CartPole):
        def reset_env(self, key: Any, params: Any) -> Any:
            observation, state = super().reset_env(key, params)
            return observation.astype(jnp.float16), state

    with pytest.raises(
        cereal.PipelineError, match=r"(?s)after `reset`.*float16\[4\].*float32\[4\]"
    ):
        cereal.GymnaxSource(Half(), None, policy_step, ZEROS)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(cereal.PipelineError, match=r"is the class Corridor, not an instance"):
        cereal.rl.RolloutSource(Corridor, stride, ONE)  # type: ignore[arg-type]
    with pytest.raises(cereal.PipelineError, match=r"`env` must have `reset\(key\)`.*GymnaxSource"):
        cereal.rl.RolloutSource(ENV, stride, ONE)  # type: ignore[arg-type]

    class Unhashable(Corridor):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(cereal.PipelineError, match="neither a pytree nor hashable"):
        cereal.rl.RolloutSource(Unhashable(), stride, ONE)
