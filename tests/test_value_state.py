"""One value per key and namespace: caches, cuts, spilling and types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.backends.backend import LocalDiskFull
from statebackend.entries import state_id
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.types import KeyType, WrongKeyType
from statebackend.states.codec_choice import codec_of
from statebackend.states.codecs import Codec, IntCodec, Pickled
from statebackend.states.key_context import ForeignKey, KeyContext, NoKey
from statebackend.states.row_form import RowForm, WrongValueType
from statebackend.states.ttl import Ttl
from statebackend.states.value_state import ValueHandle, open_value
from statebackend.states.write_back import FrozenValues, LayerOrder
from tests.rows_in_a_dict import UID, LayeredRows, RowsInADict, a_context

T = TypeVar("T")


def a_state(
    context: KeyContext,
    rows: RowsInADict,
    codec: Codec[T],
    default: Callable[[], T],
    ttl: Ttl | None = None,
    budget: int = 1 << 20,
) -> ValueHandle[T]:
    return open_value(
        context, rows, RowForm(UID, "total", state_id("total"), context.key_type, codec, ttl), default, budget
    )


def test_a_value_is_the_one_set_last_for_its_key_and_namespace() -> None:
    context = a_context()
    total = a_state(context, RowsInADict(), codec_of(int), lambda: 7)
    context.set_key("a")
    total.set(1)
    context.set_key("b")
    assert total.get() == 7
    context.set_namespace(b"window")
    total.set(3)
    context.set_key("a")
    assert total.get() == 7
    context.set_namespace(b"")
    assert total.get() == 1
    total.clear()
    assert total.get() == 7


def test_what_was_set_after_a_cut_does_not_change_the_cut() -> None:
    context, rows = a_context(), RowsInADict()
    total = a_state(context, rows, codec_of(int), lambda: 0)
    context.set_key("a")
    total.set(1)
    frozen = total.freeze()
    total.set(2)
    rows.take(frozen)
    other = a_state(context, rows, codec_of(int), lambda: 0)
    assert other.get() == 1
    assert total.get() == 2


def test_a_list_that_is_changed_after_it_was_set_changes_neither_the_value_nor_the_cut() -> None:
    context, rows = a_context(), RowsInADict()
    total = a_state(context, rows, Pickled[list[int]](), list)
    context.set_key("a")
    given_list = [1]
    total.set(given_list)
    given_list.append(2)
    total.get().append(3)
    frozen = total.freeze()
    total.get().append(4)
    rows.take(frozen)
    assert total.get() == [1]
    assert a_state(context, rows, Pickled[list[int]](), list).get() == [1]


def test_a_default_that_is_changed_stays_the_default() -> None:
    context = a_context()
    total = a_state(context, RowsInADict(), Pickled[list[int]](), list)
    context.set_key("a")
    total.get().append(1)
    assert total.get() == []


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_value_of_another_type_is_refused_by_name(value: object) -> None:
    context = a_context()
    total: ValueHandle[object] = a_state(context, RowsInADict(), codec_of("int64"), lambda: 0)
    context.set_key("a")
    with pytest.raises(WrongValueType, match=r"count: state 'total' is declared as int64: expected int"):
        total.set(value)
    assert total.get() == 0
    assert total.freeze().entries() == {}


def test_a_key_of_another_partition_is_refused_when_state_is_read_written_or_fetched() -> None:
    context = a_context(int, KeyGroupRange(KeyGroup(0), KeyGroup(64)))
    total = a_state(context, RowsInADict(), codec_of(int), lambda: 0)
    foreign = next(key for key in range(1000) if KeyType.of(int).hash(key) >> 57 >= 64)
    context.set_key(foreign)
    with pytest.raises(ForeignKey, match=r"this partition has \[0, 64\)"):
        total.get()
    with pytest.raises(ForeignKey):
        total.set(1)
    with pytest.raises(ForeignKey):
        total.clear()
    with pytest.raises(ForeignKey):
        total.prefetch(range(1000))
    assert len(total.freeze()) == 0


def test_state_without_a_key_is_refused() -> None:
    total = a_state(a_context(), RowsInADict(), codec_of(int), lambda: 0)
    with pytest.raises(NoKey):
        total.get()


def test_the_values_of_a_batch_are_read_at_once() -> None:
    context, rows = a_context(int), RowsInADict()
    total = a_state(context, rows, codec_of(int), lambda: 0)
    for key in range(100):
        context.set_key(key)
        total.set(key)
    rows.take(total.freeze())
    again = a_state(context, rows, codec_of(int), lambda: 0)
    again.prefetch([key // 2 for key in range(400)])
    assert rows.reads == [200]
    for key in range(200):
        context.set_key(key)
        assert again.get() == (key if key < 100 else 0)
    assert rows.reads == [200]


def test_cuts_are_released_in_their_order() -> None:
    total = a_state(a_context(), RowsInADict(), codec_of(int), lambda: 0)
    first, second = total.freeze(), total.freeze()
    with pytest.raises(LayerOrder):
        total.release(second)
    total.release(first)
    total.release(second)


def test_what_is_pending_is_so_until_its_cut_is_released() -> None:
    context = a_context(int)
    total = a_state(context, RowsInADict(), codec_of(int), lambda: 0)
    for key in range(10):
        context.set_key(key)
        total.set(key)
    pending = total.pending_bytes()
    assert 0 < pending < total.memory_bytes()
    first = total.freeze()
    assert total.pending_bytes() == pending
    total.set(1)
    assert total.pending_bytes() > pending
    total.release(first)
    assert 0 < total.pending_bytes() < pending
    total.release(total.freeze())
    assert total.pending_bytes() == 0
    first.clear()
    assert len(first) == 0
    assert total.get() == 1


def test_memory_stays_near_the_budget_however_many_keys_there_are() -> None:
    context, rows = a_context(int), RowsInADict()
    total = a_state(context, rows, codec_of(int), lambda: 0, budget=400_000)
    largest = 0
    for key in range(20_000):
        context.set_key(key)
        total.set(key)
        largest = max(largest, total.memory_bytes())
    assert largest < 600_000
    for key in range(0, 20_000, 7):
        context.set_key(key)
        assert total.get() == key


KEYS = {
    "string": st.sampled_from([f"key {number}" for number in range(300)]),
    "int64": st.integers(0, 300) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    "double": st.sampled_from([0.0, -0.0, 1.0, float("nan"), -float("nan"), float("inf")]),
    "bool": st.booleans(),
}


@pytest.mark.parametrize("declared", KEYS)
@given(data=st.data())
def test_whatever_is_set_cut_spilled_taken_and_released_reads_are_those_of_a_dict(
    declared: str, data: st.DataObject
) -> None:
    """The rows take cuts as the layers of a row store do: spilled values lie above the cuts before them."""
    context = a_context(pa.type_for_alias(declared))
    rows = LayeredRows()
    total = a_state(context, rows, codec_of(int), lambda: 0, budget=1)
    model: dict[tuple[bytes | None, bytes], int] = {}
    cuts: list[FrozenValues] = []
    keys, namespaces = KEYS[declared], st.sampled_from([b"", b"", b"w"])
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["set", "set", "set", "get", "clear", "fill", "cut", "spill", "release"]))
        context.set_namespace(data.draw(namespaces))
        key = data.draw(keys)
        context.set_key(key)
        place = (context.canonical, context.namespace)
        match action:
            case "set":
                total.set(model.setdefault(place, 0) + 1)
                model[place] += 1
            case "clear":
                total.clear()
                model.pop(place, None)
            case "fill":
                total.prefetch(data.draw(st.lists(keys, max_size=30)))
            case "cut":
                rows.cut()
                cuts.append(total.freeze())
            case "spill":
                total.spill()
            case "release" if cuts:
                rows.take_oldest(cuts[0])
                total.release(cuts.pop(0))
            case _:
                pass
        assert total.get() == model.get(place, 0)
    for key, namespace in model:
        context.set_key(context.key_type.decode(key))
        context.set_namespace(namespace)
        assert total.get() == model[key, namespace]
    rows.cut()
    cuts.append(total.freeze())
    for cut in cuts:
        rows.take_oldest(cut)
    assert sorted(rows.below.values()) == sorted(bytes([1]) + value.to_bytes(8, "little") for value in model.values())


def test_a_key_of_another_type_is_refused() -> None:
    context = a_context(int)
    for key in (True, 1.0, "1", 1 << 63):
        with pytest.raises(WrongKeyType):
            context.set_key(key)


@given(st.lists(st.tuples(st.integers(0, 2000), st.sampled_from("sssgcfr")), max_size=40), st.integers(1, 300))
def test_values_that_are_spilled_bit_by_bit_between_cuts_are_not_lost(walk: list[tuple[int, str]], stride: int) -> None:
    context, rows = a_context(int), LayeredRows()
    total = a_state(context, rows, codec_of(int), lambda: 0, budget=1)
    model: dict[int, int] = {}
    cuts: list[FrozenValues] = []
    for start, action in walk:
        if action == "f":
            rows.cut()
            cuts.append(total.freeze())
        elif action == "r" and cuts:
            rows.take_oldest(cuts[0])
            total.release(cuts.pop(0))
        for key in range(start, start + stride):
            context.set_key(key)
            if action == "s":
                total.set(total.get() + 1)
                model[key] = model.get(key, 0) + 1
            elif action == "c":
                total.clear()
                model.pop(key, None)
            else:
                assert total.get() == model.get(key, 0)
    rows.cut()
    for cut in [*cuts, total.freeze()]:
        rows.take_oldest(cut)
    read = {entry.key: entry.value for entry in (total.decode_entry(*row) for row in rows.below.items())}
    assert read == model


def test_what_the_rows_refuse_while_memory_is_short_is_not_lost() -> None:
    class RefusingRows(RowsInADict):
        puts = 0

        def put(self, name: bytes, payload: bytes) -> None:
            self.puts += 1
            if self.puts % 1000 == 0:
                raise LocalDiskFull("there was no room")
            super().put(name, payload)

    context, rows = a_context(), RefusingRows()
    total = a_state(context, rows, codec_of(int), lambda: 0, budget=1)
    refused = 0
    for number in range(10_000):
        context.set_key(f"key {number}")
        try:
            total.set(number)
        except LocalDiskFull:
            refused += 1
            total.set(number)
    assert refused > 1
    for number in range(10_000):
        context.set_key(f"key {number}")
        with suppress(LocalDiskFull):
            assert total.get() == number


def test_an_entry_is_read_by_people_and_written_back_as_it_was() -> None:
    context, rows = a_context(int), RowsInADict()
    total = a_state(context, rows, codec_of(tuple[int, str]), lambda: (0, ""))
    context.set_key(5)
    context.set_namespace(b"w")
    total.set((1, "a"))
    ((name, payload),) = total.freeze().entries().items()
    assert payload is not None
    entry = total.decode_entry(name, payload)
    assert (entry.key, entry.namespace, entry.part, entry.value, entry.expires) == (5, b"w", None, (1, "a"), None)
    assert total.encode_entry(entry) == (name, payload)


def test_numbers_are_packed_at_once_as_they_are_one_by_one() -> None:
    form: RowForm[int] = RowForm(UID, "total", state_id("total"), KeyType.of(int), codec_of(int))
    for values in ([1, -1, 1 << 62], [1, 1 << 64, -(1 << 64)], []):
        data = [form.data(value) for value in values]
        assert form.data_of_many(values) == data
        assert form.values_of_many(data) == values


@pytest.mark.parametrize("count", range(100, 600, 23))
def test_a_cut_in_the_midst_of_spilling_has_every_value_as_it_was_then(count: int) -> None:
    context, rows = a_context(int), LayeredRows()
    total = a_state(context, rows, codec_of(int), lambda: 0, budget=1)
    for start, value in ((0, 1), (count - 60, 2)):
        for key in range(start, count):
            context.set_key(key)
            total.set(value)
    rows.cut()
    frozen = total.freeze()
    for key in range(0, 3 * count, 2):
        context.set_key(key)
        total.set(3)
    rows.take_oldest(frozen)
    read = {entry.key: entry.value for entry in (total.decode_entry(*row) for row in rows.below.items())}
    assert read == {key: 1 if key < count - 60 else 2 for key in range(count)}


def test_what_is_used_again_and_again_stays_while_others_pass_through() -> None:
    context, rows = a_context(int), RowsInADict()
    total = a_state(context, rows, codec_of(int), lambda: 0, budget=400_000)
    for key in range(1, 20_000):
        context.set_key(key)
        total.get()
        if not key % 50:
            context.set_key(0)
            total.get()
    assert len(rows.reads) == 20_000


def test_a_value_that_expires_is_of_the_declared_type_as_well() -> None:
    context = a_context()
    total: ValueHandle[object] = a_state(context, RowsInADict(), codec_of("int64"), lambda: 0, Ttl("10ms"))
    context.set_key("a")
    with pytest.raises(WrongValueType, match="expected int, got str"):
        total.set("1")
    assert total.freeze().entries() == {}


class Doubled(IntCodec):
    """Version 1 had half of it, in as many bytes."""

    version = 2

    def migrate(self, data: bytes, version: int) -> int:
        return 2 * self.decode(data)


def test_older_versions_among_many_values_are_migrated() -> None:
    context, rows = a_context(int), RowsInADict()
    for keys, codec in (((0, 1), IntCodec()), ((2, 3), Doubled())):
        total = a_state(context, rows, codec, lambda: 0)
        for key in keys:
            context.set_key(key)
            total.set(10)
        rows.take(total.freeze())
    total = a_state(context, rows, Doubled(), lambda: 0)
    total.prefetch(range(4))
    read = []
    for key in range(4):
        context.set_key(key)
        read.append(total.get())
    assert read == [20, 20, 10, 10]
