"""The state of a pipeline: a key and a position, in twenty bytes."""

from __future__ import annotations

import re
import sys
import zlib
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.capture import is_traced
from ..base.errors import StateError, said
from ..base.identity import Identity, agree, in_words
from ..base.pytree import pytree_dataclass, static_field
from ..device.transfer import sent, to_device, to_host
from ..order.threefry import threefry


class Fingerprint(NamedTuple):
    """What must be the same in the pipeline that makes a state and in the one that uses it.

    (The batch size may change.) It is a tuple because JAX hashes it at every call, and Python
    hashes tuples in C.
    """

    length: int
    ordering: Identity | str  # text in states of version 0.1.0, and in dicts of `get_state()`
    random_stages: int


# States that version 0.1.0 pickled name this module so; Python looks for it among those loaded.
sys.modules.setdefault("cereal.core.state", sys.modules[__name__])


@pytree_dataclass
class PipelineState:
    """A key, an epoch and an offset in elements: all that a pipeline needs to continue.

        words   [ key 0 | key 1 | epoch | offset, high word | offset, low word ]

    It is one array of five words, so it is one argument of a compiled function. `key`, `epoch` and
    `offset` read from it. The offset counts elements, not batches: if the batch size changes, no
    element is lost or repeated.

    >>> import cereal
    >>> cereal.DataLoader(cereal.RangeSource(10)).init_state(7)
    PipelineState(key=(0, 7), epoch=0, offset=0)
    """

    raises_unseen: ClassVar[bool] = True

    words: jax.Array
    fingerprint: Fingerprint = static_field()
    bookmark: Any = None  # for sources that only iterate: how to continue without reading again

    def replaced(self, words: Any) -> PipelineState:
        """The same at another position."""
        return PipelineState(words, self.fingerprint, self.bookmark)

    @property
    def key(self) -> jax.Array:
        """The two words of the random key."""
        return _part(self.words, 0, 2)

    @property
    def epoch(self) -> jax.Array:
        """The number of the pass over the data; the next element belongs to it."""
        return _part(self.words, 2)

    @property
    def offset(self) -> jax.Array | np.ndarray:
        """How many elements of the epoch have been given out.

        A NumPy uint64 if the number does not fit 32 bits (never inside of a program).
        """
        low = _part(self.words, 4)
        if self.fingerprint.length < 2**31 - 1 or is_traced(self.words):
            return low
        words = to_host(self.words).astype(np.uint64)
        high = words[..., 3]
        return (high << np.uint64(32)) | words[..., 4] if high.any() else low

    def _path_names(self) -> tuple[str, str]:
        """What its arrays are called in paths of pytrees, and so in files of Orbax.

        Checkpoints of arrays have no place for what is static. They have names for arrays, and
        refuse to restore an array of another name: so the name says to which pipeline it belongs.
        """
        return said(lambda: _name_in_paths(self.fingerprint), "words"), "bookmark"

    def __repr__(self) -> str:
        def known() -> str:
            key0, key1, epoch, offset = host_words(self)
            return f"PipelineState(key=({key0}, {key1}), epoch={epoch}, offset={offset})"

        words = said(lambda: repr(self.words), "deleted")
        return said(known, f"PipelineState(words={words})")


@lru_cache(64)
def _name_in_paths(fingerprint: Fingerprint) -> str:
    """`words(length=20, ordering=shuffle, random_stages=0)`; a file may have such a name."""
    length, ordering, random_stages = fingerprint
    words = re.sub(r"[^ \w(),=:+-]", "_", in_words(ordering))
    text = f"words(length={length}, ordering={words}, random_stages={random_stages})"
    if len(text) > _LONGEST_NAME:
        text = f"{text[: _LONGEST_NAME - 9]} {zlib.crc32(text.encode()):08x}"
    return text


def _part(words: Any, begin: int, end: int | None = None) -> Any:
    """Some of the words, or one of them; by slices, which send no index to the device."""
    if not isinstance(words, jax.Array):
        return words[..., begin] if end is None else words[..., begin:end]
    if end is None:
        return lax.index_in_dim(words, begin, axis=-1, keepdims=False)
    return lax.slice_in_dim(words, begin, end, axis=-1)


def host_words(state: PipelineState) -> tuple[int, int, int, int]:
    """(key 0, key 1, epoch, offset) as Python integers."""
    key0, key1, epoch, high, low = to_host(state.words).tolist()
    return key0, key1, epoch, (high << 32) | low


def make_words(key: tuple[int, int], epoch: int, offset: int) -> np.ndarray:
    """The state's words from Python integers."""
    words = (*key, epoch & 0xFFFF_FFFF, offset >> 32, offset & 0xFFFF_FFFF)
    return np.array(words, np.uint32)


