"""Tables of SQLite files: rows appear with their epoch's commit, once, whatever happens to the file or to us."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from snapshot import ToFiles, ToHTTP, ToKafka, ToPostgres, ToPravega, ToRocksDB, ToSQLite
from snapshot.connectors.sql import sqlite_target
from snapshot.connectors.sql.sqlite_target import SqliteCommit
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import Replica
from snapshot.program.sink import Abilities, Sink, SinkError
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, DONE, SCHEMA, SinkEnvironment, SinkTrial, settled
from tests.sql_bench import CHANGES, SqlBench, change
from tests.survey import watched

KINDS = {
    "appends": ToSQLite("", "texts", create=True),
    "upserts": ToSQLite("", "texts", key=("row",), create=True),
    "wal": ToSQLite("", "texts", journal="wal", create=True),
    "truncate": ToSQLite("", "texts", journal="truncate", create=True),
}


def read(path: Path | str, statement: str) -> list[tuple[object, ...]]:
    """As somebody reads who knows nothing of transactions."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def do(path: Path | str, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """A stranger writes to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN EXCLUSIVE")
        yield


def trial(folder: Path, kind: str) -> SinkTrial:
    sink = replace(KINDS[kind], path=str(folder / "target.db"))
    bench = SqlBench(sink, SCHEMA)
    assert bench.examine() == []

    def visible(_: SinkEnvironment) -> Sequence[str]:
        return [str(row[0]) for row in read(sink.path, "SELECT row FROM texts")]

    bad = [
        replace(sink, path=str(folder / "none.db"), create=False),
        replace(sink, table="nowhere", create=False),
    ]
    return SinkTrial(
        sink, visible, lambda: do(sink.path, "DELETE FROM texts"), lambda: locked(sink.path), lambda _: 0, bad
    )


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_target, "PATIENCE", 0.1)
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], kind: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    do(tmp_path / "other.db", "CREATE TABLE texts (row text PRIMARY KEY)")
    database = watched(trial(tmp_path / "target", kind), tmp_path / "target")
    check(replace(database, elsewhere=[*database.elsewhere, str(tmp_path / "other.db"), "others"]))


@pytest.mark.parametrize("kind", ["appends", "upserts"])
def test_it_passes_any_order_of_events(kind: str, tmp_path: Path) -> None:
    chosen = settings(max_examples=10, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(sink_machine(trial(tmp_path, kind)), settings=chosen)


@pytest.fixture
def bench(tmp_path: Path) -> SqlBench:
    sink = ToSQLite(str(tmp_path / "t.db"), "t", key=("k",), deleted="gone", create=True)
    bench = SqlBench(sink)
    assert bench.examine() == []
    return bench


def path_of(bench: SqlBench) -> str:
    assert isinstance(bench.sink, ToSQLite)
    return bench.sink.path


def content(bench: SqlBench) -> dict[object, object]:
    return dict(read(path_of(bench), "SELECT k, v FROM t"))  # type: ignore[arg-type]


def test_the_last_row_of_a_key_counts_within_a_transaction_and_over_transactions(bench: SqlBench) -> None:
    writer = bench.open()
    bench.commit(writer, [change(1, "a"), change(2, "b"), change(1, "c")], [change(2, "d")])
    assert content(bench) == {1: "c", 2: "d"}
    bench.commit(writer, [change(2, "e"), change(3, None)])
    assert content(bench) == {1: "c", 2: "e", 3: None}


def test_a_row_that_says_so_deletes_until_another_comes(bench: SqlBench) -> None:
    writer = bench.open()
    bench.commit(writer, [change(1, "a"), change(2, "b"), change(2, gone=True), change(3, "c", gone=None)])
    assert content(bench) == {1: "a", 3: "c"}
    bench.commit(writer, [change(1, gone=True), change(3, gone=True), change(3, "d"), change(9, gone=True)])
    assert content(bench) == {3: "d"}


def test_an_older_transaction_that_is_committed_again_brings_nothing_back(bench: SqlBench) -> None:
    writer = bench.open()
    first = bench.prepared(writer, [change(1, "old")])
    settled(writer, *first)
    bench.commit(writer, [change(1, "new")])
    assert writer.commit(*first).outcome is CommitOutcome.ALREADY_COMMITTED
    assert content(bench) == {1: "new"}


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.text(max_size=2), st.sampled_from([True, False, None])), max_size=8),
        max_size=5,
    )
)
def test_after_any_changes_the_table_is_what_a_dict_would_be(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[list[tuple[int, str, bool | None]]]
) -> None:
    sink = ToSQLite(str(tmp_path_factory.mktemp("any") / "t.db"), "t", key=("k",), deleted="gone", create=True)
    bench = SqlBench(sink)
    assert bench.examine() == []
    expected: dict[int, str] = {}
    writer = bench.open()
    for rows in filter(None, transactions):
        for k, v, gone in rows:
            expected.pop(k, None) if gone else expected.update({k: v})
        bench.commit(writer, *([change(*row)] for row in rows[:2]), [change(*row) for row in rows[2:]])
    assert content(bench) == expected


