"""The walk over several parts in turn, against a loop that counts and against big integers."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.core.errors import PipelineError
from cereal.core.mixing import MOST_SLOTS_IN_EPOCH, Mixing, Phase, make_mixing
from cereal.core.turns import turn_table

pytestmark = pytest.mark.optimized

KEY = (np.uint32(3), np.uint32(5))
LAST_EPOCH = 2**32 - 1

Visit = tuple[int, int, int]  # part, its epoch, index in it


def mixing(
    lengths: Sequence[int],
    phases: Sequence[tuple[int, tuple[int, ...]]],
    epoch: int | str = "first",
    shuffled: Sequence[bool] | bool = False,
) -> Mixing:
    flags = [shuffled] * len(lengths) if isinstance(shuffled, bool) else shuffled
    return make_mixing(lengths, [Phase(*phase) for phase in phases], flags, epoch, "Test")


def walked(mix: Mixing, position: Any, key: Any = KEY) -> list[Visit]:
    """In NumPy, at positions counted through all epochs of the mixture."""
    position = np.asarray(position, np.int64)
    found = mix.walk(key, (position // mix.length).astype(np.uint32), position % mix.length)
    return list(zip(*(each.tolist() for each in found), strict=True))


def walked_in_jax(mix: Mixing, position: Any) -> list[Visit]:
    epoch, slot = np.divmod(np.asarray(position, np.int64), mix.length)
    found = jax.jit(lambda mix, epoch, slot: mix.walk(jnp.array(KEY), epoch, slot))(
        mix, jnp.asarray(epoch.astype(np.uint32)), jnp.asarray(slot.astype(np.int32))
    )
    assert [each.dtype for each in found] == [jnp.uint32, jnp.uint32, jnp.int32]
    return list(zip(*(np.asarray(each).tolist() for each in found), strict=True))


def by_hand(lengths: Sequence[int], phases: Any, count: int) -> list[Visit]:
    """The first positions of a mixture that shuffles nothing: a loop that counts turns."""
    tables = [turn_table(parts).tolist() for _, parts in phases]
    given = [0] * len(lengths)
    visits = []
    for position in range(count):
        number = max(k for k, (start, _) in enumerate(phases) if start <= position)
        table = tables[number]
        part = table[(position - phases[number][0]) % len(table)]
        visits.append((part, *divmod(given[part], lengths[part])))
        given[part] += 1
    return visits


table_of = functools.lru_cache(turn_table)


def by_big_integers(lengths: Sequence[int], phases: Any, position: int) -> Visit:
    """One position, however far: rounds of each phase times turns, plus what is left over."""
    number = max(k for k, (start, _) in enumerate(phases) if start <= position)
    ends = [start for start, _ in phases[1 : number + 1]] + [position]
    tables = [table_of(parts) for _, parts in phases[: number + 1]]
    part = int(tables[-1][(position - phases[number][0]) % len(tables[-1])])
    given = 0
    for (start, parts), end, table in zip(phases, ends, tables, strict=False):
        rounds, left = divmod(end - start, len(table))
        given += rounds * parts[part] + int((table[:left] == part).sum())
    epoch, place = divmod(given, lengths[part])
    return part, epoch % 2**32, place


def some_schedules(trials: int, seed: int) -> list[tuple[list[int], Any, int | str]]:
    """Lengths, one to four phases, and a rule for the end of an epoch."""
    rng = np.random.default_rng(seed)
    made = []
    for trial in range(trials):
        count = int(rng.integers(1, 7))
        lengths = [int(n) for n in rng.integers(1, int(rng.choice([3, 40])), count)]
        later = sorted(rng.choice(np.arange(1, 150), trial % 4, replace=False).tolist())
        phases = []
        for start in [0, *later]:
            parts = rng.integers(0, 8, count)
            parts[rng.integers(count)] += 1
            phases.append((start, tuple(parts.tolist())))
        rule = ["first", "all", int(rng.integers(1, 60))][trial % 3]
        made.append((lengths, phases, rule))
    return made


FIXED: list[tuple[list[int], Any, int | str]] = [
    ([10, 3], [(0, (3, 1))], "first"),
    ([10, 3, 7], [(0, (3, 1, 2))], 13),  # epochs end within a round
    ([10, 3, 7], [(0, (3, 1, 2)), (5, (1, 0, 1)), (29, (0, 1, 4))], 11),
    ([1, 1], [(0, (1, 1)), (1, (0, 1)), (2, (1, 0))], 1),
    ([2, 5], [(0, (9, 1)), (40, (1, 9)), (41, (2, 3))], "all"),
    ([4, 4, 4, 4], [(0, (1, 1, 1, 1))], 16),  # epochs end with rounds
]


# Against a loop


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_in_numpy_is_that_of_a_loop_that_counts_turns(seed: int) -> None:
    for lengths, phases, rule in [*some_schedules(40, seed), *FIXED]:
        mix = mixing(lengths, phases, rule)
        count = max(400, 3 * mix.length)
        expected = by_hand(lengths, phases, count)
        assert walked(mix, range(count)) == expected, (lengths, phases, rule)


@pytest.mark.usefixtures("strict_jax")
@pytest.mark.parametrize("number", range(len(FIXED)))
def test_a_walk_in_jax_is_that_of_a_loop_that_counts_turns(number: int) -> None:
    lengths, phases, rule = FIXED[number]
    mix = mixing(lengths, phases, rule)
    assert walked_in_jax(mix, range(300)) == by_hand(lengths, phases, 300)


def test_the_loop_and_the_big_integers_agree() -> None:
    for lengths, phases, _ in some_schedules(12, 9):
        expected = by_hand(lengths, phases, 250)
        assert [by_big_integers(lengths, phases, t) for t in range(250)] == expected


def test_a_thousand_parts_are_walked_as_two_are() -> None:
    rng = np.random.default_rng(4)
    lengths = rng.integers(1, 9, 1000).tolist()
    phases = [(0, tuple(rng.integers(0, 4, 1000).tolist())), (777, (1,) * 1000)]
    mix = mixing(lengths, phases, 1234)
    assert walked(mix, range(4000)) == by_hand(lengths, phases, 4000)


# Far away

FAR: list[tuple[list[int], Any, int | str]] = [
    ([1_000_003, 77, 2**20 + 7], [(0, (5, 1, 9)), (10**6 + 3, (2, 3, 1))], 123_457),
    ([2**31 - 1, 1, 2**30], [(0, (7, 5, 1))], MOST_SLOTS_IN_EPOCH),
    ([2**31 - 1, 2**31 - 2], [(0, (1, 1))], MOST_SLOTS_IN_EPOCH - 1),
    ([3, 5], [(0, (1, 2)), (2**31 - 1, (2, 1))], 1),
    ([10, 2**29, 3], [(0, (1, 0, 1)), (10**9, (999, 1, 0)), (2**31 - 2, (1, 5, 3))], 10**9 - 1),
    ([1, 2], [(0, (2**17, 2**17 - 1))], MOST_SLOTS_IN_EPOCH - 3),
]


def far_positions(length: int, phases: Any) -> list[int]:
    """In the last epochs, in the middle, and around the beginnings of phases."""
    epochs = [0, 1, 2, 10**6, 2**31 - 1, 2**31, 2**31 + 1, LAST_EPOCH - 1, LAST_EPOCH]
    slots = {0, 1, length // 3, length // 2, max(length - 2, 0), length - 1}
    near = [start + d for start, _ in phases for d in (-1, 0, 1, length) if start + d >= 0]
    rng = np.random.default_rng(length)
    some = [int(e) * length + int(s) for e, s in rng.integers(0, [2**32, length], (30, 2))]
    return sorted({e * length + min(s, length - 1) for e in epochs for s in slots} | {*near, *some})


def at_far(mix: Mixing, position: list[int], xp: Any) -> list[Visit]:
    epoch = np.array([t // mix.length for t in position], np.uint64).astype(np.uint32)
    slot = np.array([t % mix.length for t in position], np.int64)
    if xp is jnp:
        walk = jax.jit(lambda mix, e, s: mix.walk(jnp.array(KEY), e, s))
        found = walk(mix, jnp.asarray(epoch), jnp.asarray(slot.astype(np.int32)))
    else:
        found = mix.walk(KEY, epoch, slot)
    return list(zip(*(np.asarray(each).tolist() for each in found), strict=True))


@pytest.mark.parametrize("number", range(len(FAR)))
def test_the_last_epochs_are_exact(number: int) -> None:
    lengths, phases, rule = FAR[number]
    mix = mixing(lengths, phases, rule)
    position = far_positions(mix.length, phases)
    expected = [by_big_integers(lengths, phases, t) for t in position]
    assert at_far(mix, position, np) == expected


@pytest.mark.usefixtures("strict_jax")
@pytest.mark.parametrize("number", range(3))
def test_the_last_epochs_are_exact_in_jax(number: int) -> None:
    lengths, phases, rule = FAR[number]
    mix = mixing(lengths, phases, rule)
    position = far_positions(mix.length, phases)
    expected = [by_big_integers(lengths, phases, t) for t in position]
    assert at_far(mix, position, jnp) == expected


def test_random_schedules_are_exact_in_the_last_epochs() -> None:
    for lengths, phases, rule in some_schedules(40, 11):
        mix = mixing(lengths, phases, rule)
        position = far_positions(mix.length, phases)
        expected = [by_big_integers(lengths, phases, t) for t in position]
        assert at_far(mix, position, np) == expected, (lengths, phases, rule)


# Epochs


def test_a_walk_does_not_depend_on_where_epochs_end() -> None:
    lengths, phases = [10, 3, 7], [(0, (3, 1, 2)), (25, (1, 1, 5))]
    walks = [
        walked(mixing(lengths, phases, epoch, [True, False, True]), range(300))
        for epoch in (1, 6, 7, 25, 100, 1000, "first", "all")
    ]
    assert all(walk == walks[0] for walk in walks)


def test_a_phase_that_is_added_later_changes_nothing_before_it() -> None:
    lengths, phases = [10, 3], [(0, (3, 1)), (40, (1, 1))]
    before = walked(mixing(lengths, phases[:1], 9, shuffled=True), range(100))
    after = walked(mixing(lengths, phases, 9, shuffled=True), range(100))
    assert before[:40] == after[:40]
    assert before[40:] != after[40:]


def length_by_hand(lengths: Sequence[int], phases: Any, rule: str) -> int:
    """Elements until the first part, or each that ever is, has been read once."""
    enough = phases[-1][0] + max(lengths) * sum(phases[-1][1])
    ends: dict[int, int] = {}
    for position, (part, epoch, index) in enumerate(by_hand(lengths, phases, enough)):
        if epoch == 0 and index == lengths[part] - 1:
            ends[part] = position + 1
    return min(ends.values()) if rule == "first" else max(ends.values())


@pytest.mark.parametrize("rule", ["first", "all"])
def test_an_epoch_ends_when_the_first_part_or_each_has_been_read(rule: str) -> None:
    for lengths, phases, _ in [*some_schedules(60, 21), *FIXED]:
        expected = length_by_hand(lengths, phases, rule)
        assert mixing(lengths, phases, rule).length == expected, (lengths, phases)


def test_parts_that_are_never_read_do_not_keep_an_epoch_from_its_end() -> None:
    assert mixing([5, 1], [(0, (1, 0))], "first").length == 5
    assert mixing([5, 10**6], [(0, (1, 0))], "all").length == 5
    assert mixing([5, 10**6], [(0, (1, 1)), (4, (1, 0))], "all").length == 7


@pytest.mark.parametrize(
    ("lengths", "parts", "rule", "length"),
    [
        ([2**31 - 1], (1,), "first", 2**31 - 1),
        ([2**30, 2**30], (1, 1), "all", 2**31),
        ([5, 2**30 + 1], (0, 1), "all", 2**30 + 1),
        ([5, 2**29], (2, 1), "all", 3 * 2**29 - 1),  # a b a | a b a | ...
        ([5, 5], (1, 1), MOST_SLOTS_IN_EPOCH + 1, MOST_SLOTS_IN_EPOCH + 1),
        ([5, 5], (1, 1), 0, 0),
        ([5, 5], (1, 1), -3, -3),
    ],
    ids=str,
)
def test_an_epoch_that_cannot_be_counted_is_refused(
    lengths: list[int], parts: tuple[int, ...], rule: int | str, length: int
) -> None:
    match = rf"Test: an epoch .* would have {length} elements, and can have 1 to {2**30}"
    with pytest.raises(PipelineError, match=match):
        mixing(lengths, [(0, parts)], rule)


# Shuffles


def shuffled_parts(visits: list[Visit]) -> dict[tuple[int, int], list[int]]:
    """The indices of each part's each epoch, in order."""
    found: dict[tuple[int, int], list[int]] = {}
    for part, epoch, index in visits:
        found.setdefault((part, epoch), []).append(index)
    return found


