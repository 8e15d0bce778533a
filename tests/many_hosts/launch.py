"""Runs a function in several processes of `jax.distributed`, on this machine.

    launch("tests.many_hosts.jobs:digest", processes=2, devices=2, steps=10)

Each process imports the module, joins the others over loopback, calls the function with the keyword
arguments, and prints what it returns as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_RESULT = "result of this process: "
_ROOT = Path(__file__).parents[2]


class FailedError(AssertionError):
    """Some of the processes failed."""


class Job:
    """Processes that run."""

    def __init__(self, function: str, processes: int, devices: int, arguments: Any) -> None:
        address, given = f"localhost:{_free_port()}", json.dumps(arguments)
        paths = [str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
        # Not from the cache of compiled programs: one with several collectives may wait for itself.
        known = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        environment = {
            **known,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        open_file: Any = tempfile.TemporaryFile
        self.outputs = [open_file("w+") for _ in range(processes)]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    function,
                    address,
                    str(processes),
                    str(number),
                    given,
                ],
                env=environment,
                cwd=_ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for number, output in enumerate(self.outputs)
        ]

    def wait(self, timeout: float) -> list[int]:
        """The exit codes, when all processes have ended."""
        end = time.monotonic() + timeout
        for process in self.processes:
            process.wait(max(0.1, end - time.monotonic()))
        return [process.returncode for process in self.processes]

    def output(self, number: int) -> str:
        self.outputs[number].seek(0)
        return self.outputs[number].read()

    def result(self, number: int) -> Any:
        lines = self.output(number).splitlines()
        found = [line for line in lines if line.startswith(_RESULT)]
        return json.loads(found[-1].removeprefix(_RESULT)) if found else None

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for output in self.outputs:
            output.close()


@contextlib.contextmanager
def started(function: str, processes: int, devices: int, **arguments: Any) -> Iterator[Job]:
    """The processes while they run; at the end, those that are left are killed."""
    job = Job(function, processes, devices, arguments)
    try:
        yield job
    finally:
        job.close()


def launch(
    function: str, processes: int, devices: int, *, timeout: float = 240, **arguments: Any
) -> list[Any]:
    """What the function returns in each process."""
    with started(function, processes, devices, **arguments) as job:
        codes = job.wait(timeout)
        if any(codes):
            failed = [number for number, code in enumerate(codes) if code]
            said = "\n".join(f"--- process {n}\n{job.output(n)[-6000:]}" for n in failed)
            raise FailedError(f"exit codes {codes}\n{said}")
        return [job.result(number) for number in range(processes)]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def _child() -> None:
    function, address, processes, number, arguments = sys.argv[1:]
    import jax

    if int(processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        options = json.loads(arguments).get("distributed", {})
        jax.distributed.initialize(address, int(processes), int(number), **options)
    module, _, name = function.partition(":")
    arguments = {k: v for k, v in json.loads(arguments).items() if k != "distributed"}
    result = getattr(importlib.import_module(module), name)(**arguments)
    print(_RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    _child()
