"""A state machine for hypothesis: the real two-phase commit drives a sink through any order of events and crashes.

Invariant: what readers see are rows of transactions that a complete epoch carried, each row once; when nothing
is left to commit, they see all of them. Rows that the sink holds back are those of the transaction that shows them.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from snapshot.epochs.transaction_events import (
    Begin,
    Commit,
    CommitAnswered,
    Committable,
    EpochCompleted,
    Prepare,
    Prepared,
    PrepareFailed,
    Seal,
    SinkCut,
    SinkReady,
    TransactionEvent,
    TransactionInstruction,
)
from snapshot.epochs.transactions import Transactions
from snapshot.ids import TransactionId
from snapshot.program.sink import CommitsTogether, HoldsRows, Sealed
from snapshot.testing.history import Violation
from snapshot.testing.sinks import DONE, SinkBench, SinkTrial, attempt, write
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Epoch, Generation, Partition


def sink_machine(trial: SinkTrial) -> type[RuleBasedStateMachine]:
    """Return the machine for this sink; its `TestCase` is what pytest collects."""

    class SinkMachine(_SinkMachine):
        """The machine for one sink."""

        def __init__(self) -> None:
            super().__init__(trial)

    return SinkMachine


class _SinkMachine(RuleBasedStateMachine):
    """One sink in one partition, through any number of attempts."""

    def __init__(self, trial: SinkTrial) -> None:
        super().__init__()
        self._trial = trial
        self._bench = SinkBench(trial)
        self._written: dict[TransactionId, list[str]] = {}
        self._before: dict[TransactionId, list[TransactionId]] = {}  # whose rows it has, if they held them back
        self._held: set[TransactionId] = set()
        self._carried: set[TransactionId] = set()  # by a complete epoch
        self._committed: set[TransactionId] = set()
        self._carries: tuple[Committable[CommitPayload], ...] = ()  # by the newest complete epoch
        self._complete: Epoch | None = None
        self._attempt = 0
        self._epoch = 0
        self._start()

    def _start(self) -> None:
        self._attempt += 1
        self._began_with = self._epoch
        self._sealed: dict[TransactionId, Sealed] = {}
        self._preparing: list[TransactionId] = []
        self._ready: list[SinkReady[CommitPayload]] = []
        self._committing: Committable[CommitPayload] | None = None
        self._bench.recover(self._attempt, [committable.transaction for committable in self._carries])
        self._writer = self._bench.writer(self._attempt)
        held = [committable for committable in self._carries if committable.payload.held]
        if held:
            assert isinstance(self._writer, HoldsRows)
            self._writer.take_over([committable.payload for committable in held])
        self._last = [committable.transaction for committable in held]
        self._core: Transactions[CommitPayload] = Transactions(
            self._bench.job,
            self._bench.uid,
            attempt(self._attempt),
            Partition(0),
            restored=[committable for committable in self._carries if not committable.payload.held],
            restored_epoch=self._complete,
        )
        self._follow(self._core.begin())

    def _handle(self, event: TransactionEvent[CommitPayload]) -> None:
        self._follow(self._core.handle(event))

    def _follow(self, instructions: list[TransactionInstruction[CommitPayload]]) -> None:
        for instruction in instructions:
            match instruction:
                case Begin(transaction):
                    self._writer.begin(transaction)
                    self._open = transaction
                    self._written[transaction] = []
                    self._before[transaction], self._last = self._last, [transaction]
                case Seal(transaction):
                    self._sealed[transaction] = self._writer.seal()
                case Prepare(transaction):
                    self._preparing.append(transaction)
                case SinkReady():
                    self._ready.append(instruction)
                case Commit(committable):
                    self._committing = committable
                case _:
                    pass

    @rule(counts=st.lists(st.integers(0, 5), max_size=3))
    def rows_come(self, counts: list[int]) -> None:
        """Write batches of rows, empty ones among them."""
        for count in counts:
            rows = self._bench.rows(count)
            write(self._writer, rows)
            self._written[self._open] += rows

    @rule(steps=st.integers(0, 4))
    def cut(self, steps: int) -> None:
        """Cut the state for the next epoch, and take at once so many of the steps that usually follow."""
        self._cut(steps)

    def _cut(self, steps: int) -> None:
        self._epoch += 1
        self._handle(SinkCut(Epoch(Generation(1), self._epoch)))
        while steps >= 1 and self._preparing:
            self._prepare(self._preparing.pop(0), answered=True)
        if steps >= 2:
            self._complete_up_to(len(self._ready) - 1)
        if steps >= 3:
            self._commit(answered=True)
        while steps >= 4 and self._committing is not None:
            self._commit(answered=True)

    @precondition(lambda self: self._preparing)
    @rule(data=st.data(), answered=st.booleans())
    def prepare(self, data: st.DataObject, answered: bool) -> None:
        """Prepare a sealed transaction, in any order; the answer may be lost."""
        self._prepare(self._preparing.pop(data.draw(st.integers(0, len(self._preparing) - 1))), answered)

    def _prepare(self, transaction: TransactionId, answered: bool) -> None:
        payload = self._sealed[transaction].prepare()
        held = payload is not None and payload.held
        if held:
            self._held.add(transaction)
        self._handle(Prepared(transaction, payload, held) if answered else PrepareFailed(transaction, "no answer"))

    def _rows_of(self, transaction: TransactionId) -> list[str]:
        """Return the rows that a commit of the transaction shows."""
        before = [row for one in self._before[transaction] if one in self._held for row in self._rows_of(one)]
        return before + self._written[transaction]

    @precondition(lambda self: self._ready)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """Complete an epoch; earlier ones that are ready are given up."""
        self._complete_up_to(data.draw(st.integers(0, len(self._ready) - 1)))

    def _complete_up_to(self, chosen: int) -> None:
        if chosen < 0:
            return
        ready = self._ready[chosen]
        del self._ready[: chosen + 1]
        self._carries, self._complete = ready.committables, ready.epoch
        self._carried |= {committable.transaction for committable in ready.committables}
        self._handle(EpochCompleted(ready.epoch))

    @precondition(lambda self: self._committing is not None)
    @rule()
    def commit(self) -> None:
        """Let the sink commit the transaction that is due."""
        self._commit(answered=True)

    @precondition(lambda self: self._epoch > self._began_with)
    @rule(in_commit=st.booleans())
    def crash(self, in_commit: bool) -> None:
        """End the process after at least one cut, perhaps before a commit's answer is known; begin another attempt."""
        if in_commit:
            self._commit(answered=False)
        self._start()

    def _commit(self, answered: bool) -> None:
        committable, self._committing = self._committing, None
        if committable is None:
            return
        due = self._core.due
        if len(due) > 1 and isinstance(self._writer, CommitsTogether):
            answer = self._writer.commit_together(due)
            self._see_more([one.transaction for one in due[1:]])
        else:
            answer = self._writer.commit(committable.transaction, committable.payload)
        if answer.outcome not in DONE:
            raise Violation(f"what a complete epoch carries can be committed; but the sink says {answer}")
        self._committed.add(committable.transaction)
        if answered:
            self._handle(CommitAnswered(committable.transaction, answer.outcome))

    def _see_more(self, transactions: list[TransactionId]) -> None:
        """Note which transactions were committed along with another: all up to the first whose rows are not visible."""
        seen = Counter(self._bench.visible())
        for transaction in transactions:
            if not Counter(self._rows_of(transaction)) <= seen:
                return
            self._committed.add(transaction)

    @invariant()
    def readers_see_what_is_committed(self) -> None:
        """Check that readers see all rows of committed transactions, each once, and nothing else."""
        assert self._committed <= self._carried
        rows = [row for transaction in self._committed for row in self._rows_of(transaction)]
        self._bench.expect(rows, "readers see what is committed")

    def teardown(self) -> None:
        """Commit what is left in a last attempt; check that all that a complete epoch ever carried is visible then."""
        self._start()
        if isinstance(self._writer, HoldsRows):
            self._writer.no_more_rows()
        self._cut(4)
        while self._committing is not None:
            self._commit(answered=True)
        rows = [row for transaction in self._carried - self._held for row in self._rows_of(transaction)]
        self._bench.expect(rows, "in the end all that a complete epoch carried is visible")
        self._trial.clear()
