"""What `import cereal` costs beyond `import jax`.

python benchmarks/import_time.py
"""

from __future__ import annotations

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


def main() -> None:
    runs = [
        float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True).stdout)
        for _ in range(15)
    ]
    median = statistics.median(runs)
    report("import cereal beyond import jax", f"{1e3 * median:.0f} ms", "100 ms", median <= 0.1)


if __name__ == "__main__":
    print(machine())
    main()
