"""`recovery repair`: a tree whose journal or `job.json` is damaged is made one from which its job goes on.

Invariant: what would be done is shown by --dry-run, with nothing done.
"""

from __future__ import annotations

import argparse

from recovery.command.arguments import (
    Verbs,
    add_accept_duplicates,
    add_dry_run,
    add_job_folder,
    add_tree,
    add_verb,
    in_lines,
    show,
)
from recovery.savepoints.repairing import Repaired, repair

_EXAMPLE = """example:
  $ recovery repair --checkpoints /data/clicks --dry-run
  damaged: entry 41 cannot be read: journal/0000000041.json is damaged: it is not JSON
  epoch 14-2: the manifest is whole, and the entry may be among those that are lost: taken for complete
  clicks-5f0c21aa goes on from epoch 14-2; what is replaced is put aside in aside/10041 of the tree
  nothing was done, as this is a dry run
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs, "repair", "make a tree startable whose journal or job.json is damaged or lost", _EXAMPLE, _run
    )
    add_tree(parser)
    parser.add_argument(
        "--entries-lost",
        action="store_true",
        help="take it that the journal has lost its newest entries, though nothing proves it",
    )
    add_accept_duplicates(parser)
    add_job_folder(parser)
    add_dry_run(parser)


def _run(arguments: argparse.Namespace) -> None:
    done = repair(
        arguments.checkpoints,
        accept_duplicates=arguments.accept_duplicates,
        entries_lost=arguments.entries_lost,
        dry_run=arguments.dry_run,
        job_folder=arguments.job_folder,
    )
    show(done, _in_words(done), as_json=arguments.json)


def _in_words(done: Repaired) -> str:
    if not done.damages:
        return f"neither the journal of {done.job} nor its job.json is damaged; `recovery verify` checks all else"
    lines = [f"damaged: {damage}" for damage in done.damages]
    if done.made_anew:
        which = "epoch" if len(done.made_anew) == 1 else "epochs"
        lines.append(
            f"{which} {_listed(done.made_anew)}: the manifest is whole, and the entry may be among those that are "
            "lost: taken for complete"
        )
    if done.given_up:
        lines.append(f"given up: {_listed(done.given_up)}, of which output that is committed is made once more")
    if done.named_anew:
        lines.append(f"job.json is made anew: job {done.job}")
    if done.aside:
        goes_on = "at its beginning" if done.epoch is None else f"from epoch {done.epoch}"
        lines.append(f"{done.job} goes on {goes_on}; what is replaced is put aside in {done.aside} of the tree")
    if not done.done:
        lines.append("nothing was done, as this is a dry run")
    return in_lines(lines)


def _listed(epochs: tuple[object, ...]) -> str:
    return ", ".join(map(str, epochs))
