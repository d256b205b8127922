"""Tables of a real PostgreSQL: rows appear with their epoch's commit, once, whatever happens to the server or to us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from snapshot import ToPostgres
from snapshot.connectors.sql import postgres_appends, postgres_session
from snapshot.connectors.sql.postgres_prepared import gid_of, token_in
from snapshot.connectors.sql.postgres_sink import Mode
from snapshot.connectors.staging.commit_tokens import Token
from snapshot.epochs.transaction_events import CommitOutcome, transaction_id
from snapshot.ids import JobId
from snapshot.program.sink import SinkError
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkEnvironment, SinkTrial, settled, some
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.servers.postgres import PostgresServer, running_postgres, small_folder
from tests.servers.postgres_proxy import Proxy, running_proxy
from tests.sql_bench import CHANGES, SqlBench, change
from tests.target_kills import carry_out
from tests.targets import postgres
from tests.targets.target import Running

KINDS = {
    "prepared": ToPostgres("", "texts", create=True),
    "staged": ToPostgres("", "texts", mode="staged", create=True),
    "upserts": ToPostgres("", "texts", key=("row",), create=True),
}


def read(dsn: str, statement: str) -> list[tuple[object, ...]]:
    """As somebody reads who knows nothing of us."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement.encode()).fetchall()


