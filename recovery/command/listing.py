"""`recovery list`, `show` and `history`: which jobs are at a place, what they have, and what has happened to them.

Invariant: nothing is written, and a running job is not disturbed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from recovery.command.arguments import (
    Verbs,
    add_epoch,
    add_tree,
    add_verb,
    amount,
    complain,
    in_columns,
    in_lines,
    show,
)
from recovery.command.exits import FoundDamage, exit_of
from recovery.decisions.notes import Origin
from recovery.driver.tree.identity import WrongJob
from recovery.offline.job_tree import find_jobs, open_tree
from recovery.offline.listing import (
    EpochInFull,
    EpochLine,
    ListedJob,
    OperatorInFull,
    PartInFull,
    list_job,
    show_epoch,
)
from recovery.savepoints.happenings import Happened, history
from snapshot.tree.manifest import ManifestKind
from statebackend.ids import NO_EPOCH
from statebackend.readable import one_line

_LIST = """example:
  $ recovery list /data
  /data/clicks: job clicks-5f0c21aa, 128 key groups, generation 2, runs here as process 4711
    epoch   taken                kind        state      partitions    size     new  pins
    17-1    2026-01-01 12:00:17  savepoint   committed           2  836 MB  1.3 MB  savepoint
    212-2   2026-01-01 12:03:40  checkpoint  committed           2  841 MB  1.3 MB
"""

_SHOW = """example:
  $ recovery show --checkpoints /data/clicks --epoch 17
  $ recovery show --checkpoints /data/clicks --epoch newest-savepoint --files
"""

_HISTORY = """example:
  $ recovery history --checkpoints /data/clicks
