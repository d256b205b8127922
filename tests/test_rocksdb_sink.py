"""A RocksDB database takes the rows of a transaction as a whole, once, whoever commits and whoever is killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from rocksdict import Options, Rdict

from snapshot.connectors.rocksdb.folder import RocksDBFolder
from snapshot.connectors.rocksdb.sink import ToRocksDB, read_rocksdb
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Sealed, SinkContext, SinkError, SinkWriter
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, DONE, SinkBench, SinkEnvironment, SinkTrial, attempt
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Partition
from tests.survey import watched

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])


def trial(folder: Path, *, bad: Sequence[ToRocksDB] = ()) -> SinkTrial:
    def visible(_: SinkEnvironment) -> Sequence[str]:
        table = read_rocksdb(str(folder))
        rows: list[str] = table.column("row").to_pylist() if table.num_columns else []
        return rows

    @contextmanager
    def out_of_reach() -> Iterator[None]:
        aside = folder.with_name("aside")
        folder.rename(aside)
        folder.write_text("a file is where the folder was")
        try:
            yield
        finally:
            folder.unlink()
            aside.rename(folder)

    return SinkTrial(
        ToRocksDB(str(folder), key="row"),
        visible,
        lambda: shutil.rmtree(folder, ignore_errors=True),
        disturb=out_of_reach,
        bad=bad,
    )


@pytest.mark.parametrize("check", CHECKS)
def test_a_database_passes_the_kit(check: Callable[[SinkTrial], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    others = upserts(tmp_path / "others")
    others.commit([{"user": "ann", "n": 1, "gone": False}])
    bad = [ToRocksDB(str(tmp_path / "file"), key="row"), ToRocksDB(str(tmp_path / "others"), key="row")]
    check(watched(trial(tmp_path / "database", bad=bad), tmp_path / "database"))


def test_any_order_of_cuts_completions_and_crashes_keeps_the_promises(tmp_path: Path, search_factor: int) -> None:
    few = settings(max_examples=15 * search_factor, stateful_step_count=20)
    run_state_machine_as_test(sink_machine(trial(tmp_path / "database")), settings=few)


class Upserts:
    """A partition of a sink, and its commits."""

    def __init__(self, sink: ToRocksDB, schema: pa.Schema) -> None:
        self.bench = SinkBench(SinkTrial(sink, lambda _: []))
        environment = self.bench.environment
        context = SinkContext(
            self.bench.job, self.bench.uid, schema, attempt(1), Partition(0), environment, environment.deliver
        )
        self.writer: SinkWriter = sink.open(context)
        self.schema = schema

    def sealed(self, *batches: Sequence[dict[str, object]]) -> tuple[Sealed, Callable[[CommitPayload | None], None]]:
        transaction = self.bench.name()
        self.writer.begin(transaction)
        for rows in batches:
            self.writer.write(Rows(pa.RecordBatch.from_pylist(list(rows), self.schema)))

        def commit(payload: CommitPayload | None) -> None:
            assert payload is not None
            assert self.writer.commit(transaction, payload).outcome in DONE

        return self.writer.seal(), commit

    def commit(self, *batches: Sequence[dict[str, object]]) -> None:
        sealed, commit = self.sealed(*batches)
        commit(sealed.prepare())


def upserts(folder: Path, key: str | tuple[str, ...] = "user", schema: pa.Schema = SCHEMA) -> Upserts:
    return Upserts(ToRocksDB(str(folder), key=key, deleted="gone"), schema)


def row(user: str, n: int, gone: bool | None = False) -> dict[str, object]:
    return {"user": user, "n": n, "gone": gone}


def content(folder: Path) -> dict[str, int]:
    table = read_rocksdb(str(folder))
    assert table.schema.names == ["user", "n"]
    return {entry["user"]: entry["n"] for entry in table.to_pylist()}


def test_the_newest_row_of_each_key_counts_within_an_epoch_and_over_epochs(tmp_path: Path) -> None:
    sink = upserts(tmp_path)
    sink.commit([row("bob", 1), row("ann", 1), row("ann", 2)], [row("bob", 3), row("ann", 4)])
    assert content(tmp_path) == {"ann": 4, "bob": 3}
    sink.commit([row("eve", 5), row("ann", 6, gone=None)])
    assert content(tmp_path) == {"ann": 6, "bob": 3, "eve": 5}


def test_a_row_whose_column_says_so_deletes_its_key_until_a_newer_row_comes(tmp_path: Path) -> None:
    sink = upserts(tmp_path)
    sink.commit([row("ann", 1), row("bob", 1), row("bob", 2, gone=True), row("eve", 1)])
    assert content(tmp_path) == {"ann": 1, "eve": 1}
    sink.commit([row("ann", 1, gone=True), row("eve", 1, gone=True), row("eve", 2)])
    assert content(tmp_path) == {"eve": 2}


def test_an_older_transaction_that_is_committed_again_brings_no_older_rows_back(tmp_path: Path) -> None:
    sink = upserts(tmp_path)
    sealed, commit = sink.sealed([row("ann", 1)])
    payload = sealed.prepare()
    commit(payload)
    sink.commit([row("ann", 2)])
    commit(payload)
    assert content(tmp_path) == {"ann": 2}


def test_several_columns_may_be_the_key(tmp_path: Path) -> None:
    sink = upserts(tmp_path, key=("user", "n"))
    sink.commit([row("ann", 1), row("ann", 2), row("ann1", 1), row("ann", 1)])
    assert read_rocksdb(str(tmp_path)).num_rows == 3


def test_columns_come_back_with_their_types_and_values(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("x", pa.float64()),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("lat", pa.float64())])),
        ]
    )
    table = pa.table(
        {
            "id": [2**31 - 1, -1],
            "at": pa.array([1_700_000_000_123_456, None], schema.field("at").type),
            "day": pa.array([20_000, None], pa.date32()),
            "x": [1.5, None],
            "tags": [["line\nbreak", "é"], []],
            "place": [{"lat": 0.1}, {"lat": None}],
        },
        schema=schema,
    )
    sink = Upserts(ToRocksDB(str(tmp_path), key="id"), schema)
    sink.commit(table.to_pylist())
    assert read_rocksdb(str(tmp_path)).sort_by([("id", "descending")]).to_pylist() == table.to_pylist()


def test_a_number_that_json_does_not_have_is_refused_unless_its_row_is_deleted(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("gone", pa.bool_())])
    sink = Upserts(ToRocksDB(str(tmp_path), key="id", deleted="gone"), schema)
    sink.commit([{"id": 1, "x": 0.5, "gone": False}, {"id": 2, "x": float("nan"), "gone": True}])
    assert {row["id"]: row["x"] for row in read_rocksdb(str(tmp_path)).to_pylist()} == {1: 0.5}
    with pytest.raises(SinkError, match=r"the column 'x' has one; the row is \{'id': 3"):
        sink.commit([{"id": 3, "x": float("inf"), "gone": None}])


def test_a_folder_without_commits_reads_as_an_empty_table(tmp_path: Path) -> None:
    assert read_rocksdb(str(tmp_path)).num_rows == 0
    upserts(tmp_path).sealed([row("ann", 1)])[0].prepare()
    assert read_rocksdb(str(tmp_path)).num_columns == 0


def test_a_reader_keeps_what_it_opened_while_commits_and_compactions_go_on(tmp_path: Path) -> None:
    sink = upserts(tmp_path)
    sink.commit([row(f"user {number}", 0) for number in range(100)])
    with RocksDBFolder(tmp_path).reading() as database:
        assert database is not None
        for n in range(1, 15):
            sink.commit([row(f"user {number}", n) for number in range(100)])
        assert set(database.rows().column("n").to_pylist()) == {0}
    assert set(content(tmp_path).values()) == {14}
    assert len(list(tmp_path.glob("*.sst"))) < 14


def test_other_programs_can_open_the_database(tmp_path: Path) -> None:
    upserts(tmp_path).commit([row("ann", 7)])
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    assert database[b"rann"] == b'{"user":"ann","n":7}'
    database.close()


def test_a_commit_waits_its_turn_and_is_put_off_if_it_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshot.connectors.rocksdb.folder._PATIENCE", 0.01)
    bench = SinkBench(trial(tmp_path / "database"))
    transaction, payload, rows = bench.prepared()
    with RocksDBFolder(tmp_path / "database").writing():
        answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "another process holds the database" in answer.reason
    bench.settle(transaction, payload)
    bench.expect(rows, "it is committed when it is its turn")


def test_rows_of_other_columns_than_the_database_has_are_refused(tmp_path: Path) -> None:
    upserts(tmp_path).commit([row("ann", 1)])
    schema = pa.schema([*SCHEMA, ("more", pa.string())])
    other = upserts(tmp_path, schema=schema)
    [problem] = ToRocksDB(str(tmp_path), key="user", deleted="gone").examine(other.bench.job, other.bench.uid, schema)
    assert "has rows of (user string, n int64), and these are of (user string, n int64, more string)" in problem
    transaction = other.bench.name()
    other.writer.begin(transaction)
    other.writer.write(Rows(pa.RecordBatch.from_pylist([row("bob", 1)], schema)))
    payload = other.writer.seal().prepare()
    assert payload is not None
    answer = other.writer.commit(transaction, payload)
    assert (answer.outcome, answer.reason) == (CommitOutcome.FAILED, problem)


def test_a_commit_whose_file_is_gone_fails_with_a_reason(tmp_path: Path) -> None:
    bench = SinkBench(trial(tmp_path))
    transaction, payload, _ = bench.prepared()
    for path in (tmp_path / ".staged").iterdir():
        path.unlink()
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "its file is gone" in answer.reason


def test_a_row_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="a row has no 'user', which is its key"):
        upserts(tmp_path).sealed([{"user": None, "n": 1, "gone": False}])


def test_what_cannot_work_is_found_by_check(tmp_path: Path) -> None:
    good = ToRocksDB(str(tmp_path), key=("user", "n"), deleted="gone")
    assert good.check(SCHEMA) == []
    for sink, problem in (
        (ToRocksDB("s3://bucket/x", key="user"), "a folder of this machine"),
        (ToRocksDB(str(tmp_path), key=()), "needs a key"),
        (ToRocksDB(str(tmp_path), key="uesr"), "key: there is no column 'uesr'; did you mean 'user'?"),
        (ToRocksDB(str(tmp_path), key="user", deleted="n"), "'n' says which rows are deleted"),
    ):
        assert problem in " ".join(sink.check(SCHEMA))
    [problem] = good.check(pa.schema([*SCHEMA, ("raw", pa.binary())]))
    assert "'raw' of binary" in problem
    [problem] = ToRocksDB(str(tmp_path), key="tags").check(pa.schema([("tags", pa.list_(pa.string()))]))
    assert "'tags' cannot be a key" in problem


KILLED = """
import os, signal, sys
from pathlib import Path
from snapshot.connectors.rocksdb.folder import OpenDatabase
from snapshot.testing.sinks import SinkBench
from tests.test_rocksdb_sink import trial

take = OpenDatabase.take

def die(database, name):
    if sys.argv[2] == "after":
        take(database, name)
    os.kill(os.getpid(), signal.SIGKILL)

OpenDatabase.take = die
bench = SinkBench(trial(Path(sys.argv[1])))
transaction, payload, rows = bench.prepared()
print(bench.job, transaction, payload.value.text, *rows, sep="\\n", flush=True)
bench.settle(transaction, payload)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_committer_killed_around_the_taking_leaves_a_transaction_that_is_committed_once(
    when: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "database"), when], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    job, transaction, payload, *rows = done.stdout.splitlines()
    bench = SinkBench(trial(tmp_path / "database"))
    bench.job = JobId(job)
    bench.recover(2, [TransactionId(transaction)])
    answer = bench.settle(TransactionId(transaction), CommitPayload(Json(payload)))
    expected = {"before": CommitOutcome.COMMITTED, "after": CommitOutcome.ALREADY_COMMITTED}
    assert answer.outcome is expected[when]
    bench.expect(rows, "each row is there once")
    assert list((tmp_path / "database" / ".staged").iterdir()) == []
