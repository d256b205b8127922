"""The logging of a job, under `epochcut`: every event, at the level that it deserves.

Invariant: without any configuration of logging, warnings and errors reach the standard error. Similar warnings are
logged once in ten seconds, with the number of those in between. No text of an event, which may be of an end user or of
a server, reaches a terminal with control characters in it.
"""

from __future__ import annotations

import logging
from typing import Final

from recovery import events as log
from snapshot.epochs.coordinator_events import AbandonReason
from statebackend.readable import readable_logger

_JOB: Final = readable_logger("epochcut.job")
_EPOCHS: Final = readable_logger("epochcut.epochs")
_PROCESSES: Final = readable_logger("epochcut.processes")
_SECONDS: Final = 10.0
_OF_A_ROLLBACK: Final = (AbandonReason.ATTEMPT_BROKEN.value, AbandonReason.SUBSUMED.value)


class JobLogger:
    """Says the events of one job, in the driver's thread."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._alike: dict[tuple[str, str], tuple[float, int]] = {}
        """The time of the last warning of a kind that was logged, and the number of those that were not logged since
        then."""

    def is_loud(self, event: log.AnyEvent) -> bool:
        """True if the event is to be shown to a person, wherever that is."""
        return level_of(event)[1] >= logging.WARNING

    def say(self, event: log.AnyEvent) -> None:
        """Log the event, unless a warning like it was logged just now."""
        logger, level = level_of(event)
        if not logger.isEnabledFor(level):
            return
        more = 0
        if level == logging.WARNING:
            kind = (type(event).__name__, _kind_of(event))
            said_at, unsaid = self._alike.get(kind, (float("-inf"), 0))
            if event.at - said_at < _SECONDS:
                self._alike[kind] = (said_at, unsaid + 1)
                return
            self._alike[kind], more = (event.at, 0), unsaid
        text = f"{words_of(event)} (and {more} more like it before)" if more else words_of(event)
        logger.log(level, "job %s: %s", self._job, text, extra={"event": event})


def level_of(event: log.AnyEvent) -> tuple[logging.Logger, int]:
    """Return the logger and the level for this event."""
    match event:
        case log.GaveUp() | log.NoEpochs():
            return _JOB, logging.ERROR
        case log.Claimed(skipped=skipped):
            return _JOB, logging.WARNING if skipped else logging.INFO
        case log.Finished(nothing_since=epoch):
            return _JOB, logging.INFO if epoch is None else logging.WARNING
        case log.Stopped() | log.Described():
            return _JOB, logging.INFO
        case log.AttemptFailed() | log.Stalled() | log.BadRows() | log.Trouble() | log.FaultInjected():
            return _JOB, logging.WARNING
        case log.Recovered() | log.Running():
            return _JOB, logging.INFO
        case log.EpochAbandoned(reason=reason):
            return _EPOCHS, logging.DEBUG if reason in _OF_A_ROLLBACK else logging.WARNING
        case log.EpochTriggered() | log.EpochSkipped() | log.EpochCompleted() | log.EpochCommitted():
            return _EPOCHS, logging.DEBUG
        case log.EpochsRemoved() | log.OrphansDeleted():
            return _EPOCHS, logging.DEBUG
        case (
            log.PeerRefused()
            | log.WorkerDied()
            | log.ReplicaLost()
            | log.PrimaryMoved()
            | log.Collapsed()
            | log.PartitionLost()
        ):
            return _PROCESSES, logging.WARNING
        case log.NotJoined():
            return _PROCESSES, logging.WARNING
        case log.WorkerJoined() | log.WorkerLost() | log.Moved() | log.Joining() | log.RedundancyRestored():
            return _PROCESSES, logging.INFO
        case log.PartitionReplaced():
            return _PROCESSES, logging.INFO
        case log.Deployed() | log.PartitionRestored():
            return _PROCESSES, logging.DEBUG


def _kind_of(event: log.AnyEvent) -> str:
    """Return a text that tells warnings of one type apart: each of these is logged, even right after another one."""
    match event:
        case log.Trouble(what=what):
            return what
        case log.Stalled(uid=uid) | log.BadRows(uid=uid):
            return str(uid)
        case log.AttemptFailed(incarnation=incarnation):
            return str(incarnation)
        case log.FaultInjected(order=order):
            return order
        case log.WorkerDied(worker=worker):
            return worker
        case log.ReplicaLost(member=member) | log.PrimaryMoved(member=member):
            return str(member)
        case log.PartitionLost(member=member) | log.NotJoined(member=member):
            return str(member)
        case _:
            return ""


def words_of(event: log.AnyEvent) -> str:
    """Return the event as a sentence."""
    match event:
        case log.Claimed() | log.Finished() | log.Stopped() | log.GaveUp() | log.NoEpochs():
            return _of_the_job(event)
        case log.Described(scheme=scheme, parallelism=parallelism, stages=stages):
            return f"a run begins, {scheme} with {parallelism} partitions: {', '.join(one.uid for one in stages)}"
        case log.AttemptFailed(partition=partition, uid=uid, reason=reason, then=then):
            where = "" if partition is None else f"partition {partition}" + (f", {uid}" if uid else "") + ": "
            return f"{where}{reason}; {then}"
        case log.Recovered(incarnation=incarnation, epoch=epoch, marks=marks):
            took = "" if marks.opened is None else f" after {marks.opened / 1000:.2f} s"
            return f"attempt {incarnation} runs{took}, from {_from(epoch)}"
        case log.Stalled(partition=partition, uid=uid, epoch=epoch, seconds=seconds, waits_for=waits_for, stack=stack):
            what = f"operator {uid}" if epoch is None else f"operator {uid}, epoch {epoch},"
            text = f"partition {partition}: {what} has made no progress for {seconds:.0f} s; it waits for {waits_for}"
            return f"{text}\n{stack}".rstrip()
        case log.BadRows(partition=partition, uid=uid, in_attempt=count, last=last):
            how_many = "a row that does not fit was" if count == 1 else f"{count} rows that do not fit were"
            return f"partition {partition}, {uid}: {how_many} left out in this attempt; the last one: {last}"
        case log.Trouble(what=what, reason=reason):
            return f"{what}: {reason}"
        case log.EpochAbandoned(epoch=epoch, reason=reason, detail=detail):
            return f"epoch {epoch} is abandoned: {reason}" + (f": {detail}" if detail else "")
        case log.EpochSkipped(reason=reason):
            return f"an epoch was due and was not triggered: {reason}"
        case log.EpochCompleted(epoch=epoch, since_trigger_ms=took_ms):
            return f"epoch {epoch} is complete after {took_ms:.0f} ms"
        case log.PeerRefused(peer=peer, reason=reason):
            return f"{peer or 'others'} was refused: {reason}"
        case log.WorkerLost(worker=worker, partition=partition, reason=reason):
            role = "a process that stood by" if partition is None else f"the process of partition {partition}"
            return f"{role} is lost ({worker}): {reason}"
        case log.WorkerDied(partition=partition, how=how, uid=uid, at_work=at_work, stack=stack):
            where = f"; {uid} was at {at_work}" if at_work else ""
            return f"partition {partition}: {how}{where}\n{stack}".rstrip()
        case log.ReplicaLost(member=member, reason=reason, left=left):
            return f"member {member} is gone, and partition {member.partition} goes on with {left}: {reason}"
        case log.PartitionLost(member=member, reason=reason):
            return f"member {member} is gone, and partition {member.partition} restarts alone: {reason}"
        case log.PartitionReplaced(member=member, epoch=epoch, took_ms=took_ms):
            return f"member {member} runs after {took_ms / 1000:.2f} s, from {_from(epoch)}; all others went on"
        case log.PrimaryMoved(member=member):
            return f"member {member} is the primary of partition {member.partition} from now on"
        case log.Joining(member=member, worker=worker):
            return f"{worker} is to be member {member} of partition {member.partition}"
        case log.NotJoined(member=member, reason=reason):
            return f"member {member} did not join partition {member.partition}: {reason}"
        case log.RedundancyRestored(member=member, left=left, marks=marks):
            took = f"after {marks.joined / 1000:.2f} s"
            return f"member {member} has joined partition {member.partition} {took}, which has {left} now"
        case log.Collapsed(partition=partition, reason=reason):
            return f"no member of partition {partition} is left that could go on: {reason}"
        case log.WorkerJoined(worker=worker, pid=pid, address=address):
            return f"process {pid} at {address} has joined ({worker})"
        case log.FaultInjected(order=order, by=by):
            return f"{by} injected a fault: {order}"
        case log.Deployed(incarnation=incarnation, epoch=epoch, workers=workers):
            return f"attempt {incarnation}: {len(workers)} processes have their roles, and go on from {_from(epoch)}"
        case log.Running(incarnation=incarnation):
            return f"attempt {incarnation}: all partitions have their state, and epochs go on"
        case log.Moved(partition=partition, executor=executor, left=left, took_ms=took_ms):
            return f"partition {partition} moved from executor {left} to {executor} in {took_ms:.0f} ms"
        case log.OrphansDeleted(files=files, bytes=size):
            return f"{files} files of {size} bytes were deleted that had been uploaded in vain"
        case _:
            return str(event)


def _of_the_job(event: log.Claimed | log.Finished | log.Stopped | log.GaveUp | log.NoEpochs) -> str:
    match event:
        case log.Claimed(generation=generation, restores=restores, skipped=skipped):
            passed_over = f"; epochs that cannot be used: {', '.join(skipped)}" if skipped else ""
            return f"generation {generation} goes on from {_from(restores)}{passed_over}"
        case log.Finished(nothing_since=None):
            return "all input is processed, and all output committed"
        case log.Finished(nothing_since=epoch, looked=True):
            return f"there was nothing new to read since epoch {epoch}"
        case log.Finished(nothing_since=epoch):
            return (
                f"there was nothing to read: all input had been read by epoch {epoch}, from which the job went on; "
                "with available_now=True it looks for what is new, with other checkpoints it begins anew"
            )
        case log.Stopped(cancelled=True):
            return "cancelled; started again, the job goes on from its last complete epoch"
        case log.Stopped(savepoint=savepoint):
            return "stopped" if savepoint is None else f"stopped with savepoint {savepoint}"
        case log.GaveUp(reason=reason):
            return f"failed: {reason}"
        case log.NoEpochs(seconds=seconds, abandoned=abandoned, reason=reason, gives_up_in=left):
            why = f"; {abandoned} were abandoned, the last one because {reason}" if abandoned else ""
            end = "" if left is None else f"; the job ends in {left:.0f} s if that goes on (option give_up_after)"
            return f"no epoch has been completed for {seconds:.0f} s, so no output is committed{why}{end}"


def _from(epoch: object) -> str:
    return "the beginning" if epoch is None else f"epoch {epoch}"
