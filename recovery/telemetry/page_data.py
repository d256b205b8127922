"""The data of a job's page, as plain values for JSON: one look at everything that the page shows.

Invariant: it follows from what it is given alone, and texts are as they are: the page makes them harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from recovery import events as log
from recovery.driver.report.event_log import plain
from recovery.driver.report.status import RunStatus, StageWork
from recovery.telemetry.counts import Counts
from recovery.telemetry.latency import Age
from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.host.protocol.messages import Figures, StageFigures
from snapshot.ids import Member
from statebackend.ids import Partition, Uid

_IN_FULL: Final = 20
"""Newest epochs of which the page has each partition's cost."""
_SLOWEST: Final = 5
"""The slowest of all that are known, of which it has that too."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event that a person might read."""

    at: float
    kind: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed."""

    at: float
    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery, with the failures that it made up for."""

    event: log.Recovered
    failed_at: float
    """The time of the first of them."""
    failures: tuple[str, ...]
    lost: tuple[str, ...]
    """The processes that were lost meanwhile, and why."""
    ages: tuple[Age, ...] = ()
    """The ages of the output that was committed before, meanwhile, and afterwards."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is seen of a job at one moment; sequences begin with the oldest."""

    status: RunStatus
    described: log.Described
    counts: Counts
    notes: Sequence[Note] = ()
    epochs: Sequence[log.EpochCompleted] = ()
    abandoned: Sequence[log.EpochAbandoned] = ()
    failures: Sequence[Failure] = ()
    recoveries: Sequence[Recovery] = ()
    skip_reason: str = ""
    """The reason why an epoch was not triggered last."""
    standing: str = ""
    """The state in words, where it is none of a run; such as that no driver runs."""
    told_by: str = ""
    """The place from which this is known, if that is not the running driver."""
    actions: bool = False
    """True if the page may ask for savepoints and for the end of the job."""


