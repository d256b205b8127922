"""Rows for queries of Spark's: staged until their epoch is complete, then files of a log that say the epoch.

Invariant: the files that a commit writes follow from the payload, names and content; so a commit by any process, after
any crash, writes the same ones. It writes none unless all of them can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from snapshot.connectors.files.folder import everywhere, password_faults
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, PLACE, BadPayload, PayloadFields, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, StagedRows, batches_in, unreadable
from snapshot.epochs.transaction_events import CommitOutcome, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter
from snapshot.structured.output_log import DamagedOutput, Owner, open_output
from snapshot.structured.spark_types import type_faults
from snapshot.tree.manifest import CommitPayload
from statebackend import means
from statebackend.errors import StoreError
from statebackend.ids import Epoch, Incarnation, Uid
from statebackend.stores.store import BlobStoreError

_KIND: Final = "ToSpark"
_PART_BYTES: Final = 8 << 20
"""Size from which rows of a transaction go to another file."""


@dataclass(frozen=True, slots=True)
class ToSpark:
    """A sink whose rows a query of Structured Streaming reads, epoch by epoch, each row once.

        totals.write(ToSpark("/data/totals"), uid="out")

    The query is `spark.readStream.format("epochcut").option("checkpoints", tree).load("/data/totals")`, of a session
    that `recovery.register` was called for; `tree` is where the program's checkpoints are, which say which epochs are
    committed. `spark.read` gives all rows up to the newest of them. Any number of queries may read, also while the
    program is down; a micro-batch has whole epochs.

    `log` is a folder or `s3://` address that the program's processes and Spark's see, and it belongs to this sink of
    this job alone: a fork needs another one. Rows stay there until a query with the option `delete=true` has read them.
    """

    log: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", everywhere(self.log))

    @property
    def exactly_once(self) -> bool:
        """Return True: queries see what is committed."""
        return True

    @property
    def abilities(self) -> Abilities:
        """Declare that the files themselves show what was committed."""
        return Abilities(reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report a password in the place of the log, rows without columns, and columns for which Spark has no type."""
        columns = type_faults(schema) if len(schema) else ["Spark has no rows without columns"]
        return [*password_faults(self.log), *columns]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        """Report a log that cannot be written, or that is another sink's.

        A new log stays without an owner: the start may be refused for another reason, and the job never be born.
        """
        try:
            fault = open_output(self.log).fault_for(_owner(job, uid, schema))
        except StoreError as error:
            fault = f"the log at {self.log} cannot be written: {error}"
        return [f"sink {uid}: {fault}"] if fault else []

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        return _Writer(self.log, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Do nothing: leftovers are only in the job's tree, where the clean-up finds them."""


def _owner(job: JobId, uid: Uid, schema: pa.Schema) -> Owner:
    return Owner(job, uid, schema.remove_metadata())


@dataclass(frozen=True, slots=True)
class _Staged:
    """The fields of a payload."""

    place: str
    epoch: Epoch
    nonce: str
    rows: int

    @classmethod
    def read(cls, log: str, fields: PayloadFields) -> _Staged:
        """Read what `seal_for` has written, for this log or another one that was allowed."""
        epoch, nonce = Epoch.parse(fields.text("epoch")), fields.text("nonce", NONCE)
        return cls(fields.own_place(log), epoch, nonce, fields.number("rows", 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Sealed:
    """The rows of an epoch, to be prepared when the log is the sink's."""

    own: Callable[[], str]
    rows: Sealed

    def prepare(self) -> CommitPayload | None:
        """Stage the rows. Makes the log the sink's, so that a query may begin before there are rows."""
        if fault := self.own():
            raise SinkError(fault)
        return self.rows.prepare()


class _Writer:
    """The sink in a partition."""

    def __init__(self, log: str, context: SinkContext) -> None:
        self._log = log
        self._context = context
        self._rows = StagedRows(context.uid, context.staging, _PART_BYTES)
        self._nonce = ""
        self._owned: set[str] = set()
        """The logs that were found to be the sink's."""

    def begin(self, transaction: TransactionId) -> None:  # noqa: ARG002
        """Begin with no rows, and draw what tells them from those of a former transaction of this name."""
        self._nonce = means.token_hex(8)
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows, or stage them."""
        self._rows.write(rows)

    def seal(self) -> Sealed:
        """Raise `SinkError`, as the rows would have no epoch."""
        raise SinkError(
            f"sink {self._context.uid}: {_KIND} can only be written by a stream program, whose epochs it notes"
        )

    def seal_for(self, epoch: Epoch) -> Sealed:
        """Hand over the rows of an epoch."""
        rows = self._rows.seal({MADE_BY: _KIND, PLACE: self._log, "epoch": str(epoch), "nonce": self._nonce})
        return _Sealed(partial(self._own, self._log), rows)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write the files that are not there yet."""
        found = read_payload(_KIND, self._context, transaction, payload, partial(_Staged.read, self._log))
        if isinstance(found, CommitAnswer):
            return found
        made = parse_transaction_id(transaction)
        name = f"{made.incarnation}.{made.partition}.{made.n}-{found.nonce}"
        try:
            last = self._verified(payload, found.rows)
            if fault := self._own(found.place):
                return CommitAnswer(CommitOutcome.FAILED, fault)
            log, written = open_output(found.place), False
            for number, file in enumerate(payload.staged):
                data = last if file == payload.staged[-1] else self._context.staging.get(file)
                written |= log.put(found.epoch, f"{name}-{number:05}.arrow", data)
        except BlobStoreError as error:
            return CommitAnswer(
                CommitOutcome.RETRY_LATER,
                f"the rows that were staged could not be read, or the log at {found.place} not be written: {error}",
            )
        except UNREADABLE as error:
            return unreadable(error)
        except DamagedOutput as error:
            return CommitAnswer(CommitOutcome.FAILED, str(error))
        return CommitAnswer(CommitOutcome.COMMITTED if written else CommitOutcome.ALREADY_COMMITTED)

    def _verified(self, payload: CommitPayload, said: int) -> bytes:
        """Read all files before the first one is written to the log, one at a time; return the last, mostly the only.

        `BadPayload` if they do not have as many rows as the payload says; else as `unreadable` understands.
        """
        rows, data = 0, b""
        for file in payload.staged:
            data = self._context.staging.get(file)
            rows += sum(map(len, batches_in(file, data)))
        if rows != said:
            raise BadPayload(f"{rows} rows are staged, and the payload says {said}")
        return data

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows.close()

    def _own(self, log: str) -> str:
        """Make a log the sink's, once; return why it cannot be, empty if it is."""
        if log in self._owned:
            return ""
        context = self._context
        if fault := open_output(log).own(_owner(context.job, context.uid, context.schema)):
            return f"sink {context.uid}: {fault}"
        self._owned.add(log)
        return ""
