"""Declared states, opened and used: values, lists, maps, reduced and aggregated values, with times to live."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.durations import NotADuration
from statebackend.entries import BrokenEntry, delimited
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.states.aggregates import AggregateTable
from statebackend.states.codecs import Codec, Pickled
from statebackend.states.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    Place,
    ReducingState,
    ValueState,
)
from statebackend.states.key_context import ForeignKey, KeyContext
from statebackend.states.list_state import ListHandle
from statebackend.states.map_keys import NoMapKey, map_keys_of
from statebackend.states.map_state import MapHandle
from statebackend.states.row_form import RowEntry, UnknownCodecVersion, UnreadableValue, WrongValueType
from statebackend.states.ttl import NEVER, Ttl, alive
from statebackend.states.value_state import AggregatingHandle
from statebackend.tables.values.aggregations import Count
from statebackend.tables.values.spec import TableError
from tests.rows_in_a_dict import RowsInADict, a_context

H = TypeVar("H")


def opened(declaration: Declaration[H], context: KeyContext, rows: RowsInADict, name: str = "state") -> H:
    return declaration.open(Place(declaration.spec(name), context, rows))


def with_key(key: object = "k", restored_epoch: int = 0) -> KeyContext:
    context = a_context(restored_epoch=restored_epoch)
    context.set_key(key)
    return context


def test_a_value_without_a_default_is_none_until_it_is_set() -> None:
    value = opened(ValueState(int), with_key(), RowsInADict())
    assert value.get() is None
    value.set(3)
    assert value.get() == 3


def test_a_default_of_another_type_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="expected int, got str"):
        ValueState(int, default="0")


def test_values_are_reduced_in_the_order_in_which_they_are_added() -> None:
    context = with_key()
    text = opened(ReducingState(str, lambda left, right: left + right), context, RowsInADict())
    assert text.get() is None
    for part in "abc":
        text.add(part)
    assert text.get() == "abc"
    context.set_key("other")
    assert text.get() is None
    context.set_key("k")
    text.clear()
    text.add("z")
    assert text.get() == "z"


def test_what_is_added_is_aggregated_and_its_result_read() -> None:
    mean: AggregatingHandle[float, tuple[int, float], float] = opened(
        AggregatingState(tuple[int, float], lambda: (0, 0.0), lambda a, x: (a[0] + 1, a[1] + x), lambda a: a[1] / a[0]),
        with_key(),
        rows := RowsInADict(),
    )
    assert mean.get() is None
    for number in (1.0, 2.0, 6.0):
        mean.add(number)
    assert mean.get() == 3.0
    rows.take(mean.freeze())
    ((name, payload),) = rows.content.items()
    assert mean.decode_entry(name, payload).value == (3, 9.0)


def test_an_accumulator_of_another_type_than_declared_is_refused() -> None:
    wrong = opened(ReducingState(int, lambda left, right: left / right), with_key(), RowsInADict())  # type: ignore[arg-type, return-value]
    wrong.add(1)
    with pytest.raises(WrongValueType, match="'state' is declared as int"):
        wrong.add(2)
    assert wrong.get() == 1


def test_a_list_keeps_the_order_in_which_its_elements_came_also_after_restores() -> None:
    rows = RowsInADict()
    for epoch in range(3):
        words = opened(ListState(str), with_key(restored_epoch=epoch), rows)
        words.add(f"first of {epoch}")
        words.extend([f"second of {epoch}", f"third of {epoch}"])
    expected = [f"{place} of {epoch}" for epoch in range(3) for place in ("first", "second", "third")]
    assert words.get() == expected
    assert list(words) == expected
    assert rows.reads == []


def test_a_list_is_replaced_by_what_is_made_of_it() -> None:
    numbers = opened(ListState(int), with_key(), RowsInADict())
    numbers.extend(range(5))
    numbers.replace(number * 2 for number in numbers if number % 2)
    assert numbers.get() == [2, 6]
    assert not numbers.is_empty()
    numbers.clear()
    assert numbers.is_empty()
    assert numbers.get() == []


def test_a_list_stays_as_it_was_if_one_of_the_new_elements_is_refused() -> None:
    numbers = opened(ListState(int), with_key(), RowsInADict())
    numbers.add(1)
    for change in (numbers.extend, numbers.replace):
        with pytest.raises(WrongValueType):
            change([2, "3"])  # type: ignore[list-item]
    assert numbers.get() == [1]


def test_appending_while_a_list_is_gone_through_adds_nothing_to_that_walk() -> None:
    numbers = opened(ListState(int), with_key(), RowsInADict())
    numbers.extend([1, 2, 3])
    seen = []
    for number in numbers:
        seen.append(number)
        numbers.add(number + 10)
    assert seen == [1, 2, 3]
    assert numbers.get() == [1, 2, 3, 11, 12, 13]


def test_changing_a_map_while_it_is_gone_through_changes_nothing_of_that_walk() -> None:
    prices = opened(MapState(str, float), with_key(), RowsInADict())
    for name in "abc":
        prices.put(name, 1.0)
    seen = []
    for name, price in prices.items():
        seen.append((name, price))
        for other in "abc":
            prices.remove(other)
        prices.put(name + "z", 2.0)
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 1.0)]
    assert list(prices.keys()) == ["az", "bz", "cz"]


def test_a_map_of_another_key_or_namespace_is_another_map() -> None:
    context = with_key()
    prices = opened(MapState(str, float), context, RowsInADict())
    prices.put("a", 1.0)
    context.set_namespace(b"w")
    assert prices.is_empty()
    prices.put("b", 2.0)
    context.set_namespace(b"")
    context.set_key("k\x01")
    assert list(prices) == []
    context.set_key("k")
    assert list(prices) == ["a"]
    prices.clear()
    context.set_namespace(b"w")
    assert dict(prices.items()) == {"b": 2.0}


MAP_KEYS: dict[str, tuple[object, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "int": (int, st.integers(-(1 << 63), (1 << 63) - 1), int),
    "uint64": ("uint64", st.integers(0, (1 << 64) - 1), int),
    "str": (str, st.text(), lambda text: text.encode()),
    "bytes": (bytes, st.binary(), bytes),
    "float": (float, st.floats(allow_nan=False), float),
    "bool": (bool, st.booleans(), bool),
    "date": (date, st.dates(), lambda day: day),
}


@pytest.mark.parametrize("name", MAP_KEYS)
@given(data=st.data())
def test_a_map_is_a_dict_sorted_by_its_keys(name: str, data: st.DataObject) -> None:
    declared, keys, order = MAP_KEYS[name]
    state: MapHandle[object, int] = opened(MapState(declared, int), with_key(), RowsInADict())  # type: ignore[arg-type]
    model: dict[object, int] = {}
    for key, value in data.draw(st.lists(st.tuples(keys, st.none() | st.integers()))):
        assert (key in state) == (key in model)
        if value is None:
            state.remove(key)
            model.pop(key, None)
        else:
            state.put(key, value)
            model[key] = value
        assert state.get(key) == model.get(key)
    assert list(state.items()) == sorted(model.items(), key=lambda item: order(item[0]))
    assert list(state.keys()) == sorted(model, key=order)
    assert state.is_empty() == (not model)


def test_map_keys_that_python_calls_different_or_equal_for_its_own_reasons_are_told_apart_by_type() -> None:
    nan = opened(MapState(float, str), with_key(), RowsInADict())
    nan.put(float("nan"), "a")
    nan.put(-float("nan"), "b")
    nan.put(-0.0, "c")
    assert (nan.get(float("nan")), nan.get(0.0)) == ("b", "c")
    whole = opened(MapState(int, str), with_key(), RowsInADict())
    for wrong in (True, 1.0, 1 << 63):
        with pytest.raises(WrongValueType, match="a map of int"):
            whole.put(wrong, "x")  # type: ignore[arg-type]
    assert whole.is_empty()


@given(st.lists(st.tuples(st.integers(-5, 5), st.text(max_size=2), st.floats())))
def test_tuples_are_map_keys_by_all_their_parts(keys: list[tuple[int, str, float]]) -> None:
    kind = map_keys_of(tuple[int, str, float])
    for key in keys:
        back = kind.decode(kind.encode(key))
        assert back[:2] == key[:2]
        assert back[2] == key[2] or key[2] != key[2]
    assert len({kind.encode(key) for key in keys}) == len({(a, b, "nan" if c != c else c) for a, b, c in keys})


@pytest.mark.parametrize(
    ("declared", "data"),
    [
        (int, b"\1"),
        (float, b"\1"),
        (bool, b"\7"),
        (str, b"\xed"),
        (date, b"\xff" * 4),
        (datetime, b"\x7f" + b"\xff" * 7),
        (tuple[int, str], b"\x09"),
        (tuple[int, str], delimited(b"\1") + delimited(b"x")),
    ],
)
def test_bytes_that_are_no_map_key_are_an_error_with_a_name(declared: Any, data: bytes) -> None:
    with pytest.raises(BrokenEntry):
        map_keys_of(declared).decode(data)


def test_what_has_no_equality_is_no_map_key() -> None:
    for declared in (Pickled[object](), int | None):
        with pytest.raises(NoMapKey, match="cannot be a map key"):
            MapState(declared, int)


def test_rows_of_lists_and_maps_are_read_by_people_and_written_back_as_they_were() -> None:
    rows = RowsInADict()
    numbers = opened(ListState(int), with_key(restored_epoch=6), rows, "numbers")
    numbers.extend([5, 6])
    prices = opened(MapState(str, float, ttl=Ttl("10ms")), with_key(), rows, "prices")
    prices.put("a", 1.5)
    found = {}
    for name, payload in rows.content.items():
        state: Any = numbers if name[2:6] == numbers.form.id.to_bytes(4, "big") else prices
        entry: RowEntry = state.decode_entry(name, payload)
        assert state.encode_entry(entry) == (name, payload)
        found[entry.part] = (entry.key, entry.namespace, entry.value, entry.expires)
    assert found == {
        7 << 32: ("k", b"", 5, None),
        (7 << 32) + 1: ("k", b"", 6, None),
        "a": ("k", b"", 1.5, 10),
    }


def test_an_entry_that_lacks_what_the_state_has_is_refused() -> None:
    prices = opened(MapState(str, float, ttl=Ttl("10ms")), with_key(), RowsInADict())
    with pytest.raises(WrongValueType, match="lacks an expiry"):
        prices.encode_entry(RowEntry("k", b"", "a", 1.0, None))
    numbers = opened(ListState(int), with_key(), RowsInADict())
    with pytest.raises(WrongValueType, match="has an expiry"):
        numbers.encode_entry(RowEntry("k", b"", 1, 1, 5))
    with pytest.raises(WrongValueType, match="no place"):
        numbers.encode_entry(RowEntry("k", b"", None, 1, None))


def test_lists_and_maps_of_a_foreign_key_are_refused() -> None:
    context = a_context(int, KeyGroupRange(KeyGroup(0), KeyGroup(1)))
    context.set_key(1)
    for use in (
        lambda: opened(ListState(int), context, RowsInADict()).add(1),
        lambda: opened(ListState(int), context, RowsInADict()).get(),
        lambda: opened(MapState(int, int), context, RowsInADict()).put(1, 1),
        lambda: opened(MapState(int, int), context, RowsInADict()).get(1),
        lambda: opened(MapState(int, int), context, RowsInADict()).clear(),
    ):
        with pytest.raises(ForeignKey):
            use()


# --- time to live -----------------------------------------------------------------------------------------------------


def test_a_value_is_invisible_from_its_expiry_on() -> None:
    context = with_key()
    value = opened(ValueState(int, default=-1, ttl=Ttl("10ms")), context, RowsInADict())
    context.processing_time = 100
    value.set(1)
    context.processing_time = 109
    assert value.get() == 1
    context.processing_time = 110
    assert value.get() == -1
    value.set(2)
    assert value.get() == 2


def test_reading_prolongs_only_what_is_declared_to_be_refreshed_by_it() -> None:
    for refresh, expected in (("write", [1, 1, None]), ("read_and_write", [1, 1, 1])):
        context, rows = with_key(), RowsInADict()
        ttl = Ttl("10ms", refresh=refresh)  # type: ignore[arg-type]
        value = opened(ValueState(int, ttl=ttl), context, rows)
        entry = opened(MapState(str, int, ttl=ttl), context, rows, "map")
        value.set(1)
        entry.put("a", 1)
        seen = []
        for context.processing_time in (5, 9, 14):
            seen.append(value.get())
            assert entry.get("a") == seen[-1]
        assert seen == expected


def test_event_time_is_the_watermark_and_without_one_nothing_expires() -> None:
    context = with_key()
    value = opened(ValueState(int, ttl=Ttl("10ms", time="event")), context, RowsInADict())
    value.set(1)
    context.processing_time = 1 << 50
    context.watermark = 1 << 50
    assert value.get() == 1
    value.set(2)
    context.watermark += 10
    assert value.get() is None


def test_expired_elements_and_entries_are_not_gone_through() -> None:
    context, rows = with_key(), RowsInADict()
    words = opened(ListState(str, ttl=Ttl("10ms")), context, rows, "words")
    prices = opened(MapState(str, float, ttl=Ttl("10ms")), context, rows, "prices")
    for context.processing_time in (0, 5):
        words.add(f"at {context.processing_time}")
        prices.put(f"at {context.processing_time}", 1.0)
    context.processing_time = 10
    assert words.get() == ["at 5"]
    assert list(prices) == ["at 5"]
    assert "at 0" not in prices
    assert prices.get("at 0") is None
    context.processing_time = 15
    assert words.is_empty()
    assert prices.is_empty()


def test_what_has_expired_is_told_from_what_has_not_by_the_payload() -> None:
    context, rows = with_key(), RowsInADict()
    words = opened(ListState(str, ttl=Ttl("10ms")), context, rows)
    words.add("a")
    (payload,) = rows.content.values()
    assert alive(payload, 9)
    assert words.form.alive(payload, 9)
    assert not words.form.alive(payload, 10)
    forever = opened(ListState(str), context, RowsInADict())
    assert forever.form.alive(b"", NEVER)


@pytest.mark.parametrize(
    "wrong", [{"lives": 0}, {"lives": "1ms", "time": "wall"}, {"lives": "1ms", "refresh": "never"}]
)
def test_a_time_to_live_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="time to live"):
        Ttl(**wrong)


def test_a_time_to_live_has_a_unit_and_is_the_same_in_all_units() -> None:
    assert Ttl("1s") == Ttl("1000ms")
    with pytest.raises(NotADuration, match="ttl: 10 is no duration: a number has no unit"):
        Ttl(10)  # type: ignore[arg-type]


def test_a_table_refuses_a_time_to_live_that_reading_refreshes() -> None:
    with pytest.raises(TableError, match="refreshed by reading"):
        AggregateTable(ttl=Ttl("1s", refresh="read_and_write"), rows=Count())


# --- versions ---------------------------------------------------------------------------------------------------------


class Celsius(Codec[float]):
    """Version 1 had Fahrenheit."""

    name = "celsius"
    immutable = True

    def __init__(self, version: int, oldest: int = 1) -> None:
        self.version, self.oldest = version, oldest

    def encode(self, value: float) -> bytes:
        return repr(value).encode()

    def decode(self, data: bytes) -> float:
        return float(data)

    def migrate(self, data: bytes, version: int) -> float:
        assert version == 1
        return (self.decode(data) - 32) / 1.8


def test_values_of_an_older_version_are_migrated_when_they_are_read() -> None:
    rows = RowsInADict()
    before = opened(ValueState(Celsius(1)), with_key(), rows)
    before.set(212.0)
    rows.take(before.freeze())
    after = opened(ValueState(Celsius(2)), with_key(), rows)
    assert after.get() == 100.0


def test_values_of_a_newer_or_forgotten_version_are_refused_by_name() -> None:
    rows = RowsInADict()
    value = opened(ValueState(Celsius(2)), with_key(), rows, "heat")
    value.set(1.0)
    rows.take(value.freeze())
    with pytest.raises(
        UnknownCodecVersion, match=r"count: state 'heat': a value was written by version 2 of celsius.* 1 to 1"
    ):
        opened(ValueState(Celsius(1)), with_key(), rows, "heat").get()
    with pytest.raises(UnknownCodecVersion, match="reads versions 3 to 3"):
        opened(ValueState(Celsius(3, oldest=3)), with_key(), rows, "heat").get()


def test_a_damaged_value_is_refused_by_the_name_of_its_state() -> None:
    rows = RowsInADict()
    value = opened(ValueState(str), with_key(), rows, "word")
    value.set("a")
    ((name, _),) = value.freeze().entries().items()
    rows.content[name] = b"\x01\xff"
    with pytest.raises(UnreadableValue, match="count: state 'word': 2 bytes are no value of str version 1"):
        opened(ValueState(str), with_key(), rows, "word").get()


def test_a_codec_whose_version_does_not_fit_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="255"):
        opened(ValueState(Celsius(256)), with_key(), RowsInADict())


def test_a_list_and_a_dict_hold_the_same_after_any_walk() -> None:
    random.seed(7)
    context = with_key()
    numbers: ListHandle[int] = opened(ListState(int), context, RowsInADict())
    model: dict[str, list[int]] = {}
    for step in range(500):
        key = random.choice("abc")
        context.set_key(key)
        match random.randrange(5):
            case 0:
                numbers.clear()
                model.pop(key, None)
            case 1:
                numbers.replace([step, -step])
                model[key] = [step, -step]
            case _:
                numbers.add(step)
                model.setdefault(key, []).append(step)
        assert numbers.get() == model.get(key, [])
