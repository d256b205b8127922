"""Targets that need no server of another project: files, Delta, SQLite, RocksDB, and HTTP to a server in here."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot import ToDelta, ToFiles, ToHTTP, ToRocksDB, ToSQLite
from snapshot.connectors.rocksdb.sink import read_rocksdb
from tests.jobs.numbered import SCHEMA
from tests.targets.http_rows import row_server
from tests.targets.plain_files import PlainDelta, PlainFiles
from tests.targets.target import Target


@contextmanager
def files(folder: Path) -> Iterator[Target]:
    """Parquet files."""
    target = folder / "files"

    def rows() -> pa.Table:
        tables = [pq.read_table(file) for file in target.glob("part-*")]
        return pa.concat_tables([SCHEMA.empty_table(), *tables])

    yield Target(ToFiles(str(target)), PlainFiles(str(target)), rows)


@contextmanager
def rolled_files(folder: Path) -> Iterator[Target]:
    """Parquet files for which rows wait over several epochs."""
    with files(folder) as target:
        assert isinstance(target.sink, ToFiles)
        yield replace(target, sink=replace(target.sink, roll_every="2s"))


@contextmanager
def delta(folder: Path) -> Iterator[Target]:
    """A Delta table, read as the JSON of its log says; so the log is never shortened."""
    target = folder / "delta"

    def rows() -> pa.Table:
        entries = sorted((target / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
        tables = [pq.read_table(target / action["add"]["path"]) for action in actions if "add" in action]
        return pa.concat_tables([SCHEMA.empty_table(), *tables])

    yield Target(ToDelta(str(target), create=True), PlainDelta(str(target)), rows)


@contextmanager
def sqlite(folder: Path) -> Iterator[Target]:
    """A table of an SQLite file."""
    file = folder / "rows.sqlite"

    def rows() -> pa.Table:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as connection:
            found = connection.execute("SELECT k, n, i FROM numbered").fetchall()
        columns = zip(*found, strict=True) if found else ([], [], [])
        return pa.Table.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)

    sink = ToSQLite(str(file), "numbered", create=True)
    yield Target(sink, ToSQLite(str(file), "numbered", create=True, exactly_once=False), rows)


@contextmanager
def rocksdb(folder: Path) -> Iterator[Target]:
    """A RocksDB with a row for each row of the input. There is no other library here that reads it."""
    path = str(folder / "rocksdb")

    def rows() -> pa.Table:
        table = read_rocksdb(path)
        return table.select(SCHEMA.names) if table.num_columns else SCHEMA.empty_table()

    yield Target(ToRocksDB(path, key="i"), None, rows)


@contextmanager
def http(folder: Path) -> Iterator[Target]:
    """A server that takes each key once."""
    with row_server() as server:

        def rows() -> pa.Table:
            return pa.Table.from_pylist(server.rows(), SCHEMA)

        yield Target(ToHTTP(server.url, rows_per_request=50, exactly_once=False), None, rows, server.stop, server.start)
