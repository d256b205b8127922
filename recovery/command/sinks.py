"""`recovery sinks list`, `commit` and `abort`: prepared output that a dead job left.

Invariant: what a complete epoch carries is given up only where that is said in so many words.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from recovery.command.arguments import (
    Verbs,
    add_accept_place,
    add_dry_run,
    add_job_folder,
    add_tree,
    add_verb,
    amount,
    in_lines,
    show,
)
from recovery.offline.job_tree import open_tree
from recovery.savepoints.programs import program_from
from recovery.savepoints.sinks import (
    AbortedOutput,
    CommittedOutput,
    ListedOutput,
    PreparedOutput,
    abort_output,
    commit_output,
    list_output,
)

_EXAMPLES = {
    "list": """  $ recovery sinks list --checkpoints /data/clicks
  epoch 212-2 of clicks-5f0c21aa carries 2 transactions, which are not known to be committed
  counts, partition 0: clicks-5f0c21aa/counts/2-1-0-212, sealed in 212-2, for file:///data/counts
  counts, partition 1: clicks-5f0c21aa/counts/2-1-1-212, sealed in 212-2, for file:///data/counts""",
    "commit": """  $ recovery sinks commit jobs/clicks.py:program --checkpoints /data/clicks
  clicks-5f0c21aa: all up to epoch 212-2 is committed: 1 now, 1 was already""",
    "abort": """  $ recovery sinks abort jobs/clicks.py:program --checkpoints /data/clicks
  clicks-5f0c21aa: what no complete epoch names is aborted in counts""",
}


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "sinks",
        help="list, commit or abort prepared output of a job that does not run",
        description="List, commit or abort prepared output of a job that does not run.",
        epilog=f"example, and see `recovery sinks WHAT --help`:\n{_EXAMPLES['list']}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whats = parser.add_subparsers(title="what to do", metavar="WHAT", required=True)
    listed = add_verb(whats, "list", "what the newest epoch carries", f"example:\n{_EXAMPLES['list']}\n", _list)
    add_tree(listed)
    summary = "commit what the newest epoch carries, without starting the job"
    committed = add_verb(whats, "commit", summary, f"example:\n{_EXAMPLES['commit']}\n", _commit)
    _add_common(committed)
    add_accept_place(committed)
    aborted = add_verb(
        whats, "abort", "abort what no complete epoch names", f"example:\n{_EXAMPLES['abort']}\n", _abort
    )
    _add_common(aborted)
    aborted.add_argument(
        "--accept-loss", action="store_true", help="give up what the newest epoch carries, too: its output is lost"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", help="module:function, or folder/file.py:function")
    add_tree(parser)
    add_dry_run(parser)
    add_job_folder(parser)


def _list(arguments: argparse.Namespace) -> None:
    listed = list_output(open_tree(arguments.checkpoints))
    show(listed, listed_in_words(listed), as_json=arguments.json)


def _commit(arguments: argparse.Namespace) -> None:
    tree, program = open_tree(arguments.checkpoints), program_from(arguments.program)
    done = commit_output(
        tree, program, accept_places=arguments.accept_place, dry_run=arguments.dry_run, job_folder=arguments.job_folder
    )
    show(done, committed_in_words(done), as_json=arguments.json)


def _abort(arguments: argparse.Namespace) -> None:
    tree, program = open_tree(arguments.checkpoints), program_from(arguments.program)
    done = abort_output(
        tree, program, accept_loss=arguments.accept_loss, dry_run=arguments.dry_run, job_folder=arguments.job_folder
    )
    show(done, aborted_in_words(done, dry_run=arguments.dry_run), as_json=arguments.json)


def listed_in_words(listed: ListedOutput) -> str:
    """Describe the listed output for people."""
    lines = [f"passed over: {reason}" for reason in listed.passed_over]
    epoch = f"epoch {listed.epoch} of {listed.job}"
    if not listed.output:
        return in_lines([*lines, f"{epoch} carries no output"])
    settled = all(one.committed or one.held for one in listed.output)
    known = "all known to be committed" if settled else "which are not known to be committed"
    if any(one.held for one in listed.output):
        known += ", but for what its sink holds back: the job goes on with that"
    lines.append(f"{epoch} carries {_transactions(listed.output)}, {known}")
    return in_lines([*lines, *map(output_in_words, listed.output)])


def committed_in_words(done: CommittedOutput) -> str:
    """Describe the committed output for people."""
    if not done.output:
        return f"{done.job}: all up to epoch {done.epoch} is committed; there is nothing to do"
    if not done.done:
        lines = [f"{done.job}: epoch {done.epoch} carries {_transactions(done.output)} to commit"]
        return in_lines([*lines, *map(output_in_words, done.output), "nothing was done, as this is a dry run"])
    before = sum(one.before for one in done.committed)
    now = len(done.committed) - before
    return f"{done.job}: all up to epoch {done.epoch} is committed: {now} now, {before} already"


def aborted_in_words(done: AbortedOutput, *, dry_run: bool) -> str:
    """Describe the aborted output for people."""
    where = ", ".join(done.sinks)
    if dry_run:
        lines = [f"{done.job}: what no complete epoch names would be aborted in {where}"]
    else:
        lines = [f"{done.job}: what no complete epoch names is aborted in {where}"]
    if done.given_up:
        what = "would be given up" if dry_run else f"is given up; the job goes on from epoch {done.made}"
        lines += [f"output of epoch {done.epoch} {what}:", *map(output_in_words, done.given_up)]
    if done.kept:
        lines.append(f"epoch {done.epoch} carries {_transactions(done.kept)}, which the next start commits")
    if dry_run:
        lines.append("nothing was done, as this is a dry run")
    return in_lines(lines)


def output_in_words(one: PreparedOutput) -> str:
    """Describe one transaction for people: its operator and partition, and where it goes."""
    staged = f", {amount(one.staged_bytes)} staged" if one.staged_bytes else ""
    places = f", for {' and '.join(one.places)}" if one.places else ""
    return f"{one.uid}, partition {one.partition}: {one.transaction}, sealed in {one.sealed_in}{staged}{places}"


def _transactions(some: Sequence[PreparedOutput]) -> str:
    return f"{len(some)} transaction{'' if len(some) == 1 else 's'}"
