"""What the schemes that pause sources promise of their own, checked in simulated jobs while these run.

Invariant: what is checked is seen in the messages of the driver and in what sources and targets are asked, not in the
machines of the schemes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from pytest import MonkeyPatch

from recovery.driver.epochs import Epochs
from recovery.testing.checks.observer import JobObserver
from recovery.testing.programs.sink import _Showing
from snapshot.connectors.staging import batched_rows
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator_options import Rhythm
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.protocol.messages import EpochIsOver, TriggerEpoch
from snapshot.testing.history import Violation


def watch(patch: MonkeyPatch, *, batches: bool) -> None:
    """Raise `Violation` at the end of a history in which a source, the driver or a sink broke its scheme's promise."""
    broken: list[str] = []
    judge_at_the_end(patch, broken)
    _watch_triggers(patch, broken)
    if batches:
        _watch_batches(patch, broken)
        _watch_plain_sinks(patch, broken)
    else:
        _watch_pauses(patch, broken)


def judge_at_the_end(patch: MonkeyPatch, broken: list[str], begin_anew: Callable[[], object] = lambda: None) -> None:
    """Raise `Violation` at the end of a history with what is broken by then; `begin_anew` is called when it begins."""
    begin, check_end = JobObserver.__init__, JobObserver.check_end

    def made(self: JobObserver, *given: Any, **named: Any) -> None:
        broken.clear()
        begin_anew()
        begin(self, *given, **named)

    def checked(self: JobObserver, *given: Any, **named: Any) -> None:
        if broken:
            raise Violation(broken[0])
        check_end(self, *given, **named)

    patch.setattr(JobObserver, "__init__", made)
    patch.setattr(JobObserver, "check_end", checked)


def _watch_triggers(patch: MonkeyPatch, broken: list[str]) -> None:
    right, given_up, published = Epochs._trigger, Epochs._abandon, Epochs._published
    triggered: WeakKeyDictionary[Epochs, dict[Any, float]] = WeakKeyDictionary()
    rested: WeakKeyDictionary[Epochs, float] = WeakKeyDictionary()

    def trigger(self: Epochs, trigger: Any, because: Any) -> None:
        now = self._loop.now()
        if isinstance(because, events.Ticked):
            if len(self._coordinator.in_flight) > 1:
                broken.append(f"epoch {trigger.marker.epoch} was triggered by the clock while another was in flight")
            if now < rested.get(self, 0.0) - 0.002:
                broken.append(f"epoch {trigger.marker.epoch} was triggered before sources had read for long enough")
        triggered.setdefault(self, {})[trigger.marker.epoch] = now
        right(self, trigger, because)

    def over(self: Epochs, epoch: Any) -> None:
        began = triggered.get(self, {}).pop(epoch, None)
        rests = self._settings.options.coordinator.rhythm is Rhythm.WITH_REST
        if began is not None and rests and self.is_running:
            rested[self] = 2 * self._loop.now() - began

    def abandon(self: Epochs, abandon: Any) -> None:
        if abandon.reason is not events.AbandonReason.ATTEMPT_BROKEN:
            over(self, abandon.epoch)
        given_up(self, abandon)

    def publish(self: Epochs, done: Any) -> None:
        over(self, done.epoch)
        published(self, done)

    patch.setattr(Epochs, "_trigger", trigger)
    patch.setattr(Epochs, "_abandon", abandon)
    patch.setattr(Epochs, "_published", publish)


def _watch_pauses(patch: MonkeyPatch, broken: list[str]) -> None:
    told, read = PartitionAttempt.told, StageRun._read_once
    under_way: WeakKeyDictionary[StageRun, set[Any]] = WeakKeyDictionary()

    def heard(self: PartitionAttempt, message: Any) -> None:
        for run in self._stages:
            of_run = under_way.setdefault(run, set())
            if isinstance(message, EpochIsOver):
                of_run.discard(message.epoch)
        told(self, message)
        if isinstance(message, TriggerEpoch):
            for run in self._stages:
                under_way[run].add(message.marker.epoch)

    def read_once(self: StageRun, source: Any) -> bool:
        before = self._rows_in
        done = read(self, source)
        if self._rows_in > before and under_way.get(self):
            broken.append(f"{self.uid} has read rows while {sorted(under_way[self])} was under way")
        return done

    patch.setattr(PartitionAttempt, "told", heard)
    patch.setattr(StageRun, "_read_once", read_once)


def _watch_batches(patch: MonkeyPatch, broken: list[str]) -> None:
    read = StageRun._read_once

    def read_once(self: StageRun, source: Any) -> bool:
        before, waits = self._rows_in, bool(self._due)
        done = read(self, source)
        if self._rows_in > before and not waits:
            broken.append(f"{self.uid} has read rows, and no epoch's cut waits for them")
        return done

    patch.setattr(StageRun, "_read_once", read_once)


def _watch_plain_sinks(patch: MonkeyPatch, broken: list[str]) -> None:
    written, write = batched_rows._written, _Showing.write
    writes: list[object] = []

    def committing(writer: Any, *given: Any) -> Any:
        writes.append(writer)
        try:
            return written(writer, *given)
        finally:
            writes.remove(writer)

    def shown(self: _Showing, rows: Any) -> None:
        if len(rows) and self not in writes:
            broken.append("a sink that shows rows at once was given rows of a batch that is not complete")
        write(self, rows)

    patch.setattr(batched_rows, "_written", committing)
    patch.setattr(_Showing, "write", shown)
