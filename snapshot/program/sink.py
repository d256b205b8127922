"""The contract of a sink: output that is written while an epoch runs, and becomes visible when the epoch is complete.

Invariant: rows are written to the transaction that was begun last; what was sealed takes no more of them;
`commit` may be asked for again after any crash, by any process, and makes the rows visible once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from snapshot.epochs.transaction_events import CommitOutcome, Committable
from snapshot.ids import JobId, Replica, TransactionId
from snapshot.operators.rows import Rows
from snapshot.tree.manifest import CommitPayload, StoredFile
from statebackend.errors import JobError
from statebackend.ids import Epoch, Incarnation, Partition, Uid


class SinkError(JobError):
    """A sink that cannot take rows; the message names the sink, the target and what to do."""


class UnwritableRow(SinkError):
    """A row that the target can never take: it is the same when it comes again. The message says what is wrong with it.

    It counts as a failure of the program: a job that always meets it ends after `poisoned_after` attempts.
    """


class UnusableOutput(SinkError):
    """Output of an epoch that the sink cannot take over; the message says why. No retry makes it right."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The result of a commit; a `reason` unless it is committed."""

    outcome: CommitOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a target for output that is exactly-once: one of the two is needed, with neither there is none.

    `keeps_prepared`: what is prepared outlives the process that prepared it, can be committed by any other, and is not
    visible until then. `reads_tokens`: a token that was written together with the rows can be read back, so that a
    second commit finds that it is done.
    """

    keeps_prepared: bool = False
    reads_tokens: bool = False


class Staging(Protocol):
    """Room in the job's tree for rows that wait for their commit. Threads may share it."""

    def put(self, data: pa.Buffer | bytes) -> StoredFile:
        """Store the bytes under a name that was never used; raise what the store raises if it cannot."""

    def get(self, file: StoredFile) -> bytes:
        """Read the bytes again and verify their checksum; the state backend's `DamagedFile` or `MissingFile` if not."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The place where a sink is opened. `deliver` brings rows to the driver's program, with their transaction.

    A delivery of a transaction that was delivered before is dropped by the driver; without a transaction every
    delivery counts. `accept_places` are the places beside its own to which the sink may commit what was prepared for
    them, by their names (`snapshot.place_text`).
    """

    job: JobId
    uid: Uid
    schema: pa.Schema
    incarnation: Incarnation
    partition: Partition
    staging: Staging
    deliver: Callable[[TransactionId | None, pa.RecordBatch], None]
    accept_places: frozenset[str] = frozenset()
    took_over: Replica | None = None
    """The process's number among the replicas of its partition, if it took the sink over from another of them in this
    attempt. That one may still be about to commit what it was told to.
    """


class Sealed(Protocol):
    """A transaction that takes no more rows. A background thread prepares it, and no other does at the same time."""

    def prepare(self) -> CommitPayload | None:
        """Make the transaction durable, so that any process can commit it; return None if it has no rows.

        May be called again after an error; an exception means that it is not durable now.
        """


class SinkWriter(Protocol):
    """A sink in one partition, in one attempt. The event loop calls all but `commit`, which a background thread does.

    A sink that shows its rows at once (at-least-once) does so in `write`, and prepares nothing.
    """

    def begin(self, transaction: TransactionId) -> None:
        """Begin a transaction, to which rows belong from now on.

        There may have been another of the same name, with other rows, in a job whose tree was put back from an older
        copy: draw something more that tells them apart.
        """

    def write(self, rows: Rows) -> None:
        """Take rows. May be called thousands of times a second; `SinkError` fails the attempt."""

    def seal(self) -> Sealed:
        """Close the current transaction for rows; O(1), as it is inside the cut. `begin` follows at once."""

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Make the transaction visible, or find that it is.

        An outcome that is not known is not an outcome: find out, or say `RETRY_LATER`.

        The payload comes from the job's tree, which others may have written: see that it is one of this sink, for this
        transaction and for the sink's own target, before anything is done with it, and else say `FAILED`.
        `snapshot.read_payload` does that.
        """

    def close(self) -> None:
        """Give up what is held open: the attempt is over. What is not prepared may be left to `recover`."""


@runtime_checkable
class CommitsTogether(Protocol):
    """A writer that can commit the transactions of several epochs in one transaction of the target.

    After an outage of the target, the output that has piled up is then written in a few steps.
    """

    def commit_together(self, due: Sequence[Committable[CommitPayload]]) -> CommitAnswer:
        """Commit the first of them as `commit` does, and as many of the next as the writer likes, in the same step.

        Those are complete as well, and are committed in this order. The writer is asked for each of them again, and
        finds what is committed.
        """


@runtime_checkable
class HoldsRows(Protocol):
    """A writer that may hold rows back over several epochs, so that they are shown together.

    A transaction prepares a payload that is `held`: with the rows that its predecessors held back and its own. It is
    never committed; the next transaction has its rows, in a held payload or in one that is committed. So as long as
    something is held, every transaction prepares something, also one without rows of its own.
    """

    def take_over(self, held: Sequence[CommitPayload]) -> None:
        """Take over the rows that former attempts held back; called once at most, before any `begin`, and quick."""

    def no_more_rows(self) -> None:
        """Hold nothing back from the transactions that are sealed from now on: the input has ended."""


@runtime_checkable
class SealsForEpochs(Protocol):
    """A writer whose payloads say in which epoch their rows were sealed, as the target orders rows by epochs."""

    def seal_for(self, epoch: Epoch) -> Sealed:
        """Do what `seal` does, which is not called then, for rows that belong to the epoch.

        The epoch may come to nothing, and a later one carry the rows; a complete epoch has all that was sealed for
        earlier ones.
        """


@runtime_checkable
class WaitsForEpochs(Protocol):
    """A sink that may show rows only when their epoch is complete, though it is not exactly-once."""

    @property
    def waits_for_epochs(self) -> bool:
        """True if it does."""


@runtime_checkable
class TakesCopies(Protocol):
    """A sink to which every member of a partition may write, if `takes_copies`: the receiver keeps the first copy.

    Then no member holds rows for the time after another one's loss, and the loss makes no gap. Rows need something by
    which the receiver tells copies apart; all members write the same rows in the same order, each at its own time. Only
    a sink that is not exactly-once can do so.
    """

    @property
    def takes_copies(self) -> bool:
        """True if every member writes."""


class Sink(Protocol):
    """A sink as it stands in a program: plain data that can be pickled, compared and printed."""

    @property
    def exactly_once(self) -> bool:
        """True if its output is in two phases; otherwise rows may appear again after a rollback."""

    @property
    def abilities(self) -> Abilities:
        """Return what the target can do.

        A sink that says `exactly_once` with neither ability is refused before anything starts.
        """

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Return why it cannot take rows of this schema, in sentences, as far as can be told without the target."""

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        """Return why the target cannot take these rows now, in sentences.

        The target may be out of reach, refuse the credentials, lack the table or a setting, or have other columns.
        Asked once, in the driver, before anything starts; answers within seconds, and changes nothing but what the sink
        was told to make.
        """

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Abort all that the job's earlier incarnations left in the target and no complete epoch names.

        Called in the driver at the start of every attempt, while the attempt's own transactions are under way: only
        what is older than the incarnation and not named goes.
        """
