"""`recovery edit`: a new savepoint from an old one, with changed rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from recovery.command.arguments import (
    Verbs,
    add_accept_duplicates,
    add_dry_run,
    add_epoch,
    add_job_folder,
    add_tree,
    add_verb,
    amount,
    complain,
    in_lines,
    show,
)
from recovery.command.choices import about_choice
from recovery.command.exits import WrongUsage
from recovery.offline.job_tree import open_tree
from recovery.savepoints.editing import ChangedRows, Edited, edit
from recovery.savepoints.typed_changes import changes_in, delete_key, set_key

_EXAMPLE: Final = """examples:
  $ recovery edit --checkpoints /data/clicks --uid per-user --state count --key ann --set 17
  per-user, count: 0 added, 1 changed, 0 removed, 0 as they were
  epoch 213-3 is made of 212-2, a savepoint; 1 file with 1.45 kB written
  $ recovery edit --checkpoints /data/clicks --uid per-user --state count --key ann --delete --dry-run
  $ recovery edit --checkpoints /data/clicks --uid per-user --state items --key ann --set '{"tea": 2, "cup": null}'
  $ recovery edit --checkpoints /data/clicks --uid per-user --table changes.parquet --into /data/clicks-tried
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "edit", "make a savepoint with changed rows of keyed state", _EXAMPLE, _run)
    add_tree(parser)
    add_epoch(parser)
    parser.add_argument("--uid", required=True, help="of the operator")
    parser.add_argument("--state", help="the state; a table may say it itself")
    parser.add_argument("--key", help='the key: text, a number, hex digits for bytes, a JSON list as ["eu", 7]')
    parser.add_argument("--namespace", metavar="JSON", help="of the key: a window [start, end], or hex digits (none)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--set",
        metavar="JSON",
        help="a value; a list as a whole; entries of a map as an object, null for none; accumulators as an object",
    )
    what.add_argument("--delete", action="store_true", help="take all that the state has of the key away")
    what.add_argument(
        "--table", type=Path, metavar="FILE", help="changed rows as `recovery export` writes them; `deleted` or null"
    )
    parser.add_argument("--into", metavar="URI", help="make a job of its own there, and leave this one as it is")
    add_accept_duplicates(parser)
    add_dry_run(parser)
    add_job_folder(parser)


def _run(arguments: argparse.Namespace) -> None:
    tree = open_tree(arguments.checkpoints)
    place = (tree, arguments.epoch, arguments.uid)
    changes: tuple[ChangedRows, ...]
    if arguments.table is not None:
        if arguments.key is not None:
            raise WrongUsage("a table says itself which keys are changed; leave --key out")
        changes = changes_in(*place, arguments.table, arguments.state)
    else:
        if arguments.key is None or arguments.state is None:
            raise WrongUsage("what is to be changed? give --state and --key, or a --table")
        state, key = arguments.state, arguments.key
        if arguments.delete:
            changes = (delete_key(*place, state, key),)
        else:
            value, namespace = _json("--set", arguments.set), _json("--namespace", arguments.namespace)
            changes = (set_key(*place, state, key, value, namespace),)
    done = edit(
        tree,
        arguments.epoch,
        changes,
        into=arguments.into,
        accept_duplicates=arguments.accept_duplicates,
        dry_run=arguments.dry_run,
        job_folder=arguments.job_folder,
    )
    if arguments.delete and not any(one.rows.removed for one in done.states):
        complain(f"epoch {done.epoch} has no {arguments.state} of the key {arguments.key!r}; nothing is deleted")
    show(done, in_words(done, arguments.into, dry_run=arguments.dry_run), as_json=arguments.json)


def _json(what: str, text: str | None) -> object:
    if text is None:
        return None
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongUsage(f"{what} takes JSON, and {text[:300]!r} is none: {error}; texts need quotes") from error
    return found


def in_words(done: Edited, into: str | None, *, dry_run: bool) -> str:
    """Describe the changes for people."""
    lines = about_choice(done.passed_over, done.gives_up, done.repeats, done.epoch)
    for one in done.states:
        rows = one.rows
        lines.append(
            f"{one.uid}, {one.state}: {rows.added} added, {rows.changed} changed, {rows.removed} removed, "
            f"{rows.unchanged} as they were"
        )
    if dry_run:
        lines.append("nothing was done, as this is a dry run")
    elif done.made is None:
        lines.append(f"epoch {done.epoch} is so already; there is nothing to do")
    else:
        files = f"{done.files} file{'' if done.files == 1 else 's'} with {amount(done.bytes)}"
        where = f" at {into}, a job of its own" if into is not None else ", a savepoint"
        lines.append(f"epoch {done.made} is made of {done.epoch}{where}; {files} written")
    return in_lines(lines)
