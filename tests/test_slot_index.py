"""The slot index: the same answers as a dict, whatever the hashes are, and keys told apart by their bytes alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statebackend.keys.columns import KeyColumn
from statebackend.tables.memory.slot_index import ABSENT, SlotIndex

Key = bytes | None

NULL_HASH = 0xFFFF_FFFF_FFFF_FFFF
ALIKE = (0, 1, 7, 0x1_0000_0007, 0x1_0000_0000, 0xFFFF_FFFF_0000_0007, NULL_HASH)
"""Hashes of which some share a home, some a bucket, and some all that an entry has of them."""


def spread(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def alike(key: bytes) -> int:
    return ALIKE[sum(key) % len(ALIKE)]


def equal(key: bytes) -> int:
    return 5


def column(keys: Sequence[Key], hashed: Callable[[bytes], int] = spread, before: bytes = b"") -> KeyColumn:
    """The keys as a batch, with a width if they have one, and with some bytes before the first."""
    null = np.array([key is None for key in keys], dtype=np.bool_)
    widths = {len(key) for key in keys if key is not None}
    width = widths.pop() if len(widths) == 1 else None
    content = [key if key is not None else bytes(width or 0) for key in keys]
    offsets = np.cumsum([len(before), *map(len, content)])
    hashes = [NULL_HASH if key is None else hashed(key) for key in keys]
    return KeyColumn(
        np.frombuffer(before + b"".join(content), dtype=np.uint8),
        offsets.astype(np.int64),
        np.array(hashes, dtype=np.uint64),
        width,
        null if null.any() else None,
    )


def keys_in(keys: KeyColumn) -> list[Key]:
    return [keys.key(index) for index in range(len(keys))]


def numbers(values: Iterable[int]) -> list[Key]:
    return [value.to_bytes(8, "little") for value in values]


class AgainstADict(RuleBasedStateMachine):
    """An index and a dict that are told the same."""

    any_key = st.none() | st.binary(max_size=3) | st.sampled_from([b"", bytes(8), bytes(9), b"x" * 80])
    uniform_key = st.binary(min_size=2, max_size=2)

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[Key, int] = {}
        self.before = b""

    @initialize(
        capacity=st.sampled_from([1, 100]),
        hashed=st.sampled_from([spread, alike, equal]),
        before=st.sampled_from([b"", b"abc"]),
    )
    def begin(self, capacity: int, hashed: Callable[[bytes], int], before: bytes) -> None:
        self.index = SlotIndex(capacity)
        self.hashed = hashed
        self.before = before

    def batch(self, keys: Sequence[Key]) -> KeyColumn:
        return column(keys, self.hashed, self.before)

    @rule(keys=st.lists(uniform_key, max_size=40) | st.lists(any_key, max_size=40))
    def find(self, keys: list[Key]) -> None:
        assert self.index.find(self.batch(keys)).tolist() == [self.slots.get(key, ABSENT) for key in keys]

    @rule(keys=st.lists(uniform_key, max_size=40) | st.lists(any_key, max_size=40))
    def add(self, keys: list[Key]) -> None:
        slots, added = self.index.find_or_add(self.batch(keys))
        new = {key: slot for key, slot in zip(keys, slots.tolist(), strict=True) if key not in self.slots}
        assert sorted(new.values()) == sorted(added.tolist())
        assert not set(new.values()) & set(self.slots.values())
        self.slots |= new
        assert slots.tolist() == [self.slots[key] for key in keys]

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), most=st.sampled_from([1, 5, 1000]))
    def remove(self, data: st.DataObject, most: int) -> None:
        known = sorted(self.slots, key=lambda key: self.slots[key])
        keys = data.draw(st.lists(st.sampled_from(known), max_size=most, unique=True)) if most < 1000 else known[1:]
        self.index.remove(np.array([self.slots.pop(key) for key in keys], dtype=np.int64))

    @rule(more=st.sampled_from([0, 1, 500]))
    def reserve(self, more: int) -> None:
        self.index.reserve(more)

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.slots.clear()
        assert self.index.slot_limit == 0

    @invariant()
    def has_what_the_dict_has(self) -> None:
        slots = sorted(self.slots.values())
        assert len(self.index) == len(self.slots)
        assert self.index.occupied().tolist() == slots
        assert self.index.slot_limit > max(slots, default=-1)
        by_slot = {slot: key for key, slot in self.slots.items()}
        keys = self.index.keys_at(np.array(slots[::-1], dtype=np.int64))
        assert keys_in(keys) == [by_slot[slot] for slot in slots[::-1]]
        expected = [NULL_HASH if by_slot[slot] is None else self.hashed(by_slot[slot] or b"") for slot in slots[::-1]]
        assert keys.hashes.tolist() == self.index.hashes[slots[::-1]].tolist() == expected


TestAgainstADict = AgainstADict.TestCase


def test_different_keys_with_equal_hashes_have_different_slots() -> None:
    index = SlotIndex()
    keys = column(numbers(range(30)), equal)
    slots, added = index.find_or_add(keys)
    assert sorted(slots.tolist()) == sorted(added.tolist()) == list(range(30))
    assert index.find(keys).tolist() == slots.tolist()
    assert index.find(column(numbers([31]), equal)).tolist() == [ABSENT]


def test_a_new_key_that_comes_several_times_has_one_slot() -> None:
    index = SlotIndex()
    slots, added = index.find_or_add(column([b"a", b"b", None, b"a", None]))
    assert slots[0] == slots[3]
    assert slots[2] == slots[4]
    assert sorted(added.tolist()) == sorted(slots[:3].tolist()) == [0, 1, 2]


def test_the_slots_of_removed_keys_are_used_again_before_new_ones() -> None:
    index = SlotIndex()
    slots, _ = index.find_or_add(column(numbers(range(100))))
    index.remove(slots[10:20])
    _, added = index.find_or_add(column(numbers(range(200, 215))))
    assert set(slots[10:20].tolist()) < set(added.tolist())
    assert index.slot_limit == 105


def test_slots_not_in_use_cannot_be_removed_and_nothing_is() -> None:
    index = SlotIndex()
    slots, _ = index.find_or_add(column([b"a", b"b"]))
    index.remove(slots[1:])
    for wrong in ([1], [0, 1], [ABSENT], [7]):
        with pytest.raises(ValueError, match="not in use"):
            index.remove(np.array(wrong, dtype=np.int64))
    assert index.find(column([b"a", b"b"])).tolist() == [0, ABSENT]


@pytest.mark.parametrize("before", [0, 10])
def test_after_room_was_reserved_nothing_grows_during_a_bulk_load(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index = SlotIndex()
    index.find_or_add(column(numbers(range(before))))
    index.reserve(100_000)
    hashes = index.hashes
    with monkeypatch.context() as patched:
        patched.delattr("statebackend.tables.memory.slot_index.SlotTable")
        for first in range(before, before + 100_000, 10_000):
            index.find_or_add(column(numbers(range(first, first + 10_000))))
    assert index.hashes is hashes
    assert len(index) == before + 100_000


def test_nothing_is_lost_while_the_table_and_the_arrays_grow_in_steps() -> None:
    index, random = SlotIndex(1), np.random.default_rng(1)
    slot_of: dict[Key, int] = {}
    for first in range(0, 60_000, 300):
        batch = numbers(range(first, first + 300))
        slots, _ = index.find_or_add(column(batch))
        slot_of.update(zip(batch, slots.tolist(), strict=True))
        gone = [key for key in batch if random.random() < 0.2]
        index.remove(np.array([slot_of.pop(key) for key in gone], dtype=np.int64))
        assert (index.find(column(gone)) == ABSENT).all()
        known = list(slot_of)
        some = [known[at] for at in random.integers(len(known), size=50)]
        assert index.find(column(some)).tolist() == [slot_of[key] for key in some]
    assert index.find(column(list(slot_of))).tolist() == list(slot_of.values())
    assert keys_in(index.keys_at(np.array(list(slot_of.values())))) == list(slot_of)


def test_a_batch_much_larger_than_the_table_comes_while_a_larger_one_is_filled() -> None:
    index = SlotIndex(1024)
    index.find_or_add(column(numbers(range(1030))))
    many = column(numbers(range(20_000)))
    slots, _ = index.find_or_add(many)
    assert index.find(many).tolist() == slots.tolist()
    assert sorted(slots.tolist()) == list(range(20_000))


def test_keys_that_differ_only_by_zeros_at_the_end_are_different() -> None:
    index = SlotIndex()
    keys = column([bytes(width) for width in range(20)], equal)
    slots, _ = index.find_or_add(keys)
    assert sorted(slots.tolist()) == list(range(20))
    assert index.find(keys).tolist() == slots.tolist()


def test_keys_removed_while_a_larger_table_is_filled_are_not_found_afterwards() -> None:
    index = SlotIndex(1024)
    slots, _ = index.find_or_add(column(numbers(range(1000))))
    index.find_or_add(column(numbers(range(1000, 1100))))  # nearly half of the table is moved
    index.remove(slots)
    for first in range(1100, 1500, 10):
        index.find_or_add(column(numbers(range(first, first + 10))))
        assert (index.find(column(numbers(range(1000)))) == ABSENT).all()


def test_a_table_of_which_most_keys_were_removed_takes_as_many_again() -> None:
    index = SlotIndex(100_000)
    slots, _ = index.find_or_add(column(numbers(range(131_000))))  # it is nearly half full
    index.remove(slots)
    for first in range(200_000, 300_000, 500):
        index.find_or_add(column(numbers(range(first, first + 500))))
    assert len(index) == 100_000
    assert (index.find(column(numbers(range(200_000, 300_000)))) != ABSENT).all()


def test_a_slot_given_twice_is_removed_once() -> None:
    index = SlotIndex()
    slots, _ = index.find_or_add(column([b"a", b"b"]))
    index.remove(slots[[1, 0, 1]])
    assert len(index) == 0
    _, added = index.find_or_add(column([b"c", b"d"]))
    assert sorted(added.tolist()) == [0, 1]


def test_removed_keys_do_not_fill_the_table() -> None:
    index = SlotIndex(64)
    for first in range(0, 20_000, 50):
        slots, _ = index.find_or_add(column(numbers(range(first, first + 50))))
        index.remove(slots)
        assert index.find(column(numbers([first]))).tolist() == [ABSENT]
    assert index.slot_limit == 50
    assert index.memory_bytes() < 10_000


def test_another_thread_reads_keys_while_others_of_other_widths_are_added() -> None:
    index = SlotIndex(1)
    expected = numbers(range(1000))
    slots, _ = index.find_or_add(column(expected))
    done = threading.Event()

    def read() -> int:
        times = 0
        while not (done.is_set() and times):
            assert keys_in(index.keys_at(slots)) == expected
            times += 1
        return times

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            for first in range(1000, 50_000, 1000):
                index.find_or_add(column(numbers(range(first, first + 1000))))
            for first in range(0, 20_000, 1000):
                index.find_or_add(column([b"key-%d" % number for number in range(first, first + 1000)]))
        finally:
            done.set()
        assert reading.result() > 0


def test_memory_does_not_grow_while_keys_come_and_go() -> None:
    index = SlotIndex()
    held = []
    for first in range(0, 200_000, 5_000):
        keys = [b"key-%d" % number for number in range(first, first + 5_000)]
        slots, _ = index.find_or_add(column(keys))
        held.append(index.memory_bytes())
        assert keys_in(index.keys_at(slots[:3])) == keys[:3]
        index.remove(slots[:-1])
    assert len(index) == 40
    assert max(held[10:]) <= 1.5 * max(held[:10])


def test_the_memory_of_a_cleared_index_is_given_back() -> None:
    index = SlotIndex()
    empty = index.memory_bytes()
    index.find_or_add(column(numbers(range(10_000))))
    assert index.memory_bytes() > empty + 80_000
    index.clear()
    assert index.memory_bytes() == empty
