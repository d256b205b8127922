"""The life of every epoch of one generation: triggered, acknowledged, published, committed, or given up.

Invariant: an epoch is published only when every participant that was recorded before its marker went out
has acknowledged it in the current attempt; one publication is under way at a time and in epoch order; epochs are
committed in order and only after they are published; and a roll-back waits for the publication under way, because
only its outcome says which epoch is the last complete one. So does the new contributor of a partition.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic

from snapshot.cut.frames import Marker, MarkerMode
from snapshot.epochs.coordinator_events import (
    Abandon,
    AbandonReason,
    Acknowledged,
    AttemptBroken,
    AttemptStarted,
    CommitFailed,
    Committed,
    Complete,
    Content,
    ContributorBack,
    ContributorChanged,
    CoordinatorEvent,
    CoordinatorInstruction,
    Declined,
    EpochRequested,
    Fenced,
    Promote,
    Publish,
    Published,
    PublishFailed,
    RecordCommitted,
    RemoveOlder,
    RollBack,
    SavepointRequested,
    Skipped,
    SkipReason,
    Stop,
    Ticked,
    Trigger,
)
from snapshot.epochs.coordinator_options import CoordinatorOptions, Rhythm
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Incarnation, Partition


class CoordinatorState(Enum):
    """The state of a generation."""

    STARTING = auto()
    """Participants are being restored; nothing is triggered."""
    RUNNING = auto()
    BROKEN = auto()
    """The attempt is over, and the publication under way decides where the next one starts."""
    STOPPED = auto()
    """Fenced, failed for good, or ended: every event is ignored."""


@dataclass(slots=True)
class _InFlight(Generic[Content]):
    """An epoch between its trigger and its publication."""

    marker: Marker
    triggered_at: int
    base: Epoch | None
    awaited: set[Partition]
    contents: dict[Partition, Content] = field(default_factory=dict)
    committers: set[Partition] = field(default_factory=set)


@dataclass(slots=True)
class CoordinatorStatistics:
    """Counts since the generation began."""

    triggered: int = 0
    completed: int = 0
    skipped: int = 0
    abandoned: int = 0
    failures_in_a_row: int = 0
    refused: int = 0
    """Reports of an older attempt, or of a partition that was not expected."""


class Coordinator(Generic[Content]):
    """One generation's coordinator, from its claim to its end.

    `complete` is the epoch that the generation starts from, `last_number` the highest epoch number in the journal, and
    `uncommitted` the complete epochs whose commits are to be replayed. It starts in attempt 1, which the host
    restores from `complete`. The caller owes: time never goes back, instructions are carried out in order, and every
    `Publish` is answered once. A crash loses all of this; the next generation derives its own from the journal.
    """

    def __init__(
        self,
        options: CoordinatorOptions,
        generation: Generation,
        *,
        now: int,
        complete: Epoch | None = None,
        last_number: int = 0,
        uncommitted: Collection[Epoch] = (),
    ) -> None:
        self._options = options
        self._now = now
        self._next_due = now + options.interval
        self._pause_until = now
        self._overdue = False  # an epoch waits until the one in flight is over
        self._number = last_number
        self._complete = complete
        self._incarnation = Incarnation(generation, Attempt(1))
        self._participants: frozenset[Partition] = frozenset()
        self._state = CoordinatorState.STARTING
        self._has_run = False  # the attempt that broke last: one that could not start may have been fenced
        self._in_flight: dict[Epoch, _InFlight[Content]] = {}
        self._ready: list[Epoch] = []  # acknowledged by all, waiting for a publication before them; ascending
        self._publishing: Epoch | None = None
        self._promoting: list[Partition] = []  # to new contributors, when the publication is over
        self._absent: set[Partition] = set()
        self._last: Epoch | None = None
        self._uncommitted: dict[Epoch, set[Partition]] = {epoch: set() for epoch in sorted(uncommitted)}
        self._committed_by: dict[Partition, Epoch] = {}  # how far each has committed in this attempt
        self.statistics = CoordinatorStatistics()

    @property
    def state(self) -> CoordinatorState:
        """Return the state of the generation."""
        return self._state

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the current attempt; reports that carry an older one are refused."""
        return self._incarnation

    @property
    def complete(self) -> Epoch | None:
        """Return the last complete epoch, to which a roll-back would go."""
        return self._complete

    @property
    def in_flight(self) -> Collection[Epoch]:
        """Return the epochs that were triggered and are neither complete nor given up."""
        return self._in_flight.keys()

    @property
    def deadline(self) -> int:
        """Return when the next `Ticked` is wanted: at the next trigger, or at the next time-out."""
        due = max(self._next_due, self._pause_until)
        waiting = (in_flight for epoch, in_flight in self._in_flight.items() if self._is_waiting(epoch))
        return min([due, *(in_flight.triggered_at + self._options.timeout for in_flight in waiting)])

    def handle(self, event: CoordinatorEvent[Content]) -> list[CoordinatorInstruction[Content]]:
        """Take an event; return the instructions to carry out, in order."""
        if self._state is CoordinatorState.STOPPED:
            return []
        match event:
            case Acknowledged():  # this and the next come from every participant, all others seldom
                return self._acknowledged(event)
            case Committed():
                return self._committed(event)
            case Ticked(now):
                self._now = now
                return [*self._time_out(), *self._trigger_if_due()]
            case SavepointRequested(last):
                return self._trigger(savepoint=True, last=last)
            case EpochRequested(last):
                return self._trigger(last=last) if last or not self._has_last else []
            case AttemptStarted():
                return self._started(event)
            case AttemptBroken():
                return self._broken(event)
            case ContributorChanged():
                return self._contributor_changed(event)
            case ContributorBack(incarnation, partition):
                if self._is_current(incarnation):
                    self._absent.discard(partition)
                return []
            case Declined():
                return self._declined(event)
            case Published(epoch):
                return self._published(epoch)
            case PublishFailed(epoch, reason):
                return self._publish_failed(epoch, reason)
            case Fenced(by):
                return self._stop(
                    f"generation {by} has claimed the job; generation {self._incarnation.generation} is over"
                )
            case CommitFailed():
                return self._commit_failed(event)

    # --- trigger --------------------------------------------------------------------------------------------------

    def _trigger_if_due(self) -> list[CoordinatorInstruction[Content]]:
        if self._now < self._next_due or self._now < self._pause_until:
            return []
        # Intervals that passed unseen are not made up for: an epoch now covers them all.
        self._next_due = self._now + self._options.interval
        if self._has_last:
            return []
        if self._state is CoordinatorState.RUNNING and len(self._in_flight) >= self._options.max_in_flight:
            self._overdue = self._options.rhythm is not Rhythm.OVERLAPPING
            return [] if self._overdue else self._skip(SkipReason.IN_FLIGHT)
        return self._trigger()

    def _over(self, in_flight: _InFlight[Content]) -> None:
        """Let the next epoch begin, now that one is over, if it waits for that alone."""
        if self._options.rhythm is Rhythm.WITH_REST and self._state is CoordinatorState.RUNNING:
            self._pause_until = max(self._pause_until, 2 * self._now - in_flight.triggered_at)
        if self._overdue and not self._in_flight:
            self._overdue, self._next_due = False, self._now

    @property
    def _has_last(self) -> bool:
        """True if the epoch after which nothing follows is under way or complete, so not if it was lost."""
        last = self._last
        return last is not None and (last in self._in_flight or (self._complete is not None and self._complete >= last))

    def _trigger(self, *, savepoint: bool = False, last: bool = False) -> list[CoordinatorInstruction[Content]]:
        if self._state is not CoordinatorState.RUNNING:
            return self._skip(SkipReason.NOT_RUNNING)
        if self._promoting:
            return self._skip(SkipReason.PROMOTING)
        if self._absent:
            return self._skip(SkipReason.ABSENT)
        self._number += 1
        epoch = Epoch(self._incarnation.generation, self._number)
        marker = Marker(epoch, MarkerMode.ALIGNED if savepoint else self._options.mode, savepoint)
        # The participants are on record before the marker goes out, so no acknowledgement finds its epoch unknown.
        self._in_flight[epoch] = _InFlight(marker, self._now, self._complete, set(self._participants))
        if last:
            self._last = epoch
        self.statistics.triggered += 1
        return [Trigger(marker, self._participants)]

    def _skip(self, reason: SkipReason) -> list[CoordinatorInstruction[Content]]:
        self.statistics.skipped += 1
        return [Skipped(reason)]

    # --- acknowledgement and publication ---------------------------------------------------------------------------

    def _acknowledged(self, event: Acknowledged[Content]) -> list[CoordinatorInstruction[Content]]:
        epoch = self._in_flight.get(event.epoch)
        if epoch is None or not self._is_current(event.incarnation) or event.partition not in epoch.awaited:
            self.statistics.refused += 1
            return []
        epoch.awaited.remove(event.partition)
        epoch.contents[event.partition] = event.content
        if event.has_committables:
            epoch.committers.add(event.partition)
        if epoch.awaited:
            return []
        subsumed = [
            older
            for older, in_flight in self._in_flight.items()
            if older < event.epoch and self._is_waiting(older) and not in_flight.marker.savepoint
        ]
        insort(self._ready, event.epoch)
        return [
            *(abandoned for older in subsumed for abandoned in self._abandon(older, AbandonReason.SUBSUMED)),
            *self._publish_next(),
        ]

    def _is_waiting(self, epoch: Epoch) -> bool:
        return epoch != self._publishing and epoch not in self._ready

    def _publish_next(self) -> list[CoordinatorInstruction[Content]]:
        # Only a savepoint can still be waiting before the first that is ready; it is not subsumed, but waited for.
        if self._publishing is not None or not self._ready or min(self._in_flight) < self._ready[0]:
            return []
        self._publishing = self._ready.pop(0)
        epoch = self._in_flight[self._publishing]
        return [
            Publish(
                self._publishing,
                epoch.base,
                self._incarnation,
                epoch.marker.savepoint,
                epoch.contents,
                bool(epoch.committers),
            )
        ]

    def _published(self, epoch: Epoch) -> list[CoordinatorInstruction[Content]]:
        self._end_publication(epoch)
        published = self._in_flight.pop(epoch)
        self._complete = epoch
        self._pause_until = self._now + self._options.min_pause
        self._over(published)
        self.statistics.completed += 1
        self.statistics.failures_in_a_row = 0
        if published.committers:
            self._uncommitted[epoch] = published.committers
        if self._state is CoordinatorState.BROKEN:
            return self._roll_back()
        older = [] if self._uncommitted else self._remove_older()
        return [Complete(epoch), *self._promote(), *older, *self._publish_next()]

    def _publish_failed(self, epoch: Epoch, reason: str) -> list[CoordinatorInstruction[Content]]:
        self._end_publication(epoch)
        if self._state is CoordinatorState.BROKEN:
            return [*self._abandon(epoch, AbandonReason.PUBLISH_FAILED, reason), *self._roll_back()]
        failed = self._fail(epoch, AbandonReason.PUBLISH_FAILED, reason)
        return [*failed, *self._promote()] if self._state is CoordinatorState.RUNNING else failed

    def _end_publication(self, epoch: Epoch) -> None:
        if epoch != self._publishing:
            raise ValueError(f"epoch {epoch} is not the one being published, which is {self._publishing}")
        self._publishing = None

    # --- giving up ------------------------------------------------------------------------------------------------

    def _time_out(self) -> list[CoordinatorInstruction[Content]]:
        late = [
            epoch
            for epoch, in_flight in self._in_flight.items()
            if self._now >= in_flight.triggered_at + self._options.timeout and self._is_waiting(epoch)
        ]
        instructions: list[CoordinatorInstruction[Content]] = []
        for epoch in late:
            if epoch in self._in_flight:
                awaited = ", ".join(str(partition) for partition in sorted(self._in_flight[epoch].awaited)[:10])
                instructions += self._fail(epoch, AbandonReason.TIMED_OUT, f"partitions still awaited: {awaited}")
        return instructions

    def _declined(self, event: Declined) -> list[CoordinatorInstruction[Content]]:
        if not self._is_current(event.incarnation):
            self.statistics.refused += 1
            return []
        if event.epoch not in self._in_flight or not self._is_waiting(event.epoch):
            return []
        return self._fail(event.epoch, AbandonReason.DECLINED, f"partition {event.partition}: {event.reason}")

    def _fail(self, epoch: Epoch, reason: AbandonReason, detail: str) -> list[CoordinatorInstruction[Content]]:
        self.statistics.failures_in_a_row += 1
        instructions = self._abandon(epoch, reason, detail)
        tolerated = self._options.tolerated_failures
        if tolerated is not None and self.statistics.failures_in_a_row > tolerated:
            self.statistics.failures_in_a_row = 0
            why = f"more than {tolerated} epochs in a row failed; the last one, {epoch}: {reason.value} ({detail})"
            return [*instructions, *self._broken(AttemptBroken(self._incarnation, why))]
        return [*instructions, *self._publish_next()]

    def _abandon_all(self, reason: AbandonReason, detail: str) -> list[CoordinatorInstruction[Content]]:
        """Abandon all epochs in flight but the one being published."""
        self._ready.clear()
        lost = [epoch for epoch in self._in_flight if epoch != self._publishing]
        return [abandoned for epoch in lost for abandoned in self._abandon(epoch, reason, detail)]

    def _abandon(self, epoch: Epoch, reason: AbandonReason, detail: str = "") -> list[CoordinatorInstruction[Content]]:
        self._over(self._in_flight.pop(epoch))
        if epoch == self._last:  # others follow it, also when one of them is complete
            self._last = None
        self.statistics.abandoned += 1
        return [Abandon(epoch, reason, detail)]

    # --- contributors ---------------------------------------------------------------------------------------------

    def _contributor_changed(self, event: ContributorChanged) -> list[CoordinatorInstruction[Content]]:
        if not self._is_current(event.incarnation) or self._state is not CoordinatorState.RUNNING:
            return []
        detail = f"partition {event.partition}"
        instructions = self._abandon_all(AbandonReason.CONTRIBUTOR_CHANGED, detail)
        if event.partition not in self._promoting:
            self._promoting.append(event.partition)
        if event.absent:  # it may do again what it had done by the epoch that was to be the last one
            self._absent.add(event.partition)
            self._last = None
        return instructions if self._publishing is not None else [*instructions, *self._promote()]

    def _promote(self) -> list[CoordinatorInstruction[Content]]:
        partitions, self._promoting = self._promoting, []
        return [Promote(partition, self._complete) for partition in partitions]

    # --- commit and remove ----------------------------------------------------------------------------------------

    def _committed(self, event: Committed) -> list[CoordinatorInstruction[Content]]:
        if not self._is_current(event.incarnation):
            self.statistics.refused += 1
            return []
        if self._state is not CoordinatorState.RUNNING:  # who is awaited is known when all have started
            self._committed_by[event.partition] = max(event.epoch, self._committed_by.get(event.partition, NO_EPOCH))
        settled = False
        for epoch, awaited in self._uncommitted.items():
            if epoch > event.epoch:
                break
            awaited.discard(event.partition)
            settled = settled or not awaited
        return self._record_committed() if settled and self._state is CoordinatorState.RUNNING else []

    def _record_committed(self) -> list[CoordinatorInstruction[Content]]:
        """Record only the newest of the committed epochs, for all of them: after an outage there may be hundreds."""
        newest: Epoch | None = None
        for epoch in list(self._uncommitted):
            if self._uncommitted[epoch]:
                break
            del self._uncommitted[epoch]
            newest = epoch
        return [] if newest is None else [RecordCommitted(newest), *self._remove_older()]

    def _remove_older(self) -> list[CoordinatorInstruction[Content]]:
        bases = [in_flight.base for in_flight in self._in_flight.values() if in_flight.base is not None]
        return [RemoveOlder(self._options.retain, min(bases, default=None))]

    def _commit_failed(self, event: CommitFailed) -> list[CoordinatorInstruction[Content]]:
        if not self._is_current(event.incarnation):
            self.statistics.refused += 1
            return []
        return self._stop(f"partition {event.partition} cannot commit epoch {event.epoch}: {event.reason}")

    # --- attempts -------------------------------------------------------------------------------------------------

    def _is_current(self, incarnation: Incarnation) -> bool:
        # By field, as it is asked of every message: comparing dataclasses makes two tuples first.
        current = self._incarnation
        return incarnation.attempt == current.attempt and incarnation.generation == current.generation

    def _started(self, event: AttemptStarted) -> list[CoordinatorInstruction[Content]]:
        if not self._is_current(event.incarnation) or self._state is not CoordinatorState.STARTING:
            self.statistics.refused += 1
            return []
        self._state = CoordinatorState.RUNNING
        self._participants = event.participants
        self._next_due, self._overdue = self._now + self._options.interval, False
        if self._options.rhythm is Rhythm.ONE_BY_ONE:  # nothing is read, not even that there is no more, without one
            self._next_due, self._last = self._now, None
        # Whoever was restored commits again what the epoch carries, and reports it again; some may have been quick.
        for epoch in self._uncommitted:
            self._uncommitted[epoch] = {
                partition for partition in event.participants if self._committed_by.get(partition, NO_EPOCH) < epoch
            }
        return self._record_committed()

    def _broken(self, event: AttemptBroken) -> list[CoordinatorInstruction[Content]]:
        if not self._is_current(event.incarnation) or self._state is CoordinatorState.BROKEN:
            return []
        self._has_run = self._state is CoordinatorState.RUNNING
        self._state = CoordinatorState.BROKEN
        self._promoting.clear()
        self._absent.clear()
        instructions = self._abandon_all(AbandonReason.ATTEMPT_BROKEN, event.reason)
        return instructions if self._publishing is not None else [*instructions, *self._roll_back()]

    def _roll_back(self) -> list[CoordinatorInstruction[Content]]:
        self._state = CoordinatorState.STARTING
        self._committed_by.clear()
        self._incarnation = Incarnation(self._incarnation.generation, Attempt(self._incarnation.attempt + 1))
        return [RollBack(self._complete, self._incarnation, confirm_first=not self._has_run)]

    def _stop(self, reason: str) -> list[CoordinatorInstruction[Content]]:
        self._state = CoordinatorState.STOPPED
        return [Stop(reason)]
