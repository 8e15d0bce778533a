"""One case: built, run in several ways, and held against the reference."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz import ways
from tests.fuzz.build import Builder
from tests.fuzz.pipelines import Case, Draw
from tests.fuzz.reference import (
    Row,
    check_run,
    image_of,
    places,
    require,
)

from cereal.core.positional import Positional

MOST_STEPS = 24


def check_case(seed: int) -> Case:
    """Draws the case of a seed and checks it; raises a `DifferenceError`."""
    case = Draw(seed).case()
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(case, Path(folder))
        with builder.loader() as loader:
            check_loader(case, builder, loader)
    return case


def check_loader(case: Case, builder: Builder, loader: Any) -> None:
    rng = np.random.default_rng([case.seed, 1])
    start = loader.init_state(int(rng.integers(1000)))
    steps = min(3 * loader.steps_per_epoch + 1, MOST_STEPS)
    base, states = stepped(loader, start, steps)
    found = rows_in(case, base)
    check_run(case, found, epoch_of(case, loader), steps)
    check_drawn(case, base)
    possible = ways.ways_for(loader)
    way = possible[case.seed % len(possible)]  # compiling takes the time: one more way each
    batches, state = way(loader, start, steps)
    ways.compare(base, batches, way.__name__)
    ways.compare_states(states[-1], state, way.__name__)
    if case.unbatched is None and rng.random() < 0.5:
        check_other_size(case, builder, rng, base, states, epoch_of(case, loader))
    else:
        check_resume(loader, rng, base, states, possible)


def stepped(loader: Any, state: Any, steps: int) -> tuple[list[ways.Batch], list[Any]]:
    """The batches, one by one, and the states before, between and after them."""
    batches, states = [], [state]
    for _ in range(steps):
        some, state = ways.by_next_batch(loader, state, 1)
        batches += some
        states.append(state)
    return batches, states


def epoch_of(case: Case, loader: Any) -> int:
    """Elements in an epoch, of what is batched or, for a stream, of what it was made of."""
    source = loader.source
    while not isinstance(source, Positional):
        source = source.source
    return source.traits.length


def lanes_of(case: Case, batches: list[ways.Batch]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """All batches as one list of lanes."""
    axes = len(case.sizes)
    masks = np.concatenate([mask.reshape(-1) for _, mask in batches])
    names = batches[0][0]
    leaves = {
        name: np.concatenate([b[name].reshape(-1, *b[name].shape[axes:]) for b, _ in batches])
        for name in names
    }
    return leaves, masks


def rows_in(case: Case, batches: list[ways.Batch]) -> list[Row | None]:
    """A row of numbers for every lane that counts."""
    leaves, masks = lanes_of(case, batches)
    renamed = ("rename",) in case.later
    x = leaves["y" if renamed else "x"]
    require(x.dtype == np.float32, f"x is {x.dtype}")
    require((x == np.rint(x)).all(), "x has fractions")
    return [
        (int(number), *map(int, values)) if mask else None
        for number, values, mask in zip(leaves["id"], x, masks, strict=True)
    ]


def check_drawn(case: Case, batches: list[ways.Batch]) -> None:
    """Images are those of their elements; what random stages drew is in its range."""
    leaves, masks = lanes_of(case, batches)
    stages = [stage[0] for stage in [*case.stages, *case.later]]
    draws = stages.count("random") + stages.count("host_random")
    require(("r" in leaves) == bool(draws), f"{draws} random stages, {sorted(leaves)}")
    if draws:
        r = leaves["r"][masks]
        require(((r >= 0) & (r < 8**draws)).all(), f"random numbers beyond 8^{draws}: {r}")
        require(len(r) < 16 or len(set(r.tolist())) > 1, "all random numbers are the same")
    if not case.images:
        return
    for number, image in zip(leaves["id"][masks], leaves["image"][masks], strict=True):
        wanted = image_of(int(number))
        wanted = wanted.reshape(-1) if "flatten" in stages else wanted
        wanted = wanted / 255 if "normalize" in stages else wanted
        right = image.shape == wanted.shape and np.allclose(image, wanted, atol=1e-6)
        require(right, f"the image of {number} is {image.tolist()}")


def check_resume(
    loader: Any, rng: Any, base: list[Any], states: list[Any], possible: list[Any]
) -> None:
    """From a saved state in the middle, the rest is the same, whichever way it goes on."""
    at = int(rng.integers(len(base)))
    rest = [way for way in possible if way is not ways.by_batch_at]
    way = rest[int(rng.integers(len(rest)))]
    batches, state = way(loader, ways.saved(states[at]), len(base) - at)
    what = f"{way.__name__}, resumed at step {at}"
    ways.compare(base[at:], batches, what)
    ways.compare_states(states[-1], state, what)


def check_other_size(
    case: Case, builder: Builder, rng: Any, base: list[Any], states: list[Any], n: int
) -> None:
    """Under a state, another batch size goes on with the next element."""
    size = int(rng.integers(1, 6))
    at = int(rng.integers(len(base)))
    if (case.rule == "drop" and size > n) or not hasattr(states[at], "words"):
        return
    first = math.prod(case.sizes)
    known = dict(zip(places(n, first, case.rule, len(base)), lanes(case, base), strict=True))
    epoch, offset = int(states[at].epoch), int(states[at].offset)
    resized = Case(**{**vars(case), "sizes": (size,)})
    with builder.loader((size,)) as loader:
        batches, _ = ways.by_next_batch(loader, ways.saved(states[at]), 3)
    where = places(n, size, case.rule, 3, offset)
    for place, lane in zip(where, lanes(resized, batches), strict=True):
        if place is None:
            require(not lane[1], f"batch size {size} from step {at}: padding counts")
            continue
        then = type(place)(place.epoch + epoch, place.position)
        if then in known:
            before = known[then]
            what = f"batch size {size} from step {at}: {then} is {lane}, was {before}"
            require(lane[1] == before[1] and (not lane[1] or lane == before), what)


def lanes(case: Case, batches: list[ways.Batch]) -> list[tuple[Any, bool]]:
    """Every lane with all that is in it."""
    leaves, masks = lanes_of(case, batches)
    names = sorted(name for name in leaves if name != "image")
    values = zip(*(leaves[name].tolist() for name in names), strict=True)
    return [(value, bool(mask)) for value, mask in zip(values, masks, strict=True)]
