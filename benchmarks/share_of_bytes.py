"""How many bytes each process reads of the global batches of a loader with `sharding=`.

    python benchmarks/share_of_bytes.py

Real processes, joined by `jax.distributed`, read batches of 32 rows of 4100 bytes (1024 numbers and
a label). They come from a file, and what its reader returns is counted; or from a function, and
what it returns is counted. The share of a process is what its devices have of each batch, each
number counted once; since a function returns whole rows, its share is all rows of which the devices
have a part. If two processes have the same part (`data x model`), both read it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from measure import report
from tests.many_hosts.byte_counts import write_rows
from tests.many_hosts.launch import launch

MESHES = ("data", "data x model", "data x seq")
FROM = {"file": "from a file", "function": "whole rows from a function"}
SIZES = ((2, 1), (2, 2), (4, 1), (4, 2))


def figures(path: Path, processes: int, devices: int, steps: int) -> None:
    cells = [list(cell) for cell in itertools.product(MESHES, ("file", "function"), (32,))]
    job = "tests.many_hosts.byte_counts:counted"
    found = launch(job, processes, devices, path=str(path), cells=cells, steps=steps)
    for (mesh, source, _), each in zip(cells, zip(*found, strict=True), strict=True):
        for number, counts in enumerate(each):
            read, share, whole = counts["read"], counts["share"], counts["all"]
            part = f"{share / whole:.3f} of the batches"
            print(
                f"      process {number}: read {read}, share {share} ({part}): {read / share:.3f}"
            )
        ratios = [counts["read"] / counts["share"] for counts in each]
        name = f"bytes read / share, {processes} x {devices} devices, {mesh}, {FROM[source]}"
        value = " ".join(f"{ratio:.3f}" for ratio in ratios)
        report(name, value, "1.000", all(counts["read"] == counts["share"] for counts in each))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(Path(folder))
        for processes, devices in SIZES:
            figures(path, processes, devices, options.steps)
