"""The conformance kit for sinks: what exactly-once output relies on, as checks that a sink without it fails.

What always holds: a check works under a job of its own, so that it may run against a target that is in use.
`check_sink(trial)` runs all of `CHECKS`; with pytest, parametrize over `CHECKS` to have one test for each.
`sink_machine(trial)` is a state machine for hypothesis that lets the real two-phase commit drive the sink through any
order of cuts, completions, lost answers and crashes. A check that fails raises a `Violation` that names the promise.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex

import pyarrow as pa

from snapshot.ids import JobId, TransactionId
from snapshot.manifest import CommitPayload, StoredFile
from snapshot.program.rows import Rows
from snapshot.program.sink import CommitAnswer, Sink, SinkContext, SinkWriter
from snapshot.testing.violation import Violation
from snapshot.transaction_events import CommitOutcome, transaction_id
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.snapshots.transfer import MissingFile

SCHEMA = pa.schema([pa.field("row", pa.string())])
"""What the kit writes: texts, each of which it writes once."""
DONE = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)


@dataclass(slots=True)
class Surroundings:
    """What a sink finds around it, as the host and the driver provide it: staged files, and the driver's rows."""

    stored: dict[StoredFile, bytes] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)
    """The rows that the driver has, those of each transaction once."""
    transactions: set[TransactionId] = field(default_factory=set)

    def put(self, data: pa.Buffer | bytes) -> StoredFile:
        """Keep the bytes."""
        content = bytes(data)
        file = StoredFile(f"staged/{len(self.stored)}", len(content), f"sha256:{sha256(content).hexdigest()}")
        self.stored[file] = content
        return file

    def get(self, file: StoredFile) -> bytes:
        """The bytes, or `MissingFile`."""
        if file not in self.stored:
            raise MissingFile(f"{file.path} is not there")
        return self.stored[file]

    def deliver(self, transaction: TransactionId | None, rows: pa.RecordBatch) -> None:
        """Take rows, unless they are of a transaction that was delivered before."""
        if transaction is not None:
            if transaction in self.transactions:
                return
            self.transactions.add(transaction)
        self.delivered += rows.column("row").to_pylist()


@dataclass(frozen=True, slots=True)
class SinkTrial:
    """A sink under test. `visible` gives the texts in the column `row` that its readers see, of all jobs; `clear` may
    empty the target, as a state machine runs a hundred jobs one after the other.
    """

    sink: Sink
    visible: Callable[[Surroundings], Sequence[str]]
    clear: Callable[[], None] = lambda: None


def check_sink(trial: SinkTrial) -> None:
    """Check every promise; `Violation` names the first that is broken."""
    for check in CHECKS:
        check(trial)


def attempt(number: int) -> Incarnation:
    """An attempt of the only generation that the kit knows."""
    return Incarnation(Generation(1), Attempt(number))


class SinkBench:
    """A job with the sink: opens it as processes do that have just been started, and looks at the job's rows."""

    def __init__(self, trial: SinkTrial) -> None:
        self.job = JobId(f"check {token_hex(8)}")
        self.uid = Uid("the/sink")
        self.around = Surroundings()
        self._trial = trial
        self._made = 0

    def sink(self) -> Sink:
        """The sink as another process has it."""
        sink: Sink = pickle.loads(pickle.dumps(self._trial.sink))
        return sink

    def writer(self, number: int = 1) -> SinkWriter:
        """The sink opened in an attempt."""
        around = self.around
        incarnation = attempt(number)
        context = SinkContext(self.job, self.uid, SCHEMA, incarnation, Partition(0), around, around.deliver)
        return self.sink().open(context)

    def name(self, number: int = 1) -> TransactionId:
        """A transaction that was not there before."""
        self._made += 1
        return transaction_id(self.job, self.uid, attempt(number), Partition(0), self._made)

    def rows(self, count: int) -> list[str]:
        """Rows that were not there before."""
        self._made += count
        return [f"{self.job}: {number}" for number in range(self._made - count, self._made)]

    def prepared(self, number: int = 1) -> tuple[TransactionId, CommitPayload, list[str]]:
        """A transaction with rows, prepared by a process that ends then."""
        writer, transaction, rows = self.writer(number), self.name(number), self.rows(3)
        writer.begin(transaction)
        write(writer, rows[:2])
        write(writer, rows[2:])
        payload = writer.seal().prepare()
        writer.close()
        if payload is None:
            raise Violation(f"a transaction with rows has something to commit; but {transaction} has not")
        return transaction, payload, rows

    def settle(self, transaction: TransactionId, payload: CommitPayload, number: int = 1) -> CommitAnswer:
        """Commit, in a process of its own."""
        writer = self.writer(number)
        answer = writer.commit(transaction, payload)
        writer.close()
        if answer.outcome not in DONE:
            raise Violation(f"what is prepared can be committed; but the sink says {answer}")
        return answer

    def recover(self, number: int, named: Sequence[TransactionId] = ()) -> None:
        """Begin an attempt that starts from an epoch which names these."""
        self.sink().recover(self.job, self.uid, attempt(number), frozenset(named))

    def visible(self) -> list[str]:
        """The job's rows that readers see."""
        return [row for row in self._trial.visible(self.around) if row.startswith(f"{self.job}: ")]

    def expect(self, rows: Sequence[str], promise: str) -> None:
        """Readers see these rows of the job and no others, each once."""
        seen = self.visible()
        if Counter(seen) != Counter(rows):
            raise Violation(f"{promise}; expected {sorted(rows)}, but readers see {sorted(seen)}")


def write(writer: SinkWriter, rows: Sequence[str]) -> None:
    """Give rows to a sink."""
    writer.write(Rows(pa.RecordBatch.from_pydict({"row": list(rows)}, SCHEMA)))


