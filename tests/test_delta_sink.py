"""Delta tables: rows appear with one entry of the table's log, once, whatever happens to the table or to us."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from snapshot import ToDelta
from snapshot.connectors.delta.columns import FoundDelta, misfits
from snapshot.connectors.delta.table import DataFile, DeltaPlace, DeltaToken, schema_json, token_of
from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.epochs.transaction_events import CommitOutcome, parse_transaction_id, transaction_id
from snapshot.ids import JobId
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkError
from snapshot.structured.query import SinkQuery
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, DONE, SCHEMA, SinkEnvironment, SinkTrial, attempt, settled, some
from statebackend.ids import Partition, Uid
from statebackend.stores.memory_store import MemoryStore
from tests import delta_sink_worker
from tests.delta_sink_worker import STEPS
from tests.file_sink_worker import JOB, UID, context, read_journal, rows_of
from tests.sql_bench import CHANGES, SqlBench, change
from tests.survey import wait_for_pieces, watched


def in_log(folder: Path | str) -> list[str]:
    """The data files that the table has, read from the log's JSON alone."""
    files: list[str] = []
    for entry in sorted((Path(folder) / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files.append(action["add"]["path"])
            elif "remove" in action:
                files.remove(action["remove"]["path"])
    return files


def read(folder: Path | str) -> pa.Table:
    """As somebody reads who knows the format and nothing else."""
    columns = DeltaTable(folder).to_pyarrow_table().schema
    tables = [pq.read_table(Path(folder) / name) for name in in_log(folder)]
    return pa.concat_tables([columns.empty_table(), *tables])


@contextmanager
def gone(folder: Path) -> Iterator[None]:
    """The file system is not mounted for a while."""
    away = folder.with_name("away")
    folder.rename(away)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        away.rename(folder)


def trial(root: Path, roll_bytes: int = 64 << 20) -> SinkTrial:
    folder = root / "table"
    sink = ToDelta(str(folder), roll_bytes=roll_bytes, storage_options={"secret": "not to be seen"})

    def make() -> None:
        wait_for_pieces()
        shutil.rmtree(folder, ignore_errors=True)
        DeltaTable.create(folder, SCHEMA)

    def visible(_: SinkEnvironment) -> Sequence[str]:
        rows: list[str] = read(folder)["row"].to_pylist()
        assert sorted(rows) == sorted(DeltaTable(folder).to_pyarrow_table()["row"].to_pylist())
        return rows

    def pending(job: JobId) -> int:
        left = {path.name for path in folder.glob("*.parquet")} - set(in_log(folder))
        transactions = {token.transaction for token in map(token_of, left) if token is not None}
        return len([one for one in transactions if parse_transaction_id(one).job == job])

    make()
    DeltaTable.create(root / "parts", pa.schema({"row": pa.string(), "p": pa.int64()}), partition_by=["p"])
    DeltaTable.create(root / "other", pa.schema({"row": pa.int64()}))
    bad = [replace(sink, uri=str(root / name)) for name in ("none", "parts", "other")]
    return SinkTrial(sink, visible, make, lambda: gone(folder), pending, bad, ["not to be seen"])


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], tmp_path: Path) -> None:
    check(watched(trial(tmp_path), tmp_path / "table"))


@pytest.mark.parametrize("check", CHECKS)
def test_files_that_roll_with_each_batch_pass_the_kit(check: Callable[[SinkTrial], None], tmp_path: Path) -> None:
    check(watched(trial(tmp_path, roll_bytes=1), tmp_path / "table"))


def test_it_passes_any_order_of_events(tmp_path: Path) -> None:
    chosen = settings(max_examples=10, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(sink_machine(trial(tmp_path, roll_bytes=100)), settings=chosen)


@pytest.fixture
def bench(tmp_path: Path) -> SqlBench:
    bench = SqlBench(ToDelta(str(tmp_path / "table"), create=True))
    assert bench.examine() == []
    return bench


def folder_of(bench: SqlBench) -> Path:
    assert isinstance(bench.sink, ToDelta)
    return Path(bench.sink.uri)


def content(bench: SqlBench) -> dict[object, object]:
    rows = read(folder_of(bench)).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row["v"] for row in rows}


