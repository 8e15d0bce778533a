"""A job of several processes saves one state of its loader, which any other job restores."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tests.loaders.hosts import STEPS, make_loader

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orbax_threads_end")]


def elements(batches: Any, count: int) -> list[float]:
    taken = itertools.islice(batches, count)
    return np.concatenate([jax.device_get(batch) for batch, _ in taken]).tolist()


def run_hosts(count: int, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.loaders.hosts"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    hosts = [
        subprocess.Popen(
            [*command, str(rank), str(count), str(port), str(folder)],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        for host in hosts:
            _, err = host.communicate(timeout=300)
            assert host.returncode == 0, err
    finally:
        for host in hosts:
            host.kill()
            host.communicate()


@pytest.mark.parametrize("hosts", [2, 3])
def test_a_job_of_several_hosts_saves_one_state_which_one_host_restores(
    hosts: int, tmp_path: Path
) -> None:
    run_hosts(hosts, tmp_path)
    with make_loader(4) as loader, make_loader(3) as other:
        whole = loader.iterate(loader.init_state(3), epochs=None)
        elements(whole, STEPS)
        expected = elements(whole, 6)
        with ocp.CheckpointManager(tmp_path / "manager") as manager:
            wanted = ocp.args.Composite(data=ocp.args.JsonRestore())
            saved = manager.restore(0, args=wanted)["data"]
        [file] = (tmp_path / "v1" / "data").iterdir()
        assert json.loads(file.read_text()) == saved
        rest = other.iterate(other.init_state(0), epochs=None)
        rest.set_state(saved)
        assert elements(rest, 8) == expected
