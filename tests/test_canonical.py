"""The canonical form: whatever is exported and imported is equal state, and whatever is none is refused by name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.canonical.importing import (
    Imported,
    KeysOutside,
    Outside,
    StateNotEmpty,
    StateTable,
    import_tables,
)
from statebackend.canonical.parquet import export, read_parquet, write_parquet
from statebackend.canonical.schema import CanonicalError, DamagedTable, ForeignTable, NewerTable, TableMismatch
from statebackend.ids import Partition
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import range_of
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.states.codecs import Codec, IntCodec, Migrated, StrCodec
from statebackend.states.declarations import ListState, MapState, ValueState
from tests.canonical_states import KEYS, NAMESPACES, STATES, Workshop, change, content, epoch, operator

GOLDEN = Path(__file__).parent / "golden" / "canonical-v1"

changes = st.lists(
    st.tuples(
        st.sampled_from(sorted(STATES)), st.sampled_from(KEYS), st.sampled_from(NAMESPACES), st.integers(0, 1000)
    ),
    max_size=60,
)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def filled(state: KeyedState, every: int = 1) -> None:
    """Some of everything."""
    for number, name in enumerate(sorted(STATES)):
        for at, key in enumerate(KEYS):
            change(state, name, key, NAMESPACES[(number + at) % 3], number + at * every)


def test_every_kind_of_state_comes_back_equal_on_another_backend_and_max_parallelism(shop: Workshop) -> None:
    with shop.opened(operator(16)) as state:
        filled(state)
        written = write_parquet(state, shop.folder / "out")
        expected = content([state])
    assert {path.name for path in written} >= {"number.parquet", "visits%2Fday.parquet", "by name.parquet"}
    with shop.opened(operator(7), options=Options("rocksdb")) as other:
        assert import_tables(read_parquet(shop.folder / "out"), other).skipped == 0
        files = other.snapshot(epoch(1))
    with shop.opened(operator(7), files, Options("rocksdb")) as restored:
        assert content([restored]) == expected
    assert {name for name, *_ in expected} == set(STATES)


@settings(max_examples=15)
@given(changes, changes, st.integers(1, 3), st.booleans(), st.booleans())
def test_what_is_exported_and_imported_is_equal_whatever_was_done(
    before: list[tuple[str, str | None, bytes, int]],
    after: list[tuple[str, str | None, bytes, int]],
    parallelism: int,
    cut: bool,
    completed: bool,
) -> None:
    with TemporaryDirectory() as folder:
        shop = Workshop(Path(folder))
        small = Options("heap", memory=1 << 14)
        with shop.opened(operator(), options=small) as state:
            for one in before:
                change(state, *one)
            if cut:
                state.snapshot(epoch(1))
                if completed:
                    state.completed(epoch(1))
            for one in after:
                change(state, *one)
            state.poll()
            tables = [(table.name, table.place, table.schema, list(table.batches)) for table in export(state)]
            expected = content([state])
        states = []
        for partition in range(parallelism):
            groups = range_of(Partition(partition), parallelism, 5)
            with shop.opened(operator(5), groups=groups) as part:
                again = (StateTable(name, place, schema, iter(all_)) for name, place, schema, all_ in tables)
                import_tables(again, part, outside=Outside.SKIP)
                states.append(part.snapshot(epoch(1)))
        read: dict[tuple[object, ...], object] = {}
        for files in states:
            with shop.opened(operator(5), files) as part:
                read |= content([part])
        assert read == expected


def test_an_open_state_is_exported_as_it_is_while_cuts_are_on_their_way(shop: Workshop) -> None:
    with shop.opened(Operator("count", str, {"number": ValueState(int, default=0)})) as state:
        for number in range(4):
            state.set_key(f"key-{number}")
            state["number"].set(number)
        state.cut(epoch(1))
        state.set_key("key-1")
        state["number"].set(100)
        state.set_key("key-2")
        state["number"].clear()
        state.cut(epoch(2))
        state.set_key("key-3")
        state["number"].set(300)
        (table,) = export(state)
        rows = {row["key"]: row["value"] for batch in table.batches for row in batch.to_pylist()}
    assert rows == {"key-0": 0, "key-1": 100, "key-3": 300}


def test_a_table_is_for_people(shop: Workshop) -> None:
    with shop.opened(operator()) as state:
        change(state, "by name", "a", NAMESPACES[1], 1)
        state.advance(watermark=50)
        change(state, "text", "a", NAMESPACES[2], 1)
        change(state, "visits/day", "a", NAMESPACES[0], 42)
        change(state, "timers", "a", NAMESPACES[0], 77)
        rows = {table.name: [row for batch in table.batches for row in batch.to_pylist()] for table in export(state)}
    (group,) = {row["key_group"] for found in rows.values() for row in found}
    window = {"start": -5, "end": 5, "bytes": None}
    assert rows["by name"] == [
        {"key": "a", "namespace": window, "map_key": "text", "map_key_encoded": None, "value": 1 / 3}
        | {"key_group": group, "expires_at": None}
    ]
    assert rows["text"] == [
        {"key": "a", "namespace": {"start": None, "end": None, "bytes": b"\x00ns"}, "value": "text"}
        | {"value_encoded": None, "key_group": group, "expires_at": 1050}
    ]
    assert rows["visits/day"] == [
        {"key": "a", "namespace": None, "count.count": 1, "cents.value": 42, "cents.seen": 1}
        | {"key_group": group, "expires_at": None}
    ]
    assert rows["timers"] == [{"key": "a", "namespace": None, "time": 77, "key_group": group}]


def test_expiries_are_what_they_were(shop: Workshop) -> None:
    with shop.opened(operator()) as state:
        change(state, "text", "never", NAMESPACES[0], 1)
        state.advance(watermark=50)
        change(state, "text", "a", NAMESPACES[0], 1)
        write_parquet(state, shop.folder / "out")
    with shop.opened(operator()) as other:
        import_tables(read_parquet(shop.folder / "out"), other)
        read = []
        for watermark in (1049, 1050):
            other.advance(watermark=watermark)
            for key in ("a", "never"):
                other.set_key(key)
                read.append(other["text"].get())
    assert read == ["text", "text", None, "text"]


def test_elements_that_are_added_after_an_import_come_behind(shop: Workshop) -> None:
    declared = Operator("count", str, {"list": ListState(int)})
    with shop.opened(declared) as state:
        state.set_key("a")
        state["list"].extend([3, 1, 2])
        write_parquet(state, shop.folder / "out")
    path = shop.folder / "out" / "list.parquet"
    table = parquet.read_table(path)
    assert table.column("index").to_pylist() == [0, 1, 2]
    parquet.write_table(table.take([2, 0, 1]), path)  # somebody has sorted it otherwise
    with shop.opened(declared) as other:
        import_tables(read_parquet(shop.folder / "out"), other)
        other.set_key("a")
        other["list"].add(4)
        assert other["list"].get() == [3, 1, 2, 4]


# --- versions of codecs ----------------------------------------------------------------------------------------------


class Celsius(Codec[float]):
    """A codec of somebody's own."""

    name = "celsius"
    version = 2

    def encode(self, value: float) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> float:
        return float(data)

    def migrate(self, data: bytes, version: int) -> float:
        assert version == 1
        return float(data) / 10


