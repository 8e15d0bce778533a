"""The DataLoader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, Never, TypeVar, overload

import jax
import numpy as np

from ..base.capture import resolve
from ..base.numbers import as_optional_count
from ..base.pytree import sealed_pytree_dataclass, set_fields
from ..base.unseen import raise_unseen
from ..functions.traced_stage import current
from ..host.callbacks import raise_kept
from ..host.host_data import identity_on_host
from ..pipeline.pipeline import as_built
from ..pipeline.positional import Positional
from ..pipeline.source import Mask, Source
from ..pipeline.state import PipelineState, check_state
from ..workers.options import check_options
from ..workers.read_service import with_service
from . import any_step
from .compose import compose, refuse_misplaced, refuse_options
from .drawing import draw, summary
from .flax_states import enter_into_flax
from .iterators.batch_iterator import BatchIterator
from .iterators.iterate import iterator_over, refuse_positional, refuse_random, refuse_traced
from .iterators.learnt import Learnt
from .many_hosts.spreading import Together, divided
from .next_batch import NextBatch
from .policy_slot import get_policy_state, set_policy_state
from .scan.epoch_scan import check_body
from .scan.scan_epoch import scan_epoch

T = TypeVar("T")
Carry = TypeVar("Carry")
WorkerType = Literal["thread", "process"] | None
Shard = tuple[int, int] | Literal["jax"] | None
OnErrorOption = Literal["raise", "skip"] | Callable[[Exception], Any]


@sealed_pytree_dataclass
class DataLoader(Generic[T]):
    """Runs a pipeline: a source, and stages around it.

        Source  ->  Transform ...  ->  DataLoader  ->  device
        what        how                when            where

    A loader has no state of its own: a step takes a state and returns the next one. So you can use
    a loader inside `jit`, `grad`, `vmap` and `scan`, from several threads, and from any position.
    It is a pytree; pass it to your compiled functions as an argument.

    >>> import cereal, jax, numpy as np
    >>> data = {"image": np.zeros((10, 8, 8), np.uint8), "label": np.arange(10)}
    >>> loader = cereal.DataLoader([
    ...     cereal.ArraySampleSource(data, ordering="shuffle"),
    ...     cereal.BatchTransform(4, pad_last_batch=True),
    ...     cereal.NormalizeImageTransform(),
    ... ])
    >>> for batch, mask in loader.iterate(loader.init_state(jax.random.key(0))):
    ...     print(batch["image"].shape, int(mask.sum()))
    (4, 8, 8) 4
    (4, 8, 8) 4
    (4, 8, 8) 2

    The options are for data that Python reads: files, datasets, HostMapTransform and other host
    stages. If compiled code reads the data, they have no effect, and an OptionWarning says so.

    Args:
        pipeline: A list: first a source, arrays or a dataset, then the stages. Or one source, such
            as `BatchTransform(4)(source)`.
        workers: How many threads or processes read, at most. By default the loader finds out: it
            measures settings during the first batches for which your loop has to wait, and settles
            on the fastest; the drawing says which. It begins with one thread. 0 reads in your own
            thread, for debugging.
        prefetch: How many batches are read ahead at most. By default two per worker; fewer if they
            need more than 256 MB. A `prefetch_size` that you gave to a source decides instead.
        on_error: What to do if an element cannot be read. "raise", the default: the step raises
            that error when its batch is due. "skip": the element is masked, and counted in
            `loader.skipped`. A function: it gets the error, and returns an element to use instead,
            or None to skip it.
        timeout: How many seconds reading an element may take; if it takes longer, that is an error.
            It needs a worker. None, the default, is no limit.
        worker_type: "thread" or "process": who reads. By default the loader measures which is
            faster. Processes are for Python code that computes. They need functions and data that
            pickle (lambdas and classes of a script or notebook do), and see changes of what these
            refer to when the next iteration begins. What they read is the same, bit by bit.
        sharding: A NamedSharding, a tree of them, `(mesh, "data")` or `(mesh, specs)`: batches are
            global arrays, and each process reads only what its devices need. Default: None.
        shard: `(index, count)`: one of equal parts of every batch, without a mesh; "jax": one part
            for each process of JAX. Default: None, whole batches.
        check_replicas: How often processes that should hold the same rows compare a batch: one of
            so many of `iterate` and `next_batch`. Default: None, never.
    """

    raises_unseen: ClassVar[bool] = True

    running: Source[T]  # the pipeline, with the readers of its host part

    @overload
    def __init__(
        self,
        pipeline: Source[T],
        *,
        workers: int | None = None,
        prefetch: int | None = None,
        on_error: OnErrorOption = "raise",
        timeout: float | None = None,
        worker_type: WorkerType = None,
        sharding: Any = None,
        shard: Shard = None,
        check_replicas: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Any],  # types cannot express what a list of stages makes
        pipeline: Sequence[Any],
        *,
        workers: int | None = None,
        prefetch: int | None = None,
        on_error: OnErrorOption = "raise",
        timeout: float | None = None,
        worker_type: WorkerType = None,
        sharding: Any = None,
        shard: Shard = None,
        check_replicas: int | None = None,
    ) -> None: ...
    def __init__(
        self,
        pipeline: Any = None,
        *misplaced: Any,
        workers: int | None = None,
        prefetch: int | None = None,
        on_error: OnErrorOption = "raise",
        timeout: float | None = None,
        worker_type: WorkerType = None,
        sharding: Any = None,
        shard: Shard = None,
        check_replicas: int | None = None,
        **options: Any,
    ) -> None:
        refuse_misplaced(misplaced)
        refuse_options(options)
        chosen = check_options(workers, prefetch, on_error, timeout, worker_type)
        source = divided(compose(pipeline), sharding, shard, check_replicas, chosen.skips)
        set_fields(self, running=with_service(source, chosen))

    @property
    def source(self) -> Source[T]:
        """The pipeline: a source with the stages around it."""
        return as_built(self.running)

    @property
    def service(self) -> Any:
        """What reads the part of the pipeline that Python runs; None if there is no such part."""
        return getattr(self.running, "service", None)

    def init_state(self, key: Any, policy_state: Any = None) -> Any:
        """The state at the first element of epoch 0; `key` is a JAX random key or an integer.

        For rollouts, `policy_state` is the policy's parameters and memory; see `set_policy_state`.
        """
        raise_unseen()
        if isinstance(key, int) and not isinstance(self.source, Positional):
            key = jax.random.key(key)  # a user's own source need not know about integers
        enter_into_flax()
        state = self.source.init_state(key)
        return state if policy_state is None else set_policy_state(state, policy_state)

    @cached_property
    def next_batch(self) -> NextBatch[T]:
        """`next_batch(state) -> (batch, state, mask)`: one step, compiled.

        >>> import cereal
        >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
        >>> batch, state, mask = loader.next_batch(loader.init_state(0))
        >>> batch.tolist(), state
        ([0, 1, 2, 3], PipelineState(key=(0, 0), epoch=0, offset=4))
        """
        return NextBatch(self.running, self.together)

    # Many steps

    def iterate(
        self,
        state: Any = None,
        *misplaced: Never,
        steps: int | None = None,
        epochs: int | None = 1,
        progress: bool | str = False,
    ) -> BatchIterator[T]:
        """A Python iterator over `(batch, mask)`, to the end of the state's epoch.

        Its `state` is the state after the last batch that it gave. After all batches, that is the
        beginning of the next epoch:

            for epoch in range(10):
                batches = loader.iterate(state)
                for batch, mask in batches: ...
                state = batches.state

        Args:
            state: Where to begin. From the middle of an epoch, you get the rest of it. If the
                pipeline is not random, you may leave it out: then it begins with the first batch.
            steps: How many batches to give, across epochs if needed. By default `epochs` decides.
            epochs: How many epochs to run, the state's epoch included; 1 by default. None never
                ends.
            progress: True shows a progress bar, a string is its title; False, the default, nothing.
        """
        if misplaced:
            refuse_positional(misplaced)
        steps = as_optional_count(steps, "steps", "iterate", 0)
        epochs = as_optional_count(epochs, "epochs", "iterate")
        if state is None:
            refuse_random(self.source, "`loader.iterate()`")
            state = self.init_state(0)
        refuse_traced((self, state))
        batches = iterator_over(self.running, state, steps, epochs, progress, self.learnt)
        batches.together = self.together
        if batches.began is not None:
            self.learnt.begins(*batches.began, stacklevel=2)
        return batches

    @cached_property
    def learnt(self) -> Learnt:
        """What earlier iterations of this loader have shown; it changes no batch."""
        return Learnt()

    @cached_property
    def together(self) -> Together:
        """What the processes of a job do together; nothing, if there is only one."""
        return Together(self.running)

    def scan_epoch(
        self,
        state: Any,
        carry: Carry,
        body_fn: Callable[[Carry, T, Mask], tuple[Carry, Any]],
        *,
        steps: int | None = None,
        unroll: int | bool = 1,
        feedback: Callable[[Any, Carry, Any], Any] | None = None,
        progress: bool | str = False,
    ) -> tuple[Any, Carry, Any]:
        """Runs `body_fn(carry, batch, mask) -> (carry, output)` over an epoch, as one program.

        Returns `(state, carry, outputs)`, the outputs stacked. A body that is a function of a
        module is traced and compiled once. A method, or a function that you define again for every
        call, is traced in every call (milliseconds) and compiled once. The body always uses the
        values that its variables have when you call `scan_epoch`.

        >>> import cereal
        >>> loader = cereal.DataLoader([cereal.RangeSource(8), cereal.BatchTransform(4)])
        >>> def add(total, batch, mask):
        ...     return total + batch.sum(), batch[0]
        >>> state, total, firsts = loader.scan_epoch(loader.init_state(0), 0, add)
        >>> int(total), firsts.tolist()
        (28, [0, 4])

        Args:
            state: Where to begin, as `init_state` and the last step return it.
            carry: The first carry that the body gets, a tree of arrays: parameters, for example.
            body_fn: A function that JAX can trace.
            steps: How many batches; by default `steps_per_epoch`, also from the middle of an epoch.
            unroll: How many steps of the loop are compiled as one, as in `jax.lax.scan`; 1 by
                default.
            feedback: `feedback(state, carry, output) -> state` changes the loader's state after
                each batch: the trained policy acts in the next batch, for example. Default: None.
            progress: True shows a progress bar, a string is its title; False, the default, nothing.
        """
        steps = as_optional_count(steps, "steps", "scan_epoch", 0)
        check_body(body_fn, feedback)
        if isinstance(self.source, Positional):
            check_state(state, self.source._fingerprint)
        steps = self.steps_per_epoch if steps is None else steps
        source = resolve(current(self.running, state), state)
        if source.traits.host:
            raise_kept((identity_on_host(source),))
        self.together.begin_scan(state, steps)
        return scan_epoch(source, state, carry, body_fn, steps, unroll, feedback, progress)

    def set_policy_state(self, state: Any, policy_state: Any) -> Any:
        """A copy of the state that holds this policy state; for rollouts.

            state = loader.set_policy_state(state, {"params": params})

        The tree is copied: if you change `policy_state` later, the state does not change.
        """
        return set_policy_state(state, policy_state)

    def get_policy_state(self, state: Any) -> Any:
        """The policy state in a state: the parameters that were set, and its memory now."""
        return get_policy_state(state)

    # Any step

    def state_at(self, key: Any, step: int) -> PipelineState:
        """The state before step number `step`, counted from 0 across epochs; takes O(1) time."""
        return any_step.state_at(self._positional("state_at"), key, step)

    def batch_at(self, key: Any, step: int) -> tuple[T, Mask]:
        """The batch of step number `step` and its mask; no other batch is read for it.

        >>> import cereal
        >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
        >>> loader.batch_at(0, 2)[0].tolist()
        [8, 9, 0, 1]
        """
        self._positional("batch_at")
        batch, _, mask = self.next_batch(self.state_at(key, step))
        return batch, mask

    def indices_at(self, key: Any, step: int) -> np.ndarray:
        """The indices of the elements of step number `step`, computed on the host.

        >>> import cereal
        >>> loader = cereal.DataLoader([cereal.RangeSource(10), cereal.BatchTransform(4)])
        >>> loader.indices_at(0, 1)
        array([4, 5, 6, 7])
        """
        return any_step.indices_at(self._positional("indices_at"), key, step)

    def _positional(self, name: str) -> Positional[T]:
        return any_step.positional(self.source, name)

    # What it is

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in a whole epoch."""
        return any_step.steps_per_epoch(self.source)

    def element_spec(self) -> Any:
        """The shapes and dtypes of one batch, as a tree of `jax.ShapeDtypeStruct`."""
        return self.source.element_spec()

    def abstract_batch(self) -> tuple[Any, jax.ShapeDtypeStruct]:
        """A batch and its mask as `jax.ShapeDtypeStruct`s, with shardings if there is `sharding=`.

        compiled = jax.jit(train_step).lower(params, *loader.abstract_batch()).compile()
        """
        return any_step.abstract_batch(self.source)

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[T, Mask]]:
        refuse_random(self.source, "`for ... in loader`")
        return self.iterate()

    def __repr__(self) -> str:
        reading = "" if self.service is None else self.service.in_words()
        return f"DataLoader: {summary(self.source)}\n{draw(self.source, reading)}"

    # The host part

    @property
    def skipped(self) -> int:
        """How many elements were left out because of errors, under `on_error`."""
        return 0 if self.service is None else self.service.skipped

    def read_element(self, index: int, *, key: Any = 0, epoch: int = 0) -> Any:
        """The element at an index, before batching, read in the calling thread; for debugging.

        >>> import cereal
        >>> loader = cereal.DataLoader([["a", "bb"], cereal.HostMapTransform(len)])
        >>> loader.read_element(1)
        2
        """
        return any_step.read_element(self._positional("read_element"), index, key, epoch)

    def close(self) -> None:
        """Ends the threads that read ahead; they start again when the loader is used.

        Raises an error of a host function that no step has raised yet: in a program over several
        devices, JAX can lose it.
        """
        if self.service is not None:
            self.service.close()
        self.source.close()
        raise_unseen()

    def __enter__(self) -> DataLoader[T]:
        return self

    def __exit__(self, error: Any, *_: object) -> None:
        with contextlib.suppress(*([] if error is None else [Exception])):  # `error` says more
            self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "next":
            raise AttributeError("DataLoader has no `next`; write `loader.next_batch(state)`.")
        raise AttributeError(f"DataLoader has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {"running": self.running}
