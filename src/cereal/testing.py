"""Checks that every source, transform and loader must pass: use them to test your own.

    check_source(source)              element specs, exact epochs, same results with and without jit
    check_transform(transform)        same results before and after batching, in a list and by call
    check_loader(loader)              one step, many steps and a scan give the same batches
    check_resume(loader)              restored at any step, the rest is the same

Each raises an AssertionError that says which step and which leaf differ. They run for a few
epochs, so give them small data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from .base.errors import EpochWarning
from .base.fitting import canonical, is_numeric
from .base.spec import Spec, format_spec
from .loaders.loader import DataLoader
from .loaders.policy_slot import set_policy_state
from .order.ordering import Listed
from .pipeline.execute import stripped
from .pipeline.host_stage import HostStage
from .pipeline.positional import IndexedSource, Positional
from .pipeline.source import Source
from .pipeline.stage import Stage, Transform
from .pipeline.state import PipelineState
from .sources.array import ArraySampleSource
from .transforms.batch import BatchTransform
from .transforms.host.map import HostMapTransform
from .transforms.map import MapTransform

_TOLERANCE = 1e-6
P = ParamSpec("P")


def assert_same(a: Any, b: Any, what: str) -> None:
    """Asserts that two trees have the same structure and values (floats up to rounding).

    >>> from cereal.testing import assert_same
    >>> assert_same({"x": 1}, {"x": 1}, "the dict")
    """
    leaves_a, structure_a = jax.tree_util.tree_flatten_with_path(a)
    leaves_b, structure_b = jax.tree_util.tree_flatten_with_path(b)
    assert structure_a == structure_b, f"{what}: structure {structure_a} is not {structure_b}"
    for (path, x), (_, y) in zip(leaves_a, leaves_b, strict=True):
        where = what + jax.tree_util.keystr(path)
        x, y = _host(x), _host(y)
        assert x.dtype == y.dtype, f"{where}: dtype {x.dtype} is not {y.dtype}"
        assert x.shape == y.shape, f"{where}: shape {x.shape} is not {y.shape}"
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=_TOLERANCE, atol=_TOLERANCE, err_msg=where)
        else:
            np.testing.assert_array_equal(x, y, err_msg=where)


def _host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, np.ndarray) and is_numeric(leaf.dtype):  # JAX would compile for its shape
        leaf = leaf.astype(canonical(leaf.dtype))
        return leaf.astype(np.float32) if _is_narrow(leaf) else leaf
    leaf = jnp.asarray(leaf)
    if _is_narrow(leaf):
        leaf = leaf.astype(jnp.float32)
    return np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_narrow(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _begun(pipeline: Any, key: Any, policy_state: Any) -> Any:
    state = pipeline.init_state(key)
    return state if policy_state is None else set_policy_state(state, policy_state)


def check_source(source: Source[Any], key: Any = 0, *, policy_state: Any = None) -> None:
    """Checks a source.

    Its elements must match `element_spec`. A state must always give the same element, with and
    without `jit`. An indexed source must visit every index of its order exactly once per epoch, and
    its `take` must give the same for many indices as for each alone. `policy_state` is for
    rollouts.

    >>> import cereal
    >>> from cereal.testing import check_source
    >>> check_source(cereal.RangeSource(7, ordering="shuffle"))
    """
    spec, start = Spec(source.element_spec()), _begun(source, key, policy_state)
    state = start
    compiled = jax.jit(lambda source, state: source.next(state))
    for step in range(min(source.steps_per_epoch, 8) + 1):
        what = f"{source._label}, step {step}"
        element, mask, after = source.next(state)
        found = Spec(jax.tree.map(jnp.asarray, element))
        assert found == spec, f"{what}: gives {found}, element_spec says {spec}"
        assert jnp.asarray(mask).dtype == jnp.bool_, f"{what}: the mask is {mask.dtype}, not bool"
        assert jnp.shape(mask) == source.traits.mask_shape, (
            f"{what}: the mask has shape {jnp.shape(mask)}"
        )
        assert_same(source.next(state), (element, mask, after), f"{what}, asked twice")
        assert_same(compiled(source, state), (element, mask, after), f"{what}, under jit")
        state = after
    if isinstance(source, Positional):
        _check_epochs(source, key)
    else:
        _check_many(source, start)
    if isinstance(source, IndexedSource) and not source.traits.random_stages:
        _check_take(source)


def _check_many(source: Source[Any], start: Any) -> None:
    """Checks that several steps at once give the same as single steps."""
    state, found = start, []
    for _ in range(3):
        *element_and_mask, state = source.next(state)
        found.append(element_and_mask)
    values, masks = _stacked(found)
    what = f"{source._label}: next_many(state, 3) and three times next(state)"
    assert_same(source.next_many(start, 3), (values, masks, state), what)


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(_fetched, trees))


def _fetched(tree: Any) -> Any:
    """The same leaves in NumPy, which compiles nothing to slice and stack them; keys as words."""
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if _is_key(x) else x), tree)


def _check_epochs(source: Positional[Any], key: Any) -> None:
    """Checks, for three epochs, that each index of the order comes once per epoch."""
    loader, n, order = DataLoader(source), source.traits.length, source._order
    steps = -(-3 * n // source._plan.batch) + 3
    seen = [loader.indices_at(key, step) for step in range(steps)]
    if order.samples:
        assert all((indices >= 0).all() for indices in seen), f"{source._label}: a negative index"
        return
    wanted = np.asarray(order.indices) if isinstance(order, Listed) else np.arange(n)
    if source.traits.remainder == "drop":
        most = np.unique(wanted, return_counts=True)[1].max()
        for epoch in range(3):
            first = epoch * source.steps_per_epoch
            indices = np.concatenate(seen[first : first + source.steps_per_epoch])
            counts = np.unique(indices, return_counts=True)[1]
            assert counts.max() <= most, f"{source._label}: an index repeats in epoch {epoch}"
        return
    for epoch, indices in enumerate(np.concatenate(seen)[: 3 * n].reshape(3, n)):
        what = f"{source._label}: epoch {epoch} is not each element once"
        np.testing.assert_array_equal(np.sort(indices), np.sort(wanted), err_msg=what)


def _check_take(source: IndexedSource[Any]) -> None:
    n = min(len(source), 16)
    together = _fetched(source.take(jnp.arange(n, dtype=jnp.int32)))
    take: Any = jax.jit(lambda source, indices: source.take(indices))
    if source.traits.host or source.traits.callbacks:
        take = lambda source, indices: source.take(indices)  # noqa: E731
    for index in range(n):
        alone = _fetched(take(source, jnp.array([index], jnp.int32)))
        one = jax.tree.map(lambda x, i=index: x[i : i + 1], together)
        assert_same(alone, one, f"{source._label}: take([{index}])")


def check_transform(transform: Transform[Any, Any], source: Source[Any] | None = None) -> None:
    """Checks a transform, over `source` (by default small images with labels).

    `transform(source)` and `DataLoader([source, transform])` must give the same. The result must
    pass `check_source` and `check_resume`, before and after batching. A stage that works on
    elements must give the same batch before and after a BatchTransform.

    >>> import cereal
    >>> from cereal.testing import check_transform
    >>> check_transform(cereal.NormalizeImageTransform())
    """
    if source is None:  # only one check is shuffled: compiling the shuffle takes most of the time
        _check_by_call(transform, _images("shuffle"))
        source = _images("sequential")
    by_call = _check_by_call(transform, source)
    check_source(by_call.source)
    check_resume(by_call)
    batch = BatchTransform(3)
    if not isinstance(transform, Stage | HostStage) or transform.traits.callbacks:
        return
    before = DataLoader([source, transform, batch])
    after = before  # a host function of elements need not work on batches
    if not isinstance(transform, HostMapTransform):
        after = DataLoader([source, batch, transform])
    for loader in (before, after):
        check_source(loader.source)
        check_resume(loader)
        check_loader(loader)
    if not isinstance(transform, MapTransform):  # whose function may look at the whole batch
        assert_same(_some(before), _some(after), f"{transform._label}: before and after batching")


def _repeating(check: Callable[P, None]) -> Callable[P, None]:
    """A check that repeats epochs on purpose: it causes no EpochWarning, now or later."""

    @wraps(check)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EpochWarning)
            check(*args, **kwargs)
        loader: Any = kwargs["loader"] if "loader" in kwargs else args[0]
        loader.learnt.forget_epochs()

    return run


def _images(ordering: str) -> Source[Any]:
    images = np.arange(7 * 6 * 6, dtype=np.uint8).reshape(7, 6, 6)
    return ArraySampleSource(
        {"image": images, "label": np.arange(7, dtype=np.int32)}, ordering=ordering
    )


def _check_by_call(transform: Transform[Any, Any], source: Source[Any]) -> DataLoader[Any]:
    """Checks that a call and a list give the same; returns the loader of the call."""
    by_call, in_list = DataLoader(transform(source)), DataLoader([source, transform])
    assert_same(_some(by_call), _some(in_list), f"{transform._label}: called and in a list")
    one, other = (jax.tree.structure(stripped(loader.running)) for loader in (by_call, in_list))
    assert one == other, f"{transform._label}: called and in a list, the pytrees differ"
    return by_call


def _some(loader: DataLoader[Any]) -> list[Any]:
    found = list(loader.iterate(loader.init_state(0), steps=3))
    loader.learnt.forget_epochs()
    return found


@_repeating
def check_loader(loader: DataLoader[Any], key: Any = 0, *, policy_state: Any = None) -> None:
    """Checks that all ways to run a loader give the same batches, masks and states.

    These are `next_batch`, with and without `jit` (the loader as an argument, and captured),
    `iterate` and `scan_epoch`; for indexed pipelines also `batch_at`, and `vmap` over keys.

    >>> import cereal
    >>> from cereal.testing import check_loader
    >>> check_loader(cereal.DataLoader([cereal.RangeSource(5), cereal.BatchTransform(2)]))
    """
    steps = loader.steps_per_epoch + 2
    start = _begun(loader, key, policy_state)
    expected, states = _by_steps(loader.next_batch, start, steps)
    spec = Spec(loader.element_spec())
    for batch, _ in expected:
        found = Spec(batch)
        assert found == spec, f"a batch is {found}, element_spec says {format_spec(spec.tree)}"

    passed = partial(jax.jit(lambda loader, state: loader.next_batch(state)), loader)
    assert_same(_by_steps(passed, start, steps)[0], expected, "jit, loader passed")
    captured = jax.jit(loader.next_batch)
    assert_same(_by_steps(captured, start, steps)[0], expected, "jit, loader captured")

    iterator = loader.iterate(start, steps=steps)
    for step in range(steps):
        assert_same(next(iterator), expected[step], f"iterate, step {step}")
        assert_same(iterator.state, states[step], f"iterator.state after step {step}")
    assert next(iterator, None) is None, f"iterate(steps={steps}) gave more"

    def body(count: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        return count + 1, (batch, mask)

    state, count, outputs = loader.scan_epoch(start, 0, body, steps=steps)
    assert int(count) == steps, f"scan_epoch ran {int(count)} steps of {steps}"
    assert_same(outputs, _stacked(expected), "scan_epoch")
    assert_same(state, states[-1], "the state after scan_epoch")
    if isinstance(loader.source, Positional) and not loader.source.traits.callbacks:
        _check_any_step(loader, key, expected)


def _check_any_step(loader: DataLoader[Any], key: Any, expected: list[Any]) -> None:
    for step, pair in enumerate(expected):
        assert_same(loader.batch_at(key, step), pair, f"batch_at({step})")
    keys = jnp.stack([jax.random.key(seed) for seed in range(3)])
    batches, _, masks = jax.vmap(loader.next_batch)(jax.vmap(loader.init_state)(keys))
    batches, masks = _fetched((batches, masks))
    for lane in range(3):
        alone, _, mask = loader.next_batch(loader.init_state(keys[lane]))
        one = jax.tree.map(lambda x, lane=lane: x[lane], (batches, masks))
        assert_same(one, _fetched((alone, mask)), f"vmap, key {lane}")


def _by_steps(next_batch: Any, state: Any, steps: int) -> tuple[list[Any], list[Any]]:
    batches, states = [], []
    for _ in range(steps):
        batch, state, mask = next_batch(state)
        batches.append((batch, mask))
        states.append(state)
    return batches, states


@_repeating
def check_resume(
    loader: DataLoader[Any], key: Any = 0, epochs: int = 2, *, policy_state: Any = None
) -> None:
    """Checks that a run that is restored at any step continues as the first run did.

    Each state goes through host memory, as in a checkpoint, and is restored twice. From any step,
    `iterate` must end where the epoch ends.

    >>> import cereal
    >>> from cereal.testing import check_resume
    >>> check_resume(cereal.DataLoader([cereal.RangeSource(5), cereal.BatchTransform(2)]))
    """
    start = _begun(loader, key, policy_state)
    iterator = loader.iterate(start, epochs=epochs)
    saved, batches = [_saved(start)], []
    for pair in iterator:
        batches.append(pair)
        saved.append(_saved(iterator.state))
    assert batches, "an epoch has no batches"
    for step, words in enumerate(saved):
        for attempt in ("first", "second"):
            restored = loader.iterate(_restored(start, words), steps=len(batches) - step)
            for later, pair in enumerate(restored, start=step):
                what = f"restored at step {step} ({attempt} time), step {later}"
                assert_same(pair, batches[later], what)
    if isinstance(loader.source, Positional):
        _check_ends(loader, start, saved, len(batches), epochs)


def _check_ends(
    loader: DataLoader[Any], start: PipelineState, saved: list[Any], steps: int, epochs: int
) -> None:
    """Checks that `iterate` from any step ends where that epoch of the whole run ended."""
    epoch_of = [int(_restored(start, words).epoch) for words in saved]
    assert epoch_of[-1] >= epochs, f"{steps} steps ended in epoch {epoch_of[-1]} of {epochs}"
    for step, epoch in enumerate(epoch_of[:steps]):
        given = sum(1 for _ in loader.iterate(_restored(start, saved[step])))
        left = next((k for k, e in enumerate(epoch_of[step:]) if e > epoch), None)
        if left is not None:
            what = f"iterate from step {step} gave {given} batches, its epoch has {left} more"
            assert given == left, what


def _saved(state: Any) -> list[np.ndarray]:
    return [np.array(jax.random.key_data(x) if _is_key(x) else x) for x in jax.tree.leaves(state)]


def _restored(like: Any, saved: list[np.ndarray]) -> Any:
    def one(x: Any, found: np.ndarray) -> jax.Array:
        array = jax.device_put(found.copy())
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(x)) if _is_key(x) else array

    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, map(one, leaves, saved))