class OldCelsius(Celsius):
    """Tenths, once."""

    version = 1

    def encode(self, value: float) -> bytes:
        return str(round(value * 10)).encode()

    def decode(self, data: bytes) -> float:
        return float(data) / 10


@pytest.mark.parametrize(
    ("before", "value", "after", "expected"),
    [
        (OldCelsius(), 3.5, Celsius(), 3.5),
        (IntCodec(), 1 << 70, Migrated(StrCodec(), IntCodec(), str), str(1 << 70)),
        (IntCodec(), 7, Migrated(StrCodec(), IntCodec(), str), "7"),
    ],
)
def test_older_versions_of_a_codec_are_migrated(
    shop: Workshop, before: Codec[object], value: object, after: Codec[object], expected: object
) -> None:
    with shop.opened(Operator("count", str, {"state": ValueState(before)})) as state:
        state.set_key("a")
        state["state"].set(value)
        write_parquet(state, shop.folder / "out")
    with shop.opened(Operator("count", str, {"state": ValueState(after)})) as other:
        import_tables(read_parquet(shop.folder / "out"), other)
        files = other.snapshot(epoch(1))
    with shop.opened(Operator("count", str, {"state": ValueState(after)}), files) as restored:
        restored.set_key("a")
        assert restored["state"].get() == expected


# --- what is refused --------------------------------------------------------------------------------------------------

ONE = Operator("count", str, {"map": MapState(str, int)})


@pytest.fixture
def out(shop: Workshop) -> Path:
    """A folder with the table of one map."""
    with shop.opened(ONE) as state:
        for key in ("a", "b", None):
            state.set_key(key)
            state["map"].put("x", 1)
        write_parquet(state, shop.folder / "out")
    return shop.folder / "out"


