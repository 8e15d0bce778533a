"""Routes: the row of the store that an index stands for, by plain loops, in NumPy and in JAX."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cereal
from cereal.order.mixing import Phase, make_mixing
from cereal.order.ordering import digest_of
from cereal.order.rows import Rows
from cereal.routes.branches import Joined, Mixed, join, make_branches
from cereal.routes.route import Route, Run
from cereal.routes.subset import Fold, Permuted, Repeated, Stretch, Table

KEY = np.array([3, 5], np.uint32)
LAST_EPOCH = 2**32 - 1

Visit = tuple[int, int, bool]  # epoch, row of the store, whether it is real


def table(inner: Route, indices: Sequence[int]) -> Table:
    listed = np.array(indices, np.int32)
    once = len(set(indices)) == len(indices)
    return Table(inner, jnp.asarray(listed), len(indices), digest_of(listed), once)


def permuted(inner: Route, seed: int, first: int, n: int) -> Permuted:
    words = np.array([seed, 9], np.uint32)
    return Permuted(inner, jnp.asarray(words), first, n, digest_of(words))


def fold_of(inner: Route, k: int, fold: Any, *, rest: bool = False, traced: bool = False) -> Fold:
    """As `kfold` makes them."""
    least, extra = divmod(inner.n, k)
    size = least + int(extra > 0 if traced else fold < extra)
    elsewhere = inner.n - (least if traced else size)
    digest = "traced" if traced else str(fold)
    padded, number = traced and extra > 0, jnp.asarray(fold, jnp.int32)
    return Fold(inner, number, k, rest, elsewhere if rest else size, padded, digest)


def mixed(routes: Sequence[Route], parts: tuple[int, ...], epoch: Any, shuffled: bool) -> Mixed:
    lengths, flags = [route.n for route in routes], [shuffled] * len(routes)
    mixing = make_mixing(lengths, [Phase(0, parts)], flags, epoch, "Test")
    return Mixed(mixing, make_branches(routes), ("mix",))


def rows_of(index: Any, epoch: Any = 0) -> Rows:
    index = np.asarray(index, np.int64)
    return Rows(KEY, np.broadcast_to(np.uint32(epoch), index.shape), index, None)


def visits(rows: Rows) -> list[Visit]:
    valid = np.ones(np.shape(rows.index), np.bool_) if rows.valid is None else rows.valid
    columns = (np.asarray(each).ravel().tolist() for each in (rows.epoch, rows.index, valid))
    return list(zip(*columns, strict=True))


def located(route: Route, epoch: int = 0) -> list[Visit]:
    return visits(route.locate(rows_of(np.arange(route.n), epoch)))


def rows_in(route: Route, epoch: int = 0) -> list[int]:
    """The rows of the store, padding left out."""
    return [row for _, row, real in located(route, epoch) if real]


# Each kind against what it says

ODD = table(Run(2, 20), [7, 0, 19, 3, 3, 11])

FIXED: dict[str, tuple[Route, list[int]]] = {
    "run": (Run(0, 5), [0, 1, 2, 3, 4]),
    "run from 7": (Run(7, 3), [7, 8, 9]),
    "run by 3": (Run(7, 3, 3), [7, 10, 13]),
    "run backwards": (Run(7, 4, -2), [7, 5, 3, 1]),
    "run backwards to the first": (Run(3, 4, -1), [3, 2, 1, 0]),
    "part of a run": (Run(10, 9, 2).part(2, 3, 1), [14, 16, 18]),
    "part of a run, backwards": (Run(10, 9, 2).part(8, 3, -4), [26, 18, 10]),
    "part of a run that is backwards": (Run(20, 9, -2).part(1, 3, -1).part(2, 2, 1), [22, 24]),
    "table": (ODD, [9, 2, 21, 5, 5, 13]),
    "table of a run backwards": (table(Run(9, 10, -1), [0, 9, 4]), [9, 0, 5]),
    "stretch": (Stretch(ODD, 1, 4, 1), [2, 21, 5, 5]),
    "stretch by 2": (Stretch(ODD, 0, 3, 2), [9, 21, 5]),
    "stretch backwards": (Stretch(ODD, 5, 6, -1), [13, 5, 5, 21, 2, 9]),
    "fold 0": (fold_of(Run(0, 11), 3, 0), [0, 1, 2, 3]),
    "fold 1": (fold_of(Run(0, 11), 3, 1), [4, 5, 6, 7]),
    "fold 2": (fold_of(Run(0, 11), 3, 2), [8, 9, 10]),
    "all but fold 0": (fold_of(Run(0, 11), 3, 0, rest=True), [4, 5, 6, 7, 8, 9, 10]),
    "all but fold 1": (fold_of(Run(5, 11), 3, 1, rest=True), [5, 6, 7, 8, 13, 14, 15]),
    "all but fold 2": (fold_of(Run(0, 11), 3, 2, rest=True), [0, 1, 2, 3, 4, 5, 6, 7]),
    "fold of a table": (fold_of(ODD, 4, 1), [21, 5]),
    "joined": (join([Run(4, 2), Run(0, 3)]), [4, 5, 0, 1, 2]),
    "joined with steps": (join([Run(9, 2, -4), ODD, Run(3, 1)]), [9, 5, 9, 2, 21, 5, 5, 13, 3]),
    "joined of joined": (
        join([join([Run(4, 1), Run(0, 2)]), ODD, join([Run(8, 1), Run(7, 1)])]),
        [4, 0, 1, 9, 2, 21, 5, 5, 13, 8, 7],
    ),
    "only tables joined": (join([ODD, table(Run(0, 9), [8, 8])]), [9, 2, 21, 5, 5, 13, 8, 8]),
    "many joined": (
        join([Run(3 * k, 1 + k % 3) for k in range(90)]),
        [3 * k + i for k in range(90) for i in range(1 + k % 3)],
    ),
}


def repeated_by_hand(inner: Callable[[int], list[Visit]], times: int, epoch: int) -> list[Visit]:
    passes = [(epoch * times + turn) % 2**32 for turn in range(times)]
    return [visit for number in passes for visit in inner(number)]


SHUFFLED = mixed([Run(0, 7), ODD, Run(30, 5, -1)], (3, 1, 2), 12, True)
PADDED = fold_of(Run(0, 11), 3, 2, traced=True)

MOVING: dict[str, Route] = {
    "permuted": permuted(Run(3, 10), 1, 2, 6),
    "permuted table": permuted(ODD, 1, 0, 6),
    "repeated": Repeated(Run(3, 4), 3),
    "repeated twice": Repeated(Repeated(ODD, 2), 3),
    "mixed": mixed([Run(0, 7), ODD, Run(30, 5, -1)], (3, 1, 2), "all", False),
    "mixed, shuffled": SHUFFLED,
    "mixed of mixed": mixed([SHUFFLED, Run(50, 9), PADDED], (1, 1, 1), 20, True),
    "repeated mixture": Repeated(SHUFFLED, 3),
    "padded fold": PADDED,
    "padded rest": fold_of(ODD, 4, 1, rest=True, traced=True),
    "padded fold joined": join([Run(40, 2), PADDED, fold_of(ODD, 4, 3, traced=True)]),
    "stretch of a mixture": Stretch(SHUFFLED, 9, 4, -2),
}
ROUTES: dict[str, Route] = {**{name: route for name, (route, _) in FIXED.items()}, **MOVING}


@pytest.mark.parametrize("name", FIXED)
def test_a_route_locates_what_it_says_in_every_epoch(name: str) -> None:
    route, expected = FIXED[name]
    assert route.n == len(expected)
    for epoch in (0, 3, LAST_EPOCH):
        assert located(route, epoch) == [(epoch, row, True) for row in expected]
    assert route.traits.fixed
    assert not route.traits.random
    assert not route.traits.masks


@functools.cache
def located_in_jax(x64: bool) -> dict[str, list[Visit]]:
    """All routes in one program, in epoch 5, with lanes of two axes."""

    def locate(routes: Any) -> Any:
        found = {}
        for name, route in routes.items():
            index = jnp.arange(route.n, dtype=jnp.int32).reshape(-1, 1)
            rows = Rows(jnp.asarray(KEY), jnp.full(index.shape, 5, jnp.uint32), index, None)
            found[name] = route.locate(rows)
        return found

    strict = (jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"))
    with strict[0], strict[1], jax.enable_x64(x64):
        found = jax.jit(locate)(ROUTES)
    for rows in found.values():
        assert (rows.index.dtype, rows.epoch.dtype) == (jnp.int32, jnp.uint32)
        assert rows.index.shape[1:] == (1,)
    return {name: visits(rows) for name, rows in found.items()}


@pytest.mark.parametrize("name", ROUTES)
def test_jax_locates_what_numpy_does(name: str) -> None:
    assert located_in_jax(False)[name] == located(ROUTES[name], epoch=5)


@pytest.mark.slow  # one large program more
def test_jax_locates_the_same_with_64_bit_types_on() -> None:
    assert located_in_jax(True) == located_in_jax(False)


@pytest.mark.parametrize("name", ROUTES)
def test_lanes_are_located_one_by_one_as_together(name: str) -> None:
    route = ROUTES[name]
    together = located(route, 2)
    order = np.random.default_rng(0).permutation(route.n)[:12]
    found = visits(route.locate(rows_of(order.reshape(-1, 1), 2)))
    assert found == [together[index] for index in order]


def test_padding_that_comes_in_stays_padding() -> None:
    valid = np.arange(4) % 2 == 0
    for route in (Run(3, 4), ODD, PADDED, join([PADDED, Run(3, 4)])):
        real = [real for *_, real in located(route)[:4]]
        rows = route.locate(rows_of(np.arange(4)).replaced(valid=valid))
        expected = [a and b for a, b in zip(valid.tolist(), real, strict=True)]
        assert [real for *_, real in visits(rows)] == expected


# Shuffled once


def test_the_parts_of_a_shuffle_have_everything_once_and_in_all_epochs_the_same() -> None:
    inner = table(Run(0, 40), list(range(39, 16, -1)))
    parts = [permuted(inner, 1, first, n) for first, n in ((0, 10), (10, 1), (11, 12))]
    rows = [row for part in parts for row in rows_in(part)]
    assert sorted(rows) == list(range(17, 40))
    assert rows != sorted(rows)
    for part in parts:
        assert rows_in(part, 0) == rows_in(part, 1) == rows_in(part, LAST_EPOCH)
        assert not part.traits.random
        assert part.traits.fixed


def test_another_key_is_another_shuffle() -> None:
    orders = {tuple(rows_in(permuted(Run(0, 30), seed, 0, 30))) for seed in range(20)}
    assert len(orders) == 20


# Folds


@pytest.mark.parametrize("n", [2, 3, 7, 12, 13])
def test_the_folds_have_everything_once_and_their_rests_the_rest(n: int) -> None:
    inner = permuted(Run(100, n), 4, 0, n)
    for k in range(2, n + 1):
        folds = [rows_in(fold_of(inner, k, fold)) for fold in range(k)]
        assert [row for rows in folds for row in rows] == rows_in(inner)
        assert {len(rows) for rows in folds} <= {n // k, -(-n // k)}
        for fold, rows in enumerate(folds):
            rest = rows_in(fold_of(inner, k, fold, rest=True))
            assert rest == [row for row in rows_in(inner) if row not in rows]


@pytest.mark.usefixtures("strict_jax")
@pytest.mark.parametrize(("n", "k"), [(11, 3), (12, 3), (5, 5)])
@pytest.mark.parametrize("rest", [False, True])
def test_a_traced_fold_is_that_of_its_number_and_masks_what_it_lacks(
    n: int, k: int, rest: bool
) -> None:
    inner = Run(20, n)
    largest = fold_of(inner, k, k - 1 if rest else 0, rest=rest).n

    def locate(fold: Any) -> Rows:
        route = fold_of(inner, k, fold, rest=rest, traced=True)
        assert (route.n, route.traits.masks) == (largest, n % k > 0)
        index = jnp.arange(route.n, dtype=jnp.int32)
        return route.locate(Rows(jnp.asarray(KEY), jnp.zeros(route.n, jnp.uint32), index, None))

    found = jax.jit(jax.vmap(locate))(jnp.arange(k, dtype=jnp.int32))
    for fold in range(k):
        lanes = visits(found.replaced(key=None)[fold])
        expected = rows_in(fold_of(inner, k, fold, rest=rest))
        assert [row for _, row, real in lanes if real] == expected
        assert all(row in range(20, 20 + n) for _, row, _ in lanes)  # padding can be read


# Epochs of parts


@pytest.mark.parametrize("epoch", [0, 1, 7, 2**31, LAST_EPOCH])
def test_each_time_that_elements_are_repeated_is_an_epoch_of_theirs(epoch: int) -> None:
    for inner in (Run(3, 4), ODD, SHUFFLED, PADDED):
        expected = repeated_by_hand(functools.partial(located, inner), 3, epoch)
        assert located(Repeated(inner, 3), epoch) == expected
    twice = located(Repeated(Repeated(SHUFFLED, 2), 3), epoch)
    assert twice == located(Repeated(SHUFFLED, 6), epoch)
    assert located(Repeated(SHUFFLED, 1), epoch) == located(SHUFFLED, epoch)


@pytest.mark.parametrize("epoch", [0, 5, LAST_EPOCH])
def test_a_mixture_gives_its_parts_epochs_of_their_own(epoch: int) -> None:
    parts: list[Route] = [Run(0, 7), ODD, SHUFFLED, Repeated(Run(30, 5, -1), 2), PADDED]
    route = mixed(parts, (3, 1, 2, 2, 1), 23, shuffled=True)
    slot = np.arange(23)
    part, own, index = route.mixing.walk(KEY, np.full(23, epoch, np.uint32), slot)
    expected = [
        visits(parts[p].locate(rows_of([i], e)))[0]
        for p, e, i in zip(part.tolist(), own.tolist(), index.tolist(), strict=True)
    ]
    assert located(route, epoch) == expected
    assert (route.traits.random, route.traits.fixed, route.traits.masks) == (True, False, True)


def test_flags_come_from_what_is_inside() -> None:
    plain = mixed([Run(0, 3), Run(3, 3)], (1, 1), "first", shuffled=False)
    assert (plain.traits.random, plain.traits.fixed, plain.traits.masks) == (False, False, False)
    around: list[Callable[[Route], Route]] = [
        lambda inner: table(inner, [0, 1]),
        lambda inner: Stretch(inner, 1, 2, 1),
        lambda inner: permuted(inner, 1, 0, 3),
        lambda inner: fold_of(inner, 2, 1),
        lambda inner: Repeated(inner, 2),
        lambda inner: join([Run(60, 2), inner]),
        lambda inner: mixed([Run(60, 2), inner], (1, 1), 5, shuffled=False),
    ]
    for number, wrap in enumerate(around):
        last = number == len(around) - 1
        assert wrap(SHUFFLED).traits.random
        assert wrap(PADDED).traits.masks
        assert not wrap(plain).traits.fixed
        assert not wrap(Run(0, 9)).traits.random
        assert not wrap(Run(0, 9)).traits.masks
        assert wrap(Run(0, 9)).traits.fixed != last


# Another store


@pytest.mark.parametrize("name", FIXED)
def test_a_moved_route_has_the_moved_rows(name: str) -> None:
    route, expected = FIXED[name]
    moved = route.moved(lambda row: row + 1000, 4)
    assert rows_in(moved) == [row + 1000 for row in expected]
    assert (moved.n, moved.identity) == (route.n, route.identity)
    assert moved.traits == route.traits


def test_each_part_moves_with_the_data_that_it_begins_in() -> None:
    def move(row: int) -> int:  # two bases, of 10 and 20 rows, change places
        return row + 20 if row < 10 else row - 10

    route = join([Run(9, 3, -4), table(Run(10, 20), [5, 0]), fold_of(Run(0, 10), 2, 1)])
    assert rows_in(route.moved(move, 1)) == [move(row) for row in rows_in(route)]


def test_a_moved_mixture_walks_alike_and_shuffles_otherwise() -> None:
    plain = mixed([Run(0, 7), ODD], (3, 1), 12, shuffled=False)
    expected = [(epoch, row + 100, real) for epoch, row, real in located(plain, 3)]
    assert located(plain.moved(lambda row: row + 100, 9), 3) == expected
    moved = [SHUFFLED.moved(lambda row: row, salt) for salt in (1, 2)]
    found = {tuple(located(route, 3)) for route in (SHUFFLED, *moved)}
    assert len(found) == 3


def salts_in(route: Route) -> list[int]:
    """The salts of all mixtures in a tree of routes."""
    if isinstance(route, Joined | Mixed):
        inside = [salt for part in route.branches.routes for salt in salts_in(part)]
        return [*inside, route.mixing.salt] if isinstance(route, Mixed) else inside
    inner = getattr(route, "inner", None)
    return [] if inner is None else salts_in(inner)


def test_mixtures_in_mixtures_have_salts_of_their_own_however_deep() -> None:
    def leaf() -> Any:
        return cereal.RangeSource(3)

    source, count = cereal.MixSource([leaf(), leaf()], epoch=6), 1
    for depth in range(7):
        other = cereal.MixSource([leaf(), leaf()], epoch=6)
        pair = [source, cereal.ConcatSource([other, leaf()])]
        source = cereal.MixSource(pair[:: (-1) ** depth], epoch=6)
        count += 2
        salts = salts_in(source.path)
        assert len(set(salts)) == len(salts) == count
        assert all(0 <= salt < 2**32 for salt in salts)
    assert len(located(source.path)) == 6


def test_runs_that_follow_each_other_are_joined_to_one_run() -> None:
    one = join([Run(4, 2), Run(6, 5), Run(11, 1)])
    assert isinstance(one, Run)
    assert (one.start, one.n, one.step) == (4, 8, 1)
    for parts in itertools.permutations([Run(4, 2), Run(6, 5), Run(11, 1)]):
        expected = [row for part in parts for row in rows_in(part)]
        assert rows_in(join(parts)) == expected
