"""An epoch is read from outside: what it was when it was cut, whatever the job does, and only by reading."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from statebackend.backends.backend import BackendError
from statebackend.canonical.importing import import_tables
from statebackend.canonical.parquet import read_parquet, write_parquet
from statebackend.files import FileSet, rescaled, union
from statebackend.ids import Attempt, Partition
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import range_of
from statebackend.keys.types import BrokenKey, WrongKeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.state_reader import StateReader, UnreadableState
from statebackend.states.codecs import Codec, IntCodec, Migrated, Pickled, StrCodec
from statebackend.states.declarations import MapState, ValueState
from statebackend.states.key_context import ForeignKey
from statebackend.states.schema import StateMismatch
from tests.canonical_states import KEYS, NAMESPACES, STATES, Workshop, change, content, epoch, operator
from tests.fuzz.state import forged, from_outside, state_as_stored

COUNTS = Operator("count", str, {"number": ValueState(int, default=0)})


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def filled(state: KeyedState) -> None:
    for number, name in enumerate(sorted(STATES)):
        for at, key in enumerate(KEYS):
            change(state, name, key, NAMESPACES[(number + at) % 3], number + at)


def numbers(reader: StateReader) -> dict[str, int]:
    table = reader.table("number")
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def set_number(state: KeyedState, key: str, number: int) -> None:
    state.set_key(key)
    state["number"].set(number)


def test_an_epoch_that_nobody_declares_becomes_parquet_and_state_again(shop: Workshop) -> None:
    with shop.opened(operator(16)) as state:
        filled(state)
        files = state.snapshot(epoch(1))
        expected = content([state])
    with StateReader(files, shop.store, shop.folder / "scratch") as reader:
        assert {spec.name for spec in reader.states()} == set(STATES)
        write_parquet(reader, shop.folder / "out")
    with shop.opened(operator(5), options=Options("rocksdb")) as other:
        import_tables(read_parquet(shop.folder / "out"), other)
        assert content([other]) == expected


def test_keys_of_tables_that_memory_has_no_room_for_are_read(shop: Workshop) -> None:
    with shop.opened(operator(16), options=Options("heap", memory=1 << 12)) as state:
        keys = [f"key-{number}" for number in range(2000)]
        for start in range(0, 2000, 100):
            some = pa.array(keys[start : start + 100])
            state["visits/day"].update(state.keys(some), {"cents": pa.array(range(start, start + 100))})
        files = state.snapshot(epoch(1))
    with StateReader(files, shop.store, shop.folder / "scratch") as reader:
        table = reader.table("visits/day")
        found = dict(zip(table["key"].to_pylist(), table["cents.value"].to_pylist(), strict=True))
        assert found == {key: number for number, key in enumerate(keys)}
        one = reader.table("visits/day", key="key-7")
        assert one.select(["key", "count.count", "cents.value"]).to_pylist() == [
            {"key": "key-7", "count.count": 1, "cents.value": 7}
        ]


def test_a_job_that_writes_on_and_cuts_does_not_show_in_an_open_epoch(shop: Workshop) -> None:
    with shop.opened(COUNTS) as state:
        set_number(state, "a", 1)
        files = state.snapshot(epoch(1))
        state.completed(epoch(1))
        with StateReader(files, shop.store, shop.folder / "scratch") as reader:
            for number in range(2, 6):
                set_number(state, "a", number)
                set_number(state, f"key-{number}", number)
                files = state.snapshot(epoch(number))
                state.completed(epoch(number))
                assert numbers(reader) == {"a": 1}
        with StateReader(files, shop.store, shop.folder / "scratch") as reader:
            assert numbers(reader) == {"a": 5} | {f"key-{number}": number for number in range(2, 6)}


def test_reading_writes_nothing_and_leaves_nothing_behind(shop: Workshop) -> None:
    with shop.opened(COUNTS) as state:
        set_number(state, "a", 1)
        files = state.snapshot(epoch(1))
    before = shop.store.list()
    scratch = shop.folder / "scratch"
    reader = StateReader(files, shop.store, scratch)
    assert numbers(reader) == {"a": 1}
    assert any(scratch.iterdir())
    reader.close()
    assert list(scratch.iterdir()) == []
    assert shop.store.list() == before
    with pytest.raises(UnreadableState, match="closed"):
        reader.table("number")


def test_a_snapshot_folder_is_read_at_any_parallelism(shop: Workshop) -> None:
    folder = SnapshotFolder(shop.store, "count")
    generation = folder.begin()
    now = folder.next_epoch(generation)
    parts: dict[Partition, FileSet] = {}
    for number in range(3):
        partition = Partition(number)
        groups = range_of(partition, 3, COUNTS.max_parallelism)
        names = SnapshotFolder.names(generation, partition, Attempt(number))
        with KeyedState(COUNTS, shop.fresh("part"), shop.store, names, groups=groups) as state:
            for key in range(30):
                try:
                    set_number(state, f"key-{key}", key)
                except ForeignKey:
                    continue
            parts[partition] = state.snapshot(now)
    folder.complete(now, parts)
    snapshot = folder.latest()
    assert snapshot is not None
    assert snapshot == folder.read(now)
    expected = {f"key-{key}": key for key in range(30)}
    with StateReader.of(snapshot, shop.store, shop.folder / "scratch") as reader:
        assert numbers(reader) == expected
    read: dict[str, int] = {}
    for number in range(2):
        groups = range_of(Partition(number), 2, COUNTS.max_parallelism)
        with StateReader.of(snapshot, shop.store, shop.folder / "scratch", groups=groups) as reader:
            some = numbers(reader)
            assert not some.keys() & read.keys()
            read |= some
            foreign = next(key for key in expected if key not in some)
            with pytest.raises(ForeignKey, match="were opened"):
                reader.table("number", key=foreign)
    assert read == expected
    assert rescaled(parts.values(), COUNTS.all_groups) == union(parts.values())


def test_single_keys_are_looked_up_in_every_kind_of_state(shop: Workshop) -> None:
    with shop.opened(operator(16)) as state:
        filled(state)
        files = state.snapshot(epoch(1))
    with StateReader(files, shop.store, shop.folder / "scratch") as reader:
        for name in STATES:
            whole = reader.table(name, expired=True)
            for key in (None, "a", "key-3"):
                wanted = [row for row in whole.to_pylist() if row["key"] == key]
                assert wanted
                assert reader.table(name, key=key, expired=True).to_pylist() == wanted
            assert reader.table(name, key="nobody", expired=True).num_rows == 0
        with pytest.raises(WrongKeyType):
            reader.table("number", key=1)
        with pytest.raises(StateMismatch, match="'nothing'"):
            reader.table("nothing")


def test_expired_entries_are_shown_only_if_they_are_asked_for(shop: Workshop) -> None:
    with shop.opened(operator(16)) as state:
        state.advance(watermark=0, processing_time=1)
        for name in ("text", "by pair", "mean"):
            change(state, name, "a", NAMESPACES[0], 1)
        files = state.snapshot(epoch(1))
    with StateReader(files, shop.store, shop.folder / "scratch") as reader:
        for name, end in (("text", 1000), ("by pair", 501), ("mean", 101)):
            rows = [reader.table(name, now=now).num_rows for now in (end - 1, end)]
            assert rows == [1, 0], name
            assert reader.table(name, expired=True)["expires_at"].to_pylist() == [end]
        assert reader.table("by pair").num_rows == 0
        with pytest.raises(UnreadableState, match="'text' expires in a time"):
            reader.table("text")


@pytest.mark.parametrize("codec", [Pickled[object](), Migrated(StrCodec(), IntCodec(), str)])
def test_what_only_a_program_can_read_is_bytes_unless_it_is_declared(shop: Workshop, codec: Codec[object]) -> None:
    declared = Operator("count", str, {"state": ValueState(codec), "map": MapState(str, int)})
    with shop.opened(declared) as state:
        state.set_key("a")
        state["state"].set("value")
        state["map"].put("x", 1)
        files = state.snapshot(epoch(1))
    with StateReader(files, shop.store, shop.folder / "scratch") as reader:
        (data,) = reader.table("state")["value"].to_pylist()
        assert data == bytes([codec.version]) + codec.encode("value")
        assert reader.table("map")["value"].to_pylist() == [1]
        with pytest.raises(UnreadableState, match="declare the state"):
            reader.entries("state")
    only = Operator("count", str, {"state": ValueState(codec)})
    with StateReader(files, shop.store, shop.folder / "scratch", only) as reader:
        assert [(entry.key, entry.value) for entry in reader.entries("state", key="a")] == [("a", "value")]
        assert reader.table("map")["value"].to_pylist() == [1]
    with pytest.raises(StateMismatch, match="'state'"):
        StateReader(files, shop.store, shop.folder / "scratch", Operator("count", str, {"state": ValueState(float)}))
    assert list((shop.folder / "scratch").iterdir()) == []


def test_a_damaged_or_missing_file_leaves_no_scratch(shop: Workshop) -> None:
    with shop.opened(COUNTS) as state:
        set_number(state, "a", 1)
        files = state.snapshot(epoch(1))
    (file,) = files.files
    whole = shop.store.read(file.path)
    for damaged in (whole[:-9], bytes([whole[0] ^ 1]) + whole[1:], None):
        shop.store.delete(file.path)
        if damaged is not None:
            shop.store.write(file.path, damaged)
        with pytest.raises(BackendError, match=file.path):
            StateReader(files, shop.store, shop.folder / "scratch")
        assert list((shop.folder / "scratch").iterdir()) == []


def test_a_key_that_is_no_text_is_named_and_not_given_out(shop: Workshop) -> None:
    files = forged(shop, {name.replace(b"key-1", b"key-\xff"): value for name, value in state_as_stored()})
    with pytest.raises(BrokenKey, match=r"state '\w+': a key is none of string: .*Invalid UTF8"):
        from_outside(shop, files)


def test_where_no_file_is_yet_there_is_nothing_to_read(shop: Workshop) -> None:
    files = FileSet(COUNTS.all_groups)
    with pytest.raises(UnreadableState, match="no file"):
        StateReader(files, shop.store, shop.folder / "scratch")
    with StateReader(files, shop.store, shop.folder / "scratch", COUNTS) as reader:
        assert reader.table("number").num_rows == 0
