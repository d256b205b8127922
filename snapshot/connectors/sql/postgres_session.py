"""Connections to a PostgreSQL server, and what its errors mean.

Invariant: no text that is made here has a password in it; who waits for the network, or for locks of others,
waits with a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias
from weakref import finalize

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.tree.frozen_json import JsonLike

Connection: TypeAlias = psycopg.Connection[TupleRow]

_DEFAULTS: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "epochcut",
}
_SETTINGS: Final = """
SET lock_timeout = '10s';
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""
"""The settings of a session: confirmed output is on the disk, and a transaction may be open for an epoch, which
PostgreSQL limits from 17 on."""

_PASSING: Final = ("08", "40", "53", "57", "58", "XX")
"""Classes of errors that pass by themselves, or when the server gets room: connections, collisions of transactions,
resources, intervention, the machine, crashes."""
_ALSO_PASSING: Final = ("55P03", "55006", "25006", "3B001", "0B000")
"""A lock that took too long, an object in use, a server that only reads for now."""


def passes(error: psycopg.Error) -> bool:
    """True if the failed statement may succeed later without a change to the program, the table or the rows."""
    code = error.sqlstate
    return code is None or code[:2] in _PASSING or code in _ALSO_PASSING


def words(error: psycopg.Error, dsn: str) -> str:
    """Return the server's message with its address, and what it says about the refused row; without the password."""
    parts = [error.diag.message_primary or " ".join(str(error).split()), error.diag.message_detail, error.diag.context]
    text = "; ".join(part for part in parts if part)
    password = conninfo_to_dict(dsn).get("password")
    return f"{address(dsn)}: {text.replace(str(password), '***') if password else text}"


def target_error(error: psycopg.Error, dsn: str) -> TargetError:
    """Turn an error of the server into the answer to a commit: unknown if it may pass, else refused."""
    return TargetError(TargetAnswer.UNKNOWN if passes(error) else TargetAnswer.REFUSED, words(error, dsn))


def address(dsn: str) -> str:
    """Describe the server and database of a dsn, without the password."""
    given = conninfo_to_dict(dsn)
    host, port = given.get("host") or given.get("hostaddr") or "the local server", given.get("port")
    database = given.get("dbname") or given.get("service") or ""
    return f"PostgreSQL at {host}{f':{port}' if port else ''}{f'/{database}' if database else ''}"


def place_of(dsn: str) -> dict[str, JsonLike]:
    """Return the `servers` in a dsn, one of which is reached, and the `database`, as far as the dsn says so."""
    given = conninfo_to_dict(dsn)
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    ports = str(given.get("port") or "").split(",")
    places = zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=False)
    servers: list[JsonLike] = [f"{host}:{port or 5432}" for host, port in places if host]
    return {"servers": servers, "database": str(given.get("dbname") or given.get("user") or "")}


def may_be_one_place(stored: Mapping[str, JsonLike], dsn: str) -> bool:
    """True if a stored place may be where the dsn leads: they share a server and the database.

    What either of them does not name counts as shared.
    """
    ours = place_of(dsn)
    one, two = stored.get("servers"), ours["servers"]
    assert isinstance(two, Sequence)
    apart = isinstance(one, Sequence) and bool(one) and bool(two) and set(one).isdisjoint(two)
    databases = {str(place.get("database") or "") for place in (stored, ours)} - {""}
    return not apart and len(databases) < 2


def dsn_faults(dsn: str) -> Sequence[str]:
    """Return why the dsn cannot be read; without the library's own words, which may hold the password."""
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return ["the dsn cannot be read; write it as postgresql://user@host:port/database or as host=... dbname=..."]
    return []


def connect(dsn: str) -> Connection:
    """Open a connection that commits each statement by itself unless told to begin."""
    given = {name: value for name, value in conninfo_to_dict(dsn).items() if value is not None}
    connection = psycopg.connect(make_conninfo("", **{**_DEFAULTS, **given}), autocommit=True, prepare_threshold=None)
    try:
        connection.execute(_SETTINGS)
    except BaseException:
        connection.close()
        raise
    return connection


def execute(connection: Connection, statement: str, *values: object) -> psycopg.Cursor[TupleRow]:
    """Run a statement; its parameters are `%s`."""
    return connection.execute(statement.encode(), values or None)


class Sessions:
    """The connections of one sink in one process, each used by one thread at a time and kept for the next."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._closed = False
        finalize(self, _close_all, self._open)  # of who is given up without a word

    def connect(self) -> Connection:
        """Open another connection, which `give_up` or `close` closes."""
        connection = connect(self.dsn)
        self._open.add(connection)
        return connection

    def give_up(self, connection: Connection) -> None:
        """Close a connection."""
        self._open.discard(connection)
        connection.close()

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Lend a connection without an open transaction; close it if the caller's block raises."""
        connection = self._taken()
        try:
            yield connection
        except BaseException:
            self.give_up(connection)
            raise
        self._idle.append(connection)
        if self._closed or connection.closed:
            self.close_idle()

    def close(self) -> None:
        """Close the idle connections now, and the others as they become idle."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use."""
        with suppress(IndexError):
            while True:
                self.give_up(self._idle.pop())

    def _taken(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect()


def _close_all(connections: set[Connection]) -> None:
    for connection in list(connections):
        connection.close()
