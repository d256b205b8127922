"""Turn reports of processes into events of the log.

Invariant: an event says no more than the report does, and when it came.
"""

from __future__ import annotations

from recovery import events as log
from recovery.decisions.restarts import Failure
from snapshot.host.protocol import messages
from statebackend import means


def joined(hello: messages.Hello) -> log.WorkerJoined:
    """Return the event for a process that is there now."""
    return log.WorkerJoined(
        at=means.wall(),
        worker=hello.worker,
        slot=hello.slot,
        pid=hello.pid,
        address=str(hello.address),
        executor=hello.executor,
    )


def stalled(report: messages.Stalled) -> log.Stalled:
    """Return the event for code of the user's, or a target, that takes long."""
    return log.Stalled(
        at=means.wall(),
        incarnation=report.incarnation,
        partition=report.partition,
        uid=report.uid,
        epoch=report.epoch,
        seconds=report.seconds,
        waits_for=report.waits_for,
        stack=report.stack,
    )


def put_off(report: messages.CommitPutOff) -> log.Trouble:
    """Return the event for a target that does not commit now."""
    return log.Trouble(
        at=means.wall(),
        what=f"committing output of {report.uid} in partition {report.partition}, which is tried again",
        reason=report.reason,
    )


def restored(report: messages.Restored) -> log.PartitionRestored:
    """Return the event for a partition that has its state."""
    return log.PartitionRestored(
        at=means.wall(),
        incarnation=report.incarnation,
        partition=report.partition,
        in_place=report.in_place,
        downloaded_ms=report.downloaded_ms,
        opened_ms=report.opened_ms,
    )


def damaged(failure: Failure) -> log.AttemptFailed:
    """Return the event for a partition that cannot be restored, as files of the epoch are damaged or missing."""
    return log.AttemptFailed(
        at=means.wall(),
        incarnation=failure.incarnation,
        partition=failure.partition,
        uid=failure.uid,
        cause="files of the epoch are damaged",
        reason=failure.reason,
        traceback=failure.traceback,
        then="go back to the newest sound epoch, if that repeats no output",
    )