def files(bench: SqlBench) -> set[str]:
    return {path.name for path in folder_of(bench).glob("*.parquet")}


def test_of_two_committers_that_both_found_no_token_one_writes(
    bench: SqlBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = bench.open(), bench.open(2)
    prepared = bench.prepared(one, [change(1, "a")])
    original = DeltaPlace.add

    def add_later(place: DeltaPlace, table: DeltaTable, token: DeltaToken, files: Sequence[DataFile]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaPlace, "add", original)
            assert other.commit(*prepared).outcome is CommitOutcome.COMMITTED
            bench.commit(other, [change(2, "b")], number=2)
        original(place, table, token, files)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaPlace, "add", add_later)
        answer = one.commit(*prepared)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "Concurrent transaction failed" in answer.reason
    assert one.commit(*prepared).outcome is CommitOutcome.ALREADY_COMMITTED
    assert content(bench) == {1: "a", 2: "b"}


def test_a_commit_whose_answer_was_lost_is_found_in_the_log(bench: SqlBench, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1, "a")])
    original = DeltaTable.create_write_transaction

    def answer_is_lost(*args: Any, **options: Any) -> None:
        original(*args, **options)
        raise OSError("connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", answer_is_lost)
        answer = writer.commit(*prepared)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "connection reset by peer" in answer.reason
    assert writer.commit(*prepared).outcome is CommitOutcome.ALREADY_COMMITTED
    assert content(bench) == {1: "a"}


def apps(bench: SqlBench) -> Counter[str]:
    """How often the log has each application id."""
    found: Counter[str] = Counter()
    for entry in (folder_of(bench) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        found.update(action["txn"]["appId"] for action in actions if "txn" in action)
    return found


def test_a_writer_needs_few_application_ids_and_reuses_none_that_waits(bench: SqlBench) -> None:
    writer = bench.open()
    for k in range(6):
        bench.commit(writer, [change(k)])
    assert list(apps(bench).values()) == [6]
    waiting = [bench.prepared(writer, [change(k)]) for k in range(6, 9)]
    for one in (waiting[2], waiting[0]):
        settled(writer, *one)
    bench.commit(writer, [change(9)])
    assert set(content(bench)) == {*range(7), 8, 9}
    settled(bench.open(2), *waiting[1])
    assert set(content(bench)) == set(range(10))
    assert len(apps(bench)) == 3
    bench.sealed(writer)[1].prepare()
    bench.commit(writer, [change(10)])
    assert len(apps(bench)) == 3


def test_a_job_whose_tree_is_an_older_copy_loses_nothing(bench: SqlBench) -> None:
    bench.commit(bench.open(), [change(1)], [change(2)])
    second = SqlBench(bench.sink)
    second.recover(1)
    second.commit(second.open(), [change(3)])
    second.recover(2)
    assert set(content(bench)) == {1, 2, 3}


def test_recovery_deletes_what_was_never_committed_and_nothing_that_anybody_may_read(bench: SqlBench) -> None:
    writer = bench.open()
    bench.commit(writer, [change(1, "a")])
    bench.commit(writer, [change(2, "b")])
    compacted = files(bench)
    DeltaTable(folder_of(bench)).optimize.compact()
    bench.commit(writer, [change(3, "c")])
    named = bench.prepared(writer, [change(4, "d")])
    kept = files(bench)
    leftover = bench.prepared(writer, [change(5, "e")])
    foreign = SqlBench(bench.sink, job="another job")
    foreign.prepared(foreign.open(), [change(6, "f")])
    strange = {"part-0.parquet", "notes.txt", f"{leftover[1].value.value()['files'][0][0]}.bak"}  # type: ignore[index,call-overload]
    for name in strange:
        (folder_of(bench) / name).write_bytes(b"somebody's")
    before = files(bench)
    bench.recover(2, [named[0]])
    assert before - files(bench) == before - kept - strange - {name for name in files(bench) if "another" in name}
    assert compacted <= files(bench)
    assert strange <= {path.name for path in folder_of(bench).iterdir()}
    assert writer.commit(*leftover).outcome is CommitOutcome.FAILED
    settled(bench.open(2), *named)
    assert set(DeltaTable(folder_of(bench), version=2).to_pyarrow_table()["k"].to_pylist()) == {1, 2}
    assert set(DeltaTable(folder_of(bench)).to_pyarrow_table()["k"].to_pylist()) == {1, 2, 3, 4}


def test_a_token_does_not_expire_and_outlives_checkpoints(tmp_path: Path) -> None:
    configuration = {"delta.setTransactionRetentionDuration": "interval 0 days", "delta.checkpointInterval": "2"}
    DeltaTable.create(tmp_path / "t", CHANGES, configuration=configuration)
    bench = SqlBench(ToDelta(str(tmp_path / "t")))
    writer = bench.open()
    first = bench.prepared(writer, [change(0)])
    settled(writer, *first)
    for k in range(1, 6):
        bench.commit(writer, [change(k)])
    [checkpoint, *_] = sorted((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"), reverse=True)
    for entry in (tmp_path / "t" / "_delta_log").glob("*.json"):
        if entry.name < checkpoint.name:
            entry.unlink()
    assert bench.open(2).commit(*first).outcome is CommitOutcome.ALREADY_COMMITTED


def test_data_files_that_are_gone_or_cut_short_fail_the_commit(bench: SqlBench) -> None:
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1, "a")])
    [file] = folder_of(bench).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert "is not as it was written" in writer.commit(*prepared).reason
    file.unlink()
    answer = writer.commit(*prepared)
    assert answer.outcome is CommitOutcome.FAILED
    assert f"{file.name} of transaction {prepared[0]} is gone from {folder_of(bench)}" in answer.reason
    file.write_bytes(whole)
    settled(writer, *prepared)
    assert content(bench) == {1: "a"}


