"""Key groups: every group has exactly one owner at any parallelism, and ranges behave like the sets they stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.ids import KeyGroup, Partition
from statebackend.keygroups import (
    LARGEST_MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    joined,
    key_group_of,
    owner_of,
    range_of,
    without,
)

max_parallelisms = st.integers(1, 300) | st.sampled_from([128, 4096, LARGEST_MAX_PARALLELISM])


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[int, int]:
    most = draw(max_parallelisms)
    return draw(st.integers(1, min(most, 500))), most


@st.composite
def ranges(draw: st.DrawFn) -> KeyGroupRange:
    first = draw(st.integers(0, 20))
    return KeyGroupRange(KeyGroup(first), KeyGroup(first + draw(st.integers(1, 10))))


def groups_of(*parts: KeyGroupRange) -> set[int]:
    return {group for part in parts for group in part}


@given(parallelisms())
def test_the_ranges_of_all_partitions_lie_side_by_side_and_hold_every_group(sizes: tuple[int, int]) -> None:
    parallelism, most = sizes
    parts = [range_of(Partition(partition), parallelism, most) for partition in range(parallelism)]
    assert joined(parts) == (KeyGroupRange(KeyGroup(0), KeyGroup(most)),)
    assert sum(len(part) for part in parts) == most
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(parallelisms(), st.data())
def test_a_group_belongs_to_the_partition_whose_range_holds_it(sizes: tuple[int, int], data: st.DataObject) -> None:
    parallelism, most = sizes
    group = KeyGroup(data.draw(st.integers(0, most - 1)))
    assert group in range_of(owner_of(group, parallelism, most), parallelism, most)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), max_parallelisms)
def test_every_hash_has_a_group_and_groups_rise_with_the_hash(hashes: list[int], most: int) -> None:
    groups = [key_group_of(key_hash, most) for key_hash in sorted(hashes)]
    assert groups == sorted(groups)
    assert 0 <= groups[0] <= groups[-1] < most


def test_the_group_of_a_hash_is_fixed_for_good() -> None:
    assert [key_group_of(key_hash, 128) for key_hash in (0, 2**57 - 1, 2**57, 2**63, 2**64 - 1)] == [0, 0, 1, 64, 127]


@given(ranges(), ranges())
def test_intersection_minus_and_covers_are_those_of_sets(one: KeyGroupRange, other: KeyGroupRange) -> None:
    common = one.intersection(other)
    assert groups_of(*([common] if common else [])) == groups_of(one) & groups_of(other)
    assert groups_of(*one.minus(other)) == groups_of(one) - groups_of(other)
    assert one.covers(other) == (groups_of(one) >= groups_of(other))


@given(st.lists(ranges()))
def test_joined_ranges_hold_the_same_groups_and_do_not_touch(parts: list[KeyGroupRange]) -> None:
    result = joined(parts)
    assert groups_of(*result) == groups_of(*parts)
    assert all(left.end < right.first for left, right in pairwise(result))


@pytest.mark.parametrize(("first", "end"), [(3, 3), (4, 3), (-1, 2), (0, LARGEST_MAX_PARALLELISM + 1)])
def test_a_range_that_is_empty_or_out_of_bounds_is_refused(first: int, end: int) -> None:
    with pytest.raises(ValueError, match=rf"\[{first}, {end}\)"):
        KeyGroupRange(KeyGroup(first), KeyGroup(end))


@pytest.mark.parametrize(("parallelism", "most"), [(0, 128), (129, 128), (1, 0), (1, LARGEST_MAX_PARALLELISM + 1)])
def test_a_parallelism_that_the_groups_cannot_be_divided_over_is_refused(parallelism: int, most: int) -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        check_parallelism(parallelism, most)


def test_a_partition_that_does_not_exist_has_no_range() -> None:
    with pytest.raises(ValueError, match="no partition 4 at parallelism 4"):
        range_of(Partition(4), 4, 128)


@given(st.integers(0, 100), st.integers(1, 60), st.data())
def test_a_divided_range_has_the_same_groups_in_about_equal_parts(first: int, length: int, data: st.DataObject) -> None:
    whole = KeyGroupRange(KeyGroup(first), KeyGroup(first + length))
    parts = whole.divided(data.draw(st.integers(1, length)))
    assert [group for part in parts for group in part] == list(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


RANGES = st.tuples(st.integers(0, 20), st.integers(1, 9)).map(
    lambda drawn: KeyGroupRange(KeyGroup(drawn[0]), KeyGroup(drawn[0] + drawn[1]))
)


@given(st.lists(RANGES, max_size=3), st.lists(RANGES, max_size=3))
def test_without_takes_away_groups_and_nothing_else(ranges: list[KeyGroupRange], taken: list[KeyGroupRange]) -> None:
    left = without(joined(ranges), taken)
    gone = {group for part in taken for group in part}
    assert [group for part in left for group in part] == [
        group for part in joined(ranges) for group in part if group not in gone
    ]
