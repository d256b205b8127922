"""Examine a PostgreSQL database for what a sink lacks in it, before anything starts.

Invariant: it changes nothing but what the sink makes: the table of tokens, and the table if it is told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from snapshot.connectors.sql.postgres_columns import found_table
from snapshot.connectors.sql.postgres_prepared import token_in
from snapshot.connectors.sql.postgres_session import Connection, execute
from snapshot.connectors.sql.postgres_types import declared_for, takes
from snapshot.connectors.staging.sql_statements import TokenStatements, quoted
from snapshot.connectors.staging.table_fit import Wanted, create_table, misfits
from snapshot.ids import JobId
from statebackend.ids import Uid

_TABLE: Final = """
SELECT relkind::text, has_table_privilege(oid, 'INSERT'), has_table_privilege(oid, 'SELECT'),
    has_table_privilege(oid, 'UPDATE'), has_table_privilege(oid, 'DELETE')
FROM pg_class WHERE oid = to_regclass(%s)
"""
_PARTS: Final = """
SELECT oid::regclass::text, relkind::text, relpersistence::text FROM pg_class
WHERE oid = to_regclass(%s) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%s))) ORDER BY 1
"""
"""A table and its partitions."""
_PREPARED: Final = """
SELECT current_setting('max_prepared_transactions')::int, (SELECT array_agg(gid) FROM pg_prepared_xacts)
"""
_TABLE_KINDS: Final = ("r", "p")
_PRIVILEGES: Final = ("INSERT", "SELECT", "UPDATE", "DELETE")
"""In the order in which `_TABLE` asks for them."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A database, and what a sink of a job wants of it."""

    job: JobId
    uid: Uid
    connection: Connection
    wanted: Wanted
    exactly_once: bool
    staged: bool

    def faults(self, schema: pa.Schema, create: bool) -> Sequence[str]:
        """Return why the rows cannot go to this database, in sentences; make what is to be created first."""
        [read_only] = execute(self.connection, "SELECT pg_is_in_recovery()").fetchall()[0]
        if read_only:
            return ["the server is a standby, which takes no rows; give the address of the primary"]
        if create:
            execute(self.connection, create_table(self.wanted, schema, declared_for))
        faults = self._table_faults()
        if faults:
            return faults
        found = found_table(self.connection, self.wanted.table)
        return [*misfits(schema, self.wanted, found, takes), *self._token_faults(), *self._setting_faults()]

    def _table_faults(self) -> list[str]:
        table = self.wanted.table
        row = execute(self.connection, _TABLE, quoted(table)).fetchone()
        if row is None:
            return [f"there is no table {table} in this database; make it, or use create=True"]
        kind, *granted = row
        if kind not in _TABLE_KINDS:
            return [f"{table} is no table that rows can be added to; a view or a foreign table cannot be used"]
        if self.exactly_once and (faults := self._parts_faults()):
            return faults
        needed = [
            "INSERT",
            *(["SELECT", "UPDATE"] if self.wanted.key else []),
            *(["DELETE"] if self.wanted.deleted else []),
        ]
        return _lacking(table, needed, granted)

    def _token_faults(self) -> list[str]:
        """Return the privileges on the table of tokens that the role lacks; make the table if there is none.

        Another role may have made it.
        """
        if not self.exactly_once:
            return []
        tokens = TokenStatements(self.wanted.table, "%s")
        row = execute(self.connection, _TABLE, tokens.table).fetchone()
        if row is None:
            execute(self.connection, tokens.create)
            return []
        return _lacking(tokens.table.replace('"', ""), _PRIVILEGES, row[1:])

    def _parts_faults(self) -> list[str]:
        """Return faults of the table and its partitions where the server does not write rows together with their token.

        Foreign tables commit by themselves, and unlogged tables are empty after a crash of the server.
        """
        faults = []
        table = quoted(self.wanted.table)
        for name, kind, persistence in execute(self.connection, _PARTS, table, table).fetchall():
            if kind == "f":
                faults.append(f"{name} is a foreign table, which another server commits by itself; detach it")
            elif persistence == "u":
                faults.append(
                    f"{name} is an unlogged table, which is empty after a crash of the server; ALTER TABLE SET LOGGED"
                )
        return faults

    def _setting_faults(self) -> list[str]:
        if not self.exactly_once or self.staged:
            return []
        [most, gids] = execute(self.connection, _PREPARED).fetchall()[0]
        others = [gid for gid in gids or () if token_in(self.job, self.uid, str(gid)) is None]
        advice = "set it to two or more for each partition and restart the server, or use mode='staged'"
        if most == 0:
            return [f"max_prepared_transactions is 0, so the server keeps no prepared transactions; {advice}"]
        if len(others) >= most:
            return [
                f"max_prepared_transactions is {most}, and others have so many already, see pg_prepared_xacts; {advice}"
            ]
        return []


def _lacking(table: str, needed: Sequence[str], granted: Sequence[object]) -> list[str]:
    has = dict(zip(_PRIVILEGES, granted, strict=True))
    missing = [privilege for privilege in needed if not has[privilege]]
    return [f"the role lacks the privilege to {' and '.join(missing)} on {table}; GRANT it"] if missing else []