def rewritten(out: Path, table: pa.Table) -> None:
    parquet.write_table(table, out / "map.parquet")


def refused(shop: Workshop, out: Path, kind: type[CanonicalError], declared: Operator = ONE) -> str:
    with shop.opened(declared) as state, pytest.raises(kind) as caught:
        import_tables(read_parquet(out), state)
    return str(caught.value)


def test_state_that_is_not_empty_takes_no_tables(shop: Workshop, out: Path) -> None:
    with shop.opened(ONE) as state:
        assert import_tables(read_parquet(out), state) == Imported(3, 0)
        with pytest.raises(StateNotEmpty, match="count has state already"):
            import_tables(read_parquet(out), state)


def test_keys_of_other_partitions_are_refused_unless_they_are_to_be_skipped(shop: Workshop, out: Path) -> None:
    taken = []
    for partition in range(128):
        groups = range_of(Partition(partition), 128, 128)
        with shop.opened(ONE, groups=groups) as state:
            taken.append(import_tables(read_parquet(out), state, outside=Outside.SKIP))
    assert sum(one.rows for one in taken) == 3
    assert sum(one.skipped for one in taken) == 127 * 3
    lonely = next(partition for partition, one in enumerate(taken) if one.rows == 0)
    with (
        shop.opened(ONE, groups=range_of(Partition(lonely), 128, 128)) as state,
        pytest.raises(KeysOutside, match=r"map\.parquet, state 'map' of count: 3 of 3 keys"),
    ):
        import_tables(read_parquet(out), state)


def test_a_wrong_row_is_named_by_its_place_in_the_table_also_if_others_are_skipped(shop: Workshop, out: Path) -> None:
    rows = parquet.read_table(out / "map.parquet").to_pylist()
    schema = parquet.read_schema(out / "map.parquet")
    rewritten(out, pa.Table.from_pylist([*rows[:-1], rows[-1] | {"value": None}], schema))
    last = rows[-1]["key_group"]
    assert last not in [row["key_group"] for row in rows[:-1]]
    groups = range_of(Partition(last), 128, 128)
    with shop.opened(ONE, groups=groups) as state, pytest.raises(DamagedTable, match="row 2, column 'value'"):
        import_tables(read_parquet(out), state, outside=Outside.SKIP)


def test_a_file_that_is_cut_short_is_refused_by_its_name(shop: Workshop, out: Path) -> None:
    path = out / "map.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert "map.parquet is no whole Parquet file" in refused(shop, out, DamagedTable)


def test_a_file_with_a_flipped_bit_is_refused_or_taken_and_nothing_else(shop: Workshop, out: Path) -> None:
    path = out / "map.parquet"
    whole = path.read_bytes()
    messages = []
    for at in range(4, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with shop.opened(ONE) as state:
            try:
                import_tables(read_parquet(out), state)
            except CanonicalError as error:
                messages.append(str(error))
    assert messages
    assert all("map.parquet" in message for message in messages)


def test_a_table_without_our_metadata_is_foreign(shop: Workshop, out: Path) -> None:
    rewritten(out, parquet.read_table(out / "map.parquet").replace_schema_metadata(None))
    assert "map.parquet is no table of state" in refused(shop, out, ForeignTable)


@pytest.mark.parametrize(("version", "kind"), [(b"2", NewerTable), (b"x", DamagedTable), (b"0", DamagedTable)])
def test_another_version_of_the_format_is_refused(
    shop: Workshop, out: Path, version: bytes, kind: type[CanonicalError]
) -> None:
    table = parquet.read_table(out / "map.parquet")
    rewritten(out, table.replace_schema_metadata(dict(table.schema.metadata) | {b"epochcut.canonical": version}))
    assert "map.parquet" in refused(shop, out, kind)


def test_a_table_of_another_operator_is_foreign(shop: Workshop, out: Path) -> None:
    message = refused(shop, out, ForeignTable, Operator("other", str, ONE.states))
    assert "map.parquet, state 'map' of count" in message
    assert "other" in message


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"list": ListState(int)}, "no such state"),
        ({"map": ValueState(int)}, "kind"),
        ({"map": MapState(int, int)}, "map keys"),
        ({"map": MapState(str, float)}, "codec"),
    ],
)
def test_a_table_of_a_state_that_is_declared_otherwise_is_refused(
    shop: Workshop,
    out: Path,
    states: dict[str, ListState[int] | ValueState[int | None] | MapState[str, int]],
    words: str,
) -> None:
    message = refused(shop, out, TableMismatch, Operator("count", str, states))
    assert "map.parquet" in message
    assert "'map'" in message
    assert words in message