@pytest.mark.parametrize(
    ("declared", "one", "same"),
    [("TEXT COLLATE NOCASE", "A", "a"), ("TEXT COLLATE RTRIM", "a", "a  "), ("REAL", 0.0, -0.0)],
)
def test_the_last_row_counts_of_keys_that_only_the_table_holds_for_equal(
    declared: str, one: object, same: object, tmp_path: Path
) -> None:
    do(tmp_path / "t.db", f"CREATE TABLE t (k {declared} NOT NULL PRIMARY KEY, v TEXT)")
    schema = pa.schema({"k": pa.array([one]).type, "v": pa.string(), "gone": pa.bool_()})
    bench = SqlBench(ToSQLite(str(tmp_path / "t.db"), "t", key=("k",), deleted="gone"), schema)
    assert bench.examine() == []
    writer = bench.open()

    def after(*changes: tuple[object, str, bool]) -> list[object]:
        settled(writer, *bench.prepared(writer, [{"k": k, "v": v, "gone": gone} for k, v, gone in changes]))
        return [v for [v] in read(tmp_path / "t.db", "SELECT v FROM t")]

    assert after((one, "first", False), (same, "second", False)) == ["second"]
    assert after((same, "", True), (one, "third", False)) == ["third"]
    assert after((one, "fourth", False), (same, "", True)) == []


def tokens(bench: SqlBench) -> int:
    return len(read(path_of(bench), "SELECT token FROM epochcut_commits WHERE token <> ''"))


def test_the_table_of_tokens_stays_small(bench: SqlBench) -> None:
    for number in range(1, 6):
        bench.recover(number)
        writer = bench.open(number)
        for k in range(10):
            bench.commit(writer, [change(k, "v")], number=number)
        writer.close()
    bench.recover(6)
    assert tokens(bench) <= 3


