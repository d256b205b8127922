"""Tables of a real PostgreSQL: rows appear with their epoch's commit, once, whatever happens to the server or to us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from snapshot import ToPostgres
from snapshot.ids import JobId
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkTrial, Surroundings
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_proxy import running_proxy
from tests.sql_bench import SqlBench

pytestmark = pytest.mark.servers

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

        def visible(_: Surroundings) -> Sequence[str]:
            return [str(row[0]) for row in read(direct, "SELECT row FROM texts")]

        bad = [
            replace(sink, dsn=server.dsn("nowhere")),
            replace(sink, dsn=direct.replace(server.password, f"x{server.password}")),
            replace(sink, dsn=server.dsn(name, port=1)),
            replace(sink, table="nowhere", create=False),
        ]
        yield SinkTrial(
            sink,
            visible,
            lambda: do(direct, "DELETE FROM texts"),
            proxy.cut,
            lambda job: pending(direct, job),
            bad,
            [server.password],
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
