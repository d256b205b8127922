"""The way of an epoch through the driver, from top to bottom: trigger, acknowledge, publish, complete, commit, remove.

Invariant: no rule is decided here. The coordinator hears what happens, and its instructions are carried out.
The journal hears all in one thread, in order, and `journal` is what its last answer said. A removal is planned when the
coordinator wants it, and one is under way at a time. After `close` no answer of the journal is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from recovery import events as log
from recovery.decisions import notes
from recovery.driver.attempts.coordinator_loop import CoordinatorLoop, Event
from recovery.driver.attempts.deployment import Deployment
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.requests import End
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.housekeeping import Housekeeping
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.manifests import DriversPart, all_transactions_in, key_types_of, positions_in
from recovery.driver.tree.owned import (
    CommitNoted,
    FencedOff,
    PublicationDone,
    PublicationFailed,
    RemovalDone,
    RemovalsForgotten,
    Tree,
)
from snapshot import fail_points
from snapshot.epochs import coordinator_events as events
from snapshot.fail_points import reached
from snapshot.host.protocol.messages import Acknowledgement, EpochIsOver, HasCommitted, TriggerEpoch
from snapshot.tree.manifest import Inline, Manifest, StoredFile
from statebackend import means
from statebackend.ids import Epoch, Uid

_INLINE: Final = 64 << 10
"""Broadcast state up to this size is put into the manifest itself."""
_ASK_AGAIN: Final = 1.0
"""Seconds until an epoch that is wanted is asked for again after it was given up."""

JournalAnswer = PublicationDone | PublicationFailed | CommitNoted | RemovalDone | RemovalsForgotten


class Epochs:
    """The epochs of one generation. All calls come in the loop's thread.

    `end` is told how the job ends.
    """

    def __init__(
        self,
        settings: JobSettings,
        environment: Environment,
        record: JobRecord,
        tree: Tree,
        began: Manifest | None,
        coordinator: CoordinatorLoop,
        deployment: Deployment,
        standbys: Standbys,
        housekeeping: Housekeeping,
        end: Callable[[End | Exception], object],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._in_order = environment.threads.in_order
        self._record = record
        self._tree = tree
        self._began = began
        self._coordinator = coordinator
        self._deployment = deployment
        self._standbys = standbys
        self._housekeeping = housekeeping
        self._end = end
        self._parts: dict[Epoch, DriversPart] = {}
        """The driver's own part of each epoch that is in flight, as it was at the trigger."""
        self._removing = False
        self._closed = False
        self.journal = tree.state

    # --- trigger ------------------------------------------------------------------------------------------------------

    def trigger(self, trigger: events.Trigger, because: Event) -> None:
        """Send the marker to all partitions, and keep what the driver knows in this moment."""
        marker, attempt, record = trigger.marker, self._deployment.attempt, self._record
        epoch, settings = marker.epoch, self._settings
        if attempt is None:
            raise RuntimeError(f"epoch {epoch} was triggered while no attempt is deployed")
        at, enumerators, key_types = int(means.wall() * 1000), attempt.enumerators(), key_types_of(settings.plan)
        self._parts[epoch] = DriversPart(
            settings.job, settings.plan.max_parallelism, at, enumerators, {}, key_types=key_types
        )
        pauses = record.endings.triggered(epoch, savepoint=marker.savepoint, asked_by=because)
        if marker.savepoint:
            record.savepoints.triggered(epoch)
        record.times.triggered(epoch, self._now(), savepoint=marker.savepoint)
        attempt.send_all(TriggerEpoch(attempt.incarnation, marker, pauses))
        reached(fail_points.TRIGGER_SENT)
        self._note(log.EpochTriggered(at=means.wall(), epoch=epoch, mode=marker.mode.value, savepoint=marker.savepoint))

    def acknowledged(self, said: Acknowledgement) -> None:
        """Tell the coordinator that a partition's part of the epoch is durable."""
        if said.incarnation == self._coordinator.incarnation:
            self._record.times.acknowledged(said, self._now())
        self._coordinator.tell(
            events.Acknowledged(said.epoch, said.incarnation, said.partition, said, said.has_committables)
        )

    # --- publish ------------------------------------------------------------------------------------------------------

    def publish(self, publish: events.Publish[Acknowledgement]) -> None:
        """Have the journal make an epoch complete that all partitions have acknowledged."""
        noted = notes.Notes(self._settings.options.program_version, self._record.times.taken(publish.epoch))
        known = replace(self._parts.pop(publish.epoch), notes=notes.to_json(noted))
        tree, most = self._tree, _INLINE

        def part(broadcast: Mapping[Uid, StoredFile | Inline]) -> DriversPart:
            return replace(known, broadcast=broadcast)

        self._in_order.submit(lambda: tree.publish(publish, part, most), self._answered)

    def _published(self, done: PublicationDone) -> None:
        reached(fail_points.BEFORE_COMPLETE)
        epoch, record = done.epoch, self._record
        record.failures.completed()
        self._environment.deliveries.completed(all_transactions_in(self._tree.manifest(epoch)))
        self._note(record.times.completed(epoch, self._now(), means.wall()))
        self._standbys.completed(epoch)
        self._coordinator.tell(events.Published(epoch))
        if done.pinned:
            record.savepoints.taken(epoch)
        self._end_if_reached()

    def complete(self, epoch: Epoch) -> None:
        """Tell all partitions that the epoch is complete: their sinks commit."""
        if (attempt := self._deployment.attempt) is not None:
            attempt.send_all(EpochIsOver(self._coordinator.incarnation, epoch, complete=True))
        reached(fail_points.COMPLETE_TOLD)

    # --- commit -------------------------------------------------------------------------------------------------------

    def has_committed(self, said: HasCommitted) -> None:
        """Tell the coordinator that a partition has committed all up to an epoch."""
        self._coordinator.tell(events.Committed(said.epoch, said.incarnation, said.partition))

    def record_committed(self, epoch: Epoch) -> None:
        """Have the journal note that all that the epoch carries is committed."""
        tree = self._tree
        self._in_order.submit(lambda: tree.record_committed(epoch), self._answered)

    # --- remove -------------------------------------------------------------------------------------------------------

    def remove(self, asked: events.RemoveOlder) -> None:
        """Plan the removal now, as later an epoch may be in flight of which the coordinator did not know."""
        tree = self._tree
        planned = None if self._removing else tree.plan_removal(self.journal, asked.retain, asked.oldest_base)
        if planned is not None:
            self._removing = True
            self._in_order.submit(lambda: tree.remove(planned), self._answered)

    def compacted(self, up_to: int) -> None:
        """Forget the removals up to this entry: the journal begins after it, and all that it let go is deleted."""
        tree = self._tree
        self._in_order.submit(lambda: tree.forget_removals(up_to), self._answered)

    # --- what the journal says, and how an epoch ends otherwise -------------------------------------------------------

    def _answered(self, answer: JournalAnswer | BaseException) -> None:
        if self._closed:
            return
        if not isinstance(answer, PublicationFailed | BaseException):
            self.journal = answer.state
        match answer:
            case PublicationDone():
                self._published(answer)
            case PublicationFailed(epoch, reason):
                self._coordinator.tell(events.PublishFailed(epoch, reason))
            case CommitNoted(epoch):
                self._note(log.EpochCommitted(at=means.wall(), epoch=epoch))
                self._end_if_reached()
            case RemovalDone(removal=removal):
                self._removing = False
                if removal is not None:
                    self._tree.forget(removal.epochs)
                    self._housekeeping.delete(removal, self.journal)
            case RemovalsForgotten():
                pass
            case FencedOff(by=by):
                self._coordinator.tell(events.Fenced(by))
            case BaseException():
                self._end(answer if isinstance(answer, Exception) else RuntimeError(str(answer)))

    def abandon(self, abandon: events.Abandon) -> None:
        """Forget an epoch that will never be complete; ask for another one soon if it was asked for."""
        epoch, reason, record = abandon.epoch, abandon.reason, self._record
        self._parts.pop(epoch, None)
        record.times.given_up(epoch)
        record.savepoints.given_up(epoch)
        if record.endings.given_up(epoch) or record.savepoints.waiting:
            loop = self._environment.loop
            loop.call_at(loop.now() + _ASK_AGAIN, self.ask_for_what_is_wanted)
        if reason is not events.AbandonReason.ATTEMPT_BROKEN:
            attempt = self._deployment.attempt
            if attempt is not None:
                attempt.send_all(EpochIsOver(self._coordinator.incarnation, epoch, complete=False))
        self._note(log.EpochAbandoned(at=means.wall(), epoch=epoch, reason=reason.value, detail=abandon.detail))

    def ask_for_what_is_wanted(self) -> None:
        """Ask the coordinator for the epochs that the job's user or its end awaits, if the attempt runs."""
        if self._closed or not self._coordinator.is_running:
            return
        if self._record.savepoints.waiting:
            self._coordinator.tell(events.SavepointRequested())
        wanted = self._record.endings.wanted()
        if wanted is not None:
            self._coordinator.tell(wanted)

    def close(self) -> None:
        """Hear nothing any more: the generation is over."""
        self._closed = True

    def _end_if_reached(self) -> None:
        end = self._record.endings.reached(self.journal)
        if end is not None:
            began = self._began
            same = began is not None and positions_in(began) == positions_in(self._tree.manifest(end.epoch))
            self._end(replace(end, nothing_since=began.epoch) if began is not None and same else end)

    def _note(self, event: log.AnyEvent) -> None:
        self._environment.reporting.event(event)

    def _now(self) -> float:
        return self._environment.loop.now() * 1000
