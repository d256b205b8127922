"""A table against a plain dictionary: through cuts, restores, rescales and consolidation, with memory for few keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statebackend import blocks, entries
from statebackend.aggregations import Count, First, Last, Sum
from statebackend.frozen_table import FrozenTable
from statebackend.ids import KeyGroup
from statebackend.key_columns import KeyColumn, decode_keys, key_column
from statebackend.key_types import KeyType
from statebackend.keygroups import KeyGroupRange
from statebackend.table import Table
from statebackend.table_spec import Aggregated, TableSpec

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

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        return [self.entries.get(name) for name in names]

    def put(self, name: bytes, payload: bytes) -> None:
        self.entries[name] = payload

    def delete(self, name: bytes) -> None:
        del self.entries[name]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(name, self.entries[name]) for name in sorted(self.entries) if start <= name < end])

    def of_form(self, form: int) -> dict[bytes, bytes]:
        return {name: payload for name, payload in self.entries.items() if entries.parse_head(name)[2] == form}


def spec(ttl: int | None = None) -> TableSpec:
    outputs = {
        "rows": Aggregated(Count()),
        "total": Aggregated(Sum(int), "value"),
        "first": Aggregated(First(int), "value"),
        "latest": Aggregated(Last(float), "value"),
    }
    return TableSpec("clicks", outputs, ttl)


def table(store: DictStore, groups: KeyGroupRange = ALL, max_slots: int = 1000, of: TableSpec | None = None) -> Table:
    return Table(spec() if of is None else of, TEXT, groups, GROUPS, store, max_slots)


def column(keys: Sequence[Key]) -> KeyColumn:
    return key_column(pa.array(keys, pa.string()), TEXT)


def values(*given: int | None) -> dict[str, pa.Array]:
    return {"value": pa.array(given, pa.int64())}


@dataclass(frozen=True)
class Expected:
    """What a key has come to."""

    rows: int = 0
    total: int | None = None
    first: int | None = None
    latest: float | None = None
    expires: int = 0

    def updated(self, value: int | None, expires: int) -> Expected:
        if value is None:
            return Expected(self.rows + 1, self.total, self.first, self.latest, expires)
        first = value if self.first is None else self.first
        return Expected(self.rows + 1, (self.total or 0) + value, first, float(value), expires)

    def row(self) -> dict[str, object]:
        return {"rows": self.rows, "total": self.total, "first": self.first, "latest": self.latest}


NOTHING = dict.fromkeys(("rows", "total", "first", "latest"))
Model = dict[tuple[bytes, Key], Expected]


@dataclass
class Cut:
    """A cut that has still to become durable."""

    number: int
    frozen: list[FrozenTable]
    rows: dict[bytes, bytes]
    model: Model


Batch = list[tuple[Key, int | None]]

namespaces = st.sampled_from(NAMESPACES)
batches = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(-5, 5)), max_size=8)
work = st.lists(st.tuples(namespaces, batches), min_size=1, max_size=5)
some_keys = st.lists(st.sampled_from(KEYS), max_size=4)


class TableMachine(RuleBasedStateMachine):
    """Does the same to tables that divide the key groups and to a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.model: Model = {}
        self.cuts: list[Cut] = []
        self.durable_blocks: dict[bytes, bytes] = {}
        self.durable_rows: dict[bytes, bytes] = {}
        self.durable_model: Model = {}

    @initialize(max_slots=st.sampled_from([1, 3, 1000]), ttl=st.sampled_from([None, TTL]))
    def begin(self, max_slots: int, ttl: int | None) -> None:
        self.max_slots = max_slots
        self.ttl = ttl
        self.restart(1)

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

    @rule(some=work, more=work, keys=some_keys, partitions=st.integers(0, 3))
    def update_across_a_cut(
        self, some: list[tuple[bytes, Batch]], more: list[tuple[bytes, Batch]], keys: list[Key], partitions: int
    ) -> None:
        """What goes wrong takes several steps in this order most often."""
        self.update(some)
        self.freeze()
        self.remove(keys, some[0][0])
        self.update(more)
        if partitions:
            while self.cuts:
                self.persist(consolidate=partitions == 1, keep=False)
            self.restart(partitions)
            self.read_all()

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
    def freeze(self) -> None:
        self.number += 1
        frozen = [one.freeze(self.number) for one in self.tables]
        self.cuts.append(Cut(self.number, frozen, self.store.of_form(entries.ROW), dict(self.model)))

    @rule(consolidate=st.booleans(), keep=st.booleans())
    def persist(self, consolidate: bool, keep: bool) -> None:
        """What runs in the background: the oldest cut becomes durable."""
        if not self.cuts:
            return
        cut = self.cuts[0] if keep else self.cuts.pop(0)
        written = dict(pair for frozen in cut.frozen for pair in frozen.blocks())
        if keep:
            return
        self.durable_blocks |= written
        self.durable_rows, self.durable_model = cut.rows, cut.model
        if consolidate:
            self.durable_blocks = consolidated(self.durable_blocks)
        for name in self.store.of_form(entries.BLOCK):
            del self.store.entries[name]
        self.store.entries |= self.durable_blocks

    @rule(partitions=st.integers(1, 3))
    def restart(self, partitions: int) -> None:
        edges = [at * GROUPS // partitions for at in range(partitions + 1)]
        self.ranges = [KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in pairwise(edges)]
        self.store = DictStore(self.durable_blocks | self.durable_rows)
        self.tables = [table(self.store, groups, self.max_slots, spec(self.ttl)) for groups in self.ranges]
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
            found += zip(decode_keys(read.keys, TEXT).to_pylist(), read.results.to_pylist(), strict=True)
        alive = [key for of, key in self.model if of == namespace and self.live(of, key) is not None]
        assert sorted(found, key=repr) == sorted(((key, self.expected(namespace, key)) for key in alive), key=repr)

    @rule()
    def read_namespaces(self) -> None:
        found = set().union(*(one.namespaces() for one in self.tables))
        assert {namespace for namespace, key in self.model if self.live(namespace, key) is not None} <= found

    @invariant()
    def no_key_is_in_memory_and_in_a_row(self) -> None:
        rows = self.store.of_form(entries.ROW)
        known = {entries.parse_row(name)[1::-1] for name in rows}
        keys_of = {(of, TEXT.encode(key)) for of, key in self.model}
        if self.ttl is None:
            assert known <= keys_of


def consolidated(written: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """One block of each group and namespace in place of all."""
    alike: dict[bytes, list[bytes]] = {}
    for name in sorted(written):
        alike.setdefault(name[: -entries.STAMP.size], []).append(name)
    merged = {names[-1]: blocks.merge([written[name] for name in names], "a test") for names in alike.values()}
    return {name: payload for name, payload in merged.items() if payload is not None}


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(stateful_step_count=30)
