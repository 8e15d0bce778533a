"""Random pipelines until the time is over, or until they are as many as asked for.

make fuzz MINUTES=5               five minutes, from a seed that is printed
make fuzz SEED=123 COUNT=1        one pipeline again: a seed is all that it depends on
"""

from __future__ import annotations

import argparse
import os
import sys

# Most of the time is compiling, and all numbers are whole: XLA need not optimise them.
_QUICK = "--xla_backend_optimization_level=0"
_FLAGS = os.environ.get("XLA_FLAGS", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="for how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first pipeline")
    parser.add_argument("--count", type=int, help="how many pipelines")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--optimised", action="store_true", help="compile as users do")
    options = parser.parse_args()
    if not options.optimised and "optimization_level" not in _FLAGS:
        os.environ["XLA_FLAGS"] = f"{_FLAGS} {_QUICK}".strip()
    from tests.fuzz.run import fuzz  # imports JAX, which reads its flags once

    minutes = 5.0 if options.minutes is None and options.count is None else options.minutes
    return fuzz(options.seed, options.count, minutes, max(options.processes, 1))


if __name__ == "__main__":
    sys.exit(main())