def it_is_plain_data_without_a_fault(trial: SinkTrial) -> None:
    """It can be pickled and compared, its own check finds nothing, and it says that it is exactly-once."""
    sink = SinkBench(trial).sink()
    if sink != trial.sink:
        raise Violation(f"a sink is plain data; but {trial.sink} pickled is {sink}")
    if problems := sink.check(SCHEMA):
        raise Violation(f"a sink takes a column of texts; but it says {problems}")
    if not sink.exactly_once:
        raise Violation("only a sink that is exactly-once can be checked for it; but this one says it is not")


def rows_appear_at_commit_and_not_before(trial: SinkTrial) -> None:
    """Neither written nor sealed nor prepared rows are visible; a commit shows those of its transaction."""
    bench = SinkBench(trial)
    writer, rows = bench.writer(), bench.rows(4)
    first = bench.name()
    writer.begin(first)
    write(writer, rows[:2])
    bench.expect([], "what is written is not visible")
    sealed = writer.seal()
    writer.begin(bench.name())
    write(writer, rows[2:])
    payload = sealed.prepare()
    bench.expect([], "what is prepared is not visible")
    assert payload is not None
    answer = writer.commit(first, payload)
    if answer.outcome is not CommitOutcome.COMMITTED:
        raise Violation(f"the first commit says COMMITTED; but this one said {answer}")
    bench.expect(rows[:2], "a commit shows the rows of its transaction, and not what was written after its seal")
    writer.close()


def a_second_commit_changes_nothing(trial: SinkTrial) -> None:
    """Whoever commits again is told that it is done, and rows are there once."""
    bench = SinkBench(trial)
    transaction, payload, rows = bench.prepared()
    for number in (1, 1, 2):
        bench.settle(transaction, payload, number)
        bench.expect(rows, "a commit that is repeated shows nothing more")


def a_crash_after_prepare_loses_nothing(trial: SinkTrial) -> None:
    """What an epoch names is committed by another process, in any order, after any number of recoveries."""
    bench = SinkBench(trial)
    (one, first, rows), (other, second, others) = bench.prepared(), bench.prepared()
    for number in (2, 3):
        bench.recover(number, [one, other])
    bench.settle(other, second, 3)
    bench.expect(others, "a commit shows the rows of its own transaction only")
    bench.recover(4, [one, other])
    bench.settle(one, first, 4)
    bench.settle(other, second, 4)
    bench.expect(rows + others, "what was prepared survives its process")


def a_crash_before_prepare_shows_nothing(trial: SinkTrial) -> None:
    """A process that ends after begin, write or seal leaves nothing that readers see, and harms no later attempt."""
    bench = SinkBench(trial)
    for steps in range(3):
        writer = bench.writer(steps + 1)
        writer.begin(bench.name(steps + 1))
        if steps >= 1:
            write(writer, bench.rows(2))
        if steps >= 2:
            writer.seal()
        bench.recover(steps + 2)
        bench.expect([], "what was not prepared is never visible")
    transaction, payload, rows = bench.prepared(5)
    bench.settle(transaction, payload, 5)
    bench.expect(rows, "an attempt after crashes writes as the first")


def recovery_aborts_what_is_older_and_not_named(trial: SinkTrial) -> None:
    """What is named, what is of the new attempt and what is of others can still be committed; the rest is not seen."""
    bench, foreign = SinkBench(trial), SinkBench(trial)
    (named, one, rows), _ = bench.prepared(), bench.prepared()
    (new, two, more), (other, three, others) = bench.prepared(2), foreign.prepared()
    bench.recover(2, [named])
    bench.expect([], "recovery makes nothing visible")
    bench.settle(named, one, 2)
    bench.settle(new, two, 2)
    bench.expect(rows + more, "recovery keeps what is named and what its own attempt has prepared")
    foreign.settle(other, three)
    foreign.expect(others, "recovery leaves other jobs alone")


def a_transaction_without_rows_has_nothing_to_commit(trial: SinkTrial) -> None:
    """An empty transaction prepares nothing, and so do empty batches."""
    bench = SinkBench(trial)
    writer = bench.writer()
    for batches in (0, 1):
        writer.begin(bench.name())
        for _ in range(batches):
            write(writer, [])
        if (payload := writer.seal().prepare()) is not None:
            raise Violation(f"a transaction without rows has nothing to commit; but it has {payload}")
    writer.close()


def preparing_again_changes_nothing(trial: SinkTrial) -> None:
    """A prepare whose answer was lost is repeated; either answer commits the rows once."""
    for chosen in (0, 1):
        bench = SinkBench(trial)
        writer, transaction, rows = bench.writer(), bench.name(), bench.rows(2)
        writer.begin(transaction)
        write(writer, rows)
        sealed = writer.seal()
        answers = [sealed.prepare(), sealed.prepare()]
        payload = answers[chosen]
        if payload is None:
            raise Violation("a transaction that is prepared again has the same rows; but it has none")
        bench.settle(transaction, payload)
        bench.expect(rows, "a transaction that was prepared twice is committed once")
        writer.close()


CHECKS: tuple[Callable[[SinkTrial], None], ...] = (
    it_is_plain_data_without_a_fault,
    rows_appear_at_commit_and_not_before,
    a_second_commit_changes_nothing,
    a_crash_after_prepare_loses_nothing,
    a_crash_before_prepare_shows_nothing,
    recovery_aborts_what_is_older_and_not_named,
    a_transaction_without_rows_has_nothing_to_commit,
    preparing_again_changes_nothing,
)
"""Every promise of a sink in two phases, in the order in which it helps to know that it is broken."""
