"""`recovery bootstrap`: a savepoint of tables alone, for a program that then starts from it."""

from __future__ import annotations

import argparse
from typing import Final

from recovery.command.arguments import Verbs, add_dry_run, add_verb, amount, in_lines, show
from recovery.command.exits import WrongUsage
from recovery.savepoints.bootstrapping import Bootstrapped, StateFrom, bootstrap
from recovery.savepoints.programs import program_from
from statebackend.canonical.mapping import Columns
from statebackend.canonical.schema import KEY
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, check_parallelism

_EXAMPLE: Final = """example:
  $ recovery bootstrap jobs/clicks.py:program --into /data/clicks --state per-user/count=counts.parquet \\
        --key user --value clicks --parallelism 4
  per-user, count: 1,000,000 rows
  epoch 1-1 of clicks-5f0c21aa is made at /data/clicks, with 4 partitions; 4 files with 14.2 MB written
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "bootstrap", "make a savepoint of tables, for a program to start from", _EXAMPLE, _run)
    parser.add_argument("program", metavar="PROGRAM", help="module:function, or folder/file.py:function")
    parser.add_argument("--into", required=True, metavar="URI", help="where the job's checkpoints are to be")
    parser.add_argument(
        "--state", action="append", required=True, metavar="UID/STATE=FILE", help="a Parquet or Arrow file for a state"
    )
    parser.add_argument("--key", default=KEY, metavar="COLUMNS", help="the key's columns, by commas (%(default)s)")
    parser.add_argument(
        "--value", metavar="COLUMN", help="the value's; other outputs of a table of aggregates are called as they are"
    )
    parser.add_argument("--name", default="job", help="of the job (%(default)s)")
    parser.add_argument("--parallelism", type=int, default=2, metavar="N", help="so many partitions (%(default)s)")
    parser.add_argument(
        "--max-parallelism", type=int, default=DEFAULT_MAX_PARALLELISM, metavar="N", help="for good (%(default)s)"
    )
    add_dry_run(parser)


def _run(arguments: argparse.Namespace) -> None:
    columns = Columns(tuple(arguments.key.split(",")), arguments.value)
    states = [_state(text, columns) for text in arguments.state]
    try:
        check_parallelism(arguments.parallelism, arguments.max_parallelism)
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    done = bootstrap(
        program_from(arguments.program),
        arguments.into,
        states,
        name=arguments.name,
        parallelism=arguments.parallelism,
        max_parallelism=arguments.max_parallelism,
        dry_run=arguments.dry_run,
    )
    show(done, in_words(done), as_json=arguments.json)


def _state(text: str, columns: Columns) -> StateFrom:
    where, equals, file = text.partition("=")
    uid, slash, state = where.partition("/")
    if not (equals and slash and uid and state and file):
        raise WrongUsage(f"{text!r} does not say which state a table is for; write UID/STATE=FILE")
    return StateFrom(uid, state, file, columns)


def in_words(done: Bootstrapped) -> str:
    """Describe the bootstrapped job for people."""
    lines = [f"{one.uid}, {one.state}: {one.rows:,} rows" for one in done.states]
    files = f"{done.files} file{'' if done.files == 1 else 's'} with {amount(done.bytes)}"
    if done.made is None:
        return in_lines([*lines, f"{files} would be written; nothing was done, as this is a dry run"])
    partitions = f"{done.parallelism} partition{'' if done.parallelism == 1 else 's'}"
    lines.append(f"epoch {done.made} of {done.job} is made at {done.uri}, with {partitions}; {files} written")
    return in_lines(lines)
