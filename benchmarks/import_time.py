"""What `import cereal` costs beyond `import jax`.

python benchmarks/import_time.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from measure import machine, report

CODE = """
import time, jax, jax.numpy, numpy
begin = time.perf_counter()
import cereal
print(time.perf_counter() - begin)
"""


def seconds() -> float:
    # As it is installed: with its bytecode, which pip writes; an environment may forbid that.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", CODE]
    found = subprocess.run(command, capture_output=True, check=True, env=environment)
    return float(found.stdout)


def main() -> None:
    seconds()  # writes the bytecode
    runs = [seconds() for _ in range(15)]
    median = statistics.median(runs)
    report("import cereal beyond import jax", f"{1e3 * median:.0f} ms", "100 ms", median <= 0.1)


if __name__ == "__main__":
    print(machine())
    main()