def test_every_epoch_of_a_shuffled_part_has_each_index_once() -> None:
    for lengths, phases, rule in [*some_schedules(30, 31), *FIXED]:
        mix = mixing(lengths, phases, rule, shuffled=True)
        visits = walked(mix, range(600))
        plain = walked(mixing(lengths, phases, rule), range(600))
        assert [visit[:2] for visit in visits] == [visit[:2] for visit in plain]
        for (part, _), indices in shuffled_parts(visits).items():
            assert len(set(indices)) == len(indices)
            assert set(indices) <= set(range(lengths[part]))


def test_shuffles_differ_between_epochs_parts_keys_and_salts() -> None:
    lengths, phases = [40, 40, 40], [(0, (1, 1, 1))]
    mix = mixing(lengths, phases, "first", shuffled=True)
    other = Mixing(mix.slots, mix.parts, mix.rounds, mix.length, mix.count, mix.shuffled, salt=1)
    found = []
    for key in (KEY, (KEY[0], np.uint32(6)), (np.uint32(4), KEY[1])):
        found += shuffled_parts(walked(mix, range(480), key)).values()
    found += shuffled_parts(walked(other, range(480))).values()
    assert all(sorted(indices) == list(range(40)) for indices in found)
    assert len({tuple(indices) for indices in found}) == len(found) == 4 * 12