"""


def add_to(verbs: Verbs) -> None:
    """Add the verbs."""
    listed = add_verb(verbs, "list", "the jobs at a place, with their epochs and savepoints", _LIST, _list)
    where = listed.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "uri",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="URI",
        help="a folder or URI: of one job's checkpoints, or above several",
    )
    where.add_argument("--checkpoints", dest="uri", metavar="URI", help="the same, as other verbs say it")
    shown = add_verb(verbs, "show", "an epoch or savepoint in full", _SHOW, _show)
    add_tree(shown)
    add_epoch(shown)
    shown.add_argument("--files", action="store_true", help="also each file, and which other epochs have it")
    told = add_verb(verbs, "history", "what has happened to a job, as far as its journal says", _HISTORY, _history)
    add_tree(told)


def _list(arguments: argparse.Namespace) -> None:
    places = find_jobs(arguments.uri)
    if not places:
        raise WrongJob(f"there is no job at {arguments.uri}, nor below it")
    jobs: list[ListedJob] = []
    for place in places:
        try:
            jobs.append(list_job(open_tree(place)))
        except Exception as error:  # one job that cannot be read hides no other
            problem = str(error) if exit_of(error) is not None else f"{type(error).__name__}: {error}"
            jobs.append(ListedJob(place, "", "", 0, NO_EPOCH.generation, "", None, (), problem))
    show(jobs, "\n\n".join(map(_job_in_words, jobs)), as_json=arguments.json)
    unread = sum(bool(job.problem) for job in jobs)
    if unread:
        raise FoundDamage(f"{unread} of {len(jobs)} jobs cannot be read")


def _show(arguments: argparse.Namespace) -> None:
    found = show_epoch(open_tree(arguments.checkpoints), arguments.epoch)
    for problem in found.passed_over:
        complain(f"{problem}; this is the newest that can be")
    show(found, _epoch_in_words(found, files=arguments.files), as_json=arguments.json)


def _history(arguments: argparse.Namespace) -> None:
    found = history(open_tree(arguments.checkpoints))
    show(found, in_lines(_happened_in_words(found)), as_json=arguments.json)


def _job_in_words(job: ListedJob) -> str:
    if job.problem:
        return one_line(f"{job.uri}: cannot be read: {job.problem.removeprefix(f'{job.uri}: ')}")
    running = f"runs here as process {job.pid}" if job.pid is not None else "not known to run on this host"
    first = f"{job.uri}: job {job.job}, {job.max_parallelism} key groups, generation {job.generation}, {running}"
    if not job.epochs:
        return in_lines([first, "  no complete epoch"])
    heads = ("epoch", "taken", "kind", "state", "partitions", "size", "new", "pins")
    lines = in_columns(heads, [_line_in_words(line) for line in job.epochs], right=("partitions", "size", "new"))
    problems = [f"epoch {line.epoch} cannot be used: {line.problem}" for line in job.epochs if line.problem]
    return in_lines([first, *(f"  {line}" for line in (*lines, *problems))])


def _line_in_words(line: EpochLine) -> Sequence[str]:
    kind = "?" if line.kind is None else line.kind.value
    if line.origin is not None:
        kind = f"{kind} ({line.origin.how})"
    return (
        str(line.epoch),
        moment(line.created_at),
        kind,
        line.state.value,
        "?" if line.parallelism is None else str(line.parallelism),
        "?" if line.full_bytes is None else amount(line.full_bytes),
        "?" if line.new_bytes is None else amount(line.new_bytes),
        ", ".join(line.pins),
    )


def _epoch_in_words(found: EpochInFull, *, files: bool) -> str:
    line = found.line
    what = "savepoint" if line.kind is ManifestKind.SAVEPOINT else "checkpoint"
    lines = [
        f"{what} {line.epoch} of job {found.job}, taken {moment(line.created_at)}, {line.state.value}"
        + (f", pinned: {', '.join(line.pins)}" if line.pins else ""),
        f"based on {'nothing' if found.parent == NO_EPOCH else f'epoch {found.parent}'}"
        + (f", program version {line.program}" if line.program else ""),
        f"{amount(line.full_bytes or 0)} in {line.files} files, {amount(line.new_bytes or 0)} made for it",
        f"manifest {found.manifest}",
    ]
    lines += [f"made by {text}" for text in _origins(line.origin)]
    if found.took:
        heads = ("partition", "ms from trigger", "alignment", "sync", "async", "state", "in flight")
        rows = [
            (
                str(took.partition),
                f"{took.since_trigger_ms:.1f}",
                f"{took.alignment_ms:.1f}",
                f"{took.sync_ms:.1f}",
                f"{took.async_ms:.1f}",
                amount(took.state_bytes),
                amount(took.channel_bytes),
            )
            for took in found.took
        ]
        lines += ["", *in_columns(heads, rows, right=heads)]
    for operator in found.operators:
        lines += ["", *_operator_in_words(operator)]
    if files:
        of_files = ("file", "size", "kind", "made in", "key groups", "also in epochs")
        rows_of_files = [
            (
                file.path,
                amount(file.size),
                file.kind,
                "" if file.epoch is None else str(file.epoch),
                file.key_groups,
                ", ".join(map(str, file.shared_with)),
            )
            for file in found.files
        ]
        lines += ["", *in_columns(of_files, rows_of_files, right=("size",))]
    shared = sum(1 for file in found.files if file.shared_with)
    lines += ["", f"{shared} of {len(found.files)} files are shared with other epochs"]
    return in_lines(lines)


def _operator_in_words(operator: OperatorInFull) -> list[str]:
    holds = ", ".join(operator.holds) or "nothing"
    first = f"{operator.uid}: {holds}, in {operator.parallelism} partitions"
    if operator.broadcast_bytes:
        first += f", broadcast state of {amount(operator.broadcast_bytes)}"
    heads = ("partition", "key groups", "files", "state", "splits", "in flight", "pending", "watermark")
    rows = [_part_in_words(part) for part in operator.parts]
    return [first, *(f"  {line}" for line in in_columns(heads, rows, right=heads))]


def _part_in_words(part: PartInFull) -> Sequence[str]:
    return (
        str(part.partition),
        part.key_groups or "-",
        str(part.files),
        amount(part.state_bytes),
        str(part.splits),
        amount(part.in_flight_bytes),
        str(part.pending_transactions),
        "-" if part.watermark is None else str(part.watermark),
    )


def _origins(origin: Origin | None) -> list[str]:
    found = []
    while origin is not None:
        source = f" from epoch {origin.epoch} of {origin.job}" if origin.epoch is not None else ""
        found.append(f"{origin.how} at {moment(origin.at)}{source} in {origin.uri}")
        origin = origin.before
    return found


def _happened_in_words(found: Sequence[Happened]) -> list[str]:
    heads = ("entry", "what", "", "taken", "took")
    rows = [
        (
            str(one.number),
            one.kind,
            one.what,
            "" if one.at is None else moment(one.at),
            "" if one.took_ms is None else f"{one.took_ms:.0f} ms",
        )
        for one in found
    ]
    return in_columns(heads, rows, right=("entry", "took"))


def moment(milliseconds: int | None) -> str:
    """Format a time for people, in their own time zone."""
    if milliseconds is None:
        return "?"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds // 1000))
    except (OverflowError, ValueError, OSError):  # in no calendar
        return "?"
