"""`recovery status`: how a running job stands."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

from recovery.attached import Attached, ConnectionLost
from recovery.command.arguments import Verbs, add_running_job, add_verb, attached_to, in_columns, show
from recovery.driver.report.status import RunStatus
from recovery.events import Finished, GaveUp, Stopped
from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.ids import Member

_CLEAR = "\x1b[H\x1b[2J"

_EXAMPLE = """examples:
  $ recovery status --checkpoints /data/clicks
  clicks-5f0c21aa is running, Passive with 2 partitions, after 2 rollbacks in generation 2
  newest complete epoch: 212-2, 0.4 s old, took 22 ms; all up to 212-2 committed
  operator  rows in/s  rows out/s  late rows  watermark            behind
  clicks            0        3000          0  2026-11-19 12:00:01  2.1 s
  count          3000        3000          0  2026-11-19 12:00:01  2.1 s
  partition 0: 10.0.0.7, process 22704, 131 MB (8f3a90d25b1e44c7)
  partition 1: 10.0.0.8, process 1290, 128 MB (01b77c3d9e2f6a58)
  standing by: 10.0.0.8, process 1312 (9c4de8a1f0b35726)

  $ recovery status --checkpoints /data/clicks --watch 2
  the same, anew every two seconds, until the job ends or Ctrl-C
"""
_HEADS = ("operator", "rows in/s", "rows out/s", "late rows", "watermark", "behind")


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "status", "how a running job stands", _EXAMPLE, _run)
    add_running_job(parser)
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=_seconds,
        nargs="?",
        const=1.0,
        help="say it anew every so many seconds (1), until the job ends or Ctrl-C",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("give 0.1 to 3600 seconds")
    return seconds


def _run(arguments: argparse.Namespace) -> None:
    with attached_to(arguments) as job:
        if arguments.watch is None:
            _show(arguments, job.status())
            return
        with suppress(KeyboardInterrupt):
            job.follow()
            while not _is_over(job, arguments.watch):
                if sys.stdout.isatty() and not arguments.json:
                    print(_CLEAR, end="")
                _show(arguments, job.status())


def _show(arguments: argparse.Namespace, status: RunStatus) -> None:
    show(status, in_words(status, time.time()), as_json=arguments.json)


def _is_over(job: Attached, seconds: float) -> bool:
    """True if the job ends within so many seconds, False when they are over."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        match job.next_event(left):
            case Finished() | Stopped():
                return True
            case GaveUp(reason=reason):
                raise ConnectionLost(f"job {job.job} failed: {reason}")
            case _:
                pass
    return False


def in_words(status: RunStatus, now: float) -> str:
    """Describe the status for people; `now` is in seconds since 1970."""
    partitions = f"{status.parallelism} partition{'s' if status.parallelism > 1 else ''}"
    rollbacks = f"after {status.restarts} rollback{'' if status.restarts == 1 else 's'} in generation"
    lines = [
        f"{status.job} is {status.state.value}, {status.scheme} with {partitions}, {rollbacks} "
        f"{status.generation or 'none yet'}",
        _epochs(status, now),
    ]
    if status.abandoned_in_a_row:
        lines.append(f"epochs abandoned since then: {status.abandoned_in_a_row}")
    if status.trouble:
        lines.append(f"trouble: {status.trouble}")
    lines += _operators(status, now)
    lines += [f"{uid} has left out {count} rows that do not fit" for uid, count in status.bad_rows.items() if count]
    placed = sorted((has, worker) for worker, has in status.roles.items() if has is not None)
    lines += [f"{_role(status, has, len(placed))}: {_process(status, worker)}" for has, worker in placed]
    lines += [f"standing by: {_process(status, worker)}" for worker, has in status.workers.items() if has is None]
    if status.failure:
        lines.append(f"last failure: {status.failure}")
    return "\n".join(lines)


def _role(status: RunStatus, member: Member, members: int) -> str:
    if members <= status.parallelism and not member.replica:
        return f"partition {member.partition}"
    stands = ", the primary" if status.primaries.get(member.partition) == member else ""
    return f"partition {member.partition}, replica {member.replica}{stands}"


def _epochs(status: RunStatus, now: float) -> str:
    committed = "nothing is committed yet" if status.committed is None else f"all up to {status.committed} committed"
    if status.complete is None:
        return f"no epoch is complete yet, {committed}"
    age = "" if status.completed_at is None else f", {max(now - status.completed_at, 0.0):.1f} s old"
    took = f", took {status.epochs[-1].since_trigger_ms:.0f} ms" if status.epochs else ""
    return f"newest complete epoch: {status.complete}{age}{took}; {committed}"


def _operators(status: RunStatus, now: float) -> list[str]:
    watermarks, late = status.watermarks, status.late_rows
    rows = [
        (
            str(uid),
            f"{rate.rows_in:.0f}",
            f"{rate.rows_out:.0f}",
            str(late.get(uid, 0)),
            *_time(watermarks.get(uid), now),
        )
        for uid, rate in status.rates.items()
    ]
    return in_columns(_HEADS, rows, _HEADS[1:4]) if rows else []


def _time(watermark: int | None, now: float) -> tuple[str, str]:
    if watermark is None or watermark <= EARLIEST:
        return "", ""
    if watermark >= LATEST:
        return "the end", ""
    try:
        moment = datetime.fromtimestamp(watermark / 1000, UTC)
    except (OverflowError, ValueError):  # beyond the years that people count
        return str(watermark), ""
    return f"{moment:%Y-%m-%d %H:%M:%S}", f"{now - watermark / 1000:.1f} s"


def _process(status: RunStatus, worker: str) -> str:
    memory = {partition: f", {figures.memory_bytes / 1e6:.0f} MB" for partition, figures in status.figures.items()}
    partition = status.workers.get(worker)
    used = "" if partition is None else memory.get(partition, "")
    return f"{status.pids.get(worker, 'process')}{used} ({worker})"
