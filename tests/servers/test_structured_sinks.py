"""Micro-batches into real servers: what is run again adds nothing, whichever attempts and starts there were."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pyarrow as pa
import pytest

from snapshot import ToKafka, ToPostgres
from snapshot.program.sink import Sink
from snapshot.structured.query import SinkQuery, Written
from statebackend.stores.memory_store import MemoryStore
from tests.servers.kafka import KafkaServer
from tests.servers.postgres import PostgresServer

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
PARTITIONS = 2
Place = tuple[Sink, Callable[[], list[object]], Callable[[], int]]
"""A sink, what readers see of `k`, and how many transactions are left over."""


@contextmanager
def kafka(request: pytest.FixtureRequest) -> Iterator[Place]:
    server: KafkaServer = request.getfixturevalue("kafka_server")
    topic = server.make_topic(2)

    def visible() -> list[object]:
        return [json.loads(record.value or b"null")["k"] for record in server.records(topic)]

    yield ToKafka(server.bootstrap, topic, key="v"), visible, lambda: 0


@contextmanager
def prepared(request: pytest.FixtureRequest) -> Iterator[Place]:
    with postgres(request, ToPostgres("", "t", create=True)) as place:
        yield place


@contextmanager
def upserts(request: pytest.FixtureRequest) -> Iterator[Place]:
    with postgres(request, ToPostgres("", "t", key=("k",), create=True)) as place:
        yield place


@contextmanager
def postgres(request: pytest.FixtureRequest, like: ToPostgres) -> Iterator[Place]:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    dsn = server.make_database()

    def read(statement: bytes) -> list[object]:
        with psycopg.connect(dsn) as connection:
            return [row[0] for row in connection.execute(statement)]

    left = b"SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    sink = ToPostgres(dsn, like.table, like.key, create=True)
    yield sink, lambda: read(b"SELECT k FROM t"), lambda: len(read(left))


@pytest.mark.parametrize("running", [kafka, prepared, upserts], ids=lambda running: running.__name__)
def test_a_batch_that_is_run_again_after_its_commit_adds_nothing(
    running: Callable[[pytest.FixtureRequest], AbstractContextManager[Place]], request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    store = MemoryStore(f"structured-{name}")
    with running(request) as (sink, visible, left):

        def start() -> SinkQuery:
            return SinkQuery("query", "sink", sink, store, 30.0, SCHEMA)

        def write(batch: int, run: str) -> list[Written]:
            """The first batch has no rows, as those of many sources."""
            written = []
            for partition in range(PARTITIONS):
                ks = [batch * 10 + partition, batch * 10 + partition + 5] if batch else []
                rows = pa.RecordBatch.from_pydict({"k": ks, "v": [run] * len(ks)}, SCHEMA)
                written.append(start().write(batch, partition, f"{name}-{run}", False, [rows]))
            return written

        def expect(batches: int) -> None:
            ks = [batch * 10 + k for batch in range(1, batches) for k in (0, 1, 5, 6)]
            assert sorted(visible(), key=str) == sorted(ks, key=str)

        start().commit(0, write(0, "first"))
        lost = write(1, "first")
        start().commit(1, write(1, "first"))
        expect(2)
        for run in ("second", "third"):
            start().commit(1, write(1, run))
            expect(2)
        start().commit(1, lost)
        expect(2)
        write(2, "third")
        start().commit(2, write(2, "fourth"))
        expect(3)
        assert left() == 0