def test_a_table_that_was_altered_meanwhile_takes_what_fits_it_and_refuses_the_rest(bench: SqlBench) -> None:
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1, "a")])
    DeltaTable(folder_of(bench)).alter.add_columns([Field("more", PrimitiveType("string"))])
    settled(writer, *prepared)
    assert DeltaTable(folder_of(bench)).to_pyarrow_table().select(["k", "more"]).to_pylist() == [{"k": 1, "more": None}]
    prepared = bench.prepared(writer, [change(2, "b")])
    DeltaTable(folder_of(bench)).alter.add_constraint({"few": "k < 2"})
    answer = writer.commit(*prepared)
    assert answer.outcome is CommitOutcome.FAILED
    assert "it has the constraint few, which would not be checked" in answer.reason
    assert bench.examine() != []
    DeltaTable(folder_of(bench)).alter.drop_constraint("few")
    settled(writer, *prepared)


def test_a_table_that_is_altered_during_a_commit_is_looked_at_again(
    bench: SqlBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1, "a")])
    original = DeltaPlace.add

    def altered(place: DeltaPlace, table: DeltaTable, token: DeltaToken, files: Sequence[DataFile]) -> None:
        DeltaTable(folder_of(bench)).alter.add_constraint({"none": "k > 1"})
        original(place, table, token, files)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaPlace, "add", altered)
        assert writer.commit(*prepared).outcome is CommitOutcome.RETRY_LATER
    assert writer.commit(*prepared).outcome is CommitOutcome.FAILED


def test_a_prepare_that_failed_is_tried_again_with_the_same_rows(
    bench: SqlBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bench.open()
    transaction, sealed = bench.sealed(writer, [change(1, "a")])

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="the disk is full"):
            sealed.prepare()
    with gone(folder_of(bench)), pytest.raises(TargetError, match="there is no Delta table"):
        sealed.prepare()
    settled(writer, transaction, some(sealed.prepare(), transaction))
    assert content(bench) == {1: "a"}


def test_a_transaction_larger_than_roll_bytes_is_several_files_and_one_entry(tmp_path: Path) -> None:
    bench = SqlBench(ToDelta(str(tmp_path / "table"), create=True, roll_bytes=100))
    assert bench.examine() == []
    bench.commit(bench.open(), *([change(k, "x" * 60)] for k in range(9)))
    assert set(content(bench)) == set(range(9))
    assert len(files(bench)) > 2
    assert DeltaTable(folder_of(bench)).version() == 1


