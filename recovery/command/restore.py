"""`recovery restore`: a program is started from an epoch, in this process, and runs until it ends or is stopped.

Invariant: Ctrl-C or SIGTERM stops the job after one more epoch, a second one cancels it, and so do 15 s
without that epoch; what is printed on the standard output comes when the job is over.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from recovery.command.arguments import (
    Verbs,
    add_accept_duplicates,
    add_accept_place,
    add_dry_run,
    add_epoch,
    add_job_folder,
    add_tree,
    add_verb,
    in_lines,
    mention,
    show,
)
from recovery.command.choices import about_choice
from recovery.command.copies import shown_progress
from recovery.command.exits import WrongUsage
from recovery.command.sinks import output_in_words
from recovery.driver.attempts.requests import End, EndKind
from recovery.driver.launchers.spark_settings import spark_settings
from recovery.driver.settings.options import RunOptions, in_their_places
from recovery.offline.job_tree import open_tree
from recovery.savepoints.programs import program_from
from recovery.savepoints.restoring import ToRestore, plan_restore_of, restore
from recovery.schemes.named import NAMED
from statebackend.ids import Epoch

if TYPE_CHECKING:
    from pyspark import SparkContext

_EXAMPLE = """example:
  $ recovery restore jobs/clicks.py:program --checkpoints /data/clicks --parallelism 3
  clicks-5f0c21aa goes on from epoch 213-3 with 3 partitions
  ^C
  stopping clicks after one more epoch; Ctrl-C again cancels it, as do 15 s without that epoch (option
  interrupt_timeout)
  $ recovery restore jobs/clicks.py:program --checkpoints /data/clicks --epoch 200-2 --no-claim --into /data/tried
"""


@dataclass(frozen=True, slots=True)
class RestoredJob:
    """A started job, and its end: `epoch` is its last."""

    plan: ToRestore
    job: str
    ended: str
    epoch: Epoch | None


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "restore", "start a program from an epoch or savepoint", _EXAMPLE, _run)
    parser.add_argument("program", metavar="PROGRAM", help="module:function, or folder/file.py:function")
    add_tree(parser)
    add_epoch(parser)
    parser.add_argument("--parallelism", metavar="N", type=int, help="so many partitions (those of the epoch)")
    parser.add_argument("--every", metavar="DURATION", help="from epoch to epoch (1s)")
    parser.add_argument(
        "--scheme",
        choices=sorted(NAMED),
        default="passive",
        help="the recovery scheme, with its defaults (%(default)s)",
    )
    parser.add_argument("--standbys", metavar="N", type=int, default=0, help="so many standbys (%(default)s)")
    parser.add_argument("--spark", metavar="MASTER", help="run as Spark tasks, on this master, such as local[4]")
    parser.add_argument(
        "--no-claim", action="store_true", help="leave the tree as it is: a new job (--into) gets files of its own"
    )
    parser.add_argument("--into", metavar="URI", help="for --no-claim: the folder or URI of the new job's tree")
    parser.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="drop what the epoch has of operators that the program has not",
    )
    parser.add_argument(
        "--ignore-state",
        metavar="UID",
        action="append",
        default=[],
        help="let this operator begin anew; repeatable",
    )
    add_accept_duplicates(parser)
    add_accept_place(parser)
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other option of recovery.run, such as retain=3; the value is JSON or text; repeatable",
    )
    add_job_folder(parser)
    add_dry_run(parser)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.no_claim != (arguments.into is not None):
        raise WrongUsage("--no-claim and --into go together: what is not claimed is copied into a tree of its own")
    options = _options(arguments)
    tree, program = open_tree(arguments.checkpoints), program_from(arguments.program)
    if arguments.dry_run:
        plan = plan_restore_of(
            tree,
            arguments.epoch,
            program,
            parallelism=arguments.parallelism,
            into=arguments.into,
            allow_non_restored_state=arguments.allow_non_restored_state,
            ignore_state=arguments.ignore_state,
            accept_duplicates=arguments.accept_duplicates,
            job_folder=arguments.job_folder,
        )
        done = RestoredJob(plan, plan.job, "not started", None)
        show(done, f"{in_words(plan)}; nothing was done, as this is a dry run", as_json=arguments.json)
        return
    plans: list[ToRestore] = []

    def planned(plan: ToRestore) -> None:
        plans.append(plan)
        mention(in_words(plan))

    with ExitStack() as stack:
        begun = stack.enter_context(shown_progress())
        spark = _spark(arguments.spark, stack) if arguments.spark else None
        run = restore(
            tree,
            arguments.epoch,
            program,
            spark,
            parallelism=arguments.parallelism,
            into=arguments.into,
            every=arguments.every,
            scheme=NAMED[arguments.scheme](arguments.standbys),
            begun=begun,
            planned=planned,
            **options,
        )
        end = run.wait()
    how = _how(end)
    done = RestoredJob(plans[0], run.job, how, None if end is None else end.epoch)
    behind = "" if end is None else f" with epoch {end.epoch}"
    show(done, f"{run.job} has {how}{behind}", as_json=arguments.json)


def in_words(plan: ToRestore) -> str:
    """Describe the planned start for people."""
    partitions = f"{plan.parallelism} partition{'' if plan.parallelism == 1 else 's'}"
    lines = about_choice(plan.passed_over, plan.gives_up, plan.repeats, plan.epoch)
    if plan.into is None:
        lines.append(f"{plan.job} goes on from epoch {plan.epoch} with {partitions}")
        lines += [f"it commits {output_in_words(one)}" for one in plan.output if not one.held]
    else:
        lines.append(f"a new job in {plan.into} begins with epoch {plan.epoch} of {plan.job}, with {partitions}")
    return in_lines(lines)


def _how(end: End | None) -> str:
    if end is None:
        return "been cancelled"
    return "finished" if end.kind is EndKind.FINISHED else "stopped"


def _options(arguments: argparse.Namespace) -> RunOptions:
    options: dict[str, object] = {}
    for given in arguments.option:
        name, equals, value = given.partition("=")
        if not equals:
            raise WrongUsage(f"--option {given!r}: write name=value")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):
            options[name] = value
    if arguments.allow_non_restored_state:
        options["allow_non_restored_state"] = True
    if arguments.accept_place:
        options["accept_places"] = tuple(arguments.accept_place)
    if arguments.accept_duplicates:
        options["accept_duplicates"] = True
    if arguments.ignore_state:
        options["ignore_state"] = tuple(arguments.ignore_state)
    if arguments.job_folder is not None:
        options["local"] = arguments.job_folder
    return cast("RunOptions", in_their_places(options))


def _spark(master: str, stack: ExitStack) -> SparkContext:
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise WrongUsage("--spark needs PySpark: pip install 'epochcut[spark]'") from error
    if master.startswith("local"):  # else Spark takes whatever `python3` is on the path
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setMaster(master).setAppName("recovery restore")
    conf.set("spark.ui.showConsoleProgress", "false")  # bars of tasks that never end
    for name, value in spark_settings().items():
        conf.setIfMissing(name, value)
    context = SparkContext.getOrCreate(conf)
    stack.callback(context.stop)
    return context