def test_another_key_type_is_refused(shop: Workshop, out: Path) -> None:
    assert "key type was string" in refused(shop, out, TableMismatch, Operator("count", int, ONE.states))


@pytest.mark.parametrize("column", ["key", "namespace", "map_key", "value", "value_encoded", "key_group", "expires_at"])
def test_a_missing_column_is_refused_by_its_name(shop: Workshop, out: Path, column: str) -> None:
    rewritten(out, parquet.read_table(out / "map.parquet").drop_columns([column]))
    message = refused(shop, out, DamagedTable)
    assert "map.parquet, state 'map' of count" in message
    assert repr(column) in message


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    metadata = table.schema.field(at).metadata
    return table.set_column(at, pa.field(name, values.type, metadata=metadata), values)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("key", pa.array([1, 2, 3])),
        ("map_key", pa.array([1, 2, 3])),
        ("map_key", pa.array([None, "x", "x"])),
        ("value", pa.array(["1", "2", "3"])),
        ("value", pa.array([1.5, 2.0, 3.0])),
        ("value", pa.array([1, None, 3])),
        ("value_encoded", pa.array([b"\x09junk", None, None])),
        ("key_group", pa.array([1, 2, 3], pa.uint16())),
        ("expires_at", pa.array([None, 5, None], pa.int64())),
        ("namespace", pa.array([{"start": 5, "end": 1, "bytes": None}] * 3)),
        ("namespace", pa.array([{"start": 1, "end": None, "bytes": b""}] * 3)),
    ],
)
def test_a_column_that_says_something_impossible_is_refused_by_its_name(
    shop: Workshop, out: Path, column: str, values: pa.Array
) -> None:
    rewritten(out, with_column(parquet.read_table(out / "map.parquet"), column, values))
    message = refused(shop, out, DamagedTable)
    assert "map.parquet, state 'map' of count" in message
    assert repr(column.removesuffix("_encoded")) in message


def test_an_entry_that_is_there_twice_is_refused(shop: Workshop, out: Path) -> None:
    table = parquet.read_table(out / "map.parquet")
    rewritten(out, pa.concat_tables([table, table]))
    assert "the same entry" in refused(shop, out, DamagedTable)


def test_rows_that_other_tools_have_written_in_other_widths_are_taken(shop: Workshop, out: Path) -> None:
    table = parquet.read_table(out / "map.parquet")
    table = with_column(table, "key", table.column("key").cast(pa.large_string()).combine_chunks().dictionary_encode())
    table = with_column(table, "map_key", table.column("map_key").cast(pa.large_string()).combine_chunks())
    table = with_column(table, "key_group", pa.nulls(3))
    rewritten(out, table)
    with shop.opened(ONE) as state:
        assert import_tables(read_parquet(out), state).rows == 3
        state.set_key("b")
        assert state["map"].get("x") == 1


# --- golden files -----------------------------------------------------------------------------------------------------


def test_files_of_format_version_1_stay_readable(shop: Workshop) -> None:
    with shop.opened(operator(3)) as state:
        import_tables(read_parquet(GOLDEN), state)
        read = content([state])
    with shop.opened(operator(16)) as fresh:
        filled(fresh)
        assert read == content([fresh])


@pytest.mark.parametrize(
    ("declared", "keys"),
    [
        (int, [0, -1, (1 << 63) - 1, None]),
        (pa.uint64(), [0, (1 << 64) - 1]),
        (float, [0.0, -1.5, float("inf"), None]),
        (bool, [True, False, None]),
        (bytes, [b"", b"\x00\xff"]),
        (pa.binary(3), [b"abc"]),
        (date, [date(1969, 12, 31), None]),
        (pa.timestamp("s"), [datetime(2026, 1, 1), None]),
        (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC)]),
        (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-3.00")]),
        ((str, int), [("a", 1), ("", None), None]),
        (pa.struct([("x", pa.string()), ("y", pa.float32())]), [("a", 1.5)]),
        (type(None), [None]),
    ],
)
def test_keys_of_every_type_come_back(shop: Workshop, declared: object, keys: list[object]) -> None:
    one = Operator("count", declared, {"number": ValueState(int, default=0)})
    with shop.opened(one) as state:
        for number, key in enumerate(keys, 1):
            state.set_key(key)
            state["number"].set(number)
        write_parquet(state, shop.folder / "out")
    with shop.opened(one) as other:
        assert import_tables(read_parquet(shop.folder / "out"), other).rows == len(keys)
        for number, key in enumerate(keys, 1):
            other.set_key(key)
            assert other["number"].get() == number
