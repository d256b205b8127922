"""`recovery upgrade`: what a changed program means for the state of a job, and the state brought up to it.

Invariant: without --migrate nothing is changed.
"""

from __future__ import annotations

import argparse

from recovery.command.arguments import (
    Progress,
    Verbs,
    add_accept_duplicates,
    add_dry_run,
    add_epoch,
    add_job_folder,
    add_tree,
    add_verb,
    in_lines,
    show,
)
from recovery.command.choices import about_choice
from recovery.command.exits import WrongUsage
from recovery.offline.job_tree import NEWEST, open_tree
from recovery.savepoints.programs import program_from
from recovery.savepoints.upgrading import Upgraded, UpgradePlan, migrate, plan_upgrade

_EXAMPLE = """example:
  $ recovery upgrade jobs/clicks.py:program --checkpoints /data/clicks
  the program can go on from epoch 212-2 of clicks-5f0c21aa
  added: alerts (sink)
  users.score: fits: older values are migrated when they are read (value of int, version 1 -> ...)
  $ recovery upgrade jobs/clicks.py:program --checkpoints /data/clicks --migrate
  epoch 213-3 is made, a savepoint in which all values are as declared
  users.score: 1000 rows, 1000 of them migrated
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "upgrade", "see whether a changed program can go on, and migrate state", _EXAMPLE, _run)
    parser.add_argument("program", metavar="PROGRAM", help="module:function, or folder/file.py:function")
    add_tree(parser)
    add_epoch(parser)
    parser.add_argument("--migrate", action="store_true", help="make a savepoint with all values as they are declared")
    parser.add_argument("--drop-states", action="store_true", help="for --migrate: drop states that are not declared")
    add_accept_duplicates(parser)
    add_dry_run(parser)
    add_job_folder(parser)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.migrate and arguments.epoch != NEWEST:
        raise WrongUsage("--migrate is of the newest epoch; fork an older one, and migrate the fork")
    tree, program = open_tree(arguments.checkpoints), program_from(arguments.program)
    accepted = arguments.accept_duplicates or not arguments.migrate
    plan = plan_upgrade(tree, arguments.epoch, program, accept_duplicates=accepted)
    if not arguments.migrate or arguments.dry_run:
        show(plan, in_words(plan), as_json=arguments.json)
        return
    with Progress("migrated", len(plan.to_migrate), "operators") as line:
        done = migrate(
            tree,
            program,
            drop_states=arguments.drop_states,
            accept_duplicates=arguments.accept_duplicates,
            job_folder=arguments.job_folder,
            rewritten=lambda _: line.more(1),
        )
    show(done, migrated_in_words(done), as_json=arguments.json)


def in_words(plan: UpgradePlan) -> str:
    """Describe how the program fits the epoch, for people."""
    lines = about_choice(plan.passed_over, plan.gives_up, plan.repeats, plan.epoch)
    where = f"epoch {plan.epoch} of {plan.job}"
    if not plan.fits:
        lines.append(f"the program cannot go on from {where} as it is")
    elif plan.removed:
        lines.append(f"the program can go on from {where} if what it has not is dropped (--allow-non-restored-state)")
    else:
        lines.append(f"the program can go on from {where}")
    lines += [f"changed: {one}" for one in plan.changed]
    lines += [f"removed: {one}" for one in plan.removed]
    lines += [f"removed, and cannot be dropped: {one}" for one in plan.lost]
    lines += [f"added: {one}" for one in plan.added]
    for one in plan.states:
        how = " -> ".join(dict.fromkeys(filter(None, (one.stored, one.declared))))
        lines.append(f"{one.uid}.{one.state}: {one.reason or one.fit.value} ({how})")
    return in_lines(lines)


def migrated_in_words(done: Upgraded) -> str:
    """Describe the migrated savepoint for people."""
    if done.made is None:
        return f"all values of epoch {done.plan.epoch} are as declared; there is nothing to do"
    plan = done.plan
    lines = about_choice(plan.passed_over, plan.gives_up, plan.repeats, plan.epoch)
    lines.append(f"epoch {done.made} is made, a savepoint in which all values are as declared")
    lines += [f"{one.uid}.{one.state}: {one.rows} rows, {one.migrated} of them migrated" for one in done.states]
    return in_lines(lines)
