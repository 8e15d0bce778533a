"""Host data in programs over several devices, and the errors of its callbacks: never a hang."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from tests.loaders.squares import B, N, at, make, square

from cereal import BatchTransform, DataLoader, DiskSampleSource

pytestmark = pytest.mark.slow

LIMIT = 120  # seconds: a hang


def mesh_of(devices: int) -> Any:
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices], axis_types=auto)


def keep(carry: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
    return carry, batch


WHOLE, PARTS = PartitionSpec(), PartitionSpec("d")


def over(devices: int, fn: Any, takes: Any, gives: Any) -> Any:
    """The function on every device, jitted."""
    mesh = mesh_of(devices)
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=False))


# Programs over several devices


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_device_of_a_shard_map_gets_the_batch(devices: int, workers: int) -> None:
    with make(square, workers=workers) as loader:

        def one(state: Any, weight: Any) -> Any:
            batch, state, _ = loader.next_batch(state)
            return lax.psum(batch * weight[0], "d"), state

        step = over(devices, one, (WHOLE, PARTS), (WHOLE, WHOLE))
        state = loader.init_state(0)
        weight = jnp.arange(1, devices + 1)
        for number in range(6):
            total, state = step(state, weight)
            factor = sum(range(1, devices + 1))
            assert total.tolist() == [factor * x for x in at(number)]


@pytest.mark.parametrize("devices", [2, 4])
def test_every_device_of_a_shard_map_walks_its_own_state(devices: int) -> None:
    with make(square) as loader:
        states = [loader.state_at(0, 3 * number) for number in range(devices)]
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

        def one(states: Any) -> Any:
            state = jax.tree.map(lambda x: x[0], states)
            state, _, batches = loader.scan_epoch(state, 0, keep, steps=2)
            return batches[None], lax.psum(batches, "d")

        found, total = over(devices, one, (PARTS,), (PARTS, WHOLE))(together)
        truth = np.array([[at(3 * n), at(3 * n + 1)] for n in range(devices)])
        assert found.tolist() == truth.tolist()
        assert total.tolist() == truth.sum(axis=0).tolist()


def test_devices_that_ask_for_one_position_read_it_once() -> None:
    counts: Counter[int] = Counter()
    lock = threading.Lock()

    def read(i: int) -> np.int32:
        with lock:
            counts[i] += 1
        return square(i)

    with make(read) as loader:
        counts.clear()

        def one(state: Any) -> Any:
            batch, state, _ = loader.next_batch(state)
            return lax.psum(batch, "d"), state

        step = over(4, one, (WHOLE,), (WHOLE, WHOLE))
        state = loader.init_state(0)
        for number in range(8):
            total, state = jax.block_until_ready(step(state))
            assert total.tolist() == [4 * x for x in at(number)]
        readers: Any = loader.running.service  # type: ignore[attr-defined]
        assert len(readers.crew._tracks) <= 2
        assert max(counts.values()) == 1


def test_pmap_gives_each_device_its_keys_batch() -> None:
    source = DiskSampleSource(N, square, ordering="shuffle")
    with DataLoader([source, BatchTransform(B)], workers=2) as loader:
        keys = jax.random.split(jax.random.key(0), 4)
        states = jax.vmap(loader.init_state)(keys)
        found, _, mask = jax.pmap(loader.next_batch)(states)
        assert mask.all()
        for lane in range(4):
            assert found[lane].tolist() == (loader.indices_at(keys[lane], 0) ** 2).tolist()


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("passed", [False, True])
def test_a_batch_meets_sharded_arrays_in_one_program(devices: int, passed: bool) -> None:
    with make(square) as loader:
        mesh = mesh_of(devices)
        weight = jax.device_put(jnp.arange(B), NamedSharding(mesh, PartitionSpec("d")))
        state = jax.device_put(loader.init_state(0), NamedSharding(mesh, PartitionSpec()))

        def train(loader: Any, weight: Any, state: Any) -> Any:
            def body(carry: Any, batch: Any, mask: Any) -> Any:
                return carry + batch, (batch * weight).sum()

            return loader.scan_epoch(state, weight * 0, body, steps=5)

        run: Any = jax.jit(train)
        if not passed:
            inner = jax.jit(lambda weight, state: train(loader, weight, state))
            run = lambda loader, weight, state: inner(weight, state)  # noqa: E731
        state, total, outputs = run(loader, weight, state)
        truth = np.array([at(number) for number in range(5)])
        assert total.tolist() == truth.sum(axis=0).tolist()
        assert outputs.tolist() == (truth * np.arange(B)).sum(axis=1).tolist()
        assert set(total.devices()) == set(mesh.devices.flat)


# In processes of their own: what might hang or abort

BEGIN = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
import cereal
from cereal import BatchTransform, DataLoader, DiskSampleSource, MapTransform
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
SPEC = jax.ShapeDtypeStruct((), np.int32)
DEVICES = jax.device_count()
def make(fn, **options):
    source = DiskSampleSource(400, fn, sample_spec=SPEC, ordering="sequential")
    return DataLoader([source, BatchTransform(4)], **{"workers": 1, **options})
def collective(loader):
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def one(state):
        batch, state, mask = loader.next_batch(state)
        return lax.psum(batch, "d"), lax.psum(mask.astype(jnp.int32), "d"), state
    whole = PartitionSpec()
    return jax.jit(jax.shard_map(
        one, mesh=mesh, in_specs=(whole,), out_specs=(whole,) * 3, check_vma=False))
"""