def test_the_same_salt_is_the_same_shuffle_whatever_the_other_parts() -> None:
    alone = shuffled_parts(walked(mixing([40], [(0, (1,))], 40, True), range(200)))
    among = shuffled_parts(walked(mixing([40, 9], [(0, (1, 3))], 7, True), range(800)))
    assert all(among[0, epoch] == alone[0, epoch] for epoch in range(5))


def test_some_parts_are_shuffled_and_others_not() -> None:
    mix = mixing([12, 12, 12], [(0, (1, 1, 1))], "first", [False, True, False])
    assert mix.shuffled == "some"
    for (part, _), indices in shuffled_parts(walked(mix, range(108))).items():
        assert (indices == list(range(12))) == (part != 1)
        assert sorted(indices) == list(range(12))
    whole = mixing([12, 12, 12], [(0, (1, 1, 1))], "first", True)
    assert [v for v in walked(mix, range(108)) if v[0] == 1] == [
        v for v in walked(whole, range(108)) if v[0] == 1
    ]


def test_a_part_of_one_element_is_as_good_as_shuffled() -> None:
    for flags, kind in [((True, False), "all"), ((False, True), "none")]:
        mix = mixing([12, 1], [(0, (1, 1))], "first", flags)
        assert mix.shuffled == kind
        assert all(index == 0 for part, _, index in walked(mix, range(48)) if part == 1)


