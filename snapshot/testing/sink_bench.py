"""A job in miniature with one sink: what the conformance kit writes, prepares, commits and looks at.

Invariant: a bench works under a job of its own, so that it may run against a target that is in use; it writes
each row once.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from typing import Final

import pyarrow as pa

from snapshot.epochs.transaction_events import CommitOutcome, parse_transaction_id, transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sink, SinkContext, SinkWriter
from snapshot.testing.history import Violation
from snapshot.tree.manifest import CommitPayload, StoredFile
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.snapshots.transfer import MissingFile

SCHEMA = pa.schema([pa.field("row", pa.string())])
"""The rows of the kit: texts, each of which it writes once."""
DONE = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)
_TRIES: Final = 50
"""Commits of one transaction until it is done, as several committers may put one another off."""
_LONGEST_PAUSE: Final = 0.2
"""Seconds between two of them."""


@dataclass(slots=True)
class SinkEnvironment:
    """The surroundings of a sink, as the host and the driver provide them: staged files, and the driver's rows."""

    stored: dict[StoredFile, bytes] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)
    """The rows that the driver has, those of each transaction once."""
    transactions: set[TransactionId] = field(default_factory=set)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def put(self, data: pa.Buffer | bytes) -> StoredFile:
        """Keep the bytes; return the file under which they can be had."""
        content = bytes(data)
        digest = f"sha256:{sha256(content).hexdigest()}"
        with self._one_at_a_time:
            file = StoredFile(f"staged/{len(self.stored)}", len(content), digest)
            self.stored[file] = content
        return file

    def get(self, file: StoredFile) -> bytes:
        """Return the bytes; raise `MissingFile` if the file is not there."""
        if file not in self.stored:
            raise MissingFile(f"{file.path} is not there")
        return self.stored[file]

    def deliver(self, transaction: TransactionId | None, rows: pa.RecordBatch) -> None:
        """Take rows, unless they are of a transaction that was delivered before."""
        with self._one_at_a_time:
            if transaction is None or transaction not in self.transactions:
                self.delivered += rows.column("row").to_pylist()
            if transaction is not None:
                self.transactions.add(transaction)


@dataclass(frozen=True, slots=True)
class SinkTrial:
    """A sink under test. `visible` gives the texts in the column `row` that its readers see, of all jobs; `clear` may
    empty the target, as a state machine runs a hundred jobs one after the other.

    What follows need not be given; a promise that is about it is not checked then. `disturb` makes the target
    unreachable for every process, for as long as its context lasts. `pending` says how many transactions of a job the
    target itself holds that are neither committed nor aborted. `bad` are sinks of which `examine` has something to
    say: targets that are down, refuse the credentials, lack the table. `secrets` are texts that must not be written or
    printed anywhere, such as passwords. `elsewhere` are texts which, in a payload in place of the sink's own, would
    lead to something that is not its target: another folder, a file beside it, another table. `outside` says what is
    there, which must not change.
    """

    sink: Sink
    visible: Callable[[SinkEnvironment], Sequence[str]]
    clear: Callable[[], None] = lambda: None
    disturb: Callable[[], AbstractContextManager[object]] | None = None
    pending: Callable[[JobId], int] | None = None
    bad: Sequence[Sink] = ()
    secrets: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    outside: Callable[[], object] | None = None


def attempt(number: int, generation: int = 1) -> Incarnation:
    """Return the incarnation of an attempt, of the first generation if none is given."""
    return Incarnation(Generation(generation), Attempt(number))


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """A transaction that was prepared: whose it is, what commits it, and its rows."""

    transaction: TransactionId
    payload: CommitPayload
    rows: list[str]


