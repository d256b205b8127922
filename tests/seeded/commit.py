"""Errors of publishing and committing: coordinator, transactions, tokens, roll-backs and generations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.testing import generation
from recovery.testing.generation import GenerationRun
from snapshot.epochs import transactions
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.coordinator_events import Fenced, Published, RollBack
from snapshot.epochs.token_commit import Ask, Outcome, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.transaction_events import Commit, CommitOutcome, SinkReady, transaction_id
from snapshot.epochs.transactions import Transactions, TransactionState
from snapshot.ids import TransactionId
from snapshot.journal import machine, writer
from snapshot.journal.machine import Reason
from snapshot.tree import layout
from snapshot.tree.layout import ManifestFile
from statebackend.ids import Attempt, Epoch, Generation, Incarnation
from tests.seeded.error import among_committers, in_the_job


@in_the_job("an epoch is published before all have acknowledged")
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._acknowledged

    def acknowledged(self: Coordinator[Any], event: Any) -> Any:
        epoch = self._in_flight.get(event.epoch)
        if epoch is not None and len(epoch.awaited) == 2:
            missing = min(epoch.awaited - {event.partition}, default=None)
            if missing is not None:
                epoch.awaited.remove(missing)
        return right(self, event)

    patch.setattr(Coordinator, "_acknowledged", acknowledged)


@in_the_job("a transaction is committed before its epoch is published")
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


@in_the_job("the rows of an abandoned epoch are dropped while the job runs on", seed=3)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._carried

    def carried(self: Transactions[Any], epoch: Epoch) -> Any:
        return tuple(committable for committable in right(self, epoch) if committable.sealed_in == epoch)

    patch.setattr(Transactions, "_carried", carried)


@in_the_job("a transaction that could not be prepared is dropped while the job runs on", seed=31)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._prepare_failed

    def prepare_failed(self: Transactions[Any], id: Any, reason: Any) -> Any:
        instructions = right(self, id, reason)
        del self._unsettled[id]
        return instructions

    patch.setattr(Transactions, "_prepare_failed", prepare_failed)


@in_the_job("an unknown outcome of a commit is taken for success", seed=13)
def _(patch: MonkeyPatch) -> None:
    right = Transactions._answered

    def answered(self: Transactions[Any], event: Any) -> Any:
        certain = CommitOutcome.COMMITTED if event.outcome is CommitOutcome.RETRY_LATER else event.outcome
        return right(self, replace(event, outcome=certain))

    patch.setattr(Transactions, "_answered", answered)


@in_the_job("what the restored epoch carries is not committed again", seed=2)
def _(patch: MonkeyPatch) -> None:
    right = Transactions.begin

    def begin(self: Transactions[Any]) -> Any:
        self._unsettled.clear()
        return right(self)

    patch.setattr(Transactions, "begin", begin)


@in_the_job("an epoch is journalled as committed before those who were restored have committed it", seed=12)
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._started

    def started(self: Coordinator[Any], event: Any) -> Any:
        instructions = right(self, event)
        for awaited in self._uncommitted.values():
            awaited.clear()
        return [*instructions, *self._record_committed()]

    patch.setattr(Coordinator, "_started", started)


@in_the_job("recovery aborts transactions that the epoch carries", seed=12)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(generation, "transactions_of", lambda manifest: frozenset())


@among_committers("two committers of one committable both write: the token is read before the other is fenced")
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


@in_the_job("a transaction id is used again after a roll-back", seed=2)
def _(patch: MonkeyPatch) -> None:
    right = transaction_id

    def again(job: Any, sink: Any, incarnation: Any, partition: Any, n: Any) -> TransactionId:
        return right(job, sink, Incarnation(incarnation.generation, Attempt(1)), partition, n)

    patch.setattr(transactions, "transaction_id", again)


@in_the_job("an epoch id is used again after a roll-back")
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._roll_back

    def roll_back(self: Coordinator[Any]) -> Any:
        self._number = self._complete.number if self._complete is not None else 0
        return right(self)

    patch.setattr(Coordinator, "_roll_back", roll_back)


@in_the_job("a worker of an older attempt of the same generation is heard", seed=1)
def _(patch: MonkeyPatch) -> None:
    def is_current(self: Coordinator[Any], incarnation: Incarnation) -> bool:
        return incarnation.generation == self._incarnation.generation

    def broken(self: Coordinator[Any], event: Any) -> Any:
        self._state = CoordinatorState.BROKEN
        return self._roll_back() if self._publishing is None else []

    patch.setattr(Coordinator, "_is_current", is_current)
    patch.setattr(Coordinator, "_broken", broken)


@in_the_job("a roll-back does not wait for the publication under way", seed=5)
def _(patch: MonkeyPatch) -> None:
    right = Coordinator._broken

    def broken(self: Coordinator[Any], event: Any) -> Any:
        instructions = right(self, event)
        if self._state is CoordinatorState.BROKEN:
            instructions += self._roll_back()
        return instructions

    patch.setattr(Coordinator, "_broken", broken)


@in_the_job("a stale generation publishes")
def _(patch: MonkeyPatch) -> None:
    right = machine.refusal

    def refusal(state: Any, body: Any) -> Any:
        refused = right(state, body)
        return None if refused is not None and refused.reason is Reason.FENCED else refused

    patch.setattr(writer, "refusal", refusal)


@in_the_job("a stale generation commits what it could not publish")
def _(patch: MonkeyPatch) -> None:
    right = GenerationRun._tell

    def tell(self: GenerationRun, event: Any) -> None:
        publishing = self._coordinator._publishing if self._coordinator is not None else None
        if isinstance(event, Fenced) and publishing is not None:
            event = Published(publishing)
        right(self, event)

    patch.setattr(GenerationRun, "_tell", tell)


@in_the_job("a stale generation overwrites a manifest")
def _(patch: MonkeyPatch) -> None:
    right = layout.path_of

    def path_of(item: Any) -> str:
        if isinstance(item, ManifestFile):
            item = ManifestFile(Epoch(Generation(1), item.epoch.number), "0")
        return right(item)

    patch.setattr(generation, "path_of", path_of)


@in_the_job("a new generation starts from the epoch before the newest complete one", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = GenerationRun._start

    def start(self: GenerationRun, epoch: Any, replay: Any) -> None:
        older = [record.epoch for record in self._journal.usable][-2:-1]
        right(self, older[0] if older else epoch, replay)

    patch.setattr(GenerationRun, "_start", start)


@in_the_job("a roll-back goes to the epoch before the last complete one", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = GenerationRun._roll_back

    def roll_back(self: GenerationRun, instruction: RollBack) -> None:
        older = [record.epoch for record in self._journal.usable][-2:-1]
        right(self, replace(instruction, epoch=older[0]) if older else instruction)

    patch.setattr(GenerationRun, "_roll_back", roll_back)
