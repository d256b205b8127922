"""`recovery rescale`: a savepoint for another number of partitions, without touching any state."""

from __future__ import annotations

import argparse

from recovery.command.arguments import (
    Verbs,
    add_accept_duplicates,
    add_dry_run,
    add_epoch,
    add_job_folder,
    add_tree,
    add_verb,
    amount,
    in_lines,
    show,
)
from recovery.command.choices import about_choice
from recovery.offline.job_tree import open_tree
from recovery.savepoints.rescaling import PartToRead, Rescaled, rescale

_EXAMPLE = """example:
  $ recovery rescale --checkpoints /data/clicks --to 3
  clicks-5f0c21aa, epoch 212-2: from 2 partitions to 3; 148 MB of state stay as they are
  per-minute, partition 0: key groups [0, 43) of partition 0, 12 files, 74.1 MB to read
  per-minute, partition 1: key groups [43, 86) of partitions 0, 1, 24 files, 148 MB to read
  per-minute, partition 2: key groups [86, 128) of partition 1, 12 files, 73.9 MB to read
  epoch 213-3 is made, a savepoint for 3 partitions
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "rescale", "make a savepoint for another number of partitions", _EXAMPLE, _run)
    add_tree(parser)
    parser.add_argument("--to", metavar="N", type=int, required=True, help="so many partitions")
    add_epoch(parser)
    add_accept_duplicates(parser)
    add_dry_run(parser)
    parser.add_argument("--files", action="store_true", help="also each file that a partition reads, and its splits")
    add_job_folder(parser)


def _run(arguments: argparse.Namespace) -> None:
    done = rescale(
        open_tree(arguments.checkpoints),
        arguments.epoch,
        arguments.to,
        accept_duplicates=arguments.accept_duplicates,
        dry_run=arguments.dry_run,
        job_folder=arguments.job_folder,
    )
    show(done, in_words(done, files=arguments.files), as_json=arguments.json)


def in_words(done: Rescaled, *, files: bool) -> str:
    """Describe the rescaling for people."""
    plan = done.plan
    lines = about_choice(done.passed_over, done.gives_up, done.repeats, plan.epoch)
    if not done.new:
        return in_lines([*lines, f"epoch {plan.epoch} has {_partitions(plan.after)} already; there is nothing to do"])
    lines.append(
        f"{plan.job}, epoch {plan.epoch}: from {_partitions(plan.before)} to {plan.after}; {amount(plan.stored)} of "
        "state stay as they are"
    )
    for part in plan.parts:
        if part.groups is not None:
            lines.append(_part(part))
            if files:
                lines += [f"  {file.path}, {amount(file.size)}, groups {_ranges(file.groups)}" for file in part.files]
        elif files and part.splits:
            lines.append(f"{part.uid}, partition {part.partition}: reads {', '.join(part.splits)}")
    if done.made is None:
        lines.append("nothing was done, as this is a dry run")
    else:
        lines.append(f"epoch {done.made} is made, a savepoint for {_partitions(plan.after)}")
    return in_lines(lines)


def _part(part: PartToRead) -> str:
    of = f"partition{'s' if len(part.of) > 1 else ''} {', '.join(map(str, part.of))}"
    files = f"{len(part.files)} file{'' if len(part.files) == 1 else 's'}"
    return (
        f"{part.uid}, partition {part.partition}: key groups {part.groups} of {of}, {files}, "
        f"{amount(part.bytes)} to read"
    )


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _ranges(groups: tuple[object, ...]) -> str:
    return ", ".join(map(str, groups))