@pytest.mark.usefixtures("strict_jax")
@pytest.mark.parametrize("flags", [(True, True, True), (False, True, False)])
@pytest.mark.parametrize("phases", [[(0, (3, 1, 2))], [(0, (3, 1, 2)), (15, (1, 4, 1))]])
def test_jax_agrees_with_numpy_on_shuffled_walks(phases: Any, flags: Any) -> None:
    mix = mixing([10, 30, 1], phases, 13, flags)
    assert walked_in_jax(mix, range(400)) == walked(mix, range(400))


def test_jax_agrees_with_numpy_on_two_axes_and_with_64_bit_types_on() -> None:
    mix = mixing([10, 30], [(0, (3, 1)), (15, (1, 4))], 13, [True, False])
    slot, epoch = np.arange(12).reshape(3, 4), np.full((3, 4), 5, np.uint32)
    expected = mix.walk(KEY, epoch, slot)
    for on in (False, True):
        with jax.enable_x64(on):
            walk = jax.jit(lambda mix, e, s: mix.walk(jnp.array(KEY), e, s))
            found = walk(mix, jnp.asarray(epoch), jnp.asarray(slot, jnp.int32))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.shape == (3, 4)


def test_a_shuffled_walk_is_the_one_of_earlier_releases() -> None:
    # SHA-256 over (part, epoch, index) as little-endian int64. To change it is a breaking change:
    # a run that resumes from a saved state would read other data than it left.
    phases = [(0, (5, 1, 9)), (700, (2, 3, 1))]
    visits = walked(mixing([1003, 77, 1], phases, 501, [True, True, False]), range(5000))
    digest = hashlib.sha256(np.array(visits, "<i8").tobytes()).hexdigest()
    assert digest == "8641fd27fcbc719d676769f6ee17ecd3aaf75f9461866d899af7c56715923821"