def do(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def pending(dsn: str, job: JobId | str) -> int:
    digest = sha256(f"{job}/the%2Fsink".encode()).hexdigest()[:32]
    [[count]] = read(dsn, f"SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'epochcut/{digest}/%'")
    assert isinstance(count, int)
    return count


@contextmanager
def running_trial(server: PostgresServer, kind: str) -> Iterator[SinkTrial]:
    direct = server.make_database()
    name = direct.rpartition("/")[2]
    with running_proxy(server.port) as proxy:
        sink = replace(KINDS[kind], dsn=server.dsn(name, proxy.port))
        assert SqlBench(sink, SCHEMA).examine() == []

        def visible(_: SinkEnvironment) -> Sequence[str]:
            return [str(row[0]) for row in read(direct, "SELECT row FROM texts")]

        bad = [
            replace(sink, dsn=server.dsn("nowhere")),
            replace(sink, dsn=direct.replace(server.password, f"x{server.password}")),
            replace(sink, dsn=server.dsn(name, port=1)),
            replace(sink, table="nowhere", create=False),
        ]
        theirs = f"theirs {name}"
        do(direct, "CREATE TABLE others (row text PRIMARY KEY)", "CREATE TABLE more (row text)")
        do(direct, "BEGIN; INSERT INTO more VALUES ('theirs')", f"PREPARE TRANSACTION '{theirs}'")

        def outside() -> object:
            kept = read(direct, f"SELECT gid FROM pg_prepared_xacts WHERE gid = '{theirs}'")
            return read(direct, "SELECT * FROM others"), read(direct, "SELECT * FROM more"), kept

        yield SinkTrial(
            sink,
            visible,
            lambda: do(direct, "DELETE FROM texts"),
            proxy.cut,
            lambda job: pending(direct, job),
            bad,
            [server.password],
            ["others", theirs],
            outside,
        )
        left = read(direct, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        do(direct, *(f"ROLLBACK PREPARED '{gid}'" for [gid] in left))


@pytest.fixture(scope="module", params=KINDS)
def trial(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[SinkTrial]:
    with running_trial(postgres_server, request.param) as trial:
        yield trial


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], trial: SinkTrial) -> None:
    check(trial)


def test_it_passes_any_order_of_events(trial: SinkTrial) -> None:
    chosen = settings(max_examples=8, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(sink_machine(trial), settings=chosen)


class Place:
    """A database with a table by key, and what a job does there, over a wire that can be cut."""

    def __init__(self, server: PostgresServer, dsn: str, proxy: Proxy) -> None:
        self.server = server
        self.direct = dsn
        self.proxy = proxy
        self.dsn = server.dsn(dsn.rpartition("/")[2], proxy.port)

    def bench(self, mode: Mode, *, key: bool = False, exactly_once: bool = True) -> SqlBench:
        """A job that writes the table `t`, which is made."""
        by_key = ToPostgres(self.dsn, "t", ("k",), "gone", create=True)
        sink = by_key if key else ToPostgres(self.dsn, "t", create=True, mode=mode)
        bench = SqlBench(replace(sink, exactly_once=exactly_once), CHANGES if key else ROWS)
        assert bench.examine() == []
        return bench

    def content(self) -> dict[object, object]:
        return {row[0]: row[1] for row in read(self.direct, "SELECT k, v FROM t")}

    def tokens(self) -> int:
        return len(read(self.direct, "SELECT token FROM epochcut_commits WHERE token <> ''"))

    def prepared(self) -> list[str]:
        found = read(self.direct, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return [str(row[0]) for row in found]


ROWS = pa.schema({"k": pa.int64(), "v": pa.string()})


def row(k: int, v: str | None = None) -> dict[str, object]:
    return {"k": k, "v": v}


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[Place]:
    with running_proxy(postgres_server.port) as proxy:
        place = Place(postgres_server, postgres_server.make_database(), proxy)
        yield place
        do(place.direct, *(f"ROLLBACK PREPARED '{gid}'" for gid in place.prepared()))


@pytest.fixture
def mortal(mortal_postgres_server: PostgresServer) -> Iterator[Place]:
    with running_proxy(mortal_postgres_server.port) as proxy:
        yield Place(mortal_postgres_server, mortal_postgres_server.make_database(), proxy)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A folder of the server's on a disk of few megabytes."""
    with small_folder() as folder:
        yield folder


MODES: tuple[Mode, ...] = ("prepared", "staged")


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_last_row_of_a_key_counts_and_a_row_that_says_so_deletes(place: Place) -> None:
    bench = place.bench("staged", key=True)
    writer = bench.open()
    first = bench.prepared(writer, [change(1, "a"), change(2, "b"), change(1, "c")], [change(2, "d"), change(4, "x")])
    assert writer.commit(*first).outcome is CommitOutcome.COMMITTED
    assert place.content() == {1: "c", 2: "d", 4: "x"}
    bench.commit(writer, [change(1, gone=True), change(2, gone=True), change(2, "e"), change(3, gone=None)])
    assert place.content() == {2: "e", 3: None, 4: "x"}
    assert writer.commit(*first).outcome is CommitOutcome.ALREADY_COMMITTED
    assert place.content() == {2: "e", 3: None, 4: "x"}
    writer.close()


@pytest.mark.parametrize(
    ("declared", "one", "same"),
    [
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("character(3)", "a", "a "),
        ("varchar(3)", "abc", "abc "),
        ("text COLLATE careless", "A", "a"),
        ("double precision", 0.0, -0.0),
    ],
)
def test_the_last_row_counts_of_keys_that_only_the_table_holds_for_equal(
    declared: str, one: object, same: object, place: Place
) -> None:
    do(
        place.direct,
        "CREATE COLLATION careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        f"CREATE TABLE t (k {declared} PRIMARY KEY, v text)",
    )
    schema = pa.schema({"k": pa.array([one]).type, "v": pa.string(), "gone": pa.bool_()})
    bench = SqlBench(ToPostgres(place.dsn, "t", ("k",), "gone"), schema)
    assert bench.examine() == []
    writer = bench.open()

    def after(*changes: tuple[object, str, bool]) -> list[object]:
        bench.commit(writer, [{"k": k, "v": v, "gone": gone} for k, v, gone in changes])
        return list(place.content().values())

    assert after((one, "first", False), (same, "second", False)) == ["second"]
    assert after((same, "", True), (one, "third", False)) == ["third"]
    assert after((one, "fourth", False), (same, "", True)) == []
    writer.close()


def test_values_come_back_as_they_were(place: Place) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    table = pa.table(
        {
            "b": [True, None],
            "n": pa.array([-(2**63), 2**63 - 1]),
            "u": pa.array([0, 2**64 - 1], pa.uint64()),
            "x": [0.1, float("-inf")],
            "s": ["", '\\N "quoted",\n\\.'],
            "d": pa.array(["a", None]).dictionary_encode(),
            "raw": [b"\0\xff", b""],
            "at": pa.array([at, None], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([at.replace(tzinfo=None), None], pa.timestamp("us")),
            "day": [date(2026, 1, 2), None],
            "clock": [time(3, 4, 5, 6), None],
            "price": [Decimal("1.50"), None],
            'a "name".x': ["x", "y"],
        }
    )
    for mode in MODES:
        do(place.direct, "CREATE SCHEMA IF NOT EXISTS other")
        sink = ToPostgres(place.dsn, "other.some", create=True, mode=mode)
        bench = SqlBench(sink, table.schema)
        assert bench.examine() == []
        writer = bench.open()
        bench.commit(writer, table.to_pylist())
        writer.close()
        first, second = read(place.direct, "SELECT * FROM other.some")
        assert first == tuple(column[0].as_py() for column in table.columns)
        assert second == tuple(column[1].as_py() for column in table.columns)
        do(place.direct, "DROP TABLE other.some")


def test_rows_in_amounts_are_streamed_before_their_epoch_is_over(place: Place) -> None:
    bench = place.bench("prepared")
    writer = bench.open()
    transaction = bench.begin(writer)
    for first in range(0, 100_000, 1000):
        writer.write(bench.batch([row(k, "x" * 50) for k in range(first, first + 1000)]))
    streaming = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL"
    wait_until(lambda: bool(read(place.direct, streaming)))
    assert place.content() == {}
    sealed = writer.seal()
    settled(writer, transaction, some(sealed.prepare(), transaction))
    assert len(place.content()) == 100_000
    writer.close()


@pytest.mark.parametrize("key", [False, True])
def test_without_exactly_once_rows_are_there_when_their_transaction_is_prepared(place: Place, key: bool) -> None:
    bench = place.bench("prepared", key=key, exactly_once=False)
    writer = bench.open()
    rows = [change(1, "a")] if key else [row(1, "a")]
    _, sealed = bench.sealed(writer, rows)
    bench.begin(writer)
    with place.proxy.cut(), pytest.raises(psycopg.OperationalError):
        sealed.prepare()
    assert sealed.prepare() is None
    assert place.content() == {1: "a"}
    writer.close()


def test_a_transaction_may_be_open_longer_than_the_server_allows_others(place: Place) -> None:
    name = place.direct.rpartition("/")[2]
    limits = ["idle_in_transaction_session_timeout"]
    if read(place.direct, "SELECT 1 FROM pg_settings WHERE name = 'transaction_timeout'"):  # from PostgreSQL 17 on
        limits.append("transaction_timeout")
    do(place.direct, *(f"ALTER DATABASE {name} SET {limit} = '1min'" for limit in limits))
    with postgres_session.connect(place.dsn) as connection:
        for limit in limits:
            assert postgres_session.execute(connection, f"SHOW {limit}").fetchone() == ("0",)


# --- tokens and names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_table_of_tokens_stays_small(place: Place, mode: Mode) -> None:
    bench = place.bench(mode)
    for number in range(1, 5):
        bench.recover(number)
        writer = bench.open(number)
        for k in range(8):
            bench.commit(writer, [row(k, "v")], number=number)
        writer.close()
    bench.recover(5)
    assert place.tokens() <= 3


@given(job=st.text(min_size=1), uid=st.text(min_size=1), number=st.integers(0, 10**9))
def test_a_prepared_transaction_is_known_by_its_name_and_no_other_is(job: str, uid: str, number: int) -> None:
    made_by = Incarnation(Generation(number), Attempt(4))
    try:
        transaction = transaction_id(JobId(job), Uid(uid), made_by, Partition(5), number)
        transaction.encode()
    except UnicodeEncodeError:
        return
    token = Token.new(transaction)
    gid = gid_of(token)
    assert len(gid.encode()) < 200
    assert token_in(JobId(job), Uid(uid), gid) == token
    assert token_in(JobId(job), Uid(f"{uid}x"), gid) is None
    assert token_in(JobId(f"{job}x"), Uid(uid), gid) is None
    assert token_in(JobId(job), Uid(uid), f"{gid}x") is None


def test_recovery_leaves_prepared_transactions_of_others_alone(place: Place) -> None:
    bench, other = place.bench("prepared"), SqlBench(ToPostgres(place.dsn, "t"), ROWS, job="another")
    do(place.direct, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'somebody''s'")
    for one in (bench, other):
        writer = one.open()
        one.prepared(writer, [row(1)])
        writer.close()
    bench.recover(2)
    assert sorted(gid.rpartition("/")[2] for gid in place.prepared()) == ["another.out", "somebody's"]
    do(place.direct, "ROLLBACK PREPARED 'somebody''s'")


@pytest.mark.parametrize("mode", MODES)
def test_a_second_job_of_the_same_name_is_refused_and_disturbs_nothing(place: Place, mode: Mode) -> None:
    first, second = place.bench(mode), place.bench(mode)
    first.recover(3)
    writer = first.open(3)
    one = first.prepared(writer, [row(1, "first")], number=3)
    with pytest.raises(SinkError, match=r"has taken the sink out over .* tree was put back from an older copy"):
        second.recover(1)
    stranger = second.open(1)
    if mode == "prepared":
        _, sealed = second.sealed(stranger, [row(2, "second")])
        second.begin(stranger)
        with pytest.raises(SinkError, match="an older copy"):
            sealed.prepare()
    else:
        answer = stranger.commit(*second.prepared(stranger, [row(2, "second")]))
        assert answer.outcome is CommitOutcome.RETRY_LATER
        assert "an older copy" in answer.reason
    assert writer.commit(*one).outcome is CommitOutcome.COMMITTED
    assert place.content() == {1: "first"}
    for each in (writer, stranger):
        each.close()


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_whose_answer_was_lost_is_asked_for_and_found(place: Place, mode: Mode) -> None:
    bench = place.bench(mode)
    writer = bench.open()
    one = bench.prepared(writer, [row(1, "a")])
    place.proxy.lose_the_answer_to(b"COMMIT PREPARED" if mode == "prepared" else b"COMMIT\0")
    answer = writer.commit(*one)
    assert (answer.outcome, place.proxy.lost) == (CommitOutcome.RETRY_LATER, 1)
    assert place.server.password not in answer.reason
    assert settled(writer, *one).outcome is CommitOutcome.ALREADY_COMMITTED
    assert read(place.direct, "SELECT k, v FROM t") == [(1, "a")]
    writer.close()


def test_a_prepare_whose_answer_was_lost_is_found_by_the_next(place: Place) -> None:
    bench = place.bench("prepared")
    writer = bench.open()
    place.proxy.lose_the_answer_to(b"PREPARE TRANSACTION")
    one = bench.prepared(writer, [row(1, "a")])
    assert place.proxy.lost == 1
    assert len(place.prepared()) == 1
    settled(writer, *one)
    assert read(place.direct, "SELECT k, v FROM t") == [(1, "a")]
    writer.close()


def test_an_attempt_that_is_over_leaves_nothing_prepared_also_if_it_did_not_hear_that_it_is(place: Place) -> None:
    bench = place.bench("prepared")
    bench.recover(2)
    late = bench.open(1)
    place.proxy.lose_the_answer_to(b"PREPARE TRANSACTION")
    _, sealed = bench.sealed(late, [row(1, "a")])
    with pytest.raises(SinkError, match="has taken the sink out over"):
        sealed.prepare()
    assert place.proxy.lost == 1
    assert place.prepared() == []
    late.close()


def test_a_prepared_transaction_that_somebody_has_rolled_back_fails_the_commit(place: Place) -> None:
    bench = place.bench("prepared")
    writer = bench.open()
    one = bench.prepared(writer, [row(1, "a")])
    [gid] = place.prepared()
    do(place.direct, f"ROLLBACK PREPARED '{gid}'")
    answer = writer.commit(*one)
    assert answer.outcome is CommitOutcome.FAILED
    assert f"the prepared transaction {gid} is gone, and was not committed: it was rolled back" in answer.reason
    writer.close()


def test_a_server_that_is_killed_loses_nothing_that_was_prepared_and_costs_no_rows_that_were_not(mortal: Place) -> None:
    for mode in MODES:
        bench = mortal.bench(mode)
        do(mortal.direct, "DELETE FROM t")
        writer = bench.open()
        one = bench.prepared(writer, [row(1, "prepared")])
        transaction = bench.begin(writer)
        writer.write(bench.batch([row(2, "written" * 200_000)]))
        mortal.server.kill()
        assert "Connection refused" in bench.examine()[0] or "connection" in bench.examine()[0]
        assert writer.commit(*one).outcome is CommitOutcome.RETRY_LATER
        with pytest.raises(psycopg.OperationalError):
            bench.recover(1, [one[0]])
        writer.write(bench.batch([row(3, "while it was down")]))
        sealed = writer.seal()
        bench.begin(writer)
        if mode == "prepared":
            with pytest.raises(SinkError, match=r"sink out: PostgreSQL at 127\.0\.0\.1"):
                sealed.prepare()
        mortal.server.start()
        settled(writer, transaction, some(sealed.prepare(), transaction))
        settled(writer, *one)
        assert sorted(mortal.content()) == [1, 2, 3]  # type: ignore[type-var]
        writer.close()


def test_a_server_that_stays_away_stops_the_attempt_before_memory_is_full(place: Place) -> None:
    bench = place.bench("prepared")
    writer = bench.open()
    bench.begin(writer)
    rows = bench.batch([row(1, "x" * 4_000_000)])

    def write_much() -> None:
        for _ in range(60):
            writer.write(rows)

    with place.proxy.cut(), pytest.raises(SinkError, match="sink out: its rows cannot wait any longer: PostgreSQL at"):
        write_much()
    writer.close()


def test_rows_that_were_let_go_fail_the_attempt_when_the_connection_breaks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_appends, "KEPT", 1 << 20)
    bench = place.bench("prepared")
    writer = bench.open()
    bench.begin(writer)
    rows = bench.batch([row(1, "x" * 3_000_000)])
    writer.write(rows)
    writer.write(rows)
    sealed = writer.seal()
    payload = sealed.prepare()
    assert payload is not None
    bench.begin(writer)
    writer.write(rows)
    streaming = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    wait_until(lambda: bool(read(place.direct, streaming)))
    with place.proxy.cut():
        writer.write(rows)
        with pytest.raises(SinkError, match=r"sink out: PostgreSQL at 127\.0\.0\.1"):
            writer.seal().prepare()
    bench.begin(writer)
    with pytest.raises(SinkError, match="sink out: PostgreSQL at"):
        writer.write(rows)
    writer.close()


def test_a_row_that_is_refused_while_it_streams_fails_the_attempt_with_its_values(place: Place) -> None:
    bench = place.bench("prepared")
    do(place.direct, "ALTER TABLE t ADD CONSTRAINT positive CHECK (k > 0)")
    writer = bench.open()
    _, sealed = bench.sealed(writer, [row(1, "good"), row(-7, "bad")])
    bench.begin(writer)
    with pytest.raises(SinkError, match=r"violates check constraint \"positive\"; Failing row contains \(-7, bad\)"):
        sealed.prepare()
    with pytest.raises(SinkError, match="Failing row contains"):
        writer.write(bench.batch([row(2)]))
    assert place.prepared() == []
    writer.close()


def test_a_row_that_is_refused_at_its_commit_fails_with_the_servers_words(place: Place) -> None:
    bench = place.bench("staged")
    do(place.direct, "ALTER TABLE t ADD CONSTRAINT positive CHECK (k > 0)")
    writer = bench.open()
    one = bench.prepared(writer, [row(1, "good"), row(-7, "bad")])
    answer = writer.commit(*one)
    assert answer.outcome is CommitOutcome.FAILED
    assert "Failing row contains (-7, bad)" in answer.reason
    assert (place.content(), place.tokens()) == ({}, 0)
    do(place.direct, "DROP TABLE t")
    assert 'relation "t" does not exist' in writer.commit(*one).reason
    writer.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_somebody_holds_puts_off_but_blocks_no_event_loop(
    place: Place, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "_SETTINGS", "SET lock_timeout = '100ms'")
    bench = place.bench(mode)
    writer = bench.open()
    with psycopg.connect(place.direct) as stranger:
        stranger.execute("LOCK TABLE t")
        transaction, sealed = bench.sealed(writer, [row(1, "a")])
        bench.begin(writer)
        if mode == "prepared":
            with pytest.raises(SinkError, match="lock timeout"):
                sealed.prepare()
        else:
            answer = writer.commit(transaction, some(sealed.prepare(), transaction))
            assert answer.outcome is CommitOutcome.RETRY_LATER
            assert "lock timeout" in answer.reason
    settled(writer, transaction, some(sealed.prepare(), transaction))
    assert place.content() == {1: "a"}
    writer.close()


def test_an_attempt_that_is_over_prepares_and_commits_nothing_any_more(place: Place) -> None:
    bench = place.bench("prepared")
    late = bench.open()
    _, sealed = bench.sealed(late, [row(1, "late")])
    some_payload = sealed.prepare()
    assert some_payload is not None
    transaction, late_sealed = bench.sealed(late, [])
    assert late_sealed.prepare() is None
    bench.recover(2)
    transaction = bench.begin(late)
    late.write(bench.batch([row(2, "later")]))
    with pytest.raises(SinkError, match=r"attempt 1.2 of job 'a job' has taken the sink out over from attempt 1.1"):
        late.seal().prepare()
    assert place.prepared() == []
    staged = place.bench("staged").open()
    transaction, payload = bench.prepared(staged, [row(3, "staged")])
    assert "has taken the sink out over" in staged.commit(transaction, payload).reason
    assert place.content() == {}
    for writer in (late, staged):
        writer.close()


def test_a_program_with_another_mode_commits_what_was_prepared_before(place: Place) -> None:
    for before, after in (MODES, MODES[::-1]):
        bench = place.bench(before)
        writer = bench.open()
        one = bench.prepared(writer, [row(1, before)])
        writer.close()
        other = replace_sink(bench, place.bench(after))
        writer = other.open()
        assert writer.commit(*one).outcome is CommitOutcome.COMMITTED
        assert writer.commit(*one).outcome is CommitOutcome.ALREADY_COMMITTED
        writer.close()
    assert len(read(place.direct, "SELECT 1 FROM t")) == 2


@pytest.mark.parametrize("mode", MODES)
def test_what_was_prepared_for_another_database_is_not_committed_in_this_one(place: Place, mode: Mode) -> None:
    bench = place.bench(mode)
    writer = bench.open()
    one = bench.prepared(writer, [row(1, "a")])
    elsewhere = SqlBench(ToPostgres(place.server.make_database(), "t", create=True, mode=mode), ROWS)
    elsewhere.environment = bench.environment
    assert elsewhere.examine() == []
    late = elsewhere.open()
    answer = late.commit(*one)
    assert answer.outcome is CommitOutcome.FAILED
    former = f"database={place.direct.rpartition('/')[2]} servers=127.0.0.1:{place.proxy.port} table=t"
    assert f"are for {former}, and its sink writes to " in answer.reason
    assert place.server.password not in answer.reason
    assert writer.commit(*one).outcome is CommitOutcome.COMMITTED
    assert place.content() == {1: "a"}
    for each in (writer, late):
        each.close()


def replace_sink(bench: SqlBench, by: SqlBench) -> SqlBench:
    bench.sink = by.sink
    return bench


# --- what is found before anything starts -----------------------------------------------------------------------------


def test_a_disk_that_is_full_puts_a_commit_off_until_there_is_room(place: Place, small_disk: Path) -> None:
    do(place.direct, f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    blob = "".join(sha256(f"{n}".encode()).hexdigest() for n in range(20_000))
    for mode in MODES:
        do(place.direct, "CREATE TABLE t (k bigint, v text) TABLESPACE small")
        bench = place.bench(mode)
        writer = bench.open()
        transaction, sealed = bench.sealed(writer, *([row(k, blob)] for k in range(3)))
        bench.begin(writer)
        if mode == "prepared":
            with pytest.raises(SinkError, match="No space left on device"):
                sealed.prepare()
        else:
            answer = writer.commit(transaction, some(sealed.prepare(), transaction))
            assert answer.outcome is CommitOutcome.RETRY_LATER
            assert "No space left on device" in answer.reason
        do(place.direct, "DROP TABLE t", "CREATE TABLE t (k bigint, v text)")
        settled(writer, transaction, some(sealed.prepare(), transaction))
        assert len(place.content()) == 3
        do(place.direct, "DROP TABLE t")
        writer.close()
    do(place.direct, "DROP TABLESPACE small")


def test_what_the_database_lacks_is_said_before_anything_starts(place: Place) -> None:
    name = place.direct.rpartition("/")[2]
    do(
        place.direct,
        "CREATE TABLE t (k int NOT NULL, v varchar(5), must text NOT NULL)",
        "ALTER TABLE t ADD COLUMN twice int GENERATED ALWAYS AS (k * 2) STORED",
        "CREATE UNLOGGED TABLE fleeting (k bigint, v text)",
        "CREATE VIEW seen AS SELECT * FROM t",
        "CREATE FOREIGN DATA WRAPPER somewhere",
        "CREATE SERVER other FOREIGN DATA WRAPPER somewhere",
        "CREATE FOREIGN TABLE far (k bigint, v text) SERVER other",
        "CREATE TABLE parted (k bigint, v text) PARTITION BY RANGE (k)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1)",
        "CREATE UNLOGGED TABLE parted_2 PARTITION OF parted FOR VALUES FROM (1) TO (2)",
        "CREATE FOREIGN TABLE parted_3 PARTITION OF parted FOR VALUES FROM (2) TO (3) SERVER other",
        "CREATE UNIQUE INDEX ON t (k) WHERE k > 1",
        f"CREATE ROLE nobody_{name} LOGIN PASSWORD 'guess'",
        "CREATE TABLE u (k bigint UNIQUE, v text, id serial NOT NULL)",
    )
    sink = ToPostgres(place.dsn, "t", ("k",), "gone")
    problems = SqlBench(sink).examine()
    assert "the column 'k' of t is of integer, which does not hold every value of int64" in problems[0]
    assert "the table t wants a value for 'must'" in problems[1]
    assert "the table t has no primary key or unique index on exactly (k)" in problems[2]
    assert SqlBench(replace(sink, table="u")).examine() == [
        "the column 'k' of u is of the key, but may be null; make it NOT NULL"
    ]
    assert "unlogged" in SqlBench(ToPostgres(place.dsn, "fleeting"), ROWS).examine()[0]
    assert SqlBench(ToPostgres(place.dsn, "fleeting", exactly_once=False), ROWS).examine() == []
    for table in ("seen", "far"):
        assert "a view or a foreign table" in SqlBench(ToPostgres(place.dsn, table), ROWS).examine()[0]
    unlogged, foreign = SqlBench(ToPostgres(place.dsn, "parted"), ROWS).examine()
    assert unlogged.startswith("parted_2 is an unlogged table")
    assert foreign.startswith("parted_3 is a foreign table, which another server commits by itself")
    schema = pa.schema({"twice": pa.int32(), "none": pa.int8()})
    problems = SqlBench(ToPostgres(place.dsn, "t"), schema).examine()
    assert "makes the column 'twice' itself" in problems[0]
    assert "has no column 'none'" in problems[1]
    poor = place.direct.replace(f"tester:{place.server.password}", f"nobody_{name}:guess")
    [problem] = SqlBench(replace(sink, dsn=poor, table="u")).examine()
    assert problem == "the role lacks the privilege to INSERT and SELECT and UPDATE and DELETE on u; GRANT it"


def test_a_domain_holds_what_the_type_below_it_holds(place: Place) -> None:
    do(
        place.direct,
        "CREATE DOMAIN small AS numeric(5)",
        "CREATE DOMAIN large AS numeric(19)",
        "CREATE TABLE narrow (k small, v text)",
        "CREATE TABLE wide (k large, v text)",
    )
    [problem] = SqlBench(ToPostgres(place.dsn, "narrow"), ROWS).examine()
    assert "the column 'k' of narrow is of numeric(5,0), which does not hold every value of int64" in problem
    assert SqlBench(ToPostgres(place.dsn, "wide"), ROWS).examine() == []


def test_a_role_needs_the_table_of_tokens_and_not_the_right_to_make_it(place: Place) -> None:
    name = place.direct.rpartition("/")[2]
    do(
        place.direct,
        f"CREATE ROLE guest_{name} LOGIN PASSWORD 'guess'",
        "REVOKE CREATE ON SCHEMA public FROM public",
        "CREATE TABLE t (k bigint, v text)",
        f"GRANT ALL ON t TO guest_{name}",
    )
    guest = place.direct.replace(f"tester:{place.server.password}", f"guest_{name}:guess")
    sink = ToPostgres(guest, "t", mode="staged")
    [problem] = SqlBench(sink, ROWS).examine()
    assert "permission denied for schema public" in problem
    assert SqlBench(replace(sink, dsn=place.direct), ROWS).examine() == []
    do(place.direct, f"GRANT INSERT, SELECT ON epochcut_commits TO guest_{name}")
    [problem] = SqlBench(sink, ROWS).examine()
    assert problem == "the role lacks the privilege to UPDATE and DELETE on epochcut_commits; GRANT it"
    do(place.direct, f"GRANT UPDATE, DELETE ON epochcut_commits TO guest_{name}")
    bench = SqlBench(sink, ROWS)
    assert bench.examine() == []
    bench.recover(1)
    writer = bench.open()
    bench.commit(writer, [row(1, "a")])
    writer.close()
    assert place.content() == {1: "a"}


def test_a_server_without_prepared_transactions_is_refused_for_them() -> None:
    with running_postgres({"max_prepared_transactions": "0"}) as server:
        sink = ToPostgres(server.dsn(), "t", create=True)
        [problem] = SqlBench(sink, ROWS).examine()
        assert problem.startswith("max_prepared_transactions is 0")
        assert SqlBench(replace(sink, mode="staged"), ROWS).examine() == []


def test_when_no_more_can_be_prepared_rows_are_staged_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_postgres({"max_prepared_transactions": "1"}) as server:
        bench, other = (SqlBench(ToPostgres(server.dsn(), "t", create=True), ROWS, job) for job in ("one", "other"))
        assert bench.examine() == []
        writer = bench.open()
        one = bench.prepared(writer, [row(1, "a")])
        assert bench.examine() == []
        assert "max_prepared_transactions is 1, and others have so many already" in other.examine()[0]
        two = bench.prepared(writer, [row(2, "b")])
        assert ("gid" in str(one[1].value), "gid" in str(two[1].value)) == (True, False)
        assert read(server.dsn(), "SELECT 1 FROM t") == []
        for transaction in (two, one):
            settled(writer, *transaction)
            assert writer.commit(*transaction).outcome is CommitOutcome.ALREADY_COMMITTED
        assert sorted(read(server.dsn(), "SELECT k, v FROM t")) == [(1, "a"), (2, "b")]
        one = bench.prepared(writer, [row(3, "c")])
        monkeypatch.setattr(postgres_appends, "KEPT", 1)
        _, sealed = bench.sealed(writer, [row(4, "d" * (9 << 20))], [row(5)])
        bench.begin(writer)
        with pytest.raises(SinkError, match="maximum number of prepared transactions reached"):
            sealed.prepare()
        writer.close()


def test_what_cannot_be_right_is_said_without_a_server() -> None:
    schema = pa.schema({"tags": pa.list_(pa.string()), "at": pa.timestamp("ns")})
    assert len(ToPostgres("host=x", "t").check(schema)) == 2
    assert "known are prepared and staged" in ToPostgres("host=x", "t", mode="fast").check(ROWS)[0]  # type: ignore[arg-type]
    secret = "host=x password=it's secret"
    for said in (ToPostgres(secret, "t").check(ROWS), SqlBench(ToPostgres(secret, "t"), ROWS).examine()):
        assert "the dsn cannot be read" in said[0]
        assert "secret" not in said[0]
    assert "secret" not in repr(ToPostgres(secret, "t"))


# --- a whole job ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("running", [postgres.prepared, postgres.upserts], ids=["prepared", "upserts"])
def test_a_job_whose_processes_and_server_are_killed_gives_every_row_once(running: Running, tmp_path: Path) -> None:
    report = carry_out("postgres", running, tmp_path / "trial", kills=2, restarts=1, seed=5)
    assert report.workers + report.drivers >= 1
    assert report.reads > 0
    assert report.exact, (report.compared.examples, report.seen)


def wait_until(condition: Callable[[], bool]) -> None:
    """Ask again until it is so; pytest's time-out is the limit."""
    while not condition():
        threading.Event().wait(0.01)