def test_a_batch_of_a_query_is_there_once_however_often_it_is_written_and_committed(tmp_path: Path) -> None:
    store = MemoryStore(f"delta {tmp_path}")
    rows = [pa.RecordBatch.from_pylist([change(1, "a")], CHANGES)]

    def start() -> SinkQuery:
        return SinkQuery("query", "delta", ToDelta(str(tmp_path / "table"), create=True), store, 1.0, CHANGES)

    for run in (f"first {tmp_path}", f"second {tmp_path}"):  # known in a process, by their names
        written = [start().write(0, partition, run, False, rows) for partition in range(2)]
        for _ in range(2):
            start().commit(0, written)
    assert read(tmp_path / "table").to_pylist() == [change(1, "a")] * 2


def test_every_type_that_delta_has_is_read_as_it_was_written(tmp_path: Path) -> None:
    at, naive = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), datetime(2026, 1, 2, 3, 4, 5)
    columns: list[tuple[str, pa.DataType, object]] = [
        ("i8", pa.int8(), -128),
        ("i16", pa.int16(), 2**15 - 1),
        ("i64", pa.int64(), -(2**63)),
        ("f32", pa.float32(), 0.5),
        ("f64", pa.float64(), 1e300),
        ("yes", pa.bool_(), True),
        ("text", pa.large_string(), "é"),
        ("view", pa.string_view(), "v"),
        ("word", pa.dictionary(pa.int8(), pa.string()), "w"),
        ("raw", pa.binary(3), b"abc"),
        ("day", pa.date32(), date(2026, 1, 2)),
        ("there", pa.timestamp("ms", "Europe/Berlin"), at),
        ("here", pa.timestamp("s"), naive),
        ("price", pa.decimal128(20, 3), Decimal("12345678901234567.890")),
        ("tags", pa.large_list(pa.large_string()), ["a", None]),
        ("place", pa.struct({"x": pa.int8(), "n": pa.list_(pa.timestamp("ms", "UTC"))}), {"x": 1, "n": [at]}),
        ("sizes", pa.map_(pa.string(), pa.int32()), [("a", 1)]),
        ("nothing", pa.int32(), None),
    ]
    schema = pa.schema([(name, type) for name, type, _ in columns])
    bench = SqlBench(ToDelta(str(tmp_path / "t"), create=True), schema)
    assert bench.examine() == bench.examine() == []
    row = {name: value for name, _, value in columns}
    bench.commit(bench.open(), [row])
    [found] = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert found == row


def test_what_delta_could_not_have_is_said_without_a_table() -> None:
    fields = [
        ("u", pa.uint32()),
        ("t", pa.time64("us")),
        ("ns", pa.timestamp("ns")),
        ("big", pa.decimal256(50, 3)),
        ("inner", pa.struct({"h": pa.float16()})),
        ("list", pa.list_(pa.duration("s"))),
        ("map", pa.map_(pa.string(), pa.null())),
    ]
    problems = ToDelta("/t").check(pa.schema(fields))
    assert len(problems) == len(fields)
    assert problems[0] == "Delta has no column for 'u' of uint32; cast it in the stream"
    assert "Delta has no column of the name 'a b'" in ToDelta("/t").check(pa.schema({"a b": pa.int8()}))[0]
    assert "does not look at the case" in ToDelta("/t").check(pa.schema({"a": pa.int8(), "A": pa.int8()}))[0]
    assert "the rows have no column" in ToDelta("/t").check(pa.schema([]))
    assert "roll_bytes is 0" in ToDelta("/t", roll_bytes=0).check(CHANGES)[0]
    assert ToDelta("s3://bucket/t").check(CHANGES) == []
    for uri in ("gs://bucket/t", "memory://t"):
        assert "where committing was not tried" in ToDelta(uri).check(CHANGES)[0]


