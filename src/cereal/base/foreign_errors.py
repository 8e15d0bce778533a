"""Errors of other libraries that have no class of their own: we recognise them by their messages.

The bet, in every function here: the library keeps these words in its message. If it does not, the
user sees the library's own error, without our line that says what to write instead. No batch
changes. `tests/base/test_foreign_errors.py` makes the libraries raise these errors: it fails first.
"""

from __future__ import annotations


def is_read_only(error: BaseException) -> bool:
    """NumPy: something writes into an array that is read-only."""
    return isinstance(error, ValueError) and "read-only" in str(error)


def ran_inside_program(error: BaseException) -> bool:
    """JAX: a callback calls JAX while a running program waits for it (`jax.no_execution`)."""
    return isinstance(error, RuntimeError) and "no_execution" in str(error)


def maps_ordered_callback(error: ValueError) -> bool:
    """JAX: `vmap` over a callback that must run once per batch, in order."""
    return "vmap" in str(error) and "ordered" in str(error)


def maps_what_is_shared(error: ValueError) -> bool:
    """JAX: under `vmap` each has its own result, but `out_axes` says that all share one result."""
    return "vmap" in str(error) or "out_axes" in str(error)


def lacks_mesh(error: ValueError) -> bool:
    """JAX: something traced without a mesh is mapped over one of the mesh's explicit axes."""
    return "is not found in mesh" in str(error)


def timed_out(error: BaseException) -> bool:
    """urllib3, by way of requests: the server stopped answering in the midst of a file.

    The test of this bet needs a server. It is in `tests/datasets/test_fetching_faults.py`:
    `test_a_server_that_stalls_is_left_after_the_timeout`.
    """
    return "timed out" in str(error)


def has_wrong_hash(error: BaseException) -> bool:
    """pooch: what was downloaded is not the file that was asked for."""
    return isinstance(error, ValueError) and "hash" in str(error)
