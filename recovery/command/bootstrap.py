"""`recovery bootstrap`: a savepoint of tables alone, for a program that then starts from it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from recovery.command.arguments import Verbs, add_dry_run, add_verb, amount, in_lines, show
from recovery.command.exits import WrongUsage
from recovery.savepoints.bootstrapping import Bootstrapped, StateFrom, bootstrap
from recovery.savepoints.programs import program_from
from recovery.savepoints.spark_state import from_spark, session
from statebackend.canonical.mapping import Columns
from statebackend.canonical.schema import KEY
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, check_parallelism

_EXAMPLE: Final = """example:
  $ recovery bootstrap jobs/clicks.py:program --into /data/clicks --state per-user/count=counts.parquet \\
        --key user --value clicks --parallelism 4
  per-user, count: 1,000,000 rows
  epoch 1-1 of clicks-5f0c21aa is made at /data/clicks, with 4 partitions; 4 files with 14.2 MB written
  $ recovery bootstrap jobs/clicks.py:program --into /data/clicks --from-spark /data/query --state per-user/count
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "bootstrap", "make a savepoint of tables, for a program to start from", _EXAMPLE, _run)
    parser.add_argument("program", metavar="PROGRAM", help="module:function, or folder/file.py:function")
    parser.add_argument("--into", required=True, metavar="URI", help="where the job's checkpoints are to be")
    parser.add_argument(
        "--state",
        action="append",
        required=True,
        metavar="UID/STATE=FILE",
        help="a Parquet or Arrow file for a state; with --from-spark UID/STATE=NAME for a state of transformWithState, "
        "UID/STATE for an aggregation, or for its timers",
    )
    parser.add_argument(
        "--from-spark",
        metavar="CHECKPOINT",
        help="take the state of a query of Structured Streaming, which must not run",
    )
    parser.add_argument(
        "--operator", type=int, default=0, metavar="N", help="the stateful operator of that query (%(default)s)"
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OUTPUT=COLUMN",
        help="which column of that query's aggregation is an output's; without it the one of the same name",
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
    try:
        check_parallelism(arguments.parallelism, arguments.max_parallelism)
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    if arguments.from_spark is None:
        columns = Columns(tuple(arguments.key.split(",")), arguments.value)
        done = _make(arguments, [_state(text, columns) for text in arguments.state])
    else:
        if arguments.key != KEY or arguments.value is not None:
            raise WrongUsage(
                "--key and --value are for files; Spark says itself what the key is, and --column the rest"
            )
        names = [_spark_state(text) for text in arguments.state]
        of_outputs = dict(map(_of_output, arguments.column))
        with session() as spark:
            states = [
                from_spark(spark, arguments.from_spark, *name, operator=arguments.operator, columns=of_outputs)
                for name in names
            ]
            done = _make(arguments, states)
    show(done, in_words(done), as_json=arguments.json)


def _make(arguments: argparse.Namespace, states: Sequence[StateFrom]) -> Bootstrapped:
    return bootstrap(
        program_from(arguments.program),
        arguments.into,
        states,
        name=arguments.name,
        parallelism=arguments.parallelism,
        max_parallelism=arguments.max_parallelism,
        dry_run=arguments.dry_run,
    )


def _state(text: str, columns: Columns) -> StateFrom:
    where, equals, file = text.partition("=")
    uid, slash, state = where.partition("/")
    if not (equals and slash and uid and state and file):
        raise WrongUsage(f"{text!r} does not say which state a table is for; write UID/STATE=FILE")
    return StateFrom(uid, state, file, columns)


def _spark_state(text: str) -> tuple[str, str, str]:
    where, equals, variable = text.partition("=")
    uid, slash, state = where.partition("/")
    if not (slash and uid and state and bool(equals) == bool(variable)):
        raise WrongUsage(f"{text!r} does not say which state is meant; write UID/STATE, or UID/STATE=NAME")
    return uid, state, variable


def _of_output(text: str) -> tuple[str, str]:
    output, equals, column = text.partition("=")
    if not (equals and output and column):
        raise WrongUsage(f"{text!r} does not say which column an output takes; write OUTPUT=COLUMN")
    return output, column


def in_words(done: Bootstrapped) -> str:
    """Describe the bootstrapped job for people."""
    lines = [f"{one.uid}, {one.state}: {one.rows:,} rows" for one in done.states]
    files = f"{done.files} file{'' if done.files == 1 else 's'} with {amount(done.bytes)}"
    if done.made is None:
        return in_lines([*lines, f"{files} would be written; nothing was done, as this is a dry run"])
    partitions = f"{done.parallelism} partition{'' if done.parallelism == 1 else 's'}"
    lines.append(f"epoch {done.made} of {done.job} is made at {done.uri}, with {partitions}; {files} written")
    return in_lines(lines)
