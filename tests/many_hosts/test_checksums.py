"""Checksums of what a process holds; of large arrays, of pieces of them."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.loaders.many_hosts import checksums
from cereal.loaders.many_hosts.checksums import checksum, quick_checksum


@pytest.mark.parametrize("array", [np.arange(6.0, dtype=np.float32), np.zeros((0, 3), np.int32)])
def test_it_is_that_of_the_bytes(array: Any) -> None:
    assert checksum(jnp.asarray(array)) == zlib.crc32(array.tobytes())


def test_random_keys_have_one() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    assert checksum(keys) == quick_checksum(keys) == checksum(jax.random.key_data(keys))
    assert checksum(keys) != checksum(jax.random.split(jax.random.key(1), 3))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Arrays of more than 256 bytes are large; the sizes of the pieces that were read."""
    monkeypatch.setattr(checksums, "_MOST_BYTES", 256)
    monkeypatch.setattr(checksums, "_PIECE", 8)
    sizes: list[int] = []
    known = checksums.to_host
    monkeypatch.setattr(checksums, "to_host", lambda x: sizes.append(x.nbytes) or known(x))
    return sizes


@pytest.mark.parametrize(
    ("shape", "pieces"), [((1, 100), [400]), ((3, 100), [400] * 3), ((1000,), [8] * 64)]
)
def test_no_piece_of_a_large_array_is_read_twice(
    shape: tuple[int, ...], pieces: list[int], read: list[int]
) -> None:
    array = jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape)
    found = quick_checksum(array)
    assert read == pieces
    assert found != quick_checksum(array.at[-1].add(1))


def test_large_arrays_under_a_mesh_that_was_set(read: list[int]) -> None:
    mesh = jax.make_mesh((4,), ("data",))
    array = jax.device_put(np.arange(1000), jax.sharding.NamedSharding(mesh, jax.P()))
    want = quick_checksum(array.addressable_shards[0].data)
    with jax.set_mesh(mesh):
        assert quick_checksum(array.addressable_shards[0].data) == want
    assert len(read) == 2 * 64
