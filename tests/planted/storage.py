"""Errors of the journal and of cleaning up: lost answers, compaction, removal, pins, orphans, ways back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions import cleanup, start
from recovery.decisions.cleanup import Fate
from recovery.driver.claimed import ClaimedJob
from recovery.driver.epochs import Epochs
from recovery.driver.housekeeping import Housekeeping
from recovery.driver.tree import owned
from recovery.driver.tree.owned import Tree
from recovery.schemes.rolling_back import BreakAttempt
from recovery.testing.checks import visitors
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator
from snapshot.journal import compaction as journal_compaction
from snapshot.journal import machine
from snapshot.journal.compaction import CompactionPlan, JournalCompactor
from snapshot.journal.reader import JournalReader
from snapshot.journal.requests import AlreadyThere, Created, CreateSummary, DeleteEntry, OutcomeUnknown
from snapshot.journal.state import EpochRecord, JournalState, OutputMade
from snapshot.journal.writer import JournalWriter
from snapshot.tree.layout import SharedFile
from statebackend.ids import Attempt
from tests.planted.error import planted, seldom

# --- the journal -----------------------------------------------------------------------------------------------------


@seldom("a paused writer creates an old number again after a compaction, and believes it")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(JournalWriter, "_is_void", lambda self, floor: False)


@planted("a create that succeeded but whose answer was lost is taken for another writer's", shown_by=23)
def _(patch: MonkeyPatch) -> None:
    right = JournalWriter.handle

    lost: dict[JournalWriter, bool] = {}

    def handle(self: JournalWriter, event: Any) -> Any:
        if isinstance(event, OutcomeUnknown | Created):
            lost[self] = isinstance(event, OutcomeUnknown)
        return right(self, event)

    patch.setattr(JournalWriter, "handle", handle)
    patch.setattr(JournalWriter, "_is_own", lambda self, found: not lost.get(self) and found == self._entry)


@planted("an unknown outcome of a create is taken for success", shown_by=12)
def _(patch: MonkeyPatch) -> None:
    right = JournalWriter.handle

    def handle(self: JournalWriter, event: Any) -> Any:
        return right(self, Created() if isinstance(event, OutcomeUnknown) else event)

    patch.setattr(JournalWriter, "handle", handle)


@planted("a collision is taken for success")
def _(patch: MonkeyPatch) -> None:
    right = JournalWriter.handle

    def handle(self: JournalWriter, event: Any) -> Any:
        return right(self, Created() if isinstance(event, AlreadyThere) else event)

    patch.setattr(JournalWriter, "handle", handle)


@planted("a compaction deletes entries before their summary is there", shown_by=2)
def _(patch: MonkeyPatch) -> None:
    right = JournalCompactor.handle

    def handle(self: JournalCompactor, event: Any) -> Any:
        step = right(self, event)
        if isinstance(step, CreateSummary) and self._deletions:
            self._phase = journal_compaction._Phase.DELETING
            return self._deletions.popleft()
        return step

    patch.setattr(JournalCompactor, "handle", handle)


@planted("a compaction deletes entries that came after its summary", shown_by=44)
def _(patch: MonkeyPatch) -> None:
    right = journal_compaction.plan_compaction

    def plan(state: Any, carried_out: int, listed: Any) -> CompactionPlan:
        planned = right(state, carried_out, listed)
        later = tuple(DeleteEntry(number) for number in sorted(listed.entries))
        return replace(planned, deletions=later)

    patch.setattr(journal_compaction, "plan_compaction", plan)


@seldom("a reader does not look whether the journal was compacted while it read")
def _(patch: MonkeyPatch) -> None:
    right = JournalReader._has_moved
    patch.setattr(JournalReader, "_has_moved", lambda self, floor: not self._ended and right(self, floor))


@seldom("a summary forgets removals that are not carried out")
def _(patch: MonkeyPatch) -> None:
    right = Housekeeping._compact_if_due

    def compact(self: Housekeeping, state: Any) -> None:
        outstanding, self._outstanding = self._outstanding, set()
        try:
            right(self, state)
        finally:
            self._outstanding = outstanding

    patch.setattr(Housekeeping, "_compact_if_due", compact)


# --- removals --------------------------------------------------------------------------------------------------------


@planted("files are deleted before their removal is in the journal")
def _(patch: MonkeyPatch) -> None:
    right = Tree.remove

    def remove(self: Tree, removed: Any) -> Any:
        for path in removed.files:
            self._store.delete(path)
        return right(self, removed)

    patch.setattr(Tree, "remove", remove)


@planted("a removal names files that a later epoch shares")
def _(patch: MonkeyPatch) -> None:
    right = cleanup.plan_removal

    def plan(observed: Any, by: Any, retain: int) -> Any:
        removed = right(observed, by, retain)
        if removed is None:
            return None
        files = [path for known in observed.references if known.epoch in removed.epochs for path in sorted(known.files)]
        return replace(removed, files=tuple(files))

    patch.setattr(owned, "plan_removal", plan)


@planted("a removal does not look at pins: a savepoint or a reader loses its files", shown_by=2)
def _(patch: MonkeyPatch) -> None:
    def refusal_to_remove(state: Any, record: Any) -> Any:
        return right(replace(state, pins=()), record)

    right = machine._refusal_to_remove
    right_removable = cleanup.removable_epochs
    patch.setattr(machine, "_refusal_to_remove", refusal_to_remove)
    patch.setattr(cleanup, "removable_epochs", lambda state, *rest: right_removable(replace(state, pins=()), *rest))


@seldom("an epoch on which one in flight builds is removed")
def _(patch: MonkeyPatch) -> None:
    def remove_older(self: Coordinator[Any]) -> Any:
        return [events.RemoveOlder(self._options.retain, None)]

    patch.setattr(Coordinator, "_remove_older", remove_older)


@seldom("a removal is planned by what the journal says later than the coordinator asked")
def _(patch: MonkeyPatch) -> None:
    def remove(self: Epochs, asked: Any) -> None:
        tree = self._tree

        def later() -> Any:
            planned = tree.plan_removal(tree.state, asked.retain, asked.oldest_base)
            return owned.RemovalDone(tree.state, None) if planned is None else tree.remove(planned)

        if not self._removing:
            self._removing = True
            self._in_order.submit(later, self._answered)

    patch.setattr(Epochs, "_remove", remove)


@planted("an epoch is removed while its output awaits its commit", shown_by=3)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(EpochRecord, "awaits_commit", property(lambda self: False))


@planted("a reader does not pin what it reads", shown_by=33)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(visitors, "pinned", lambda tree, epoch: nullcontext())


# --- ways back -------------------------------------------------------------------------------------------------------


@seldom("a way back forgets the output of epochs that were removed")
def _(patch: MonkeyPatch) -> None:
    def output_after(self: JournalState, record: EpochRecord) -> OutputMade:
        later = [other for other in self.usable if other.epoch > record.epoch and other.has_committables]
        return OutputMade(len(later), later[-1].epoch) if later else OutputMade()

    patch.setattr(JournalState, "output_after", output_after)


@seldom("a summary forgets what output there was")
def _(patch: MonkeyPatch) -> None:
    right = JournalState.summarised

    def summarised(self: JournalState) -> JournalState:
        kept = right(self)
        return replace(kept, epochs=tuple(replace(record, output=OutputMade()) for record in kept.epochs))

    patch.setattr(JournalState, "summarised", summarised)


@planted("a job makes output once more without being told that it may", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    right = start.decide
    patch.setattr("recovery.driver.claim.decide", lambda seen: right(replace(seen, accept_duplicates=True)))


# --- orphans ---------------------------------------------------------------------------------------------------------


@planted("a clean-up from outside deletes files of an epoch in flight", shown_by=36)
def _(patch: MonkeyPatch) -> None:
    right = cleanup._fate

    def fate(*args: Any) -> Fate:
        decided = right(*args)
        from_outside = args[3].attempt is None
        return Fate.ORPHANED if from_outside and decided is Fate.IN_FLIGHT_POSSIBLE else decided

    patch.setattr(cleanup, "_fate", fate)


@planted("what an attempt has uploaded stays when it is rolled back, and goes with its generation alone", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    right = cleanup._is_over
    patch.setattr(cleanup, "_is_over", lambda item, observed: right(item, replace(observed, attempt=None)))


@planted("a sweep takes files of the present attempt for orphans, to which its next epoch refers")
def _(patch: MonkeyPatch) -> None:
    right = cleanup._is_over

    def is_over(item: Any, observed: Any) -> bool:
        return right(item, observed) or (isinstance(item, SharedFile) and item.incarnation == observed.attempt)

    patch.setattr(cleanup, "_is_over", is_over)


@planted("an attempt counts as over while its last epoch is being published, and its files as orphans", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = ClaimedJob._carry_out

    def carry_out(self: ClaimedJob, consequences: Any) -> None:
        right(self, consequences)
        if any(isinstance(consequence, BreakAttempt) for consequence in consequences):
            over = self.epochs.incarnation
            self._orphans._attempt = replace(over, attempt=Attempt(over.attempt + 1))
            self._orphans._begin()

    patch.setattr(ClaimedJob, "_carry_out", carry_out)