_LONGEST_NAME = 150
_SHAPE, _DTYPE = (5,), np.dtype(np.uint32)
_NO_STATE = "`state` must be what `init_state(key)` or the last step returned"
_WRITE = "pass `jax.random.key(0)`, `jax.random.PRNGKey(0)` or an integer"


def key_words(key: Any) -> Any:
    """The two words of a key: typed, legacy, or an integer seed. In NumPy, unless it is traced."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        seed = int(key) & 0xFFFF_FFFF_FFFF_FFFF
        return np.array([seed >> 32, seed & 0xFFFF_FFFF], np.uint32)
    if not isinstance(key, jax.Array | np.ndarray):
        raise StateError(f"`key` must be a JAX random key, got {type(key).__name__}; {_WRITE}.")
    shape, words = key.shape[:-1], key
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        shape, words = key.shape, jax.random.key_data(key)  # type: ignore[arg-type]
    if words.dtype != np.uint32 or words.ndim == 0 or words.shape[-1] not in (2, 4):
        raise StateError(
            f"`key` has dtype {key.dtype} and shape {key.shape}, which is no random key "
            f"(a legacy key is uint32 of shape (2,)); {_WRITE}."
        )
    if shape != ():
        raise StateError(
            f"`key` is an array of keys of shape {shape}, and a state has one; for one state per "
            f"key write `jax.vmap(loader.init_state)(keys)`."
        )
    if not is_traced(words):
        words = to_host(words)
    if words.shape[-1] == 4:  # rbg keys: fold the halves
        folded = threefry((words[2], words[3]), (words[0], words[1]))
        words = (np if isinstance(words, np.ndarray) else jnp).stack(folded)
    return words


def start_state(key: Any, fingerprint: Fingerprint, bookmark: Any = None) -> PipelineState:
    """The state at the first element of epoch 0."""
    words = key_words(key)
    if isinstance(words, np.ndarray):
        words = to_device(make_words((int(words[0]), int(words[1])), 0, 0))
    else:
        words = jnp.concatenate([words, sent(np.zeros(3, np.uint32))])
    return PipelineState(words, fingerprint, None if bookmark is None else to_device(bookmark))


def refuse_key(state: Any) -> None:
    """If the user passed a key or a seed instead of a state, says how to make a state from it."""
    typed = isinstance(state, jax.Array) and jnp.issubdtype(state.dtype, jax.dtypes.prng_key)
    key = typed or (getattr(state, "shape", None) == (2,) and state.dtype == _DTYPE)
    if not key and not isinstance(state, int | np.integer):
        return
    got, write = ("a JAX random key", "key") if key else (f"the integer {state}", str(state))
    raise StateError(f"{_NO_STATE}, got {got}; write `state = loader.init_state({write})`.")


def check_state(state: Any, fingerprint: Fingerprint) -> None:
    """Refuses states of other pipelines; the error names what differs."""
    if not isinstance(state, PipelineState):
        refuse_key(state)
        write = "write `state = loader.init_state(key)`"
        if isinstance(state, dict) and "checksum" in state:
            write = "for a dict that `get_state()` gave, write `batches.set_state(saved)`"
        raise StateError(f"{_NO_STATE}, got {type(state).__name__}; {write}.")
    words = state.words
    if words.shape != _SHAPE or words.dtype != _DTYPE:
        _refuse_words(words)
    check_fingerprint(state.fingerprint, fingerprint)


def check_fingerprint(theirs: Fingerprint, fingerprint: Fingerprint) -> None:
    """Refuses the fingerprint of another pipeline; the error names what differs."""
    if theirs is fingerprint or theirs == fingerprint:
        return
    has, wants = [], []
    for name, their, our in zip(Fingerprint._fields, theirs, fingerprint, strict=True):
        if not agree(their, in_words(our) if isinstance(their, str) else our):
            has.append(f"{name}={in_words(their)}")
            wants.append(f"{name}={in_words(our)}")
    if not has:
        return
    raise StateError(
        f"the state belongs to another pipeline: it has {', '.join(has)}, this one has "
        f"{', '.join(wants)}. The same "
        f"position would mean other elements; make a state with this loader's `init_state(key)`. "
        f"(Only the batch size may change under a state.)"
    )


def _refuse_words(words: Any) -> NoReturn:
    found = f"{words.dtype}{list(words.shape)}"
    hint = "save and restore all five words as they are"
    if words.dtype == _DTYPE and words.shape[1:] == _SHAPE:
        found += f", which is {words.shape[0]} states"
        hint = "for many states at once write `jax.vmap(loader.next_batch)(states)`"
    raise StateError(f"a state has the words uint32[5], and this one has {found}; {hint}.")


def check_within(offset: int, length: int) -> None:
    """Refuses positions after the end of an epoch: no step ends there."""
    if offset >= length:
        raise StateError(
            f"the state is at element {offset} of an epoch that has {length}: no step ends there. "
            f"Go on from a state as it was saved, or begin with `loader.init_state(key)`."
        )
