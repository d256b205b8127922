"""The sinks of simulated programs: each way to write exactly once, and one at least once, to a simulated target.

Invariant: they are written against the public contract of sinks alone, and pass its kit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import pyarrow as pa

from recovery.testing.programs.target import ShownRow, SimulatedTarget, TargetAway, target
from snapshot.connectors.staging.commit_tokens import TargetError, Token, commit_by_token
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, PLACE, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, StagedRows, staged_batches, unreadable
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

_T = TypeVar("_T")


class Keeping(Enum):
    """The place where rows wait for their commit."""

    TARGET = "prepared"
    """The target keeps prepared transactions."""
    TREE = "staged"
    """The job's tree has the rows, which are written together with a token."""
    NOWHERE = "at least once"
    """Rows are visible when they are written, and again after a rollback."""


@dataclass(frozen=True, slots=True)
class ToSimulated:
    """A sink to the target of this name in this process."""

    name: str
    keeping: Keeping = Keeping.TARGET

    @property
    def exactly_once(self) -> bool:
        """True unless rows wait nowhere."""
        return self.keeping is not Keeping.NOWHERE

    @property
    def abilities(self) -> Abilities:
        """Declare how rows wait."""
        return Abilities(keeps_prepared=self.keeping is Keeping.TARGET, reads_tokens=self.keeping is Keeping.TREE)

    def check(self, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Return no problem, as the target takes every schema."""
        return []

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report a target that does not answer."""
        try:
            target(self.name).check()
        except TargetAway as error:
            return [str(error)]
        return []

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        match self.keeping:
            case Keeping.TARGET:
                return _Preparing(self.name, context)
            case Keeping.TREE:
                return _Staging(self.name, context)
            case Keeping.NOWHERE:
                return _Showing(self.name, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Have the target drop prepared rows that are leftovers."""
        if self.keeping is Keeping.TARGET:
            target(self.name).abort(job, uid, older_than, named)


def values_in(batch: pa.RecordBatch) -> list[ShownRow]:
    """Return the rows of a batch as the target shows them."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


# --- the target keeps transactions -----------------------------------------------------------------------------------


class _Preparing:
    """The sink in a partition, where the target keeps what is prepared."""

    def __init__(self, name: str, context: SinkContext) -> None:
        self._name, self._context = name, context
        self._token: Token | None = None
        self._rows: list[ShownRow] = []

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no rows."""
        self._token, self._rows = Token.new(transaction), []

    def write(self, rows: Rows) -> None:
        """Keep the rows."""
        self._rows += values_in(rows.batch)

    def seal(self) -> Sealed:
        """Hand over the rows."""
        assert self._token is not None, "a transaction was begun"
        rows, self._rows = self._rows, []
        return _PreparedRows(self._name, self._context, self._token, tuple(rows))

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Have the target show what it keeps."""
        found = _token_in(self._name, self._context, transaction, payload)
        if isinstance(found, CommitAnswer):
            return found
        name, token = found
        try:
            outcome = target(name).commit(token)
        except TargetAway as error:
            return CommitAnswer(CommitOutcome.RETRY_LATER, str(error))
        lost = f"the target does not have transaction {transaction}"
        return CommitAnswer(outcome, lost if outcome is CommitOutcome.FAILED else "")

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows = []


@dataclass(frozen=True, slots=True, eq=False)
class _PreparedRows:
    """The rows of a sealed transaction, which the target is to keep."""

    name: str
    context: SinkContext
    token: Token
    rows: tuple[ShownRow, ...]

    def prepare(self) -> CommitPayload | None:
        """Have the target keep the rows."""
        if not self.rows:
            return None
        target(self.name).prepare(self.token, self.context.job, self.context.uid, self.rows)
        return CommitPayload(Json.of(_about(self.name, self.token)))


def _about(name: str, token: Token) -> dict[str, str]:
    return {MADE_BY: ToSimulated.__name__, PLACE: name, "nonce": token.nonce}


def _token_in(
    name: str, context: SinkContext, transaction: TransactionId, payload: CommitPayload
) -> tuple[str, Token] | CommitAnswer:
    return read_payload(
        ToSimulated.__name__,
        context,
        transaction,
        payload,
        lambda fields: (fields.own_place(name), Token(transaction, fields.text("nonce", NONCE))),
    )


# --- the tree has the rows -------------------------------------------------------------------------------------------


class _Staging:
    """The sink in a partition, where rows wait in the job's tree."""

    def __init__(self, name: str, context: SinkContext) -> None:
        self._name, self._context = name, context
        self._rows = StagedRows(context.uid, context.staging)
        self._token: Token | None = None

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no rows."""
        self._token = Token.new(transaction)
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows."""
        self._rows.write(rows)

    def seal(self) -> Sealed:
        """Hand over the rows."""
        assert self._token is not None, "a transaction was begun"
        return self._rows.seal({**_about(self._name, self._token)})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write the rows and their token together, unless that was done."""
        found = _token_in(self._name, self._context, transaction, payload)
        if isinstance(found, CommitAnswer):
            return found
        name, token = found
        try:
            rows = [row for batch in staged_batches(payload, self._context.staging) for row in values_in(batch)]
        except UNREADABLE as error:
            return unreadable(error)
        return commit_by_token(_Committable(target(name), token, rows))

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows.close()


class _Committable:
    """Staged rows at their target, as the commit by token asks for it."""

    def __init__(self, at: SimulatedTarget, token: Token, rows: Sequence[ShownRow]) -> None:
        made = parse_transaction_id(token.transaction)
        self._at, self._token, self._rows = at, token, rows
        self._job, self._sink = made.job, made.sink
        self._producer = f"{made.job}/{made.sink}/{made.partition}"
        self._lease = 0

    def fence(self) -> None:
        """Take the partition's producer over."""
        self._lease = _asked(lambda: self._at.fence(self._producer))

    def has_token(self) -> bool:
        """True if the rows are visible."""
        return _asked(lambda: self._at.has(self._token))

    def write(self) -> None:
        """Show the rows, with the token."""
        if not _asked(
            lambda: self._at.write(self._producer, self._lease, self._token, self._job, self._sink, self._rows)
        ):
            raise TargetError(TargetAnswer.FENCED, f"another committer has taken {self._producer} over")


def _asked(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except TargetAway as error:
        raise TargetError(TargetAnswer.UNKNOWN, str(error)) from error


# --- rows wait nowhere -----------------------------------------------------------------------------------------------


class _Showing:
    """The sink in a partition, where rows are visible at once."""

    def __init__(self, name: str, context: SinkContext) -> None:
        self._name, self._context = name, context

    def begin(self, transaction: TransactionId) -> None:
        """Do nothing: there are no transactions."""

    def write(self, rows: Rows) -> None:
        """Show the rows; `SinkError` fails the attempt."""
        if not len(rows):
            return
        try:
            target(self._name).show(self._context.job, self._context.uid, values_in(rows.batch))
        except TargetAway as error:
            raise SinkError(f"sink {self._context.uid}: {error}") from error

    def seal(self) -> Sealed:
        """Hand over nothing."""
        return _Nothing()

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Refuse: nothing was ever prepared."""
        return CommitAnswer(CommitOutcome.FAILED, f"{transaction} was not prepared by this sink: {payload.value.text}")

    def close(self) -> None:
        """Do nothing, as nothing is kept."""


class _Nothing:
    """A transaction without rows."""

    def prepare(self) -> None:
        """Prepare nothing."""
