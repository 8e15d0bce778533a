"""Photos by N worker processes and by N threads, against N bare processes and N bare threads.

    python benchmarks/photos_processes.py [--quick] [--workers N] [--photos FOLDER]

Pillow decodes each photo and resizes it to 224 x 224. N is the number of CPUs, unless it is said.
Loaders have default settings but for their workers; one has the default workers, too. Their
batches of 32 go to the device. A bare process or thread only decodes and resizes its share, into
nothing; bare processes are started and warmed up before the clock, and decode in their main
thread, or in another one, where Pillow's memory is used again (`sides.BareProcesses`). The faster
of the two counts. All sides run in turns.
Without a folder of photos (by default `$CEREAL_DATA_DIR/photos`) photos are made.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from host_photos import make_photos, photos_in
from measure import machine, report_ratio
from sides import (
    HAS_PROCESSES,
    PROCESSES,
    BareProcesses,
    Side,
    call_all,
    in_turns,
    ours,
    ratio_of,
    say_what_is_missing,
    spread,
)
from work import decode_and_resize

from cereal import BatchTransform, DiskSampleSource, HostMapTransform

BATCH = 32


def bare_threads(workers: int, paths: list[str]) -> float:
    def share(begin: int) -> threading.Thread:
        arguments = (decode_and_resize, paths[begin::workers])
        return threading.Thread(target=call_all, args=arguments)

    threads = [share(begin) for begin in range(workers)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def loaders(paths: list[str], n: int) -> dict[str, Side]:
    source = DiskSampleSource(len(paths), paths.__getitem__)
    stages = [source, HostMapTransform(decode_and_resize), BatchTransform(BATCH)]
    return {
        f"{n} {PROCESSES}": ours(stages, n, "process"),
        f"{n} threads": ours(stages, n, "thread"),
        "default workers": ours(stages, None, ahead=2 * n + 4),
    }


def figures(paths: list[str], n: int, rounds: int) -> None:
    sides = loaders(paths, n)
    bare = {
        f"{n} bare processes": BareProcesses(n, decode_and_resize, paths),
        f"{n} bare processes, in a thread": BareProcesses(
            n, decode_and_resize, paths, in_thread=True
        ),
    }
    for side in sides.values():
        side.start()
    steps = len(paths) // BATCH
    timed = {title: (lambda side=side: side.seconds(steps)) for title, side in sides.items()}
    timed |= {title: each.seconds for title, each in bare.items()}
    timed[f"{n} bare threads"] = lambda: bare_threads(n, paths)
    sides["default workers"].seconds(128 if rounds > 3 else 32)  # it has chosen after these
    taken = in_turns(timed, rounds)
    for side in (*sides.values(), *bare.values()):
        side.close()
    for title, each in taken.items():
        print(f"      {title}: {spread([len(paths) / one for one in each])}, photos a second")
    fastest = min(bare, key=lambda title: statistics.median(taken[title]))
    ratios(taken, list(sides), fastest, n)


def ratios(taken: dict[str, list[float]], mine: list[str], fastest: str, n: int) -> None:
    for title in mine:
        for other in [other for other in taken if other not in mine]:
            result = ratio_of(taken[title], taken[other])
            judged = title == f"{n} {PROCESSES}" and other == fastest and n >= 16
            met = not judged or (HAS_PROCESSES and result["ratio"] >= 0.85)
            goal = "at least 0.85x" if judged else "reported"
            report_ratio(f"speed of {title} / of {other}", result, goal, met)


def main(options: argparse.Namespace) -> None:
    n = options.workers or os.cpu_count() or 1
    print(machine(), f"{os.cpu_count()} cores", f"{n} workers", sep=", ")
    say_what_is_missing()
    with tempfile.TemporaryDirectory() as folder:
        if options.photos is None or not options.photos.is_dir():
            print(f"made photos, no real ones: {options.photos or 'no --photos'}")
            make_photos(Path(folder))
            options.photos = Path(folder)
        count = BATCH * (max(12, 4 * n) if options.quick else max(40, 12 * n))
        paths = list(itertools.islice(itertools.cycle(photos_in(options.photos)), count))
        figures(paths, n, 3 if options.quick else 9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("CEREAL_DATA_DIR")
    default = Path(known) / "photos" if known else None
    parser.add_argument("--photos", type=Path, default=default, help="a folder of JPEG files")
    parser.add_argument(
        "--workers", type=int, help="by default one for each CPU; the goal is at 16"
    )
    parser.add_argument("--quick", action="store_true", help="a short run, with more spread")
    main(parser.parse_args())
