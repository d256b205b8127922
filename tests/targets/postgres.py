"""A PostgreSQL that a job writes to in each of the three ways, read by its own client library.

Invariant: a server that was killed comes back at the same address with what it had confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from snapshot import ToPostgres
from tests.jobs.numbered import SCHEMA
from tests.servers.postgres import running_postgres
from tests.targets.target import Target


@contextmanager
def prepared(folder: Path) -> Iterator[Target]:
    """Rows are appended by transactions that the server keeps prepared."""
    with _running(ToPostgres("", "numbered", create=True)) as target:
        yield target


@contextmanager
def staged(folder: Path) -> Iterator[Target]:
    """Rows are staged, and appended together with a token."""
    with _running(ToPostgres("", "numbered", mode="staged", create=True)) as target:
        yield target


@contextmanager
def upserts(folder: Path) -> Iterator[Target]:
    """Rows replace those with their key, of which there are none."""
    with _running(ToPostgres("", "numbered", key=("i",), create=True)) as target:
        yield target


@contextmanager
def _running(like: ToPostgres) -> Iterator[Target]:
    import psycopg

    with running_postgres() as server:
        sink = replace(like, dsn=server.make_database())

        def rows() -> pa.Table:
            with psycopg.connect(sink.dsn, connect_timeout=5) as connection:
                found = connection.execute(f"SELECT {', '.join(SCHEMA.names)} FROM {sink.table}".encode()).fetchall()
            columns = zip(*found, strict=True) if found else [[] for _ in SCHEMA.names]
            return pa.Table.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)

        yield Target(sink, replace(sink, exactly_once=False), rows, server.kill, server.start)
