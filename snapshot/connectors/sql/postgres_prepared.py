"""Transactions that PostgreSQL itself keeps between prepare and commit: what they are called, committed and aborted by.

Invariant: the token of a transaction is inserted by the transaction itself. So where the server has neither the
prepared transaction nor the token, it was not committed, and was rolled back from outside.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import psycopg

from snapshot.connectors.sql.postgres_session import Connection, execute, passes, words
from snapshot.connectors.sql.postgres_target import Tokens
from snapshot.connectors.sql.staged import settled_in
from snapshot.connectors.staging.commit_tokens import Token, token_of
from snapshot.connectors.staging.payloads import NONCE, PayloadFields
from snapshot.epochs.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import CommitAnswer
from statebackend.ids import Incarnation, Uid

_OURS: Final = "epochcut"
_READABLE: Final = 40
"""Characters of the job's and sink's names that are in a transaction's name for people."""
_UNKNOWN: Final = "42704"
_BUSY: Final = "55000"


def gid_of(token: Token) -> str:
    """Return PostgreSQL's name for the prepared transaction, shorter than the 200 bytes that it allows.

    It is `epochcut/<digest of job and sink>/<token>/<beginning of their names>`.
    """
    name = parse_transaction_id(token.transaction)
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{name.job}.{name.sink}")[:_READABLE]
    return f"{_prefix(token.transaction)}{token.text}/{readable}"


def token_in(job: JobId, uid: Uid, gid: str) -> Token | None:
    """Return the token of a prepared transaction; None if it is not of this job and sink."""
    parts = gid.split("/")
    if len(parts) != 5:
        return None
    try:
        token = token_of(job, uid, "/".join(parts[2:4]))
    except ValueError:
        return None
    return token if gid_of(token) == gid else None


def _prefix(transaction: TransactionId) -> str:
    names = transaction.rpartition("/")[0]
    return f"{_OURS}/{sha256(names.encode()).hexdigest()[:32]}/"


def prepare(connection: Connection, tokens: Tokens, token: Token) -> None:
    """Insert the token and prepare the current transaction; the caller has to ask `rolled_back_if_over` afterwards."""
    if not tokens.add(connection, token):
        execute(connection, "ROLLBACK")
        raise AssertionError(f"token {token.text} is there before its transaction is prepared")
    execute(connection, f"PREPARE TRANSACTION '{gid_of(token)}'")


def rolled_back_if_over(connection: Connection, tokens: Tokens, token: Token) -> str | None:
    """Roll back what was prepared if the attempt is over, and return the reason; None if it is not over.

    The following attempt first says that it begins and then looks for prepared transactions; this one prepares and then
    looks for a following attempt. So one of the two finds what a late process leaves.
    """
    reason = tokens.overtaken(connection)
    if reason is not None:
        roll_back(connection, gid_of(token))
    return reason


def is_prepared(connection: Connection, token: Token) -> bool:
    """True if the server keeps the token's transaction prepared in this database."""
    statement = "SELECT 1 FROM pg_prepared_xacts WHERE gid = %s AND database = current_database()"
    return execute(connection, statement, gid_of(token)).fetchone() is not None


def roll_back(connection: Connection, gid: str) -> None:
    """Abort a prepared transaction, unless it is gone."""
    with suppress(psycopg.errors.UndefinedObject):
        execute(connection, f"ROLLBACK PREPARED '{gid}'")


def abort_leftovers(
    connection: Connection, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]
) -> None:
    """Roll back the prepared transactions of this sink's earlier attempts that no complete epoch names."""
    rows = execute(connection, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
    for [gid] in rows:
        token = token_in(job, uid, str(gid))
        if token is not None and may_be_aborted(token.transaction, older_than, named):
            roll_back(connection, str(gid))


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """One committable that the server keeps."""

    table: str
    gid: str
    token: Token
    settled: tuple[str, ...]
    """Tokens that may be deleted after this commit."""

    @classmethod
    def read(cls, transaction: TransactionId, table: str, fields: PayloadFields) -> PreparedCommit:
        """Read the payload of a prepared transaction, whose name on the server has to follow from its token."""
        token = Token(transaction, fields.text("nonce", NONCE))
        return cls(table, fields.same("gid", gid_of(token)), token, settled_in(transaction, fields))


def commit_prepared(connection: Connection, dsn: str, tokens: Tokens, commit: PreparedCommit) -> CommitAnswer:
    """Commit a prepared transaction, or find out what has become of it."""
    try:
        execute(connection, f"COMMIT PREPARED '{commit.gid}'")
        answer = CommitAnswer(CommitOutcome.COMMITTED)
    except psycopg.errors.UndefinedObject:
        if not tokens.has(connection, commit.token):
            return CommitAnswer(
                CommitOutcome.FAILED,
                f"the prepared transaction {commit.gid} is gone, and was not committed: it was rolled back by hand, or "
                f"the server was restored from an older copy. Its rows are not in the job's tree; go back to an "
                f"epoch before it",
            )
        answer = CommitAnswer(CommitOutcome.ALREADY_COMMITTED)
    except psycopg.Error as error:
        later = passes(error) or error.sqlstate == _BUSY
        return CommitAnswer(CommitOutcome.RETRY_LATER if later else CommitOutcome.FAILED, words(error, dsn))
    with suppress(psycopg.Error):  # they stay until the next attempt begins
        tokens.forget(connection, commit.settled)
    return answer
