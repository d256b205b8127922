"""Errors of the journal and of cleaning up: lost answers, compaction, removal, pins, orphans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions import cleanup, start
from recovery.decisions.cleanup import Fate
from recovery.testing import external_readers, generation
from recovery.testing.generation import GenerationRun
from recovery.testing.store import Delete
from snapshot.epochs.coordinator import CoordinatorState
from snapshot.journal import compaction as journal_compaction
from snapshot.journal import machine
from snapshot.journal.compaction import CompactionPlan, JournalCompactor
from snapshot.journal.reader import JournalReader
from snapshot.journal.requests import AlreadyThere, Created, CreateSummary, DeleteEntry, OutcomeUnknown
from snapshot.journal.state import EpochRecord, JournalState, OutputMade
from snapshot.journal.writer import JournalWriter
from snapshot.testing.process import Action
from snapshot.tree.layout import SharedFile
from statebackend.ids import Attempt
from tests.seeded.error import going_back, in_the_job, in_the_journal


@in_the_journal("a paused writer creates an old number again after a compaction, and believes it")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(JournalWriter, "_is_void", lambda self, floor: False)


@in_the_journal("a create that succeeded but whose answer was lost is taken for somebody else's")
def _(patch: MonkeyPatch) -> None:
    right = JournalWriter.handle

    lost: dict[JournalWriter, bool] = {}

    def handle(self: JournalWriter, event: Any) -> Any:
        if isinstance(event, OutcomeUnknown | Created):
            lost[self] = isinstance(event, OutcomeUnknown)
        return right(self, event)

    patch.setattr(JournalWriter, "handle", handle)
    patch.setattr(JournalWriter, "_is_own", lambda self, found: not lost.get(self) and found == self._entry)


@in_the_journal("an unknown outcome of a create is taken for success")
def _(patch: MonkeyPatch) -> None:
    right = JournalWriter.handle

    def handle(self: JournalWriter, event: Any) -> Any:
        return right(self, Created() if isinstance(event, OutcomeUnknown) else event)

    patch.setattr(JournalWriter, "handle", handle)


@in_the_journal("a collision is taken for success")
def _(patch: MonkeyPatch) -> None:
    right = JournalWriter.handle

    def handle(self: JournalWriter, event: Any) -> Any:
        return right(self, Created() if isinstance(event, AlreadyThere) else event)

    patch.setattr(JournalWriter, "handle", handle)


@in_the_journal("a compaction deletes entries before their summary is there")
def _(patch: MonkeyPatch) -> None:
    def handle(self: JournalCompactor, event: Any) -> Any:
        step = right(self, event)
        if isinstance(step, CreateSummary) and self._deletions:
            self._phase = journal_compaction._Phase.DELETING
            return self._deletions.popleft()
        return step

    right = JournalCompactor.handle
    patch.setattr(JournalCompactor, "handle", handle)


@in_the_journal("a compaction deletes entries that came after its summary")
def _(patch: MonkeyPatch) -> None:
    right = journal_compaction.plan_compaction

    def plan(state: Any, carried_out: int, listed: Any) -> CompactionPlan:
        planned = right(state, carried_out, listed)
        later = tuple(DeleteEntry(number) for number in sorted(listed.entries))
        return replace(planned, deletions=later)

    patch.setattr(journal_compaction, "plan_compaction", plan)


@in_the_journal("a reader does not look whether the journal was compacted while it read", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = JournalReader._has_moved
    patch.setattr(JournalReader, "_has_moved", lambda self, floor: not self._ended and right(self, floor))


@in_the_job("files are deleted before their removal is in the journal")
def _(patch: MonkeyPatch) -> None:
    right = cleanup.plan_removal

    def hasty(self: GenerationRun, retain: int, oldest_base: Any) -> None:
        def plan(*args: Any) -> Any:
            removed = right(*args)
            for path in removed.files if removed is not None else ():
                self._ask_again(Delete(path), lambda _: None)
            return removed

        with MonkeyPatch.context() as inner:
            inner.setattr(generation, "plan_removal", plan)
            right_remove(self, retain, oldest_base)

    right_remove = GenerationRun._remove
    patch.setattr(GenerationRun, "_remove", hasty)


@in_the_job("a removal names files that a later epoch shares")
def _(patch: MonkeyPatch) -> None:
    right = cleanup.plan_removal

    def plan(observed: Any, by: Any, retain: int) -> Any:
        removed = right(observed, by, retain)
        if removed is None:
            return None
        files = [path for known in observed.references if known.epoch in removed.epochs for path in sorted(known.files)]
        return replace(removed, files=tuple(files))

    patch.setattr(generation, "plan_removal", plan)


@in_the_job("a removal does not look at pins: a savepoint or a reader loses its files")
def _(patch: MonkeyPatch) -> None:
    def refusal_to_remove(state: Any, record: Any) -> Any:
        return right(replace(state, pins=()), record)

    right = machine._refusal_to_remove
    right_removable = cleanup.removable_epochs
    patch.setattr(machine, "_refusal_to_remove", refusal_to_remove)
    patch.setattr(cleanup, "removable_epochs", lambda state, *rest: right_removable(replace(state, pins=()), *rest))


@going_back("a way back forgets the output of epochs that were removed")
def _(patch: MonkeyPatch) -> None:
    def output_after(self: JournalState, record: EpochRecord) -> OutputMade:
        later = [other for other in self.usable if other.epoch > record.epoch and other.has_committables]
        return OutputMade(len(later), later[-1].epoch) if later else OutputMade()

    patch.setattr(JournalState, "output_after", output_after)


@going_back("a summary forgets what output there was")
def _(patch: MonkeyPatch) -> None:
    right = JournalState.summarised

    def summarised(self: JournalState) -> JournalState:
        kept = right(self)
        return replace(kept, epochs=tuple(replace(record, output=OutputMade()) for record in kept.epochs))

    patch.setattr(JournalState, "summarised", summarised)


@going_back("nobody is asked before output is made once more")
def _(patch: MonkeyPatch) -> None:
    right = start.decide
    patch.setattr(generation, "decide", lambda seen: right(replace(seen, accept_duplicates=True)))


@in_the_job("a reader does not pin what it reads", seed=3)
def _(patch: MonkeyPatch) -> None:
    def go_on(self: external_readers.Reader, state: Any) -> None:
        if not state.usable:
            self._turns += 1
            self._done()
            return
        record = state.usable[-1]
        self._read_manifest(record.manifest, record.epoch, self._done)

    patch.setattr(external_readers.Reader, "_go_on", go_on)


@in_the_job("a clean-up from outside deletes files of an epoch in flight")
def _(patch: MonkeyPatch) -> None:
    right = cleanup._fate

    def fate(*args: Any) -> Fate:
        decided = right(*args)
        from_outside = args[3].attempt is None
        return Fate.ORPHANED if from_outside and decided is Fate.IN_FLIGHT_POSSIBLE else decided

    patch.setattr(cleanup, "_fate", fate)


@in_the_job("what an attempt has uploaded stays when it is rolled back, and goes with its generation alone")
def _(patch: MonkeyPatch) -> None:
    right = cleanup._is_over
    patch.setattr(cleanup, "_is_over", lambda item, observed: right(item, replace(observed, attempt=None)))


@in_the_job("a sweep takes files of the present attempt for orphans, to which its next epoch refers")
def _(patch: MonkeyPatch) -> None:
    right = cleanup._is_over

    def is_over(item: Any, observed: Any) -> bool:
        return right(item, observed) or (isinstance(item, SharedFile) and item.incarnation == observed.attempt)

    patch.setattr(cleanup, "_is_over", is_over)


@in_the_job("an attempt counts as over while its last epoch is being published, and its files as orphans", seed=5)
def _(patch: MonkeyPatch) -> None:
    def actions(self: GenerationRun) -> list[Action]:
        coordinator, right_actions = self._coordinator, right(self)
        hasty = coordinator is not None and coordinator.state is CoordinatorState.BROKEN and not self._sweeping
        return [*right_actions, Action("sweep", drain=False)] if hasty else right_actions

    def sweep(self: GenerationRun) -> None:
        coordinator = self._coordinator
        assert coordinator is not None
        present = coordinator.incarnation
        if coordinator.state is CoordinatorState.BROKEN:
            coordinator._incarnation = replace(present, attempt=Attempt(present.attempt + 1))
        right_sweep(self)
        coordinator._incarnation = present

    right, right_sweep = GenerationRun.actions, GenerationRun._sweep
    patch.setattr(GenerationRun, "actions", actions)
    patch.setattr(GenerationRun, "_sweep", sweep)
