"""What the verbs have in common: which job is meant, and how results are printed.

What always holds: with --json a result is JSON on the standard output and nothing else is; without, it is for people.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from os import environ
from pathlib import Path
from typing import Final, TypeAlias

from recovery.attached import Attached, attach
from recovery.command.exits import WrongUsage
from recovery.driver.event_log import plain
from recovery.savepoints.job_tree import NEWEST
from snapshot.readable import readable

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

CHECKPOINTS: Final = "EPOCHCUT_CHECKPOINTS"
"""The variable whose value is meant where --checkpoints is left out."""

Verb = Callable[[argparse.Namespace], None]


def add_verb(verbs: Verbs, name: str, summary: str, example: str, run: Verb) -> argparse.ArgumentParser:
    """A verb, which is run with its arguments; `example` is shown in its help."""
    parser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def add_running_job(parser: argparse.ArgumentParser) -> None:
    """Which running job is meant."""
    which = parser.add_argument_group("the running job, on the host of its driver")
    which.add_argument(
        "--checkpoints",
        metavar="URI",
        default=environ.get(CHECKPOINTS),
        help=f"the folder or URI of its checkpoints (${CHECKPOINTS})",
    )
    which.add_argument(
        "--job-folder", metavar="FOLDER", help="the folder for its files, if it was started with another (`local`)"
    )


def add_tree(parser: argparse.ArgumentParser) -> None:
    """Which job's tree is meant, running or not."""
    given = environ.get(CHECKPOINTS)
    parser.add_argument(
        "--checkpoints",
        required=given is None,
        default=given,
        metavar="URI",
        help=f"the folder or URI of the job's checkpoints (${CHECKPOINTS})",
    )


def add_epoch(parser: argparse.ArgumentParser) -> None:
    """Which epoch of it is meant."""
    parser.add_argument(
        "--epoch", default=NEWEST, metavar="EPOCH", help="newest, newest-savepoint, 17 or 17-2 (%(default)s)"
    )


def add_job_folder(parser: argparse.ArgumentParser) -> None:
    """For verbs that a running job must not see: where to look whether it runs."""
    parser.add_argument(
        "--job-folder",
        metavar="FOLDER",
        type=Path,
        help="the folder for the job's files, if it was started with another (`local`): it must not run there",
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """For every verb that changes something."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")


def add_accept_duplicates(parser: argparse.ArgumentParser) -> None:
    """For verbs that may give up epochs."""
    parser.add_argument(
        "--accept-duplicates",
        action="store_true",
        help="go back behind epochs whose output may be committed, so that it is made once more",
    )


def add_accept_place(parser: argparse.ArgumentParser) -> None:
    """For verbs that commit output."""
    parser.add_argument(
        "--accept-place",
        metavar="PLACE",
        action="append",
        default=[],
        help="also commit output that was prepared for this place, as `sinks list` names it, though the program's sink "
        "writes elsewhere; repeatable",
    )


def attached_to(arguments: argparse.Namespace) -> Attached:
    """The job that is meant."""
    if arguments.checkpoints is None and arguments.job_folder is None:
        raise WrongUsage("which job? give --checkpoints, or --job-folder if it was started with a folder of its own")
    if arguments.job_folder is not None:
        return attach(job_folder=arguments.job_folder)
    return attach(arguments.checkpoints)


def show(result: object, text: str, *, as_json: bool) -> None:
    """Print a result."""
    print(json.dumps(plain(result)) if as_json else readable(text), flush=True)


def complain(sentence: str) -> None:
    """Tell people what is wrong."""
    mention(f"recovery: {sentence}")


def mention(text: str) -> None:
    """Tell people something that is no result."""
    print(readable(text), file=sys.stderr, flush=True)
