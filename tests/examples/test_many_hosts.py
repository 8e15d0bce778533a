"""The transformer on many hosts prints the same losses, however it is spread."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.examples.running import EXAMPLES, example

SCRIPT = EXAMPLES / "many_hosts.py"


def environment(**more: str) -> dict[str, str]:
    """Without the settings of `conftest`: eight devices, and programs that are compiled anew.

    A program with the collectives of FSDP that XLA loads from the cache of compiled programs may
    wait for itself for ever on few CPU cores, with or without cereal; XLA ends the process then.
    """
    ours = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", **more}


def losses_in(printed: str) -> list[float]:
    (line,) = re.findall(r"losses, every fifth: ([\d. ]+)\n", printed)
    return [float(each) for each in line.split()]


def shares_in(printed: str) -> list[int]:
    """How many windows of a batch each process has. (Gloo may print into their lines.)"""
    found = re.findall(r"process (\d) of \d, \d devices of the mesh {.*?}: (\d+) of 32", printed)
    return [int(count) for _, count in sorted(found)]


def ran(*options: str) -> str:
    command = [sys.executable, str(SCRIPT), "--steps", "16", *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # compiles for eight devices
def test_eight_devices_learn_the_same_with_and_without_fsdp() -> None:
    alone, spread = ran(), ran("--fsdp")
    losses = losses_in(alone)
    assert losses[0] == pytest.approx(np.log(64), abs=0.2)
    assert losses[-1] < losses[0] - 1
    np.testing.assert_allclose(losses_in(spread), losses, atol=2e-4)
    assert "{'data': 8}: 32 of 32 windows of a batch, 104448 of 104448 parameters" in alone
    assert "{'data': 2, 'fsdp': 4}: 32 of 32 windows of a batch, 26112 of 104448" in spread


def test_fsdp_spreads_the_longest_axis_that_it_divides() -> None:
    many_hosts = example("many_hosts")
    mesh = many_hosts.cereal.mesh(fsdp=-1)

    def spec(*shape: int) -> Any:
        return many_hosts.placed(mesh, jax.ShapeDtypeStruct(shape, np.float32)).spec

    assert spec(2, 8, 16) == P(None, None, "fsdp")
    assert spec(12, 8, 13) == P("fsdp")
    assert spec() == spec(3) == P()


@pytest.mark.slow  # starts six processes
@pytest.mark.parametrize("how", [[], ["--fsdp"]], ids=["data parallel", "fsdp"])
def test_processes_give_the_losses_of_one(how: list[str]) -> None:
    alone, two, four = ran(*how), ran(*how, "--processes", "2"), ran(*how, "--processes", "4")
    assert shares_in(alone) == [32]
    assert shares_in(two) == [16, 16]
    assert shares_in(four) == [8, 8, 8, 8]
    np.testing.assert_allclose(losses_in(two), losses_in(alone), atol=2e-4)
    np.testing.assert_allclose(losses_in(four), losses_in(alone), atol=2e-4)


@pytest.mark.slow  # two processes
def test_processes_that_slurm_starts_find_each_other() -> None:
    """With the variables that `srun` sets, two tasks on this machine; JAX reads these."""
    with socket.socket() as found:  # Slurm's own port follows from the number of the job
        found.bind(("localhost", 0))
        address = f"localhost:{found.getsockname()[1]}"
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    tasks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--cluster", "--steps", "6"],
            env=environment(
                SLURM_PROCID=number, SLURM_LOCALID=number, JAX_COORDINATOR_ADDRESS=address, **step
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in ("0", "1")
    ]
    try:
        printed = [task.communicate(timeout=240)[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    assert [task.returncode for task in tasks] == [0, 0], printed
    assert shares_in("\n".join(printed)) == [16, 16]
    assert len(losses_in(printed[0])) == 2
