"""Worker processes: what two of them give, what they cost, and how fast batches come through.

    python benchmarks/processes.py [--quick]

    Python       a function of 100 µs an element that holds the interpreter lock, batches of 32
    first batch  in a fresh interpreter, after its imports (`first_batch.py`)
    memory       of a worker process, beyond that of an interpreter that has imported NumPy
    10 MB        batches that are one copy of a prepared block, or of rows of a memory map
    small        batches of 8 numbers, with a transform of 1 ms a batch that sleeps or computes

The function is calibrated once, and is the same for all. torch (spawned, persistent workers) and
Grain (mp_prefetch, without and with a thread in each process) run beside it where they are
installed. Bare processes only call the function: they show what the second core is worth here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, report, report_ratio
from sides import (
    HAS_PROCESSES,
    PROCESS,
    PROCESSES,
    BareProcesses,
    Side,
    in_turns,
    ours,
    peers,
    ratio_of,
    say_what_is_missing,
    spread,
)
from work import MEGABYTE, PreparedBlock, SleepOnBatch, Spin, SpinOnBatch, calibrated_spin

from cereal import BatchTransform, DatasetSource, HostMapTransform, MemmapSource

BATCH, WORKERS, ROWS = 32, 2, 10
ONE, TWO = f"1 {PROCESS}", f"2 {PROCESSES}"
HERE = Path(__file__).parent


def goal_met(reached: bool) -> bool:
    """A goal of processes is not met by threads that stand in for them."""
    return reached and HAS_PROCESSES


def numbers() -> Any:
    return DatasetSource(range(10**6), ordering="shuffle")


def run_sides(
    sides: dict[str, Side], steps: int, rounds: int, others: dict[str, Callable[[], float]]
) -> dict[str, list[float]]:
    """Seconds for so many batches, of all sides in turns; closes the sides."""
    for side in sides.values():
        side.start()
    timed = {title: (lambda side=side: side.seconds(steps)) for title, side in sides.items()}
    try:
        return in_turns({**others, **timed}, rounds)
    finally:
        for side in sides.values():
            side.close()


def python_figures(spin: Spin, options: argparse.Namespace) -> None:
    stages = [numbers(), HostMapTransform(spin), BatchTransform(BATCH)]
    sides = {
        ONE: ours(stages, 1, "process"),
        TWO: ours(stages, WORKERS, "process"),
        "2 threads": ours(stages, WORKERS, "thread"),
    }
    others = peers(spin, BATCH, WORKERS)
    elements = range(options.steps * BATCH)
    bare = {f"{n} bare": BareProcesses(n, spin, elements) for n in (1, WORKERS)}
    timed = {title: each.seconds for title, each in bare.items()}
    taken = run_sides({**sides, **others}, options.steps, options.rounds, timed)
    for each in bare.values():
        each.close()
    two, count = taken[TWO], len(elements)
    for title in (*sides, *others, *bare):
        rates = [count / 1e3 / each for each in taken[title]]
        print(f"      Python, 100 µs: {title}: {spread(rates, '.1f')}, thousand elements a second")
    result = ratio_of(two, taken[ONE])
    report_ratio(f"Python: {TWO} / 1", result, "at least 1.8x", goal_met(result["ratio"] >= 1.8))
    result = ratio_of(taken["2 bare"], taken["1 bare"])
    report_ratio("Python: 2 bare processes / 1", result, "reported", True)
    result = ratio_of(two, taken["2 bare"])
    report_ratio(f"Python: {TWO} / 2 bare processes", result, "reported", True)
    if others:
        best = min(others, key=lambda title: statistics.median(taken[title]))
        result = ratio_of(two, taken[best])
        name = f"Python: {TWO} / the best peer ({best})"
        report_ratio(name, result, "at least 1x", goal_met(result["ratio"] >= 1))


def numpy_alone() -> dict[str, float]:
    """The memory of an interpreter that has imported NumPy."""
    code = "import json, work; print(json.dumps(work.memory_of()))"
    words = [sys.executable, "-c", code]
    return json.loads(subprocess.run(words, cwd=HERE, capture_output=True, check=True).stdout)


def start_figures(spin: Spin, options: argparse.Namespace) -> None:
    alone = numpy_alone()
    words = f"{alone['uss']:.1f} MB of its own, {alone['pss']:.1f} with its share"
    report("memory: an interpreter with NumPy", words, "reported", True)
    for side in ("cereal", "torch", "grain"):
        command = [sys.executable, str(HERE / "first_batch.py"), side]
        command += ["--workers", str(WORKERS), "--rounds", str(spin.rounds)]
        found = []
        for _ in range(options.starts):
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(ran.stdout.splitlines()[-1]))
        if found[0].get("missing"):
            print(f"{side}: not installed")
            continue
        first = [each["first"] for each in found]
        mine = side == "cereal"
        met = not mine or goal_met(statistics.median(first) <= 1.5)
        words = f"{spread(first, '.2f')}, in seconds"
        goal = "at most 1.5 s" if mine else "reported"
        report(f"first batch, {TWO if mine else '2 processes'}: {side}", words, goal, met)
        memory_figure(side, found[-1]["memory"], alone)


def memory_figure(side: str, memory: list[dict[str, float]], alone: dict[str, float]) -> None:
    """The largest processes are the workers; the others (a resource tracker) help them."""
    memory = sorted(memory, key=lambda each: each["uss"], reverse=True)
    workers, helpers = memory[:WORKERS], memory[WORKERS:]
    if not workers:
        print(f"      memory of a worker: {side} has no worker processes")
        return
    own, share = (statistics.mean(w[kind] - alone[kind] for w in workers) for kind in alone)
    rest = sum(each["uss"] for each in helpers)
    words = (
        f"{own:.1f} MB of its own, {share:.1f} with its share; {len(helpers)} helpers {rest:.1f}"
    )
    goal, met = ("at most 40 MB", own <= 40) if side == "cereal" else ("reported", True)
    report(f"memory of a worker beyond NumPy's: {side}", words, goal, met)


def seconds_to_copy(source: np.ndarray, times: int) -> float:
    target = source.copy()
    begin = time.perf_counter()
    for _ in range(times):
        np.copyto(target, source)
    return time.perf_counter() - begin


def large_figures(options: argparse.Namespace, folder: Path) -> None:
    block = PreparedBlock(ROWS, MEGABYTE)
    path = folder / "large.npy"
    np.save(path, np.tile(block(0), (10, 1)))
    batched = [numbers(), BatchTransform(ROWS), HostMapTransform(block)]
    mapped = [MemmapSource(path, ordering="sequential"), BatchTransform(ROWS)]
    sides = {
        f"a prepared block, {TWO}": ours(batched, WORKERS, "process"),
        f"a memory map, {TWO}": ours(mapped, WORKERS, "process"),
        "a prepared block, 2 threads": ours(batched, WORKERS, "thread"),
    }
    others = {f"a prepared block, {title}": side for title, side in peers(block, None, 2).items()}
    steps, block_of_memory = options.large, block(0).copy()
    copies = {"memcpy": lambda: seconds_to_copy(block_of_memory, steps)}
    taken = run_sides({**sides, **others}, steps, options.rounds, copies)
    bytes_taken = steps * ROWS * MEGABYTE / 1e9
    rates = {title: [bytes_taken / each for each in found] for title, found in taken.items()}
    memcpy = statistics.median(rates["memcpy"])
    for title, found in rates.items():
        judged = title in sides and title.endswith(TWO)
        rate = statistics.median(found)
        words = f"{spread(found, '.2f')}, GB/s; {rate / memcpy:.2f} of memcpy"
        met = not judged or goal_met(rate >= min(3.0, memcpy / 2))
        goal = "at least 3, or half of memcpy" if judged else "reported"
        report(f"10 MB batches: {title}", words, goal, met)


def small_figures(name: str, fn: Callable[[Any], Any], options: argparse.Namespace) -> None:
    stages = [numbers(), BatchTransform(8), HostMapTransform(fn)]
    sides = {
        TWO: ours(stages, WORKERS, "process"),
        "2 threads": ours(stages, WORKERS, "thread"),
    }
    batch, steps = np.arange(8), options.small
    bare = {f"{n} bare": BareProcesses(n, fn, [batch] * steps) for n in (1, WORKERS)}
    timed = {title: each.seconds for title, each in bare.items()}
    taken = run_sides(sides, steps, options.rounds, timed)
    for each in bare.values():
        each.close()
    micros = {title: [1e6 * each / steps for each in found] for title, found in taken.items()}
    for title in sides:
        for other, share in (("1 bare", 0.5), ("2 bare", 1.0)):
            pairs = zip(micros[title], micros[other], strict=True)
            beyond = [mine - share * theirs for mine, theirs in pairs]
            judged = title == TWO and other == "1 bare"
            met = not judged or goal_met(statistics.median(beyond) <= 120)
            what = "half the transform" if other == "1 bare" else "two bare processes"
            goal = "at most 120 µs" if judged else "reported"
            report(f"small, {name}, {title}: beyond {what}", f"{spread(beyond)}, µs", goal, met)


def main(options: argparse.Namespace) -> None:
    print(machine())
    say_what_is_missing()
    spin = calibrated_spin(100e-6)
    print(f"100 µs are {spin.rounds} rounds of the arithmetic")
    with tempfile.TemporaryDirectory() as folder:
        python_figures(spin, options)
        start_figures(spin, options)
        large_figures(options, Path(folder))
        small_figures("sleep", SleepOnBatch(1e-3), options)
        small_figures("compute", SpinOnBatch(10 * spin.rounds), options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, with more spread")
    asked = parser.parse_args()
    few = {"steps": 60, "large": 40, "small": 200, "rounds": 3, "starts": 1}
    many = {"steps": 300, "large": 150, "small": 600, "rounds": 9, "starts": 3}
    main(argparse.Namespace(**(few if asked.quick else many)))
