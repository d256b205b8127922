"""Changed rows: what a state is after them is what a dict would be, and a cut has just what differs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.canonical.by_key import kept_by_key
from statebackend.canonical.changing import RowsChanged, change_rows, table_form
from statebackend.canonical.importing import StateTable, import_tables
from statebackend.canonical.parquet import export
from statebackend.canonical.schema import CanonicalError, DamagedTable, TableMismatch
from statebackend.canonical.source import source_of
from statebackend.canonical.stored_states import as_stored
from statebackend.files import FileSet
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import key_group_of
from statebackend.keys.types import KeyType
from statebackend.options import Options
from statebackend.snapshots.consolidation import Policy
from statebackend.state_reader import StateReader
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import Declaration, ListState, MapState, ValueState
from statebackend.states.ttl import Ttl
from statebackend.tables.values.aggregations import Sum
from tests.canonical_states import KEYS, NAMESPACES, STATES, Workshop, change, content, epoch, operator

Change = tuple[str, str | None, bytes, int]
ONLY_WRITTEN = Options(policy=Policy(rewrites=False))
WINDOW, NO_WINDOW = {"start": 0, "end": 10, "bytes": None}, {"start": 0, "end": None, "bytes": None}

changes = st.lists(
    st.tuples(
        st.sampled_from(sorted(STATES)), st.sampled_from(KEYS), st.sampled_from(NAMESPACES), st.integers(0, 1000)
    ),
    max_size=40,
)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def made(shop: Workshop, some: list[Change]) -> tuple[FileSet, dict[tuple[object, ...], object], dict[str, pa.Table]]:
    """State after these changes: its files, what a program reads in it, and its tables."""
    with shop.opened(operator(16)) as state:
        for one in some:
            change(state, *one)
        state.set_key("always")
        state["number"].set(1)
        files = state.snapshot(epoch(1))
        tables = {table.name: pa.Table.from_batches(table.batches, table.schema) for table in export(state)}
        return files, content([state]), tables


def schema_of(shop: Workshop, files: FileSet) -> Any:
    with StateReader(files, shop.store, shop.folder / "scratch") as reader:
        return reader.schema


def entry(row: dict[str, Any]) -> str:
    """What a row is about."""
    return repr([row.get(name) for name in ("key", "namespace", "map_key", "map_key_encoded", "time")])


def differences(before: pa.Table, after: pa.Table) -> pa.Table:
    """The rows of `after` that are new or other, and those to be taken away: lists as a whole."""
    of_list = "index" in before.schema.names

    def by_entry(table: pa.Table) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in table.to_pylist():
            found.setdefault(entry(row), []).append(row)
        return found

    was, now = by_entry(before), by_entry(after)
    rows = [row | {"deleted": False} for what, some in now.items() if was.get(what) != some for row in some]
    rows += [some[0] | {"deleted": True} for what, some in was.items() if what not in now]
    assert of_list or len({entry(row) for row in rows}) == len(rows)
    schema = before.schema.append(pa.field("deleted", pa.bool_()))
    return pa.Table.from_pylist(rows, schema=schema)


@settings(max_examples=8)
@given(changes, changes)
def test_the_differences_between_two_states_turn_the_one_into_the_other(one: list[Change], other: list[Change]) -> None:
    with TemporaryDirectory() as folder:
        shop = Workshop(Path(folder))
        files, _, tables = made(shop, one)
        _, expected, wanted = made(shop, other)
        declared = as_stored(schema_of(shop, files))
        with shop.opened(declared, files, ONLY_WRITTEN) as state:
            total = RowsChanged()
            for name in STATES:
                total += change_rows(state, name, differences(tables[name], wanted[name]), "changes")
            after = state.snapshot(epoch(2))
        with shop.opened(operator(16), after) as state:
            assert content([state]) == expected
        new = [file for file in after.files if file not in files.files]
        assert len(new) == (total.written > 0)


@settings(max_examples=4)
@given(changes)
def test_what_is_as_it_should_be_already_is_not_written(some: list[Change]) -> None:
    with TemporaryDirectory() as folder:
        shop = Workshop(Path(folder))
        files, _, tables = made(shop, some)
        with shop.opened(as_stored(schema_of(shop, files)), files, ONLY_WRITTEN) as state:
            for name in sorted(STATES):
                assert change_rows(state, name, tables[name], "the same").written == 0
            assert state.snapshot(epoch(2)) == files


def numbers(state: Any, rows: list[dict[str, Any]]) -> RowsChanged:
    return change_rows(state, "number", pa.Table.from_pylist(rows), "changes")


@pytest.fixture
def files(shop: Workshop) -> FileSet:
    return made(shop, [("number", "a", NAMESPACES[0], 1), ("by name", "a", NAMESPACES[0], 0),
                       ("by name", "a", NAMESPACES[0], 1), ("visits/day", "a", NAMESPACES[0], 5)])[0]  # fmt: skip


def test_rows_need_only_their_key_and_value_and_a_null_takes_away(shop: Workshop, files: FileSet) -> None:
    with shop.opened(as_stored(schema_of(shop, files)), files, ONLY_WRITTEN) as state:
        rows: list[dict[str, Any]] = [
            {"key": "a", "value": 7},
            {"key": "ä", "value": 8},
            {"key": "always", "value": None},
        ]
        assert numbers(state, rows) == RowsChanged(added=1, changed=1, removed=1)
        keys = pa.table({"key": ["a"]})
        assert change_rows(state, "by name", keys, "changes") == RowsChanged(removed=2)
        assert change_rows(state, "visits/day", keys, "changes") == RowsChanged(removed=1)
        assert change_rows(state, "visits/day", pa.table({"key": ["nobody"]}), "it") == RowsChanged(unchanged=1)
        optional = pa.table(
            {"key": ["a"], "value": pa.nulls(1, table_form(state, "optional").arrow.field("value").type)}
        )
        assert change_rows(state, "optional", optional, "changes") == RowsChanged(added=1), "None is one of its values"
        after = state.snapshot(epoch(2))
    with shop.opened(operator(16), after) as state:
        found = content([state])
    assert {key: value for key, value in found.items() if key[0] == "number"} == {
        ("number", "a", b""): 7, ("number", "ä", b""): 8,
    }  # fmt: skip
    assert not {"by name", "visits/day"} & {name for name, *_ in found}


@pytest.mark.parametrize(
    ("state", "rows", "error", "sentence"),
    [
        ("number", {"key": ["a", "a"], "value": [1, 2]}, DamagedTable, "row 1, column 'key': the same entry was there"),
        ("number", {"key": ["a", "b", "a"], "value": [1, None, None]}, DamagedTable, "row 2, column 'key': the same e"),
        ("number", {"key": ["a"], "valu": [1]}, TableMismatch, "column 'valu' is none of its table; there are key,"),
        ("number", {"value": [1]}, TableMismatch, "a table of changes has at least the key"),
        ("number", {"key": ["a"], "value": [True]}, TableMismatch, "is of type bool instead of int64"),
        ("number", {"key": ["a"], "value": ["x"]}, TableMismatch, "column 'value' is of type string instead of int64"),
        ("number", {"key": [1], "value": [1]}, DamagedTable, "column 'key': a key declared as string was given as"),
        ("number", {"key": ["a"], "value": [1], "deleted": ["yes"]}, TableMismatch, "expected booleans"),
        ("number", {"key": ["a"], "value": [1], "key_group": [3]}, DamagedTable, "the key is of another group"),
        ("anything", {"key": ["a"], "value": [b"x"]}, DamagedTable, "bytes that begin with a version of it from 1"),
        ("visits/day", {"key": ["a"], "count.count": [3]}, DamagedTable, "column 'cents.value': it is null"),
        ("visits/day", {"key": ["a", "b", "c"], "namespace": [None, WINDOW, WINDOW], "count.count": [3, 3, None],
                        "cents.value": [1, 1, 1], "cents.seen": [1, 1, 1]}, DamagedTable,
         "row 2, column 'count.count': it is null"),
        ("by name", {"key": ["a", "b"], "namespace": [None, NO_WINDOW], "deleted": [True, True]}, DamagedTable,
         "row 1, column 'namespace': it has to be null"),
        ("moments", {"key": ["a"], "index": [None], "deleted": [False]}, None, ""),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused(
    shop: Workshop,
    files: FileSet,
    state: str,
    rows: dict[str, list[Any]],
    error: type[CanonicalError] | None,
    sentence: str,
) -> None:
    with shop.opened(as_stored(schema_of(shop, files)), files, ONLY_WRITTEN) as opened:
        if error is None:
            change_rows(opened, state, pa.table(rows), "changes")
            return
        with pytest.raises(error) as caught:
            change_rows(opened, state, pa.table(rows), "changes")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("changes")


def test_what_takes_the_place_of_an_entry_expires_when_that_did_unless_the_rows_say_otherwise(shop: Workshop) -> None:
    life = Ttl("1000ms", "event")
    states: dict[str, Declaration[Any]] = {
        "text": ValueState(str, ttl=life),
        "list": ListState(int, ttl=life),
        "map": MapState(str, int, ttl=life),
        "table": AggregateTable({"cents": int}, ttl=life, cents=Sum("cents")),
    }
    with shop.opened(operator(16, states)) as state:
        state.advance(watermark=1000)
        state.set_key("a")
        state["text"].set("old")
        state["list"].add(1)
        state["map"].put("x", 1)
        state["table"].update(state.keys(pa.array(["a"])), {"cents": pa.array([5])}, now=1000)
        files = state.snapshot(epoch(1))
    with shop.opened(as_stored(schema_of(shop, files)), files, ONLY_WRITTEN) as state:

        def changed(name: str, **columns: list[Any]) -> RowsChanged:
            return change_rows(state, name, pa.table(columns), "changes")

        both: dict[str, list[Any]] = {"key": ["a", "b"]}
        assert changed("text", **both, value=["old", "new"]) == RowsChanged(added=1, unchanged=1)
        assert changed("text", key=["a"], value=["new"]) == RowsChanged(changed=1)
        assert changed("list", key=["a", "a"], index=[0, 1], value=[1, 2]) == RowsChanged(changed=1)
        assert changed("map", **both, map_key=["x", "x"], value=[2, 2]) == RowsChanged(added=1, changed=1)
        assert changed("table", key=["a"], **{"cents.value": [5], "cents.seen": [1]}) == RowsChanged(unchanged=1)
        of_both: dict[str, list[Any]] = {"cents.value": [6, 6], "cents.seen": [1, 1]}
        assert changed("table", **both, **of_both) == RowsChanged(added=1, changed=1)
        found = {name: expiries(state, name) for name in states}
        never_b = [("a", 2000), ("b", None)]
        assert found == {"text": never_b, "list": [("a", 2000)] * 2, "map": never_b, "table": never_b}
        for name, columns in (("text", {"value": ["new"]}), ("table", {"cents.value": [6], "cents.seen": [1]})):
            assert changed(name, key=["a"], expires_at=[3000], **columns) == RowsChanged(changed=1)
            assert changed(name, key=["a"], expires_at=[3000], **columns) == RowsChanged(unchanged=1)
            assert expiries(state, name)[0] == ("a", 3000)


def test_numbers_are_the_same_if_they_are_stored_the_same(shop: Workshop) -> None:
    declared = operator(16, {"table": AggregateTable({"cents": float}, cents=Sum("cents"))})
    with shop.opened(as_stored(declared.schema())) as state:
        change_rows(state, "table", pa.table({"key": ["a"], "cents.value": [0.0], "cents.seen": [1]}), "changes")
        spec, group = state.schema.state("table"), key_group_of(KeyType.of(str).hash("a"), 16)
        seen = [kept_by_key(source_of(state), spec, group)]
        for value in (-0.0, float("nan"), 0.0):
            rows = pa.table({"key": ["a"], "cents.value": [value], "cents.seen": [1]})
            assert change_rows(state, "table", rows, "changes") == RowsChanged(changed=1)
            assert change_rows(state, "table", rows, "changes") == RowsChanged(unchanged=1)
            seen.append(kept_by_key(source_of(state), spec, group))
            assert kept_by_key(source_of(state), spec, group) == seen[-1]
        assert seen[0] == seen[3]
        assert seen[0] != seen[1] != seen[2] != seen[0]


def expiries(state: KeyedState, name: str) -> list[tuple[str, int | None]]:
    """Each key of a state with when what is kept of it expires."""
    table = next(table for table in export(state) if table.name == name)
    rows = pa.Table.from_batches(table.batches, table.schema)
    return sorted(zip(rows["key"].to_pylist(), rows["expires_at"].to_pylist(), strict=True), key=repr)


def test_a_table_that_says_it_is_of_another_state_is_refused(shop: Workshop, files: FileSet) -> None:
    with shop.opened(as_stored(schema_of(shop, files)), files, ONLY_WRITTEN) as state:
        other = pa.table({"key": ["a"]}).cast(
            pa.schema([("key", pa.string())], table_form(state, "text").arrow.metadata)
        )
        with pytest.raises(TableMismatch, match="it says that it is of state 'text'"):
            change_rows(state, "number", other, "changes")


def test_state_made_of_stored_declarations_exports_what_the_declared_one_does(shop: Workshop) -> None:
    some = [(name, key, NAMESPACES[at % 3], at) for at, name in enumerate(sorted(STATES)) for key in KEYS]
    files, expected, tables = made(shop, some)
    with shop.opened(as_stored(schema_of(shop, files)), files, ONLY_WRITTEN) as state:
        again = [(table.name, table.schema, list(table.batches)) for table in export(state)]
    with shop.opened(operator(5)) as state:
        import_tables((StateTable(name, name, schema, iter(batches)) for name, schema, batches in again), state)
        assert content([state]) == expected
    assert {name for name, *_ in again} == set(tables)