def test_a_token_lives_as_long_as_an_epoch_may_name_its_transaction(bench: SqlBench) -> None:
    writer = bench.open()
    backlog = [bench.prepared(writer, [change(k, f"{k}")]) for k in range(4)]
    for one in backlog:
        settled(writer, *one)
    do(path_of(bench), "DELETE FROM t")
    bench.recover(2, [transaction for transaction, _ in backlog])
    again = bench.open(2)
    for transaction, payload in backlog:
        assert again.commit(transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED
    assert content(bench) == {}


def test_a_commit_that_hangs_while_another_replica_takes_over_finds_the_token_when_it_goes_on(
    bench: SqlBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = bench.open()
    transaction, payload = bench.prepared(late, [change(1, "late")])
    has_token = SqliteCommit.has_token

    def hangs(commit: SqliteCommit) -> bool:
        monkeypatch.undo()
        found = has_token(commit)
        other = bench.open(took_over=Replica(1))
        assert settled(other, transaction, payload).outcome is CommitOutcome.COMMITTED
        for _ in range(5):
            bench.commit(other, [change(2, "later")])
        assert tokens(bench) <= 4
        do(path_of(bench), "DELETE FROM t WHERE k = 1")
        return found

    monkeypatch.setattr(SqliteCommit, "has_token", hangs)
    assert settled(late, transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED
    assert content(bench) == {2: "later"}


def test_an_attempt_that_is_over_commits_nothing_any_more(bench: SqlBench) -> None:
    late = bench.open()
    transaction, payload = bench.prepared(late, [change(1, "late")])
    bench.recover(2, [transaction])
    answer = late.commit(transaction, payload)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "attempt 1.2 of job 'a job' has taken the sink out over from attempt 1.1" in answer.reason
    assert content(bench) == {}
    assert bench.open(2).commit(transaction, payload).outcome is CommitOutcome.COMMITTED
    assert late.commit(transaction, payload).outcome is CommitOutcome.ALREADY_COMMITTED


def test_batches_whose_texts_are_encoded_by_dictionaries_of_their_own_replace_each_others_rows(tmp_path: Path) -> None:
    texts = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([pa.field("k", texts), pa.field("v", texts)])
    bench = SqlBench(ToSQLite(str(tmp_path / "db"), "t", ("k",), create=True), schema)
    assert bench.examine() == []
    bench.commit(
        bench.open(), [{"k": "a", "v": "x"}, {"k": "b", "v": "x"}], [{"k": "c", "v": "y"}, {"k": "a", "v": "z"}]
    )
    assert read(tmp_path / "db", "SELECT k, v FROM t ORDER BY k") == [("a", "z"), ("b", "x"), ("c", "y")]


def test_a_row_without_a_key_fails_its_attempt_and_not_the_commit_of_a_complete_epoch(bench: SqlBench) -> None:
    writer = bench.open()
    bench.begin(writer)
    with pytest.raises(SinkError, match="sink out: a row has no 'k', which is of its key"):
        writer.write(bench.batch([change(1, "a"), {"k": None, "v": "b", "gone": False}]))


def test_a_job_whose_tree_is_an_older_copy_is_told_so_and_loses_nothing(bench: SqlBench) -> None:
    bench.recover(3)
    bench.commit(bench.open(3), [change(1, "first life")], number=3)
    second = SqlBench(bench.sink)
    with pytest.raises(SinkError, match=r"tree was put back from an older copy, .* delete what the target knows"):
        second.recover(1)
    do(path_of(bench), "DELETE FROM epochcut_commits WHERE token = ''")
    second.recover(3)
    second.commit(second.open(3), [change(2, "second life")], number=3)
    assert content(bench) == {1: "first life", 2: "second life"}


def test_rows_for_the_file_of_before_are_committed_there_if_that_is_allowed_by_name_and_else_refused(
    bench: SqlBench,
) -> None:
    one = bench.prepared(bench.open(), [change(1, "a")])
    later = later_at("other.db", bench)
    refused = later.open().commit(*one)
    assert refused.outcome is CommitOutcome.FAILED
    place = f"path={path_of(bench)} table=t"
    assert f"are for {place}, and their sink writes to path={path_of(later)} table=t" in refused.reason
    assert f"accept_places=['{place}'], or --accept-place of the command" in refused.reason
    assert (content(bench), content(later)) == ({}, {})
    later.accept_places = frozenset([place])
    assert later.open().commit(*one).outcome is CommitOutcome.COMMITTED
    assert later.open().commit(*one).outcome is CommitOutcome.ALREADY_COMMITTED
    assert (content(bench), content(later)) == ({1: "a"}, {})


def later_at(name: str, bench: SqlBench) -> SqlBench:
    """The same job, whose program has another file."""
    assert isinstance(bench.sink, ToSQLite)
    later = SqlBench(replace(bench.sink, path=str(Path(bench.sink.path).with_name(name))))
    later.environment = bench.environment
    assert later.examine() == []
    return later


def test_while_others_write_a_commit_is_put_off(bench: SqlBench) -> None:
    writer = bench.open()
    one = bench.prepared(writer, [change(1, "a")])
    with locked(path_of(bench)):
        answer = writer.commit(*one)
        assert answer.outcome is CommitOutcome.RETRY_LATER
        assert "database is locked" in answer.reason
        [problem] = bench.examine()
        assert "database is locked" in problem
    settled(writer, *one)
    assert content(bench) == {1: "a"}


def test_a_disk_that_is_full_puts_a_commit_off_until_there_is_room(
    bench: SqlBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bench.open()
    settled(writer, *bench.prepared(writer, [change(0, "here before")]))
    one = bench.prepared(writer, [change(k, "x" * 1000) for k in range(1, 200)])
    original = sqlite_target.journal_of

    def small(connection: sqlite3.Connection) -> str:
        [[pages]] = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        return original(connection)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_target, "journal_of", small)
        answer = writer.commit(*one)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "database or disk is full" in answer.reason
    assert content(bench) == {0: "here before"}
    settled(writer, *one)
    assert len(content(bench)) == 200


def test_a_file_that_is_damaged_gone_or_no_database_fails_the_commit_and_is_found_by_examine(bench: SqlBench) -> None:
    writer = bench.open()
    one = bench.prepared(writer, [change(1, "a")])
    path = Path(path_of(bench))
    whole = path.read_bytes()
    path.write_bytes(b"no database at all" * 500)
    answer = writer.commit(*one)
    assert answer.outcome is CommitOutcome.FAILED
    assert f"{path}: file is not a database" in answer.reason
    assert "file is not a database" in bench.examine()[0]
    path.unlink()
    assert writer.commit(*one).outcome is CommitOutcome.FAILED
    path.write_bytes(whole)
    settled(writer, *one)
    assert content(bench) == {1: "a"}


def test_what_sqlite_refuses_for_good_fails_with_its_words(bench: SqlBench) -> None:
    writer = bench.open()
    path = path_of(bench)
    do(path, "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.v = 'bad' BEGIN SELECT RAISE(ABORT, 'v is bad'); END")
    answer = writer.commit(*bench.prepared(writer, [change(1, "good"), change(2, "bad")]))
    assert (answer.outcome, answer.reason) == (CommitOutcome.FAILED, f"{path}: v is bad")
    assert content(bench) == {}
    assert tokens(bench) == 0
    do(path, "DROP TABLE t")
    answer = writer.commit(*bench.prepared(writer, [change(1, "good")]))
    assert answer.outcome is CommitOutcome.FAILED
    assert "no such table: t" in answer.reason


def test_staged_rows_that_are_gone_fail_the_commit_and_leave_nothing(bench: SqlBench) -> None:
    writer = bench.open()
    one = bench.prepared(writer, [change(1, "a")])
    bench.environment.stored.clear()
    answer = writer.commit(*one)
    assert answer.outcome is CommitOutcome.FAILED
    assert "the rows that were staged in the job's tree cannot be had" in answer.reason
    assert tokens(bench) == 0


def test_without_rollback_there_is_no_exactly_once(tmp_path: Path) -> None:
    off = ToSQLite(str(tmp_path / "t.db"), "t", create=True, journal="off")
    assert off.abilities == Abilities()
    [problem] = off.examine(SqlBench(off).job, SqlBench(off).uid, CHANGES)
    assert "journal_mode=off: SQLite could not roll back what a crash left half written" in problem
    assert SqlBench(replace(off, exactly_once=False)).examine() == []
    assert replace(off, journal="delete").abilities == Abilities(reads_tokens=True)


def test_without_exactly_once_rows_are_there_when_their_transaction_is_prepared(tmp_path: Path) -> None:
    bench = SqlBench(ToSQLite(str(tmp_path / "t.db"), "t", create=True, exactly_once=False))
    assert bench.examine() == []
    writer = bench.open()
    _, sealed = bench.sealed(writer, [change(1, "a")], [change(1, "b")])
    bench.begin(writer)
    with locked(path_of(bench)), pytest.raises(sqlite3.OperationalError, match="locked"):
        sealed.prepare()
    assert sealed.prepare() is None
    assert sorted(read(path_of(bench), "SELECT v FROM t")) == [("a",), ("b",)]
    writer.close()


def test_a_target_that_stays_away_stops_direct_writes_before_memory_is_full(tmp_path: Path) -> None:
    bench = SqlBench(ToSQLite(str(tmp_path / "none.db"), "t", exactly_once=False))
    writer = bench.open()
    bench.begin(writer)
    rows = bench.batch([change(1, "x" * 1_000_000)])

    def write_much() -> None:
        for _ in range(40):
            writer.write(rows)

    with pytest.raises(SinkError, match="sink out: its rows could not be written: unable to open database file"):
        write_much()
    writer.close()


def test_tables_that_the_rows_do_not_fit_are_described(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    do(
        path,
        "CREATE TABLE t (k INTEGER, v INTEGER, must TEXT NOT NULL, twice AS (k * 2))",
        "CREATE TABLE u (k INTEGER UNIQUE, v TEXT)",
        "CREATE UNIQUE INDEX some ON u (v) WHERE k > 1",
    )
    sink = ToSQLite(str(path), "t", key=("k",), deleted="gone")
    problems = SqlBench(sink).examine()
    assert "the column 'v' of t is of INTEGER, which does not hold every value of string" in problems[0]
    assert "the table t wants a value for 'must'" in problems[1]
    assert "the table t has no primary key or unique index on exactly (k)" in problems[2]
    schema = pa.schema({"twice": pa.int64(), "other": pa.int8()})
    problems = SqlBench(ToSQLite(str(path), "t"), schema).examine()
    assert "the table t makes the column 'twice' itself" in problems[0]
    assert "the table t has no column 'other'; it has 'k', 'v', 'must', 'twice'" in problems[1]
    [problem] = SqlBench(replace(sink, table="u")).examine()
    assert problem == "the column 'k' of u is of the key, but may be null; make it NOT NULL"
    [problem] = SqlBench(replace(sink, table="u", key=("v",))).examine()
    assert "no primary key or unique index on exactly (v)" in problem


def test_what_cannot_be_right_is_said_without_the_file() -> None:
    assert "no file that other processes see" in ToSQLite(":memory:", "t").check(CHANGES)[0]
    assert "known are delete, truncate" in ToSQLite("t", "t", journal="fast").check(CHANGES)[0]  # type: ignore[arg-type]
    assert "needs key=" in ToSQLite("t", "t", deleted="gone").check(CHANGES)[0]
    assert "key: there is no column 'x'" in ToSQLite("t", "t", key=("x",)).check(CHANGES)[0]
    assert "has to be of bool" in ToSQLite("t", "t", key=("k",), deleted="v").check(CHANGES)[0]
    assert "deleted: there is no column 'x'" in ToSQLite("t", "t", key=("k",), deleted="x").check(CHANGES)[0]
    assert "be of the key" in ToSQLite("t", "t", key=("gone",), deleted="gone").check(CHANGES)[0]
    schema = pa.schema({"tags": pa.list_(pa.string()), "big": pa.uint64()})
    assert len(ToSQLite("t", "t").check(schema)) == 2


MAKERS: list[Callable[[Any], Sink]] = [
    lambda key: ToSQLite("t", "t", key=key),
    lambda key: ToPostgres("", "t", key=key),
    lambda key: ToRocksDB("t", key=key),
    lambda key: ToKafka("host:1", "t", key=key),
    lambda key: ToPravega("tcp://host:1", "s", "t", key=key),
    lambda key: ToHTTP("http://host:1/", key=key),
    lambda key: ToFiles("t", partition_by=key),
]


def test_a_key_that_is_a_text_is_one_column_of_this_name() -> None:
    for makes in MAKERS:
        alone = makes("v")
        assert alone == makes(("v",)) == makes(["v"])
        assert not any("there is no column" in problem for problem in alone.check(CHANGES))
        (problem,) = (problem for problem in makes("gonne").check(CHANGES) if "gonne" in problem)
        assert problem.endswith(": there is no column 'gonne'; did you mean 'gone'?")


@pytest.mark.parametrize("makes", MAKERS)
def test_what_names_no_columns_is_refused_with_what_does(makes: Callable[[Any], Sink]) -> None:
    for named in (3, ["k", 3]):
        with pytest.raises(TypeError, match=r"names no columns; give the name of one, or several as \(.shop"):
            makes(named)


@pytest.mark.parametrize("makes", [ToKafka, ToHTTP])
def test_a_key_of_one_column_is_not_made_of_several_in_silence(makes: Any) -> None:
    with pytest.raises(ValueError, match="names several columns, and is one: make one of them before, in a map"):
        makes("http://host:1/", *(["topic"] if makes is ToKafka else []), key=("k", "v"))


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    table = pa.table(
        {
            "b": [True, None],
            "n": pa.array([-(2**63), 2**63 - 1]),
            "u": pa.array([0, 255], pa.uint8()),
            "x": [0.1, -1e300],
            "s": ["é\0'", None],
            "d": pa.array(["a", "b"]).dictionary_encode(),
            "raw": [b"\0\xff", b""],
            "at": pa.array([at, None], pa.timestamp("us", "UTC")),
            "day": [date(2026, 1, 2), None],
            "clock": [time(3, 4, 5), None],
            "price": [Decimal("1.50"), None],
            'a "name"': ["x", "y"],
        }
    )
    bench = SqlBench(ToSQLite(str(tmp_path / "t.db"), "some table", create=True), table.schema)
    assert bench.examine() == []
    bench.commit(bench.open(), table.to_pylist())
    first, second = read(path_of(bench), 'SELECT * FROM "some table"')
    moment = "2026-01-02 03:04:05.678000Z"
    assert first == (
        1, -(2**63), 0, 0.1, "é\0'", "a", b"\0\xff", moment, "2026-01-02", "03:04:05.000000", "1.50", "x",
    )  # fmt: skip
    assert second == (None, 2**63 - 1, 255, -1e300, None, "b", b"", None, None, None, None, "y")


def test_partitions_commit_one_after_the_other(bench: SqlBench) -> None:
    writers = [bench.open(partition=partition) for partition in range(3)]
    for k in range(9):
        assert bench.commit(writers[k % 3], [change(k, "v")]).outcome in DONE
    assert len(content(bench)) == 9