def test_tables_that_the_rows_do_not_fit_are_described(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("k", pa.int32()), pa.field("v", pa.string(), False), pa.field("must", pa.int8(), False)]
    )
    DeltaTable.create(tmp_path / "t", schema)
    problems = SqlBench(ToDelta(str(tmp_path / "t"), create=True)).examine()
    said = [problem.removeprefix(f"the Delta table {tmp_path / 't'}: ") for problem in problems]
    assert said == [
        "its column 'k' is of integer, and the rows bring long; cast it in the stream",
        "its column 'v' must not be null, and that of the rows may be; drop NOT NULL there",
        "it has no column 'gone'; it has 'k', 'v', 'must'",
        "it wants a value for 'must', which the rows have not; drop NOT NULL there",
    ]
    DeltaTable.create(tmp_path / "mapped", CHANGES, configuration={"delta.columnMapping.mode": "name"})
    [problem] = SqlBench(ToDelta(str(tmp_path / "mapped"))).examine()
    assert "its columns are mapped to other names" in problem
    nested = pa.schema({"p": pa.struct([pa.field("x", pa.int8(), False)]), "l": pa.list_(pa.int8())})
    DeltaTable.create(tmp_path / "nested", nested)
    assert SqlBench(ToDelta(str(tmp_path / "nested")), nested).examine() == []
    wider = pa.schema({"p": pa.struct([pa.field("x", pa.int8())]), "l": pa.list_(pa.int16())})
    assert len(SqlBench(ToDelta(str(tmp_path / "nested")), wider).examine()) == 2


def test_what_a_table_asks_of_its_writers_that_this_one_does_not_do_is_refused() -> None:
    ours = schema_json(pa.schema({"k": pa.int64()}))
    assert misfits(ours, FoundDelta(ours, features=["appendOnly", "deletionVectors"])) == []
    [problem] = misfits(ours, FoundDelta(ours, features=["appendOnly", "rowTracking"]))
    assert "it has the feature rowTracking" in problem
    computed = json.loads(ours)
    computed["fields"][0]["metadata"] = {"delta.generationExpression": "1 + 1"}
    [problem] = misfits(ours, FoundDelta(json.dumps(computed)))
    assert "what its column 'k' holds is for the writer to compute or check (delta.generationExpression)" in problem


def test_a_log_that_cannot_be_read_is_said_and_waited_for(bench: SqlBench) -> None:
    writer = bench.open()
    prepared = bench.prepared(writer, [change(1, "a")])
    entry = folder_of(bench) / "_delta_log" / f"{0:020d}.json"
    whole = entry.read_bytes()
    entry.write_bytes(b"{not json")
    assert writer.commit(*prepared).outcome is CommitOutcome.RETRY_LATER
    [problem] = bench.examine()
    assert problem.startswith(f"the Delta table {folder_of(bench)}: ")
    assert "Json error" in problem
    assert len(problem.splitlines()) == 1
    entry.write_bytes(whole)
    settled(writer, *prepared)


def test_values_out_of_reach_and_names_too_long_fail_the_attempt(bench: SqlBench) -> None:
    far = SqlBench(bench.sink, pa.schema({"at": pa.timestamp("s")}))
    writer = far.open()
    far.begin(writer)
    rows = Rows(pa.RecordBatch.from_pydict({"at": pa.array([2**60], pa.timestamp("s"))}))
    with pytest.raises(SinkError, match="sink out: a value does not fit Delta's type"):
        writer.write(rows)
    with pytest.raises(SinkError, match="shorter names"):
        writer.begin(transaction_id(JobId("j" * 230), Uid("u"), attempt(1), Partition(0), 0))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each step, in which a process was killed before it."""
    root = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.delta_sink_worker", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert list(map(int, done.stdout.split())) == [-signal.SIGKILL] * STEPS + [0], done.stderr
    return root


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_a_process_killed_at_any_step_loses_and_repeats_nothing(step: int, killed: Path) -> None:
    folder = killed / str(step)
    prepared = read_journal(folder)
    sink = delta_sink_worker.sink(folder)
    sink.recover(JOB, UID, attempt(2), {name for name, _ in prepared})
    left = {
        token.transaction for token in (token_of(path.name) for path in (folder / "out").iterdir()) if token is not None
    }
    assert left == {name for name, _ in prepared}
    writer = sink.open(context(SinkEnvironment(), 2))
    for transaction, payload in prepared:
        for _ in range(2):
            assert writer.commit(transaction, payload).outcome in DONE
    expected = [row for transaction, _ in prepared for row in rows_of(transaction)]
    assert sorted(read(folder / "out")["row"].to_pylist()) == sorted(expected)
