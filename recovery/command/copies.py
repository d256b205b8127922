"""`recovery fork`, `copy` and `move`: an epoch of a job in a tree of its own.

Invariant: what the new tree is to the old one is said each time: another job, or the same one, of which only
one may be started.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recovery.command.arguments import (
    Progress,
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
from recovery.driver.tree.identity import JobMoved
from recovery.offline.job_tree import open_tree
from recovery.savepoints.copying import Begun, Copied, copy, finish_move, fork, move

_FORK = """example:
  $ recovery fork --checkpoints /data/clicks --into /data/clicks-tried --name tried
  epoch 212-2 of clicks-5f0c21aa becomes epoch 213-3 of tried-90b2c4d1 in /data/clicks-tried: 36 files, 148 MB
"""
_COPY = """example:
  $ recovery copy --checkpoints /data/clicks --epoch newest-savepoint --into s3://archive/clicks-2026-01
  epoch 200-2 of clicks-5f0c21aa is now in s3://archive/clicks-2026-01 too: 36 files, 148 MB
  both are the same job: only one of the two may be started
"""
_MOVE = """example:
  $ recovery move --checkpoints /data/clicks --into s3://bucket/clicks
  clicks-5f0c21aa is now in s3://bucket/clicks, with 3 epochs: 40 files, 151 MB
"""


def add_to(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "fork", "make a new job of an epoch, which owns its files", _FORK, _fork)
    _add_common(parser)
    add_epoch(parser)
    parser.add_argument("--name", metavar="NAME", help="the name of the new job (that of the old one)")
    add_accept_duplicates(parser)
    parser = add_verb(verbs, "copy", "copy an epoch elsewhere: an archive that owns its files", _COPY, _copy)
    _add_common(parser)
    add_epoch(parser)
    add_accept_duplicates(parser)
    parser = add_verb(verbs, "move", "move a job with all its epochs elsewhere", _MOVE, _move)
    _add_common(parser)
    add_accept_duplicates(parser)
    add_job_folder(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_tree(parser)
    parser.add_argument(
        "--into", metavar="URI", required=True, help="the folder or URI of the new tree; empty, or none"
    )
    add_dry_run(parser)


def _fork(arguments: argparse.Namespace) -> None:
    tree = open_tree(arguments.checkpoints)
    with shown_progress() as begun:
        done = fork(
            tree,
            arguments.epoch,
            arguments.into,
            name=arguments.name,
            accept_duplicates=arguments.accept_duplicates,
            dry_run=arguments.dry_run,
            begun=begun,
        )
    show(done, in_words(done), as_json=arguments.json)


def _copy(arguments: argparse.Namespace) -> None:
    tree, accepted = open_tree(arguments.checkpoints), arguments.accept_duplicates
    with shown_progress() as begun:
        done = copy(
            tree, arguments.epoch, arguments.into, accept_duplicates=accepted, dry_run=arguments.dry_run, begun=begun
        )
    show(done, in_words(done), as_json=arguments.json)


def _move(arguments: argparse.Namespace) -> None:
    try:
        tree = open_tree(arguments.checkpoints)
    except JobMoved as moved:
        if not arguments.dry_run:
            finish_move(arguments.checkpoints, arguments.into, moved)
        text = f"{moved.job} is in {moved.to} already"
        show({"job": moved.job, "into": moved.to, "made": None}, text, as_json=arguments.json)
        return
    with shown_progress() as begun:
        done = move(
            tree,
            arguments.into,
            accept_duplicates=arguments.accept_duplicates,
            dry_run=arguments.dry_run,
            job_folder=arguments.job_folder,
            begun=begun,
        )
    show(done, in_words(done), as_json=arguments.json)


@contextmanager
def shown_progress() -> Iterator[Begun]:
    """Show a line of progress for files that are copied, if any are."""
    shown: list[Progress] = []

    def begun(total: int) -> Callable[[int], object]:
        shown.append(Progress("copied", total).__enter__())
        return shown[0].more

    try:
        yield begun
    finally:
        for line in shown:
            line.__exit__(None, None, None)


def in_words(done: Copied) -> str:
    """Describe the fork, copy or move for people."""
    plan = done.plan
    lines = about_choice(done.passed_over, done.gives_up, done.repeats, plan.epoch)
    if done.asks:
        lines.append("a start from the new tree asks whether that is accepted")
    files = f"{plan.files} file{'' if plan.files == 1 else 's'}, {amount(plan.bytes)}"
    if done.made is None:
        what = f"epoch {plan.epoch} of {plan.job}" if plan.how != "move" else f"{plan.job}, {_epochs(plan.epochs)}"
        return in_lines(
            [*lines, f"{plan.how}: {what} into {plan.into}, {files}; nothing was done, as this is a dry run"]
        )
    match plan.how:
        case "fork":
            lines.append(
                f"epoch {plan.epoch} of {plan.job} becomes epoch {done.made} of {plan.becomes} in {plan.into}: {files}"
            )
            if plan.output:
                left = f"{plan.output} transaction{'' if plan.output == 1 else 's'}"
                lines.append(f"output that is not yet committed stays with the origin: {left}")
        case "copy":
            lines.append(f"epoch {plan.epoch} of {plan.job} is now in {plan.into} too: {files}")
            lines.append("both are the same job: only one of the two may be started")
        case _:
            lines.append(f"{plan.job} is now in {plan.into}, with {_epochs(plan.epochs)}: {files}")
    return in_lines(lines)


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
