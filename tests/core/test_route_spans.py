"""What a route knows of itself: whether an element may come up twice in it, and its name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.core.branches import Mixed, join, make_branches
from cereal.core.mixing import Phase, make_mixing
from cereal.core.ordering import digest_of
from cereal.core.route import Route, Run, Span, disjoint
from cereal.core.rows import Rows
from cereal.core.subset import Fold, Permuted, Repeated, Stretch, Table


def table(inner: Route, indices: Sequence[int]) -> Table:
    listed = np.array(indices, np.int32)
    once = len(set(indices)) == len(indices)
    return Table(inner, jnp.asarray(listed), len(indices), digest_of(listed), once)


def permuted(inner: Route, seed: int, first: int, n: int) -> Permuted:
    words = np.array([seed, 9], np.uint32)
    return Permuted(inner, jnp.asarray(words), first, n, digest_of(words))


def fold_of(inner: Route, k: int, fold: int, *, rest: bool = False) -> Fold:
    least, extra = divmod(inner.n, k)
    size = least + int(fold < extra)
    n = inner.n - size if rest else size
    return Fold(inner, jnp.asarray(fold, jnp.int32), k, rest, n, False, str(fold))


def part(inner: Route, start: int, n: int, step: int = 1) -> Route:
    """As `SliceSource` makes it."""
    if isinstance(inner, Run):
        return inner.part(start, n, step)
    return Stretch(inner, start, n, step)


def mixed(*routes: Route) -> Mixed:
    lengths = [route.n for route in routes]
    mixing = make_mixing(lengths, [Phase(0, (1,) * len(routes))], [False] * len(routes), 5, "Test")
    return Mixed(mixing, make_branches(routes), ("mix",))


def rows_in(route: Route) -> list[int]:
    zeros = np.zeros(route.n, np.uint32)
    rows = route.locate(Rows(np.zeros(2, np.uint32), zeros, np.arange(route.n), None))
    return rows.index.tolist()


def repeats(route: Route) -> bool:
    rows = rows_in(route)
    return len(set(rows)) < len(rows)


LIST = [7, 2, 9, 4, 0, 11]
LISTED = table(Run(0, 12), LIST)

# Elements that may come up several times

SEVERAL: dict[str, Route] = {
    "repeated": Repeated(Run(0, 4), 2),
    "listed twice": table(Run(0, 4), [1, 1]),
    "a run and itself": join([Run(0, 4), Run(0, 4)]),
    "runs that overlap": join([Run(0, 4), Run(3, 4)]),
    "runs that overlap, one backwards": join([Run(0, 4), Run(6, 4, -1)]),
    "a run within another": join([Run(0, 9), Run(20, 2), Run(3, 1)]),
    "runs that meet every sixth": join([Run(0, 6, 2), Run(0, 4, 3)]),
    "a list and itself": join([LISTED, LISTED]),
    "a list and what it lists from": join([LISTED, Run(0, 3)]),
    "two lists": join([LISTED, table(Run(0, 12), [7, 8])]),
    "parts of a list that overlap": join([part(LISTED, 0, 4), part(LISTED, 3, 3)]),
    "parts of a list, one backwards": join([part(LISTED, 0, 4), part(LISTED, 5, 3, -1)]),
    "parts of a shuffle that overlap": join(
        [permuted(Run(0, 12), 1, 0, 8), permuted(Run(0, 12), 1, 7, 5)]
    ),
    "parts of two shuffles": join([permuted(Run(0, 12), 1, 0, 6), permuted(Run(0, 12), 2, 6, 6)]),
    "a fold and itself": join([fold_of(Run(0, 12), 3, 1), fold_of(Run(0, 12), 3, 1)]),
    "a fold and the rest of another": join(
        [fold_of(Run(0, 12), 3, 1), fold_of(Run(0, 12), 3, 0, rest=True)]
    ),
    "a mixture": mixed(Run(0, 4), Run(4, 4)),
    "a list of what is repeated": table(Repeated(Run(0, 4), 2), [0, 4]),
    "part of what is repeated": part(Repeated(Run(0, 4), 2), 0, 8),
    "a shuffle of what is repeated": permuted(Repeated(Run(0, 4), 2), 1, 0, 8),
    "a fold of what is repeated": fold_of(Repeated(Run(0, 4), 2), 2, 0),
    "what is repeated, once": Repeated(Repeated(Run(0, 4), 2), 1),
    "joined to what is repeated": join([Run(8, 2), Repeated(Run(0, 4), 2)]),
    "joined deep within": join([join([Run(4, 2), Run(0, 2)]), join([Run(7, 2), Run(1, 1)])]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_may_come_up_several_times_is_recognised(name: str) -> None:
    assert SEVERAL[name].spans is None


def test_parts_of_one_shuffle_of_a_run_forwards_and_backwards_may_meet() -> None:
    forwards, backwards = Run(0, 12), Run(11, 12, -1)
    route = join([permuted(forwards, 1, 0, 6), permuted(backwards, 1, 6, 6)])
    assert repeats(route)
    assert route.spans is None


def test_parts_of_one_shuffle_of_runs_of_different_steps_may_meet() -> None:
    route = join([permuted(Run(0, 6, 2), 1, 0, 5), permuted(Run(0, 11), 1, 5, 6)])
    assert repeats(route)
    assert route.spans is None


def test_parts_of_the_same_fold_of_different_numbers_of_folds_may_meet() -> None:
    thirds, quarters = fold_of(Run(0, 10), 3, 1), fold_of(Run(0, 10), 4, 1)
    route = join([part(thirds, 0, 1), part(quarters, 1, 1)])
    assert rows_in(route) == [4, 4]
    assert route.spans is None


def test_parts_of_the_same_runs_joined_in_another_order_may_meet() -> None:
    one, other = join([Run(0, 3), Run(10, 3)]), join([Run(10, 3), Run(0, 3)])
    route = join([part(one, 0, 3), part(other, 3, 3)])
    assert rows_in(route) == [0, 1, 2, 0, 1, 2]
    assert route.spans is None


def test_parts_of_a_list_cut_forwards_and_backwards_may_meet() -> None:
    forwards, backwards = part(LISTED, 0, 4), part(LISTED, 3, 4, -1)
    route = join([part(forwards, 0, 2), part(backwards, 2, 2)])
    assert repeats(route)
    assert route.spans is None


# Elements that do not

ONCE: dict[str, Route] = {
    "a run": Run(0, 4),
    "a run backwards": Run(9, 4, -3),
    "repeated once": Repeated(Run(0, 4), 1),
    "a list": LISTED,
    "a fold": fold_of(Run(0, 12), 3, 1),
    "the rest of a fold": fold_of(Run(0, 12), 3, 1, rest=True),
    "a shuffle": permuted(Run(0, 12), 1, 0, 12),
    "runs apart": join([Run(8, 4), Run(0, 4)]),
    "runs side by side": join([Run(4, 4), Run(0, 4), Run(8, 1)]),
    "runs side by side, one backwards": join([Run(4, 4), Run(3, 4, -1)]),
    "many runs": join([Run(3 * (k * 7 % 50), 3) for k in range(50)]),
    "parts of a list": join([part(LISTED, 3, 3), part(LISTED, 0, 3)]),
    "parts of a list, one backwards": join([part(LISTED, 5, 3, -1), part(LISTED, 0, 3)]),
    "parts of a shuffle": join([permuted(Run(0, 12), 1, 6, 6), permuted(Run(0, 12), 1, 0, 6)]),
    "shuffles apart": join([permuted(Run(0, 6), 1, 0, 6), permuted(Run(6, 6), 1, 0, 6)]),
    "parts of part of a shuffle": join(
        [part(permuted(Run(0, 12), 1, 0, 8), 0, 3), part(permuted(Run(0, 12), 1, 0, 8), 3, 5)]
    ),
    "lists apart": join([table(Run(0, 6), [5, 0, 2]), table(Run(6, 6), [5, 0, 2])]),
    "folds apart": join([fold_of(Run(0, 6), 2, 1), fold_of(Run(6, 6), 2, 1)]),
    "a shuffle of lists": permuted(join([LISTED, Run(12, 3)]), 2, 0, 9),
    "parts of a shuffle of what is joined": join(
        [
            permuted(join([Run(6, 3), Run(0, 3)]), 1, 0, 4),
            permuted(join([Run(6, 3), Run(0, 3)]), 1, 4, 2),
        ]
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_comes_up_once_is_not_taken_for_more(name: str) -> None:
    route = ONCE[name]
    assert not repeats(route)
    spans = route.spans
    assert spans is not None
    assert all(any(span.low <= row < span.high for span in spans) for row in rows_in(route))


@pytest.mark.parametrize("name", [*ONCE, *SEVERAL])
def test_moving_a_route_changes_nothing_about_how_often_its_elements_come_up(name: str) -> None:
    route = {**ONCE, **SEVERAL}[name]
    moved = route.moved(lambda row: row + 1000, 3)
    assert (moved.spans is None) == (route.spans is None)
    assert moved.identity == route.identity


# In general


def grow(rng: np.random.Generator, depth: int) -> Route:
    """A route into a store of twelve rows, made of few things, so that many are alike."""
    if depth == 0:
        runs = [Run(0, 12), Run(11, 12, -1), Run(0, 6), Run(6, 6), Run(0, 6, 2), Run(1, 6, 2)]
        return runs[rng.integers(len(runs))]
    inner, kind = grow(rng, depth - 1), rng.integers(7)
    n, half = inner.n, inner.n // 2
    if n == 1:
        return inner
    if kind == 0:
        return part(inner, 0, half) if rng.integers(2) else part(inner, n - half, half)
    if kind == 1:
        return part(inner, n - 1, half, -1)
    if kind == 2:
        return table(inner, [*range(1, n, 2), *range(0, n, 2)][:half])
    if kind == 3:
        return permuted(inner, 1, *((0, half) if rng.integers(2) else (half, n - half)))
    if kind == 4 and n > 3:
        k = int(rng.integers(2, 4))
        return fold_of(inner, k, int(rng.integers(k)), rest=bool(rng.integers(2)))
    if kind == 5:
        return Repeated(inner, 1)
    return join([inner, grow(rng, depth - 1)])


@pytest.mark.parametrize("seed", range(3))
def test_a_route_that_says_it_has_everything_once_never_has_an_element_twice(seed: int) -> None:
    rng, sure = np.random.default_rng(seed), 0
    for _ in range(400):
        depth = int(rng.integers(1, 4))
        route = join([grow(rng, depth), grow(rng, depth)])
        assert set(rows_in(route)) <= set(range(12))
        if route.spans is not None:
            sure += 1
            assert not repeats(route), (rows_in(route), route.identity)
    assert sure > 20


def test_spans_are_known_while_a_program_is_traced() -> None:
    known = []

    def look(routes: Any) -> int:
        known.extend(route.spans for route in routes)
        known.append(join([Run(8, 4), Run(0, 4)]).spans)
        return 0

    routes = [LISTED, join([Run(8, 4), Run(0, 4)]), join([Run(8, 4), Run(9, 4)])]
    jax.jit(look)(routes)
    assert known == [*(route.spans for route in routes), routes[1].spans]


def test_spans_meet_where_they_may_have_an_element_in_common() -> None:
    one = Span(0, 10, ("a",), 0, 5)
    for other, meets in [
        (Span(10, 20, ("a",), 0, 5), False),  # elsewhere in the store
        (Span(0, 10, ("a",), 5, 9), False),  # other elements of the same space
        (Span(0, 10, ("a",), 4, 9), True),
        (Span(9, 20, ("b",), 5, 9), True),  # of another space: nobody knows
        (one, True),
    ]:
        assert one.meets(other) is other.meets(one) is meets


def test_the_order_of_parts_does_not_decide_whether_they_are_disjoint() -> None:
    spans = [Run(0, 9).spans, Run(20, 2).spans, Run(9, 11).spans, Run(21, 5).spans]
    for order in itertools.permutations(spans[:3]):
        assert disjoint(order) == (*(spans[0] or ()), *(spans[2] or ()), *(spans[1] or ()))
    for order in itertools.permutations(spans):
        assert disjoint(order) is None
    assert disjoint([]) == ()
    assert disjoint([None]) is None


# Names


def test_routes_that_differ_have_names_that_differ() -> None:
    inner: list[Route] = [Run(0, 12), Run(0, 12, 2), LISTED, permuted(Run(0, 12), 1, 0, 12)]
    wraps: list[Callable[[Route], Route]] = [
        lambda route: table(route, [0, 1, 2]),
        lambda route: table(route, [0, 2, 1]),
        lambda route: Stretch(route, 0, 3, 1),
        lambda route: Stretch(route, 1, 3, 1),
        lambda route: Stretch(route, 0, 3, 2),
        lambda route: Stretch(route, 2, 3, -1),
        lambda route: permuted(route, 1, 0, 3),
        lambda route: permuted(route, 1, 3, 3),
        lambda route: permuted(route, 2, 0, 3),
        lambda route: fold_of(route, 3, 0),
        lambda route: fold_of(route, 3, 1),
        lambda route: fold_of(route, 4, 0),
        lambda route: fold_of(route, 3, 0, rest=True),
        lambda route: Repeated(route, 2),
        lambda route: Repeated(route, 3),
        lambda route: join([LISTED, route]),
        lambda route: join([route, route, LISTED]),
    ]
    names = [wrap(route).identity for wrap in wraps for route in inner]
    names += [route.identity for route in inner]
    assert len(set(names)) == len(names)
    assert () in names  # a run as long as the data is no choice that a state would know of


def test_the_name_of_a_run_does_not_say_where_it_lies() -> None:
    assert Run(0, 5).identity == Run(7, 5).identity == join([Run(4, 2), Run(0, 3)]).identity == ()
    assert Run(0, 5, 2).identity == Run(7, 5, 2).identity != Run(7, 5, -2).identity