def run_alone(code: str, devices: int) -> str:
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    script = BEGIN + textwrap.dedent(code)
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LIMIT}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("healthy\n"), done.stdout[-3000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize("devices", [2, 4])
def test_an_error_on_every_device_of_a_collective_leaves_the_process_healthy(devices: int) -> None:
    printed = run_alone(
        """
        fails = [True]
        def read(i):
            if fails[0] and i == 5:
                raise OSError("the disk is on fire")
            return np.int32(i)
        loader = make(read)
        step = collective(loader)
        begin = loader.state_at(0, 1)
        fails[0] = False
        step(loader.state_at(0, 50))  # JAX asks for the parts of a state once more to compile
        fails[0] = True
        for _ in range(3):
            total, real, _ = step(begin)
            assert not np.asarray(real).any(), real
            try:
                step(begin)
                raise SystemExit("nothing was raised")
            except OSError as error:
                assert "on fire" in str(error)
        fails[0] = False
        total, real, _ = step(loader.state_at(0, 1))
        assert total.tolist() == [DEVICES * i for i in (4, 5, 6, 7)], total
        assert [b.tolist() for b, _ in loader.iterate(steps=2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        print("healthy")
        """,
        devices,
    )
    assert "OSError: the disk is on fire" in printed


@pytest.mark.parametrize(("devices", "workers"), [(1, 0), (1, 1), (2, 0), (4, 1)])
def test_a_host_function_that_runs_jax_in_a_program_is_an_error_and_no_hang(
    devices: int, workers: int
) -> None:
    printed = run_alone(
        f"""
        def read(i):
            return np.int32(jnp.sum(jnp.arange(3)) * 0 + i)
        loader = make(read, workers={workers})
        assert loader.next_batch(loader.init_state(0))[0].tolist() == [0, 1, 2, 3]
        step = collective(loader)
        try:
            real = np.asarray(step(loader.init_state(0))[1])
            assert DEVICES > 1
            assert not real.any(), real
            loader.close()
            raise SystemExit("nothing was raised")
        except cereal.UsageError as error:
            assert DEVICES > 1
            print(error)
        except jax.errors.JaxRuntimeError as error:
            assert DEVICES == 1
            print(error)
        plain = make(lambda i: np.int32(i))
        total = collective(plain)(plain.init_state(0))[0]
        assert total.tolist() == [DEVICES * i for i in range(4)]
        print("healthy")
        """,
        devices,
    )
    assert (
        "DiskSampleSource(read, ordering=sequential) runs JAX inside of a compiled program"
        in printed
    )
    assert "In this function use NumPy" in printed


@pytest.mark.parametrize("devices", [1, 4])
def test_a_host_function_that_runs_jax_late_is_an_error_too(devices: int) -> None:
    """When reading was found to be cheap, the callback's own thread reads."""
    run_alone(
        """
        from cereal.host import track
        track._CHEAP = 60.0  # seconds, which every batch takes less than
        def read(i):
            return np.int32(jnp.int32(i) + jnp.int32(0)) if i >= 100 else np.int32(i)
        source = DiskSampleSource(400, read, sample_spec=SPEC, ordering="sequential")
        loader = DataLoader([source, BatchTransform(1)], workers=1)
        step, state, failed = jax.jit(loader.next_batch), loader.init_state(0), 0
        for number in range(102):
            try:
                batch, state, mask = jax.block_until_ready(step(state))
                failed += not np.asarray(mask).any()
            except (jax.errors.JaxRuntimeError, ValueError):
                failed += 1
                state = loader.state_at(0, number + 1)
        assert failed == 2, failed
        print("healthy")
        """,
        devices,
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_on_one_device_the_error_arrives_as_jaxs_and_the_process_goes_on(workers: int) -> None:
    run_alone(
        f"""
        fails = [True]
        def read(i):
            if fails[0] and i == 5:
                raise OSError("the disk is on fire")
            return np.int32(i)
        loader = make(read, workers={workers})
        step = jax.jit(loader.next_batch)
        for _ in range(3):
            try:
                jax.block_until_ready(step(loader.state_at(0, 1)))
                raise SystemExit("nothing was raised")
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                assert "OSError: the disk is on fire" in str(error), str(error)
            assert step(loader.init_state(0))[0].tolist() == [0, 1, 2, 3]
            assert loader.next_batch(loader.init_state(0))[0].tolist() == [0, 1, 2, 3]
        scan = jax.jit(lambda s: loader.scan_epoch(s, 0, lambda c, b, m: (c, b), steps=3)[2])
        fails[0] = False
        assert scan(loader.init_state(0)).ravel().tolist() == list(range(12))
        print("healthy")
        """,
        devices=1,
    )


def test_on_one_device_the_error_says_which_element_it_was() -> None:
    run_alone(
        """
        def read(i):
            if i == 5:
                raise OSError("the disk is on fire")
            return np.int32(i)
        loader = make(read)
        try:
            jax.block_until_ready(jax.jit(loader.next_batch)(loader.state_at(0, 1)))
            raise SystemExit("nothing was raised")
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            assert "element 5 of epoch 0" in str(error), str(error)
        print("healthy")
        """,
        devices=1,
    )
