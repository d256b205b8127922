"""The data of a job's page, as plain values for JSON: one look at everything that the page shows.

Invariant: it follows from what it is given alone, and texts are as they are: the page makes them harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery import events as log
from recovery.driver.report.event_log import plain
from recovery.driver.report.status import RunStatus, StageWork
from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.host.protocol.messages import Figures, StageFigures
from snapshot.ids import Member
from statebackend.ids import Partition, Uid

_IN_FULL = 20
"""Newest epochs of which the page has each partition's cost."""


@dataclass(frozen=True, slots=True)
class Node:
    """A stage of the program, as the page draws it."""

    uid: str
    title: str
    lines: tuple[str, ...]
    """The rest of what `explain()` says of it."""
    inputs: tuple[tuple[str, str], ...]
    """The stages whose rows it takes, and how they are divided."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The facts that stay the same while the job runs."""

    job: str
    nodes: tuple[Node, ...]
    configuration: tuple[tuple[str, str, bool], ...]
    """Each option, its value, and whether that is another one than the default."""


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


def page_data(
    fixed: Fixed,
    status: RunStatus,
    notes: Sequence[Note],
    abandoned: Sequence[log.EpochAbandoned],
    failures: Sequence[Failure],
    now: float,
) -> Mapping[str, object]:
    """Return all that the page shows; `now` is in seconds since 1970."""
    return {
        "now": now,
        "job": fixed.job,
        "state": status.state.value,
        "scheme": status.scheme,
        "parallelism": status.parallelism,
        "redundancy": status.redundancy,
        "generation": status.generation,
        "attempt": _text(status.incarnation),
        "complete": _text(status.complete),
        "committed": _text(status.committed),
        "completed_at": status.completed_at,
        "in_flight": [str(epoch) for epoch in status.in_flight],
        "restarts": status.restarts,
        "failure": status.failure,
        "trouble": status.trouble,
        "abandoned": status.abandoned,
        "skipped": status.skipped,
        "nodes": [plain(node) for node in fixed.nodes],
        "stages": _stages(status, now),
        "partitions": [_partition(status, partition, now) for partition in _partitions(status)],
        "standbys": [_standby(status, worker) for worker, role in status.roles.items() if role is None],
        "epochs": [_epoch(one, whole=place < _IN_FULL) for place, one in enumerate(reversed(status.epochs))],
        "given_up": [
            {"epoch": str(one.epoch), "at": one.at, "reason": one.reason, "detail": one.detail}
            for one in reversed(abandoned)
        ],
        "recoveries": [plain(one) for one in reversed(status.recoveries)],
        "failures": [plain(one) for one in reversed(failures)],
        "states": _states(status),
        "notes": [plain(note) for note in reversed(notes)],
        "configuration": [list(one) for one in fixed.configuration],
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


def _states(status: RunStatus) -> Mapping[str, Mapping[str, int]]:
    """Return the bytes of each operator's state in the newest epoch, by partition."""
    newest: Mapping[Uid, Mapping[Partition, int]] = status.epochs[-1].states if status.epochs else {}
    return {uid: {str(partition): size for partition, size in state.items()} for uid, state in newest.items()}
