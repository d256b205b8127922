"""Errors of the journal and of cleaning up: lost answers, compaction, removal, pins, orphans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery import cleanup
from recovery.cleanup import Fate
from recovery.testing import bystanders, generation
from recovery.testing.generation import GenerationRun
from recovery.testing.store import Delete
from snapshot import journal, journal_compaction
from snapshot.journal_compaction import CompactionPlan, JournalCompactor
from snapshot.journal_reader import JournalReader
from snapshot.journal_requests import AlreadyThere, Created, CreateSummary, DeleteEntry, OutcomeUnknown
from snapshot.journal_writer import JournalWriter
from tests.seeded.error import in_the_job, in_the_journal


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


@in_the_job("a removal does not look at pins: a savepoint or a reader loses its files", seed=1)
def _(patch: MonkeyPatch) -> None:
    def refusal_to_remove(state: Any, record: Any) -> Any:
        return right(replace(state, pins=()), record)

    right = journal._refusal_to_remove
    right_removable = cleanup.removable_epochs
    patch.setattr(journal, "_refusal_to_remove", refusal_to_remove)
    patch.setattr(cleanup, "removable_epochs", lambda state, *rest: right_removable(replace(state, pins=()), *rest))


@in_the_job("a reader does not pin what it reads", seed=4)
def _(patch: MonkeyPatch) -> None:
    def go_on(self: bystanders.Reader, state: Any) -> None:
        if not state.usable:
            self._turns += 1
            self._done()
            return
        record = state.usable[-1]
        self._read_manifest(record.manifest, record.epoch, self._done)

    patch.setattr(bystanders.Reader, "_go_on", go_on)


@in_the_job("a clean-up from outside deletes files of an epoch in flight", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = cleanup._fate

    def fate(*args: Any) -> Fate:
        decided = right(*args)
        return Fate.ORPHANED if decided is Fate.IN_FLIGHT_POSSIBLE else decided

    patch.setattr(cleanup, "_fate", fate)
