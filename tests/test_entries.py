"""How entries are named: parts come back, groups come first, times sort, and no two entries share a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import entries
from statebackend.entries import StateId
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange

GROUPS = st.integers(0, 32767)
STATES = st.integers(0, 2**32 - 1).map(StateId)
PARTS = st.one_of(
    st.binary(max_size=4), st.binary(min_size=126, max_size=130), st.binary(min_size=16383, max_size=16385)
)
KEYS = st.one_of(st.none(), PARTS)
TIMES = st.integers(-(2**63), 2**63 - 1)


@given(GROUPS, STATES, KEYS, PARTS, st.binary(max_size=8))
def test_a_row_tells_what_it_is_about(
    group: int, state: StateId, key: bytes | None, namespace: bytes, rest: bytes
) -> None:
    name = entries.row(group, state, key, namespace, rest)
    assert entries.parse_row(name) == (key, namespace, rest)
    assert entries.parse_head(name) == (group, state, entries.ROW)
    assert entries.group_of(name) == group


@given(GROUPS, STATES, TIMES, KEYS, PARTS)
def test_a_timer_tells_what_it_is_about(
    group: int, state: StateId, time: int, key: bytes | None, namespace: bytes
) -> None:
    name = entries.timer(group, state, time, key, namespace)
    assert entries.parse_timer(name) == (time, key, namespace)
    assert entries.parse_head(name) == (group, state, entries.TIMER)


@given(GROUPS, STATES, PARTS, st.integers(0, 2**63 - 2), st.booleans())
def test_a_block_tells_what_it_is_about(
    group: int, state: StateId, namespace: bytes, epoch: int, of_base: bool
) -> None:
    name = entries.block(group, state, namespace, epoch, of_base=of_base)
    assert entries.parse_block(name) == (namespace, epoch)
    assert entries.parse_head(name) == (group, state, entries.BLOCK)
    assert name < entries.block(group, state, namespace, epoch + (1 if of_base else 0), of_base=not of_base)


ROWS = st.tuples(st.integers(0, 3), st.integers(0, 2).map(StateId), KEYS, st.binary(max_size=2), st.binary(max_size=2))


@given(ROWS, ROWS)
def test_two_rows_never_share_a_name(
    one: tuple[int, StateId, bytes | None, bytes, bytes], other: tuple[int, StateId, bytes | None, bytes, bytes]
) -> None:
    assert (entries.row(*one) == entries.row(*other)) == (one == other)


@given(st.integers(0, 99), st.integers(1, 20), GROUPS, st.binary(max_size=20))
def test_the_bounds_of_a_range_hold_its_entries_and_no_others(first: int, length: int, group: int, rest: bytes) -> None:
    groups = KeyGroupRange(KeyGroup(first), KeyGroup(first + length))
    start, end = entries.bounds(groups)
    name = entries.row(group, StateId(0xFFFFFFFF), rest, rest)
    assert (start <= name < end) == (KeyGroup(group) in groups)


def test_what_a_file_says_of_itself_lies_behind_all_key_groups() -> None:
    last = entries.row(32767, StateId(0xFFFFFFFF), b"\xff" * 9, b"\xff" * 9)
    assert last < entries.bounds(KeyGroupRange(KeyGroup(0), KeyGroup(32768)))[1] <= entries.META_KEY


@given(TIMES, TIMES)
def test_times_sort_as_bytes(one: int, other: int) -> None:
    assert (entries.sortable(one) < entries.sortable(other)) == (one < other)
    assert entries.unsortable(entries.sortable(one)) == one


@given(st.binary(min_size=1, max_size=6).filter(lambda prefix: prefix.strip(b"\xff")), st.binary(max_size=6))
def test_what_is_after_a_prefix_begins_with_something_greater(prefix: bytes, name: bytes) -> None:
    assert (prefix <= name < entries.after(prefix)) == name.startswith(prefix)


@given(st.binary(max_size=3))
def test_a_name_that_is_cut_short_is_refused(part: bytes) -> None:
    whole = entries.delimited(b"x" * 300 + part)
    for size in (0, 1, 2, len(whole) - 1):
        with pytest.raises(ValueError, match="cut short"):
            entries.undelimited(whole[:size], 0)


@given(GROUPS, STATES, TIMES, PARTS, PARTS, st.data())
def test_the_name_of_an_entry_that_is_cut_short_is_a_value_error(
    group: int, state: StateId, time: int, key: bytes, namespace: bytes, data: st.DataObject
) -> None:
    short = data.draw(st.integers(0, entries.HEAD_SIZE - 1))
    row = entries.row(group, state, key, namespace)
    timer = entries.timer(group, state, time, key, namespace)
    block = entries.block(group, state, namespace, 1)
    for cut in (
        lambda: entries.parse_head(row[:short]),
        lambda: entries.group_of(row[: min(short, 1)]),
        lambda: entries.parse_row(row[: data.draw(st.integers(0, len(row) - 1))]),
        lambda: entries.parse_timer(timer[: data.draw(st.integers(0, len(timer) - 1))]),
        lambda: entries.parse_block(block[: data.draw(st.integers(0, len(block) - 1))]),
        lambda: entries.undelimited(b"\xff" * 100_000 + b"\x01", 0),
    ):
        with pytest.raises(ValueError, match="cut short"):
            cut()
