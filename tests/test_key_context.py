"""The current key: its address, its place, and the names of its rows, one by one and by columns."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import entries
from statebackend.entries import state_id
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange, key_group_of
from statebackend.keys.types import WrongKeyType
from statebackend.states.key_context import ForeignKey, NoKey
from statebackend.states.namespaces import NO_NAMESPACE, NotAWindow, Window
from tests.rows_in_a_dict import a_context

STATE = state_id("state")

KEYS: dict[str, tuple[object, st.SearchStrategy[object]]] = {
    "int64": (int, st.none() | st.integers(-(1 << 63), (1 << 63) - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "string": (str, st.none() | st.text() | st.text("a", min_size=95, max_size=300)),
    "binary": (bytes, st.none() | st.binary()),
    "float": (float, st.none() | st.floats()),
    "bool": (bool, st.none() | st.booleans()),
    "date": (date, st.none() | st.dates()),
    "struct": ((str, int, float), st.none() | st.tuples(st.text(max_size=3), st.integers(0, 9), st.floats())),
    "instant": (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))])),
    ),
}


@pytest.mark.parametrize("name", KEYS)
@given(data=st.data())
def test_keys_share_an_address_exactly_if_they_share_their_canonical_bytes_and_namespace(
    name: str, data: st.DataObject
) -> None:
    declared, keys = KEYS[name]
    context = a_context(declared)
    seen: dict[object, tuple[bytes | None, bytes]] = {}
    for key in data.draw(st.lists(keys, max_size=20)):
        context.set_namespace(data.draw(st.sampled_from([b"", b"w", b"v"])))
        context.set_key(key)
        place = (context.key_type.encode(key), context.namespace)
        assert (context.canonical, context.namespace) == place
        assert seen.setdefault(context.address, place) == place
        assert context.addresses([key, key]) == [context.address]
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("name", KEYS)
@given(data=st.data())
def test_rows_are_named_alike_one_by_one_and_by_columns(name: str, data: st.DataObject) -> None:
    declared, strategy = KEYS[name]
    context = a_context(declared)
    namespaces = data.draw(st.lists(st.sampled_from([b"", b"w", b"window"]), min_size=1, max_size=2))
    addresses, expected = [], []
    for namespace in dict.fromkeys(namespaces):
        context.set_namespace(namespace)
        for key in data.draw(st.lists(strategy, min_size=20, max_size=40)):
            context.set_key(key)
            canonical = context.key_type.encode(key)
            group = key_group_of(context.key_type.hash(key), 128)
            expected.append(entries.row(group, STATE, canonical, namespace))
            addresses.append(context.address)
            assert context.row(STATE) == expected[-1]
            assert context.group == group
    assert context.rows(STATE, addresses) == expected
    assert context.rows(STATE, addresses[:3]) == expected[:3]
    assert context.rows(STATE, []) == []


@pytest.mark.parametrize(
    ("declared", "keys"),
    [
        (int, [True, 1.0, "1", 1 << 63, np.bool_(True)]),
        (pa.int8(), [128, -129]),
        (pa.uint64(), [-1, 1 << 64]),
        (str, [1, b"a"]),
        (bytes, ["a", bytearray(b"a")]),
        (float, [1, True]),
        (bool, [1, 0.0]),
        (date, [datetime(2020, 1, 1)]),
        ((int, str), [(1,), (True, "a"), (1.0, "a")]),
    ],
    ids=str,
)
def test_a_key_that_the_declared_type_does_not_hold_is_refused_alone_and_among_others(
    declared: object, keys: list[object]
) -> None:
    context = a_context(declared)
    for key in keys:
        with pytest.raises(WrongKeyType):
            context.set_key(key)
        with pytest.raises(WrongKeyType):
            context.addresses([key] * 3)
    with pytest.raises(NoKey):
        context.row(STATE)


def test_a_number_of_numpy_is_the_same_key_as_that_of_python() -> None:
    context = a_context(int)
    context.set_key(np.int32(5))
    assert context.address == 5
    assert type(context.address) is int
    assert context.addresses([5, np.int64(5)]) == [5]


def test_a_key_of_another_partition_is_refused_by_its_group() -> None:
    context = a_context(str, KeyGroupRange(KeyGroup(3), KeyGroup(4)))
    context.set_key("a")
    group = key_group_of(context.key_type.hash("a"), 128)
    assert group != 3
    for _ in range(2):
        with pytest.raises(ForeignKey, match=rf"count: the key 'a' is of key group {group} \(of 128\), .* \[3, 4\)"):
            context.row(STATE)


def test_places_are_right_for_more_keys_than_are_remembered() -> None:
    context = a_context(int)
    for key in [*range(40_000), *range(100)]:
        context.set_key(key)
        context.row(STATE)
    for key in (0, 39_999, 20_000):
        context.set_key(key)
        assert entries.parse_row(context.row(STATE)) == (context.key_type.encode(key), NO_NAMESPACE, b"")


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 2), st.integers(1, 1 << 40)), min_size=1))
def test_windows_come_back_from_their_namespaces_which_sort_by_their_ends(spans: list[tuple[int, int]]) -> None:
    windows = [Window(start, min(start + size, (1 << 63) - 1)) for start, size in spans]
    assert [Window.of(window.namespace) for window in windows] == windows
    by_end = sorted(windows, key=lambda window: (window.end, window.start))
    assert sorted(windows, key=lambda window: window.namespace) == by_end


def test_what_is_no_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no window"):
        Window(1, 1)
    for namespace in (b"", b"w", Window(1, 2).namespace[8:] + Window(1, 2).namespace[:8]):
        with pytest.raises(NotAWindow):
            Window.of(namespace)