class SinkBench:
    """A job with the sink: opens it as processes do that have just been started, and looks at the job's rows."""

    def __init__(self, trial: SinkTrial) -> None:
        self.job = JobId(f"check {token_hex(8)}")
        self.uid = Uid("the/sink")
        self.environment = SinkEnvironment()
        self.accept_places: frozenset[str] = frozenset()
        self._trial = trial
        self._made = 0

    def sink(self) -> Sink:
        """Return the sink as another process has it."""
        sink: Sink = pickle.loads(pickle.dumps(self._trial.sink))
        return sink

    def writer(self, number: int = 1, partition: int = 0, generation: int = 1) -> SinkWriter:
        """Open the sink in an attempt."""
        environment = self.environment
        incarnation = attempt(number, generation)
        context = SinkContext(
            self.job,
            self.uid,
            SCHEMA,
            incarnation,
            Partition(partition),
            environment,
            environment.deliver,
            self.accept_places,
        )
        return self.sink().open(context)

    def name(self, number: int = 1, partition: int = 0, generation: int = 1) -> TransactionId:
        """Return the name of a transaction that was not there before."""
        self._made += 1
        return transaction_id(self.job, self.uid, attempt(number, generation), Partition(partition), self._made)

    def rows(self, count: int) -> list[str]:
        """Make rows that were not there before."""
        self._made += count
        return [f"{self.job}: {number}" for number in range(self._made - count, self._made)]

    def prepared(self, number: int = 1) -> tuple[TransactionId, CommitPayload, list[str]]:
        """Prepare a transaction with rows in a process that ends then."""
        prepared = self.prepared_by(0, number)
        return prepared.transaction, prepared.payload, prepared.rows

    def prepared_by(self, partition: int, number: int = 1) -> PreparedRows:
        """Prepare a transaction with rows in any partition, in a process that ends then."""
        return self.prepared_as(self.name(number, partition))

    def prepared_as(self, transaction: TransactionId) -> PreparedRows:
        """Prepare a transaction with rows under a name that may have been there before, in a process that ends then."""
        made = parse_transaction_id(transaction)
        writer = self.writer(made.incarnation.attempt, made.partition, made.incarnation.generation)
        prepared = self._prepared(writer, transaction)
        writer.close()
        return prepared

    def prepared_one_after_the_other(self, count: int) -> list[PreparedRows]:
        """Prepare several transactions with rows, all in one process that ends then."""
        writer = self.writer()
        prepared = [self._prepared(writer, self.name()) for _ in range(count)]
        writer.close()
        return prepared

    def _prepared(self, writer: SinkWriter, transaction: TransactionId) -> PreparedRows:
        rows = self.rows(3)
        writer.begin(transaction)
        write(writer, rows[:2])
        write(writer, rows[2:])
        return PreparedRows(transaction, some(writer.seal().prepare(), transaction), rows)

    def settle(self, transaction: TransactionId, payload: CommitPayload, number: int = 1) -> CommitAnswer:
        """Commit, in a process of its own."""
        writer = self.writer(number)
        answer = settled(writer, transaction, payload)
        writer.close()
        return answer

    def recover(self, number: int, named: Sequence[TransactionId] = (), generation: int = 1) -> None:
        """Begin an attempt that starts from an epoch which names these transactions."""
        self.sink().recover(self.job, self.uid, attempt(number, generation), frozenset(named))

    def put_back(self) -> None:
        """Put the job's tree back from an older copy: only the target knows what was committed since."""
        self.environment.transactions.clear()

    def visible(self) -> list[str]:
        """Return the job's rows that readers see."""
        return [row for row in self._trial.visible(self.environment) if row.startswith(f"{self.job}: ")]

    def expect(self, rows: Sequence[str], promise: str) -> None:
        """Check that readers see these rows of the job and no others, each once."""
        seen = self.visible()
        if Counter(seen) != Counter(rows):
            raise Violation(f"{promise}; expected {sorted(rows)}, but readers see {sorted(seen)}")

    def expect_pending(self, most: int, promise: str) -> None:
        """Check that the target holds at most so many transactions of the job, as far as it can be asked."""
        held = 0 if self._trial.pending is None else self._trial.pending(self.job)
        if held > most:
            raise Violation(f"{promise}; expected at most {most} transactions in the target, but it holds {held}")


def write(writer: SinkWriter, rows: Sequence[str]) -> None:
    """Give rows to a sink."""
    writer.write(Rows(pa.RecordBatch.from_pydict({"row": list(rows)}, SCHEMA)))


def some(payload: CommitPayload | None, transaction: TransactionId) -> CommitPayload:
    """Return the payload that a transaction with rows has prepared; raise `Violation` if there is none."""
    if payload is None:
        raise Violation(f"a transaction with rows has something to commit; but {transaction} has not")
    return payload


def settled(writer: SinkWriter, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
    """Commit, and again as long as the sink puts it off; raise `Violation` if it is not done in the end."""
    for tried in range(_TRIES):
        answer = writer.commit(transaction, payload)
        if answer.outcome is not CommitOutcome.RETRY_LATER:
            break
        time.sleep(min(0.01 * tried, _LONGEST_PAUSE))
    if answer.outcome not in DONE:
        raise Violation(f"what is prepared can be committed; but the sink says {answer}")
    return answer
