"""Errors of keyed state: what is frozen, when it counts as durable, and how it is put together again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions import restore
from snapshot.host.partition import state_cache
from statebackend import entries, files, keyed_state
from statebackend.files import FileKind, Floors
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.keyed_state import KeyedState
from statebackend.snapshots import catching_up
from statebackend.snapshots import restore as restoring
from statebackend.snapshots.catching_up import Replace
from statebackend.snapshots.consolidation import Planner
from statebackend.snapshots.ingestion import Ingestion
from statebackend.snapshots.persister import Persister, _Stored
from statebackend.snapshots.uploads import Persisted, Uploads
from statebackend.states import base_entries
from statebackend.states.contents import Contents, FrozenContents
from statebackend.states.list_state import ListHandle
from statebackend.states.part_rows import PartState
from statebackend.states.timer_state import TimerState
from statebackend.states.write_back import WriteBack
from statebackend.tables.format import values_blocks
from statebackend.tables.format.blocks import is_whole
from statebackend.tables.table import Table
from tests.planted.error import planted, seldom

# --- into files ------------------------------------------------------------------------------------------------------


@planted("deletions are left out of the delta", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = FrozenContents.entries
    patch.setattr(FrozenContents, "entries", lambda self: (entry for entry in right(self) if entry[1] is not None))


@planted("an epoch is acknowledged before its files are in the store", shown_by=21)
def _(patch: MonkeyPatch) -> None:
    right = Persister._upload

    def upload(self: Persister, attempt: Any, epoch: Any, some: Any) -> None:
        self._tell(_Stored(epoch), attempt)
        tell, self._tell = self._tell, lambda *_: None  # type: ignore[method-assign]
        try:
            right(self, attempt, epoch, some)
        finally:
            self._tell = tell  # type: ignore[method-assign]

    patch.setattr(Persister, "_upload", upload)


@planted("an epoch is durable while an earlier one's files are not", shown_by=6)
def _(patch: MonkeyPatch) -> None:
    right = Uploads._report

    def report(self: Uploads) -> Any:
        unfinished = {epoch: frozen for epoch, frozen in self._frozen.items() if frozen.changes is None}
        self._frozen = {epoch: frozen for epoch, frozen in self._frozen.items() if frozen.changes is not None}
        durable = right(self)
        self._frozen |= unfinished
        return durable

    patch.setattr(Uploads, "_report", report)


@planted("the delta of a failed epoch is dropped while the job runs on", shown_by=20)
def _(patch: MonkeyPatch) -> None:
    right = Uploads.failed

    def failed(self: Uploads, epoch: Any, reason: Any) -> Any:
        declined = right(self, epoch, reason)
        self._frozen[epoch].failed = False
        self._frozen[epoch].changes = Persisted()
        return declined

    patch.setattr(Uploads, "failed", failed)


# --- bases and merges ------------------------------------------------------------------------------------------------


@seldom("a base is taken without clearing what it replaces: deleted keys and fired timers come back")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(keyed_state, "floors", lambda of: Floors((of.range.end,), (0,)))


@seldom("bases are taken before deltas, of whatever epoch")
def _(patch: MonkeyPatch) -> None:
    right = restoring.fetch

    def fetch(of: Any, *args: Any, **named: Any) -> Any:
        fetched = right(of, *args, **named)
        paths = zip(of.files, fetched.paths, strict=True)
        return replace(fetched, paths=tuple(p for _, p in sorted(paths, key=lambda one: one[0].kind is FileKind.DELTA)))

    patch.setattr(keyed_state, "fetch", fetch)


@seldom("a base that comes late replaces a younger one")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Uploads, "_replace", lambda self, ranges, epoch: ranges)


@seldom("a base is made of a backend that has not taken the cuts that waited")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Ingestion, "take_waiting", lambda self: None)


@planted("a base is made of a backend that has not taken every delta", shown_by=2)
def _(patch: MonkeyPatch) -> None:
    right = Ingestion._take_files

    def take(self: Ingestion, some: Any, renews: bool) -> None:
        if not some or some[0].kind is not FileKind.DELTA or some[0].epoch.number % 2:
            right(self, some, renews)

    patch.setattr(Ingestion, "_take_files", take)


@seldom("a base drops kept keys to which later cuts refer, as younger blocks say all there is")
def _(patch: MonkeyPatch) -> None:
    right = values_blocks.settled

    def settled(run: Any, epoch_number: int, table: str) -> Any:
        place, blocks = values_blocks._Place(entries.block_place(run[0][0])), []
        for name, payload in run:
            if entries.are_kept_keys(name) or entries.are_values(name):
                place.take(name, payload, table)
            else:
                blocks.append((name, payload))
        younger = [payload for name, payload in blocks if name > place.newest]
        return None if any(map(is_whole, younger)) else right(run, epoch_number, table)

    patch.setattr(values_blocks, "settled", settled)
    patch.setattr(base_entries, "settled", settled)


@seldom("a merged delta brings back accumulators whose keys a base has not kept")
def _(patch: MonkeyPatch) -> None:
    right = Planner.changed
    never = Epoch(Generation(1 << 20), 1 << 30)

    def changed(self: Planner, of: Any, size: int, at: Any) -> Any:
        self._began = NO_EPOCH
        return right(self, of, size, never)

    patch.setattr(Planner, "changed", changed)


@seldom("accumulators refer to keys of which one has left since")
def _(patch: MonkeyPatch) -> None:
    right = Contents._refers

    def refers(self: Contents, tables: Any) -> bool:
        self._kept_at = [table.losses for table in self._tables]
        return right(self, tables)

    patch.setattr(Contents, "_refers", refers)


# --- rewind in place -------------------------------------------------------------------------------------------------


@planted("timers stay as they were when the state is rewound", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    right = Contents.rewind

    def rewind(self: Contents, *args: Any) -> Any:
        timers, self._timers = self._timers, []
        try:
            return right(self, *args)
        finally:
            self._timers = timers

    patch.setattr(Contents, "rewind", rewind)


@seldom("what is known of lists and maps stays when the state is rewound")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(PartState, "rewind", lambda self, cuts: None)


@planted("values that were read or written stay when the state is rewound", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    right = WriteBack.rewind

    def rewind(self: WriteBack[Any], since: Any) -> Any:
        young = dict(self.young)
        given_up = right(self, since)
        self.young.update(young)
        return given_up

    patch.setattr(WriteBack, "rewind", rewind)


@planted("a table stays as it was when the state is rewound", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Table, "rewind", lambda self, epoch_number: True)


@seldom("a rewound state hears of uploads that were begun before")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Persister, "_hear", lambda self, said: self._handle(said.result))


@planted("a rewound state names its files as the attempt before did", shown_by=25)
def _(patch: MonkeyPatch) -> None:
    right = Persister._begin_anew

    def begin_anew(self: Persister, linked: Any, names: Any) -> None:
        right(self, linked, self._files._name)

    patch.setattr(Persister, "_begin_anew", begin_anew)


@planted("changes cut since are kept when the state is rewound, and go with the next epoch", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    right = Persister.rewind

    def rewind(self: Persister, epoch: Any, some: Any, names: Any, given_up: Any) -> None:
        later = {known: delta for known, delta in self._deltas.items() if known > epoch}
        right(self, epoch, some, names, given_up)
        kept = [file for delta in later.values() for file in delta.files if file.kind is FileKind.DELTA]
        self._uploads._files = files.FileSet.of(some.range, (*some.files, *kept))

    patch.setattr(Persister, "rewind", rewind)


# --- standbys that follow --------------------------------------------------------------------------------------------


@planted("a state that followed is taken as it is, of whatever epoch", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = state_cache._is_now
    patch.setattr(state_cache, "_is_now", lambda state, *args: state.is_untouched or right(state, *args))


@seldom("a state that follows keeps what the next epoch found empty or replaced")
def _(patch: MonkeyPatch) -> None:
    right = catching_up.catching_up

    def following(before: Any, after: Any) -> Any:
        plan = right(before, after)
        if plan is None:
            return None
        return replace(plan, steps=tuple(step for step in plan.steps if not isinstance(step, Replace) or step.base))

    patch.setattr(keyed_state, "catching_up", following)


@planted("a state that follows takes the last delta alone", shown_by=36)
def _(patch: MonkeyPatch) -> None:
    right = catching_up.catching_up
    patch.setattr(
        keyed_state,
        "catching_up",
        lambda *sets: None if (plan := right(*sets)) is None else replace(plan, steps=plan.steps[-1:]),
    )


@seldom("a table that follows keeps in memory what a base has replaced")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Contents, "unload", lambda self, groups: None)


@seldom("a table that follows does not hear of newer deltas")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Contents, "bring_up_to_date", lambda self, blocks: None)


@seldom("a state may catch up though it was used")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(KeyedState, "is_untouched", property(lambda self: True))
    right = KeyedState.catch_up

    def catch_up(self: KeyedState, *args: Any, **named: Any) -> bool:
        self._untouched = True
        return right(self, *args, **named)

    patch.setattr(KeyedState, "catch_up", catch_up)


# --- rescales and restores -------------------------------------------------------------------------------------------


@planted("after a rescale a partition takes only its first parent's state", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    right = files.rescaled

    def rescaled(states: Any, groups: Any) -> Any:
        states = list(states)
        whole = right(states, groups)
        own = {file.path for file in states[0].files}
        return type(whole)(whole.range, tuple(file for file in whole.files if file.path in own))

    patch.setattr(restore, "rescaled", rescaled)


@planted("a restored list numbers its elements from the beginning", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = ListHandle.__init__

    def made(self: ListHandle[Any], rows: Any) -> None:
        right(self, rows)
        self._next = 1 << 32

    patch.setattr(ListHandle, "__init__", made)


@planted("timers that were set before a restore are forgotten by it", shown_by=3)
def _(patch: MonkeyPatch) -> None:
    right = TimerState.__init__

    def made(self: TimerState, *args: Any) -> None:
        right(self, *args)
        self._service._short.clear()

    patch.setattr(TimerState, "__init__", made)