def page_data(seen: Seen, now: float) -> Mapping[str, object]:
    """Return all that the page shows; `now` is in seconds since 1970."""
    status = seen.status
    slowest = {one.epoch for one in sorted(seen.epochs, key=lambda one: -one.since_trigger_ms)[:_SLOWEST]}
    return {
        "now": now,
        "job": seen.described.job,
        "state": seen.standing or status.state.value,
        "told_by": seen.told_by,
        "actions": seen.actions,
        "scheme": status.scheme,
        "parallelism": status.parallelism,
        "redundancy": status.redundancy,
        "generation": status.generation,
        "attempt": _text(status.incarnation),
        "complete": _text(status.complete),
        "committed": _text(status.committed),
        "completed_at": status.completed_at,
        "in_flight": [str(epoch) for epoch in status.in_flight],
        "restarts": seen.counts.events["AttemptFailed"],
        "failure": status.failure,
        "trouble": status.trouble,
        "abandoned": seen.counts.events["EpochAbandoned"],
        "skipped": seen.counts.events["EpochSkipped"],
        "skip_reason": seen.skip_reason,
        "nodes": [plain(stage) for stage in seen.described.stages],
        "stages": _stages(status, now),
        "partitions": [_partition(status, partition, now) for partition in _partitions(status)],
        "standbys": [_standby(status, worker) for worker, role in status.roles.items() if role is None],
        "epochs": [
            _epoch(one, whole=place < _IN_FULL or one.epoch in slowest)
            for place, one in enumerate(reversed(seen.epochs))
        ],
        "given_up": [
            {"epoch": str(one.epoch), "at": one.at, "reason": one.reason, "detail": one.detail}
            for one in reversed(seen.abandoned)
        ],
        "recoveries": [_recovery(one) for one in reversed(seen.recoveries)],
        "failures": [plain(one) for one in reversed(seen.failures)],
        "cost": _cost(seen),
        "states": _states(seen.epochs),
        "notes": [plain(note) for note in reversed(seen.notes)],
        "configuration": [[one.name, one.value, one.given] for one in seen.described.options],
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _partitions(status: RunStatus) -> Sequence[Partition]:
    return sorted({*status.figures, *(role.partition for role in status.roles.values() if role is not None)})


# --- stages ----------------------------------------------------------------------------------------------------------


def _stages(status: RunStatus, now: float) -> Mapping[str, object]:
    """Return each stage's sums over all partitions, and its event time where it is furthest behind."""
    watermarks, found = status.watermarks, dict[str, object]()
    work = _by_stage(status)
    for uid, stages in work.items():
        at, rate = watermarks.get(uid), status.rates.get(uid)
        known = at is not None and EARLIEST < at < LATEST
        found[uid] = {
            "rate_in": 0.0 if rate is None else rate.rows_in,
            "rate_out": 0.0 if rate is None else rate.rows_out,
            "rows_in": sum(one.rows_in for one in stages),
            "rows_out": sum(one.rows_out for one in stages),
            "late": sum(one.late_rows for one in stages),
            "bad": sum(one.bad_rows for one in stages),
            "watermark": at if known else None,
            "behind_ms": now * 1000 - at if known and at is not None else None,
            "queued": sum(
                stage.queued_bytes for one in status.figures.values() if (stage := one.stages.get(uid)) is not None
            ),
        }
    return found


def _by_stage(status: RunStatus) -> Mapping[Uid, Sequence[StageWork]]:
    found: dict[Uid, list[StageWork]] = {}
    for stages in status.work.values():
        for uid, work in stages.items():
            found.setdefault(uid, []).append(work)
    return found


# --- processes -------------------------------------------------------------------------------------------------------


def _partition(status: RunStatus, partition: Partition, now: float) -> Mapping[str, object]:
    members = {
        worker: role for worker, role in status.roles.items() if role is not None and role.partition == partition
    }
    figures = status.figures.get(partition)
    return {
        "partition": partition,
        "members": [_member(status, worker, role) for worker, role in members.items()],
        "memory": None if figures is None else figures.memory_bytes,
        "lag_ms": None if figures is None else figures.lag_ms,
        "longest_turn_ms": None if figures is None else figures.longest_gap_ms,
        "stages": {} if figures is None else _of_partition(status, figures, now),
    }


def _member(status: RunStatus, worker: str, role: Member) -> Mapping[str, object]:
    return {
        "worker": worker,
        "replica": role.replica,
        "primary": status.primaries.get(role.partition) == role,
        "where": status.pids.get(worker, ""),
        "executor": status.executors.get(worker, ""),
    }


def _of_partition(status: RunStatus, figures: Figures, now: float) -> Mapping[str, object]:
    done = status.work.get(figures.partition, {})
    return {uid: _stage(stage, done.get(uid, StageWork()), now) for uid, stage in figures.stages.items()}


def _stage(stage: StageFigures, work: StageWork, now: float) -> Mapping[str, object]:
    at = stage.watermark
    known = at is not None and EARLIEST < at.timestamp < LATEST
    return {
        "rows_in": work.rows_in,
        "rows_out": work.rows_out,
        "busy_ms": work.busy_ms,
        "blocked_ms": work.blocked_ms,
        "idle_ms": work.idle_ms,
        "queued": stage.queued_bytes,
        "held_back": stage.held_back,
        "waits_for": stage.waits_for,
        "behind_ms": now * 1000 - at.timestamp if known and at is not None else None,
    }


def _standby(status: RunStatus, worker: str) -> Mapping[str, object]:
    followed = status.standbys.get(worker)
    return {
        "worker": worker,
        "where": status.pids.get(worker, ""),
        "executor": status.executors.get(worker, ""),
        "epoch": None if followed is None else _text(followed.has),
        "problem": "" if followed is None else followed.problem,
        "memory": None if followed is None else followed.memory_bytes,
        "downloaded": None if followed is None else followed.downloaded_bytes,
    }


# --- epochs ----------------------------------------------------------------------------------------------------------


def _epoch(event: log.EpochCompleted, *, whole: bool) -> Mapping[str, object]:
    return {
        "epoch": str(event.epoch),
        "at": event.at,
        "savepoint": event.savepoint,
        "took_ms": event.since_trigger_ms,
        "alignment_ms": event.alignment_ms,
        "sync_ms": event.sync_ms,
        "async_ms": event.async_ms,
        "state_bytes": event.state_bytes,
        "channel_bytes": event.channel_bytes,
        "partitions": [plain(cost) for cost in event.partitions] if whole else None,
    }


def _states(epochs: Sequence[log.EpochCompleted]) -> Mapping[str, Mapping[str, int]]:
    """Return the bytes of each operator's state in the newest epoch, by partition."""
    newest: Mapping[Uid, Mapping[Partition, int]] = epochs[-1].states if epochs else {}
    return {uid: {str(partition): size for partition, size in state.items()} for uid, state in newest.items()}


# --- failures --------------------------------------------------------------------------------------------------------


def _recovery(one: Recovery) -> Mapping[str, object]:
    return {
        "at": one.event.at,
        "failed_at": one.failed_at,
        "epoch": _text(one.event.epoch),
        "again_ms": one.event.epoch_age_ms,
        "marks": plain(one.event.marks),
        "failures": list(one.failures),
        "lost": list(one.lost),
        "ages": [
            [round(age.at, 3), str(age.epoch), round(age.oldest_ms, 1), round(age.newest_ms, 1)] for age in one.ages
        ],
    }


def _cost(seen: Seen) -> Mapping[str, object]:
    """Return the sums of what epochs and failures have cost."""
    counts, recoveries = seen.counts, [one.event for one in seen.recoveries]
    return {
        "epochs": counts.events["EpochCompleted"],
        "state_bytes": counts.state_bytes,
        "channel_bytes": counts.channel_bytes,
        "cut_ms": counts.epochs["sync"].total,
        "recoveries": counts.events["Recovered"],
        "known": len(recoveries),
        "down_ms": sum(one.marks.opened or 0.0 for one in recoveries),
        "again_ms": sum(one.epoch_age_ms or 0.0 for one in recoveries),
        "oldest_ms": max((age.oldest_ms for one in seen.recoveries for age in one.ages), default=None),
        "orphan_bytes": counts.orphan_bytes,
    }
