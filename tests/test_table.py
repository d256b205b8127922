"""A table against a plain dictionary: through cuts, restores, rescales and consolidation, with memory for few keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from statebackend import entries
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn, decode_keys, key_column
from statebackend.keys.types import KeyType
from statebackend.tables import loader as loader_module
from statebackend.tables.format import blocks
from statebackend.tables.memory import read_ahead_rows
from statebackend.tables.memory.frozen import FrozenTable
from statebackend.tables.memory.space import TableSpace
from statebackend.tables.memory.touches import TouchClock
from statebackend.tables.table import Table
from statebackend.tables.values.accumulators import Accumulator
from statebackend.tables.values.aggregations import Accumulators, Aggregation, Count, First, Last, Max, Slots, Sum
from statebackend.tables.values.spec import ForeignKeys, Layout, TableError, TableSpec

GROUPS = 4
ALL = KeyGroupRange(KeyGroup(0), KeyGroup(GROUPS))
TEXT = KeyType.of(str)
KEYS = (None, "", "a", "b", "cc", "dddddddd", "eeeeeeee", "ffffffffffffffff", "g" * 80, "h" * 80, "i" * 81)
NAMESPACES = (b"", b"\x00\x01", b"window")
TTL = 10

Key = str | None


class DictStore:
    """Entries in a dictionary."""

    def __init__(self, found: Mapping[bytes, bytes] | None = None) -> None:
        self.entries = dict(found or {})
        self.early: dict[bytes, bytes] = {}
        self.scans: list[bytes] = []

    def put(self, name: bytes, payload: bytes) -> None:
        self.entries[name] = self.early[name] = payload

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.scans.append(start)
        return iter([(name, self.entries[name]) for name in sorted(self.entries) if start <= name < end])

    def put_since_the_last_cut(self) -> dict[bytes, bytes]:
        early, self.early = self.early, {}
        return early


def spec(ttl: int | None = None) -> TableSpec:
    outputs = {
        "rows": Count(),
        "total": Sum("value").over(pa.int64()),
        "first": First("value").over(pa.int64()),
        "latest": Last("value").over(pa.float64()),
        "greatest": Max("text").over(pa.string()),
        "raw": Last("raw").over(pa.binary()),
    }
    return TableSpec("clicks", outputs, ttl)


def table(
    store: DictStore, groups: KeyGroupRange = ALL, max_slots: int = 1000, of: TableSpec | None = None, epoch: int = 0
) -> Table:
    return Table(spec() if of is None else of, TEXT, groups, GROUPS, store, max_slots, restored_epoch=epoch)


def column(keys: Sequence[Key]) -> KeyColumn:
    return key_column(pa.array(keys, pa.string()), TEXT)


def values(*given: int | None) -> dict[str, pa.Array]:
    texts = pa.array([None if value is None else text_of(value) for value in given], pa.string())
    return {"value": pa.array(given, pa.int64()), "text": texts, "raw": texts.cast(pa.binary())}


def text_of(value: int) -> str:
    """Another text for each value, in another order; one is empty, some are long."""
    return chr(ord("k") - value % 7) * (value % 5) + "\u00e9\0"[: value % 3]


@dataclass(frozen=True)
class Expected:
    """What a key has come to."""

    rows: int = 0
    total: int | None = None
    first: int | None = None
    latest: float | None = None
    greatest: str | None = None
    raw: bytes | None = None
    expires: int = 0

    def updated(self, value: int | None, expires: int) -> Expected:
        if value is None:
            return replace(self, rows=self.rows + 1, expires=expires)
        first, text = value if self.first is None else self.first, text_of(value)
        greatest = text if self.greatest is None else max(self.greatest, text)
        total = (self.total or 0) + value
        return Expected(self.rows + 1, total, first, float(value), greatest, text.encode(), expires)

    def row(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "expires"}


NOTHING = dict.fromkeys(("rows", "total", "first", "latest", "greatest", "raw"))
Model = dict[tuple[bytes, Key], Expected]


@dataclass
class Cut:
    """A cut that has still to become durable."""

    number: int
    frozen: list[FrozenTable]
    early: dict[bytes, bytes]
    model: Model


Batch = list[tuple[Key, int | None]]

namespaces = st.sampled_from(NAMESPACES)
batches = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(-5, 5)), max_size=8)
work = st.lists(st.tuples(namespaces, batches), min_size=1, max_size=5)
some_keys = st.lists(st.sampled_from(KEYS), max_size=4)


class TableMachine(RuleBasedStateMachine):
    """Once it was begun: does the same to tables that divide the key groups and to a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.model: Model = {}
        self.cuts: list[Cut] = []
        self.durable_blocks: dict[bytes, bytes] = {}
        self.durable_epoch = 0
        self.durable_model: Model = {}

    def begin(self, max_slots: int, ttl: int | None, pace: int) -> None:
        self.max_slots = max_slots
        self.ttl = ttl
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(read_ahead_rows, "_FOR_EACH", pace)
        self.restart(1)

    def teardown(self) -> None:
        self.patched.undo()

    def time(self) -> int | None:
        return None if self.ttl is None else self.now

    def expected(self, namespace: bytes, key: Key) -> dict[str, object]:
        found = self.live(namespace, key)
        return NOTHING if found is None else found.row()

    def live(self, namespace: bytes, key: Key) -> Expected | None:
        found = self.model.get((namespace, key))
        return None if found is None or (self.ttl is not None and found.expires <= self.now) else found

    def routed(self, keys: Sequence[Key]) -> list[tuple[Table, list[int]]]:
        """Each table with the keys that belong to it, by their place."""
        groups = column(keys).groups(GROUPS).tolist()
        return [
            (one, [at for at, group in enumerate(groups) if group in groups_of])
            for one, groups_of in zip(self.tables, self.ranges, strict=True)
        ]

    # --- what is done -------------------------------------------------------------------------------------------------

    @rule(some=work)
    def update(self, some: list[tuple[bytes, Batch]]) -> None:
        for namespace, batch in some:
            self.update_one(batch, namespace)

    @rule(some=work, more=work, keys=some_keys, drop=st.booleans(), partitions=st.integers(0, 3))
    def update_across_cuts(
        self,
        some: list[tuple[bytes, Batch]],
        more: list[tuple[bytes, Batch]],
        keys: list[Key],
        drop: bool,
        partitions: int,
    ) -> None:
        """What goes wrong takes several steps in this order most often."""
        self.update(some)
        self.freeze()
        self.wait(TTL // 2)
        self.remove(keys, some[0][0])
        if drop:
            self.drop(some[-1][0])
        self.update(more)
        self.wait(TTL // 2)
        self.update(some)
        if partitions:
            self.restart_from_now(partitions, consolidate=partitions == 1)
            self.read_all()

    @rule(some=work, more=work, keys=some_keys, partitions=st.integers(1, 3), ahead=st.booleans())
    def update_what_waits(
        self,
        some: list[tuple[bytes, Batch]],
        more: list[tuple[bytes, Batch]],
        keys: list[Key],
        partitions: int,
        ahead: bool,
    ) -> None:
        """Keys of groups that are not in memory yet, which go on to be cut, removed, loaded and read."""
        self.update(some)
        self.restart_from_now(partitions, consolidate=False)
        if ahead:
            self.read_ahead()
        self.update(more)
        self.restart_from_now(partitions, consolidate=ahead)
        self.read(keys, some[0][0])
        self.update(more)
        self.freeze()
        self.load_more()
        self.remove(keys, more[0][0])
        self.read_all()

    def restart_from_now(self, partitions: int, *, consolidate: bool) -> None:
        self.freeze()
        while self.cuts:
            self.persist(consolidate=consolidate, keep=False)
        self.restart(partitions)

    def update_one(self, batch: Batch, namespace: bytes) -> None:
        for key, value in batch:
            before = self.live(namespace, key) or Expected()
            self.model[namespace, key] = before.updated(value, self.now + TTL)
        for one, places in self.routed([key for key, _ in batch]):
            keys = [batch[at][0] for at in places]
            slots = one.update(column(keys), values(*(batch[at][1] for at in places)), namespace, self.time())
            assert one.results(slots, namespace).to_pylist() == [self.expected(namespace, key) for key in keys]
            assert len(one) <= self.max_slots + len(set(keys))

    @rule(keys=some_keys, namespace=namespaces)
    def remove(self, keys: list[Key], namespace: bytes) -> None:
        for key in keys:
            self.model.pop((namespace, key), None)
        for one, places in self.routed(keys):
            one.remove(column([keys[at] for at in places]), namespace)

    @rule(namespace=namespaces)
    def drop(self, namespace: bytes) -> None:
        self.model = {at: found for at, found in self.model.items() if at[0] != namespace}
        for one in self.tables:
            one.drop(namespace)

    @rule(by=st.integers(1, TTL))
    def wait(self, by: int) -> None:
        self.now += by

    @rule()
    def remove_expired(self) -> None:
        for one in self.tables:
            one.remove_expired(self.now)

    @rule()
    def read_ahead(self) -> None:
        for one in self.tables:
            one.read_ahead()

    @rule()
    def load_more(self) -> None:
        for one in self.tables:
            one.load_more()

    @rule()
    def load(self) -> None:
        for one in self.tables:
            one.load(lambda: True)

    @rule()
    def freeze(self) -> None:
        self.number += 1
        frozen = [one.freeze(self.number) for one in self.tables]
        self.cuts.append(Cut(self.number, frozen, self.store.put_since_the_last_cut(), dict(self.model)))

    @rule(consolidate=st.booleans(), keep=st.booleans())
    def persist(self, consolidate: bool, keep: bool) -> None:
        """What runs in the background: the oldest cut becomes durable."""
        if not self.cuts:
            return
        cut = self.cuts[0] if keep else self.cuts.pop(0)
        written = dict(pair for frozen in cut.frozen for pair in frozen.blocks())
        if keep:
            return
        assert not written.keys() & cut.early.keys()
        self.durable_blocks |= cut.early | written
        self.durable_epoch, self.durable_model = cut.number, cut.model
        if consolidate:
            self.durable_blocks = consolidated(self.durable_blocks)
        waiting = [self.store.early, *(later.early for later in self.cuts)]
        self.store.entries = {name: payload for early in waiting for name, payload in early.items()}
        self.store.entries |= self.durable_blocks

    @rule(partitions=st.integers(1, 3))
    def restart(self, partitions: int) -> None:
        edges = [at * GROUPS // partitions for at in range(partitions + 1)]
        self.ranges = [KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in pairwise(edges)]
        self.store = DictStore(self.durable_blocks)
        self.tables = [
            table(self.store, groups, self.max_slots, spec(self.ttl), self.durable_epoch) for groups in self.ranges
        ]
        self.model = dict(self.durable_model)
        self.cuts = []

    # --- what is seen -------------------------------------------------------------------------------------------------

    @rule(keys=some_keys, namespace=namespaces)
    def read(self, keys: list[Key], namespace: bytes) -> None:
        for one, places in self.routed(keys):
            wanted = [keys[at] for at in places]
            found = one.read(column(wanted), namespace, self.time())
            assert found.to_pylist() == [self.expected(namespace, key) for key in wanted]

    @rule()
    def read_all(self) -> None:
        for namespace in NAMESPACES:
            self.read_namespace(namespace)

    def read_namespace(self, namespace: bytes) -> None:
        found: list[tuple[Key, dict[str, object]]] = []
        for one in self.tables:
            read = one.keys_and_results(namespace, self.time())
            assert canonical(read.keys)
            assert canonical(one.accumulators(namespace).keys)
            found += zip(decode_keys(read.keys, TEXT).to_pylist(), read.results.to_pylist(), strict=True)
        alive = [key for of, key in self.model if of == namespace and self.live(of, key) is not None]
        assert sorted(found, key=repr) == sorted(((key, self.expected(namespace, key)) for key in alive), key=repr)

    @rule()
    def read_namespaces(self) -> None:
        for one in self.tables:
            assert list(one.namespaces()) == sorted(one.namespaces())
        found = set().union(*(one.namespaces() for one in self.tables))
        assert {namespace for namespace, key in self.model if self.live(namespace, key) is not None} <= found


def canonical(keys: KeyColumn) -> bool:
    """True if the keys ascend by hash, and then by bytes with null first."""
    order = [(int(of), key is not None, key or b"") for of, key in zip(keys.hashes, keys.keys(), strict=True)]
    return order == sorted(order)


def consolidated(written: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """One block of each group and namespace in place of all."""
    alike: dict[bytes, list[bytes]] = {}
    for name in sorted(written):
        alike.setdefault(entries.block_place(name), []).append(name)
    return {
        names[-1]: payload
        for names in alike.values()
        for payload in blocks.merge([written[name] for name in names], "a test")
    }


class AnyTableMachine(TableMachine):
    """Begins with nothing, and with memory for few keys or many."""

    @initialize(max_slots=st.sampled_from([1, 3, 1000]), ttl=st.sampled_from([None, TTL]), pace=st.sampled_from([0, 8]))
    def begin_anew(self, max_slots: int, ttl: int | None, pace: int) -> None:
        self.begin(max_slots, ttl, pace)


class WaitingMachine(TableMachine):
    """Begins with all keys in the blocks and none in memory, and leaves them there until they are asked for."""

    @initialize(max_slots=st.sampled_from([10, 1000]), ttl=st.sampled_from([None, TTL]), batch=batches)
    def begin_waiting(self, max_slots: int, ttl: int | None, batch: Batch) -> None:
        self.begin(max_slots, ttl, 0)
        self.update([(namespace, [(key, 1) for key in KEYS]) for namespace in NAMESPACES])
        self.restart_from_now(1, consolidate=False)
        self.update([(namespace, batch) for namespace in NAMESPACES])
        self.restart_from_now(1, consolidate=False)


TestTableMachine = AnyTableMachine.TestCase
TestTableMachine.settings = settings(stateful_step_count=20)
TestWaitingMachine = WaitingMachine.TestCase
TestWaitingMachine.settings = settings(stateful_step_count=12)


# --- one thing at a time ----------------------------------------------------------------------------------------------


def many(number: int) -> list[Key]:
    return [f"key-{at:06}" for at in range(number)]


def filled(store: DictStore, keys: Sequence[Key], max_slots: int = 1000) -> Table:
    one = table(store, max_slots=max_slots)
    one.update(column(keys), values(*range(len(keys))))
    return one


def test_a_cut_has_only_what_changed_since_the_last_one() -> None:
    one = filled(DictStore(), many(100))
    assert sum(len(blocks.decode(payload, "").keys) for _, payload in one.freeze(1).blocks()) == 100
    one.update(column(["key-000003", "key-000003"]), values(1, 2))
    ((_, payload),) = one.freeze(2).blocks()
    block = blocks.decode(payload, "")
    assert block.keys.to_pylist() == [b"key-000003"]
    assert {name: column.tolist() for name, column in block.columns.items()} == {
        "rows.count": [3],
        "total.value": [6],
        "total.seen": [1],
        "first.value": [3],
        "first.seen": [1],
        "latest.value": [2.0],
        "latest.seen": [1],
        "greatest.value": [max(map(text_of, (1, 2, 3)))],
        "greatest.seen": [1],
        "raw.value": [text_of(2).encode()],
        "raw.seen": [1],
    }
    assert one.freeze(3).blocks() == []


def test_what_nearly_all_changed_in_is_written_whole_and_could_be_a_base() -> None:
    one = filled(DictStore(), many(100))
    one.read(column(many(100)))
    frozen = one.freeze(1)
    assert frozen.covers == (ALL,)
    one.update(column(many(90)), values(*range(90)))
    frozen = one.freeze(2)
    assert frozen.covers == (ALL,)
    found = [blocks.decode(payload, "") for _, payload in frozen.blocks()]
    assert all(block.whole for block in found)
    assert sum(len(block.keys) for block in found) == 100
    one.update(column(many(50)), values(*range(50)))
    frozen = one.freeze(3)
    assert frozen.covers == ()
    assert not any(blocks.decode(payload, "").whole for _, payload in frozen.blocks())


def test_a_frozen_table_does_not_see_what_comes_after_it() -> None:
    one = filled(DictStore(), many(100))
    frozen = one.freeze(1)
    one.remove(column(many(50)))
    one.update(column([f"new-{at:06}" for at in range(60)]), values(*range(60)))
    one.drop()
    found = [blocks.decode(payload, "") for _, payload in frozen.blocks()]
    totals = {
        key: total
        for block in found
        for key, total in zip(block.keys.to_pylist(), block.columns["total.value"].tolist(), strict=True)
    }
    assert totals == {str(key).encode(): at for at, key in enumerate(many(100))}


def test_a_window_that_came_and_went_between_two_cuts_leaves_nothing() -> None:
    one = table(DictStore())
    one.update(column(["a", "b"]), values(1, 2), b"window")
    one.drop(b"window")
    assert one.freeze(1).blocks() == []
    assert one.namespaces() == ()


def test_a_window_that_is_done_is_persisted_as_one_small_block_for_each_group_that_it_had_keys_of() -> None:
    one = table(DictStore())
    one.update(column(many(100)), values(*range(100)), b"window")
    before = {name[: -entries.STAMP.size] for name, _ in one.freeze(1).blocks()}
    one.drop(b"window")
    cleared = one.freeze(2).blocks()
    assert {name[: -entries.STAMP.size] for name, _ in cleared} == before
    assert all(blocks.decode(payload, "").keys.to_pylist() == [] for _, payload in cleared)
    assert one.freeze(3).blocks() == []


def test_keys_are_loaded_when_they_are_first_asked_for_and_the_others_of_their_groups_by_and_by() -> None:
    store = DictStore(dict(filled(DictStore(), many(1000)).freeze(1).blocks()))
    one = table(store)
    assert one.read(column(["key-000000", "key-000007"])).to_pylist()[1]["total"] == 7
    assert len(one) == 2
    in_memory = [len(one)]
    while in_memory[-1] < 1000:
        one.update(column(many(12)), values(*[0] * 12))
        in_memory.append(len(one))
    assert in_memory[1] < 100
    assert len(in_memory) <= 1000 // (8 * 12) + 3
    assert len(one.keys_and_results().keys) == 1000


def test_what_was_read_ahead_is_loaded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_READ_AHEAD_TOGETHER", 100)
    store = DictStore(dict(filled(DictStore(), many(1000)).freeze(1).blocks()))
    one = table(store)
    one.read_ahead()
    assert len(one) == 0
    reads = len(store.scans)
    in_memory = [0]
    while one.load_more():
        in_memory.append(len(one))
    assert all(before < after for before, after in pairwise(in_memory))
    assert (len(in_memory), len(one), len(store.scans)) == (GROUPS, 1000, reads)
    assert one.memory_bytes() < 2 * filled(DictStore(), many(1000)).memory_bytes()


def test_a_cut_while_keys_wait_leaves_them_to_the_blocks_that_they_are_in() -> None:
    store = DictStore(dict(filled(DictStore(), many(1000)).freeze(1).blocks()))
    one = table(store, epoch=1)
    one.update(column(["key-000000"]), values(5))  # all that is in memory has changed
    frozen = one.freeze(2)
    store.entries |= dict(frozen.blocks())
    again = table(store, epoch=2)
    assert len(again.keys_and_results().keys) == 1000
    assert again.read(column(["key-000000", "key-000001"])).to_pylist()[0]["total"] == 5


def test_no_more_is_read_ahead_than_memory_has_room_for() -> None:
    store = DictStore(dict(filled(DictStore(), many(400)).freeze(1).blocks()))
    one = table(store, max_slots=250)
    one.read_ahead()
    while one.load_more():
        pass
    assert 100 < len(one) <= 250


def test_keys_that_came_while_others_wait_do_not_push_these_out_of_memory_unseen() -> None:
    store = DictStore(dict(filled(DictStore(), many(100)).freeze(1).blocks()))
    one = table(store, max_slots=120)
    one.read(column(["key-000000"]))
    for first in range(200, 400, 10):
        batch = [f"key-{at:06}" for at in range(first, first + 10)]
        one.update(column(batch), values(*range(10)))
    assert one.read(column(many(100))).column("total").to_pylist() == list(range(100))
    assert len(one.keys_and_results().keys) == 300


def test_memory_holds_no_more_keys_than_it_may_and_one_batch() -> None:
    store = DictStore()
    one = table(store, max_slots=100)
    for first in range(0, 1000, 50):
        keys = [f"key-{at:06}" for at in range(first, first + 50)]
        one.update(column(keys), values(*range(first, first + 50)))
        assert len(one) <= 150
    kept = one.accumulators()
    assert sorted(decode_keys(kept.keys, TEXT).to_pylist()) == many(1000)
    assert one.read(column(["key-000007"])).to_pylist()[0]["total"] == 7


def test_what_was_not_used_for_longest_leaves_memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    one = filled(DictStore(), many(80), max_slots=80)
    one.freeze(1)
    one.read(column(many(58)))
    one.update(column(["new"]), values(1))
    one.update(column(["newer"]), values(1))
    assert len(one) == 61

    def refused(*_: object) -> bytes:
        raise AssertionError("the disk is read")

    monkeypatch.setattr(os, "pread", refused)
    assert one.read(column([*many(58), "new", "newer"]))["rows"].to_pylist() == [1] * 60
    with pytest.raises(AssertionError, match="the disk is read"):
        one.read(column(many(59)))


def test_keys_of_other_partitions_are_refused() -> None:
    low = KeyGroupRange(KeyGroup(0), KeyGroup(2))
    one = table(DictStore(), low)
    keys = column(many(100))
    foreign = int((keys.groups(GROUPS) >= 2).sum())
    with pytest.raises(ForeignKeys, match=rf"{foreign} of 100 keys .* 'clicks' are not of its key groups \[0, 2\)"):
        one.update(keys, values(*range(100)))
    with pytest.raises(ForeignKeys):
        one.read(keys)


def test_a_batch_without_a_column_that_is_needed_or_with_too_few_rows_is_refused() -> None:
    one = table(DictStore())
    with pytest.raises(TableError, match="needs column 'value'; given are other"):
        one.update(column(["a"]), {"other": pa.array([1])})
    with pytest.raises(TableError, match="has 2 rows, and there are 1 keys"):
        one.update(column(["a"]), values(1, 2))
    assert len(one) == 0


def test_a_table_with_a_time_to_live_has_to_be_told_the_time() -> None:
    one = table(DictStore(), of=spec(TTL))
    with pytest.raises(TableError, match="give `now`"):
        one.update(column(["a"]), values(1))
    assert len(one) == 0


def test_a_table_is_declared_with_an_output_a_positive_time_to_live_and_some_memory() -> None:
    with pytest.raises(TableError, match="no output"):
        TableSpec("empty", {})
    with pytest.raises(TableError, match="is positive"):
        spec(0)
    with pytest.raises(TableError, match="at least one"):
        table(DictStore(), max_slots=0)


def test_blocks_of_a_table_that_was_declared_otherwise_are_refused_with_state_group_and_epoch() -> None:
    store = DictStore(dict(filled(DictStore(), ["a"]).freeze(17).blocks()))
    other = table(store, of=TableSpec("clicks", {"rows": Count()}))
    with pytest.raises(blocks.DamagedBlock, match=r"state 'clicks', key group \d, epoch 17"):
        other.read(column(["a"]))


def test_a_block_under_the_name_of_another_group_is_refused() -> None:
    ((name, payload),) = filled(DictStore(), ["a"]).freeze(1).blocks()
    group = entries.group_of(name)
    misplaced = entries.block((group + 1) % GROUPS, entries.parse_head(name)[1], b"", 1)
    with pytest.raises(blocks.DamagedBlock, match="keys of another key group"):
        table(DictStore({misplaced: payload})).keys_and_results()


class SumOfSquares(Aggregation):
    """A user's own aggregation."""

    name = "sum of squares"
    version = 3
    accumulators = {"squares": Accumulator.of(np.float64)}  # noqa: RUF012

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        assert values is not None
        np.add.at(accumulators["squares"], slots, values.to_numpy(zero_copy_only=False).astype(np.float64) ** 2)

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        return pa.array(accumulators["squares"][slots])


def test_users_bring_their_own_aggregations() -> None:
    own = TableSpec("own", {"squares": SumOfSquares("value")})
    one = table(DictStore(), of=own)
    one.update(column(["a", "b", "a"]), values(3, 5, 4))
    restored = table(DictStore(dict(one.freeze(1).blocks())), of=own)
    assert restored.read(column(["a", "b"]))["squares"].to_pylist() == [25.0, 25.0]
    assert own.declared == {"squares": "sum of squares version 3 (squares: float64)"}


def test_blocks_are_made_in_another_thread_while_keys_of_all_widths_come_and_go() -> None:
    one = table(DictStore(), max_slots=100_000)
    with ThreadPoolExecutor(1) as background:
        for epoch in range(1, 6):
            one.update(column(many(20_000)), values(*range(20_000)))
            made = background.submit(one.freeze(epoch).blocks)
            for turn in range(10):
                mixed = [f"{epoch}-{at}" + "x" * (at % 50) for at in range(turn * 100, turn * 100 + 100)]
                one.update(column(mixed), values(*range(100)))
                one.remove(column(many(20_000)[turn::20]))
            found = [blocks.decode(payload, "").keys.to_pylist() for _, payload in made.result()]
            assert {str(key).encode() for key in many(20_000)} <= {key for keys in found for key in keys}
            assert all(key.decode().startswith(("key-", "1-", "2-", "3-", "4-")) for keys in found for key in keys)


def test_memory_is_counted() -> None:
    one = table(DictStore(), max_slots=100_000)
    one.update(column(many(10_000)), values(*range(10_000)))
    assert 10_000 * 100 < one.memory_bytes() < 10_000 * 350


def test_keys_leave_memory_only_when_nothing_is_noted_to_go_back_to() -> None:
    text, all_groups = KeyType.of(str), KeyGroupRange.of_all(16)
    layout, clock = Layout("clicks", {"n.count": Accumulator.of(np.int64)}, text, all_groups, 16), TouchClock()
    space = TableSpace(layout, clock)
    slots, _ = space.find_or_add(key_column(pa.array(["a", "b"]), text))
    with pytest.raises(AssertionError, match="would come back with a rewind"):
        space.evict(slots)
    clock.kept = clock.interval + 1
    space.evict(slots)
    assert len(space) == 0
