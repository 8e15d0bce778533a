"""The errors and warnings of cereal.

    CerealError
    ├── PipelineError (ValueError)   a pipeline cannot be built, or a stage returns something else
    ├── UsageError    (TypeError)    a call that cannot mean anything, with the line to write
    ├── StateError    (ValueError)   a state or key that does not belong to this pipeline
    └── DatasetError  (OSError)      files of a dataset that are missing, or damaged

    CaptureWarning    (UserWarning)  a large dataset is being written into a compiled program
    EpochWarning      (UserWarning)  a loop over epochs sees one epoch again, or nothing
    OptionWarning     (UserWarning)  an option that has no effect, or makes a pipeline slow

Each message says what was wrong, where, and ends with what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class CerealError(Exception):
    """The base of all errors that cereal raises on purpose.

    >>> import cereal
    >>> try:
    ...     cereal.BatchTransform(4, drop_last=True, pad_last_batch=True)
    ... except cereal.CerealError as error:
    ...     print(type(error).__name__)
    PipelineError
    """


class PipelineError(CerealError, ValueError):
    """A pipeline that cannot be built, or a stage that returns something else than it promised.

    >>> import cereal
    >>> cereal.BatchTransform(0)
    Traceback (most recent call last):
    cereal.PipelineError: BatchTransform: `batch_size` must be an integer of at least 1, got 0.
    """


class UsageError(CerealError, TypeError):
    """A call that cannot mean anything; the message prints the line to write.

    >>> import cereal
    >>> cereal.DataLoader(cereal.RangeSource(4)).next_batch()
    Traceback (most recent call last):
    cereal.UsageError: `next_batch` needs a state; write `state = loader.init_state(key)`, then \
`batch, state, mask = loader.next_batch(state)`.
    """


class StateError(CerealError, ValueError):
    """A state or a key that does not belong to this pipeline.

    >>> import cereal
    >>> state = cereal.DataLoader(cereal.RangeSource(4)).init_state(0)
    >>> cereal.DataLoader(cereal.RangeSource(5)).next_batch(state)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cereal.StateError: the state belongs to another pipeline: it has length=4, this one has ...
    """


class DatasetError(CerealError, OSError):
    """Files of a dataset that are missing, cannot be downloaded, or are damaged.

    >>> import cereal, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "mnist"
    >>> folder.mkdir()
    >>> for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
    ...     _ = (folder / name).write_bytes(b"<html>")
    >>> cereal.MNISTDataset("test", folder.parent, verify=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cereal.DatasetError: ...t10k-images-idx3-ubyte.gz is no IDX file: it begins with 3c68746d...
    """


def first_line(error: BaseException | None) -> str:
    """The first line of an error's message. (Messages of JAX have many lines.)"""
    return str(error).strip().partition("\n")[0]


def in_one_line(error: BaseException | None) -> str:
    """`TypeError: the first line of its message`."""
    return f"{type(error).__name__}: {first_line(error)}"


def said(make: Callable[[], str], otherwise: str) -> str:
    """What `make` returns, or `otherwise` if it raises: a `repr` must never raise.

    JAX and its libraries put None, names, tracers, shapes or deleted arrays in place of leaves, and
    then print the node in an error message or a debugger.
    """
    try:
        return make()
    except Exception:
        return otherwise


def format_spec(tree: Any) -> str:
    """`{image: uint8[128,28,28], label: int32[128]}`."""
    if tree is None:
        return "None"
    if isinstance(tree, dict):
        return "{" + _joined(tree.items()) + "}"
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        fields: Any = tree._fields  # type: ignore[attr-defined]
        return f"{type(tree).__name__}({_joined(zip(fields, tree, strict=True), '=')})"
    if isinstance(tree, tuple | list):
        inside = ", ".join(map(format_spec, tree))
        return f"({inside})" if isinstance(tree, tuple) else f"[{inside}]"
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return f"{tree.dtype}[{','.join(map(str, tree.shape))}]"
    import jax

    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = ((jax.tree_util.keystr(path).lstrip("."), leaf) for path, leaf in paths)
    return f"{type(tree).__name__}({_joined(named)})"


def _joined(named: Iterable[tuple[Any, Any]], sign: str = ": ") -> str:
    return ", ".join(f"{name}{sign}{format_spec(value)}" for name, value in named)


class ReplicaError(CerealError, RuntimeError):
    """Processes that should hold the same rows of a batch hold different ones.

        DataLoader(pipeline, sharding=sharding, check_replicas=100)      compares every 100th batch

    A function of the pipeline does not depend on its arguments alone (it uses the time, or its own
    generator), or the processes read different files.
    """


class CaptureWarning(UserWarning):
    """A large dataset was captured by a plain `jax.jit` and is written into the program.

        jax.jit(lambda state: loader.next_batch(state))(state)                  warns
        jax.jit(lambda loader, state: loader.next_batch(state))(loader, state)  does not
        cereal.jit(lambda state: loader.next_batch(state))(state)               does not

    JAX turns arrays that a function merely closes over into constants: 1 GB of them takes a
    minute to compile and three times the memory. Pass the loader as an argument, or use
    `cereal.jit`, and it takes a tenth of a second and no copy.
    """


class EpochWarning(UserWarning):
    """A loop over epochs that repeats one epoch, or that has nothing to loop over.

        for epoch in range(10):
            for batch, mask in loader.iterate(loader.init_state(key)):   the same order every time

        batches = loader.iterate(state)
        for epoch in range(10):
            for batch, mask in batches:                                  nothing from the second on

    Go on from where the last epoch ended:

        for epoch in range(10):
            batches = loader.iterate(state)
            for batch, mask in batches: ...
            state = batches.state

    or write one loop, `for batch, mask in loader.iterate(state, epochs=10)`. A loader warns only
    once about a repeated epoch. It does so only if the pipeline is random, and if the last epoch
    that was run to its end with this key is the same one.
    """


class OptionWarning(UserWarning):
    """An option that has no effect on this pipeline, or that makes it needlessly slow.

    >>> import cereal, warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     loader = cereal.DataLoader(cereal.RangeSource(4), workers=8)
    >>> str(caught[0].message)[:40]
    'DataLoader: `workers=8` has no effect: t'
    """
