"""Errors of publishing and committing: coordinator, transactions, tokens, roll-backs, generations and the job's end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from pytest import MonkeyPatch

from recovery.decisions import start
from recovery.driver.attempts import run
from recovery.driver.attempts.requests import End, Endings, EndKind
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.claimed import ClaimedJob
from recovery.driver.epochs import Epochs
from recovery.driver.tree.owned import FencedOff, Tree
from snapshot.cut.participant import Part, PartDurable, Participant
from snapshot.epochs import transactions
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.coordinator_events import Published, RollBack
from snapshot.epochs.token_commit import Ask, Outcome, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.transaction_events import Commit, CommitOutcome, Settled, SinkReady, transaction_id
from snapshot.epochs.transactions import Transactions, TransactionState
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.source_run import SourceRun
from snapshot.ids import TransactionId
from snapshot.journal import machine, writer
from snapshot.journal.machine import Reason
from snapshot.tree import layout
from snapshot.tree.layout import ManifestFile
from snapshot.tree.manifest import StoredFile
from statebackend.ids import Attempt, Epoch, Generation, Incarnation
from statebackend.stores.store import BlobStoreError
from tests.planted.error import planted, seldom

# --- the first phase -------------------------------------------------------------------------------------------------


@planted("an epoch is published with a partition's part of the epoch before", shown_by=2)
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._acknowledged

    def acknowledged(self: Coordinator[Any], event: Any) -> Any:
        before = self.__dict__.setdefault("before", {})
        instructions = right(self, event)
        epoch = self._in_flight.get(event.epoch)
        if epoch is not None and len(epoch.awaited) == 1 and (missing := min(epoch.awaited)) in before:
            instructions += right(self, replace(event, partition=missing, content=before[missing]))
        before[event.partition] = event.content
        return instructions

    patch.setattr(Coordinator, "_acknowledged", acknowledged)


@planted("an epoch is acknowledged before what its sinks have written is prepared")
def _(patch: MonkeyPatch) -> None:
    right = Participant._acknowledge_if_done

    def acknowledge(self: Participant[Any], epoch: Epoch, progress: Any) -> Any:
        progress.owed = {(uid, part) for uid, part in progress.owed if part is not Part.TRANSACTIONS}
        return right(self, epoch, progress)

    handle = Participant.handle

    def handled(self: Participant[Any], event: Any) -> Any:
        late = isinstance(event, PartDurable) and event.part is Part.TRANSACTIONS
        owed = late and event.epoch in self._progress
        return handle(self, event) if not late else self._late(event) if owed else []  # type: ignore[attr-defined]

    def prepared(self: Participant[Any], event: Any) -> Any:
        progress = self._progress[event.epoch]
        progress.parts[event.uid, event.part] = event.content
        return acknowledge(self, event.epoch, progress)

    patch.setattr(Participant, "_acknowledge_if_done", acknowledge)
    patch.setattr(Participant, "_late", prepared, raising=False)
    patch.setattr(Participant, "handle", handled)


@planted("a transaction is committed before its epoch is published")
def _(patch: MonkeyPatch) -> None:
    right = Transactions._report_ready

    def report(self: Transactions[Any]) -> Any:
        instructions = right(self)
        ready = [i for i in instructions if isinstance(i, SinkReady)]
        for committable in ready[-1].committables if ready else ():
            self._unsettled[committable.transaction].state = TransactionState.COMMITTING
            instructions.append(Commit(committable))
        return instructions

    patch.setattr(Transactions, "_report_ready", report)


@planted("the rows of an abandoned epoch are dropped while the job runs on", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._carried

    def carried(self: Transactions[Any], epoch: Epoch) -> Any:
        return tuple(committable for committable in right(self, epoch) if committable.sealed_in == epoch)

    patch.setattr(Transactions, "_carried", carried)


@planted("a transaction that could not be prepared is dropped while the job runs on", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._prepare_failed

    def prepare_failed(self: Transactions[Any], id: Any, reason: Any) -> Any:
        instructions = right(self, id, reason)
        del self._unsettled[id]
        return instructions

    patch.setattr(Transactions, "_prepare_failed", prepare_failed)


@planted("an epoch is in the journal before its manifest is in the store")
def _(patch: MonkeyPatch) -> None:
    right = Tree.publish

    def publish(self: Tree, *args: Any) -> Any:
        store, late = self._store, list[tuple[str, bytes]]()

        class Later:
            def write(self, path: str, data: bytes) -> None:
                late.append((path, data))

        self._store = Later()  # type: ignore[assignment]
        try:
            return right(self, *args)
        finally:
            self._store = store
            for path, data in late:
                store.write(path, data)

    patch.setattr(Tree, "publish", publish)


@planted("a manifest that could not be written counts as written", shown_by=81)
def _(patch: MonkeyPatch) -> None:
    right = Tree.publish

    def publish(self: Tree, *args: Any) -> Any:
        store = self._store

        class Sloppy:
            def write(self, path: str, data: bytes) -> None:
                with suppress(BlobStoreError):
                    store.write(path, data)

        self._store = Sloppy()  # type: ignore[assignment]
        try:
            return right(self, *args)
        finally:
            self._store = store

    patch.setattr(Tree, "publish", publish)


@planted("broadcast state of an older epoch is referred to again, though it has changed", shown_by=21)
def _(patch: MonkeyPatch) -> None:
    right, known = Tree._keep, WeakKeyDictionary[Tree, Any]()

    def keep(self: Tree, uid: Any, data: bytes, publish: Any) -> Any:
        if not isinstance(known.get(self), StoredFile):
            known[self] = right(self, uid, data, publish)
        return known[self]

    patch.setattr(Tree, "_keep", keep)


# --- the second phase ------------------------------------------------------------------------------------------------


@planted("an unknown outcome of a commit is taken for success", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._answered

    def answered(self: Transactions[Any], event: Any) -> Any:
        certain = CommitOutcome.COMMITTED if event.outcome is CommitOutcome.RETRY_LATER else event.outcome
        return right(self, replace(event, outcome=certain))

    patch.setattr(Transactions, "_answered", answered)


@planted("what the restored epoch carries is not committed again", shown_by=6)
def _(patch: MonkeyPatch) -> None:
    right = Transactions.begin

    def begin(self: Transactions[Any]) -> Any:
        self._unsettled.clear()
        return right(self)

    patch.setattr(Transactions, "begin", begin)


@planted("transactions of several epochs are committed at once, in any order", shown_by=133)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._commit_next

    def commit_next(self: Transactions[Any]) -> Any:
        instructions = right(self)
        due = [] if self._complete is None else self._due(self._complete)
        for transaction in reversed(due):
            if transaction.state is TransactionState.PREPARED:
                instructions += self._commit(transaction)
        return instructions

    patch.setattr(Transactions, "_commit_next", commit_next)


@planted("an epoch is journalled as committed before those who were restored have committed it", shown_by=115)
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._started

    def started(self: Coordinator[Any], event: Any) -> Any:
        instructions = right(self, event)
        for awaited in self._uncommitted.values():
            awaited.clear()
        return [*instructions, *self._record_committed()]

    patch.setattr(Coordinator, "_started", started)


@planted("an epoch is settled while what an earlier one carries is not committed", shown_by=2)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._commit_next

    def commit_next(self: Transactions[Any]) -> Any:
        instructions = right(self)
        settled, self._untold = self._untold[-1:], []
        return [*(Settled(epoch) for epoch in settled), *instructions]

    patch.setattr(Transactions, "_commit_next", commit_next)


@planted("a commit of one sink counts for all sinks of its partition", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    def committed(self: PartitionAttempt) -> Epoch | None:
        return max((epoch for epoch in self._settled.values() if epoch is not None), default=None)

    patch.setattr(PartitionAttempt, "_committed", committed)


@seldom("recovery aborts transactions that the epoch carries")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(run, "transactions_in", lambda manifest: {})


@seldom("recovery aborts transactions of the attempt that begins")
def _(patch: MonkeyPatch) -> None:
    def recovery_of(self: AttemptRun, sink: Any, named: Any) -> Any:
        own = self.incarnation
        later = Incarnation(own.generation, Attempt(own.attempt + 1))
        return lambda: sink.sink.recover(self._settings.job, sink.uid, later, named)

    patch.setattr(AttemptRun, "_recovery_of", recovery_of)


@seldom("two committers of one committable both write: the token is read before the other is fenced")
def _(patch: MonkeyPatch) -> None:
    def begin(self: TokenCommit) -> Ask:
        return self._ask(TokenStep.READ_TOKEN)

    def handle(self: TokenCommit, answer: TargetAnswer) -> Ask | Outcome:
        match self._step, answer:
            case (TokenStep.READ_TOKEN, TargetAnswer.TOKEN_FOUND):
                return Outcome(CommitOutcome.ALREADY_COMMITTED)
            case (TokenStep.READ_TOKEN, TargetAnswer.TOKEN_MISSING):
                return self._ask(TokenStep.FENCE)
            case (TokenStep.FENCE, TargetAnswer.DONE):
                return self._ask(TokenStep.WRITE)
            case (TokenStep.WRITE, TargetAnswer.DONE):
                return Outcome(CommitOutcome.COMMITTED)
            case _:
                return Outcome(CommitOutcome.RETRY_LATER)

    patch.setattr(TokenCommit, "begin", begin)
    patch.setattr(TokenCommit, "handle", handle)


@planted("a token is not looked for before its rows are written", shown_by=6)
def _(patch: MonkeyPatch) -> None:
    right = TokenCommit.handle

    def handle(self: TokenCommit, answer: TargetAnswer) -> Ask | Outcome:
        found = answer is TargetAnswer.TOKEN_FOUND
        return right(self, TargetAnswer.TOKEN_MISSING if found else answer)

    patch.setattr(TokenCommit, "handle", handle)


@seldom("after a rescale epochs are taken while older output of other partitions awaits its commit")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(run, "moves_output", lambda manifest, parallelism: False)


# --- ids and attempts ------------------------------------------------------------------------------------------------


@planted("a transaction id is used again after a roll-back", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    right = transaction_id

    def again(job: Any, sink: Any, incarnation: Any, partition: Any, n: Any) -> TransactionId:
        return right(job, sink, Incarnation(incarnation.generation, Attempt(1)), partition, n)

    patch.setattr(transactions, "transaction_id", again)


@planted("an epoch id is used again after a roll-back", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._roll_back

    def roll_back(self: Coordinator[Any]) -> Any:
        self._number = self._complete.number if self._complete is not None else 0
        return right(self)

    patch.setattr(Coordinator, "_roll_back", roll_back)


@seldom("a partition of an older attempt of the same generation is heard")
def _(patch: MonkeyPatch) -> None:
    def is_current(self: Coordinator[Any], incarnation: Incarnation) -> bool:
        return incarnation.generation == self._incarnation.generation

    def broken(self: Coordinator[Any], event: Any) -> Any:
        if event.incarnation != self._incarnation or self._state is CoordinatorState.BROKEN:
            return []
        self._has_run = self._state is CoordinatorState.RUNNING
        self._state = CoordinatorState.BROKEN
        return self._roll_back() if self._publishing is None else []

    patch.setattr(Coordinator, "_is_current", is_current)
    patch.setattr(Coordinator, "_broken", broken)


@planted("a roll-back does not wait for the publication under way", shown_by=36)
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._broken

    def broken(self: Coordinator[Any], event: Any) -> Any:
        instructions = right(self, event)
        if self._state is CoordinatorState.BROKEN:
            instructions += self._roll_back()
        return instructions

    patch.setattr(Coordinator, "_broken", broken)


@planted("a roll-back goes to the epoch before the last complete one")
def _(patch: MonkeyPatch) -> None:
    right = ClaimedJob._roll_back

    def roll_back(self: ClaimedJob, instruction: RollBack) -> None:
        older = [record.epoch for record in self.epochs.journal.usable][-2:-1]
        right(self, replace(instruction, epoch=older[0]) if older else instruction)

    patch.setattr(ClaimedJob, "_roll_back", roll_back)


# --- generations -----------------------------------------------------------------------------------------------------


@planted("a stale generation publishes")
def _(patch: MonkeyPatch) -> None:
    right = machine.refusal

    def refusal(state: Any, body: Any) -> Any:
        refused = right(state, body)
        return None if refused is not None and refused.reason is Reason.FENCED else refused

    patch.setattr(writer, "refusal", refusal)


@planted("a stale generation commits what it could not publish", shown_by=14)
def _(patch: MonkeyPatch) -> None:
    right = Epochs._answered

    def answered(self: Epochs, answer: Any) -> None:
        publishing = self._coordinator._publishing
        if isinstance(answer, FencedOff) and publishing is not None:
            self.tell(Published(publishing))
            return
        right(self, answer)

    patch.setattr(Epochs, "_answered", answered)


@planted("a stale generation overwrites a manifest")
def _(patch: MonkeyPatch) -> None:
    right = layout.path_of

    def path_of(item: Any) -> str:
        if isinstance(item, ManifestFile):
            item = ManifestFile(Epoch(Generation(1), item.epoch.number), "0")
        return right(item)

    patch.setattr("recovery.driver.tree.owned.path_of", path_of)


@planted("a new generation starts from the epoch before the newest complete one")
def _(patch: MonkeyPatch) -> None:
    right = start.decide

    def decide(seen: Any) -> Any:
        decided = right(seen)
        older = [record.epoch for record in seen.journal.usable][-2:-1]
        return replace(decided, epoch=older[0]) if older and isinstance(decided, start.Restore) else decided

    patch.setattr("recovery.driver.claim.decide", decide)


# --- the end ---------------------------------------------------------------------------------------------------------


@planted("a job ends before the output of its last epoch is committed", shown_by=4)
def _(patch: MonkeyPatch) -> None:
    def reached(self: Endings, journal: Any) -> Any:
        return next((self._last[r.epoch] for r in journal.epochs if r.epoch in self._last), None)

    patch.setattr(Endings, "reached", reached)


@planted("an epoch that was triggered before all input had ended counts as the last", shown_by=4)
def _(patch: MonkeyPatch) -> None:
    right = Endings.all_ended

    def all_ended(self: Endings) -> Any:
        asked = right(self)
        newest = getattr(self, "newest", None)
        if newest is not None:
            self._last[newest] = End(EndKind.FINISHED, newest, False)
        return asked

    right_triggered = Endings.triggered

    def triggered(self: Endings, epoch: Any, *, savepoint: bool, asked_by: object) -> bool:
        self.newest = epoch  # type: ignore[attr-defined]
        return right_triggered(self, epoch, savepoint=savepoint, asked_by=asked_by)

    patch.setattr(Endings, "all_ended", all_ended)
    patch.setattr(Endings, "triggered", triggered)


@planted("a drained source forgets where its splits are", shown_by=37)
def _(patch: MonkeyPatch) -> None:
    def drain(self: SourceRun) -> None:
        self._drained = True
        self._finished.update(self._positions)
        self._positions.clear()

    patch.setattr(SourceRun, "drain", drain)
