"""`recovery export`: the keyed state of an operator as files of tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from recovery.command.arguments import (
    Progress,
    Verbs,
    add_dry_run,
    add_epoch,
    add_tree,
    add_verb,
    amount,
    in_lines,
    show,
)
from recovery.offline.job_tree import open_tree
from recovery.savepoints.exporting import Exported, TableFormat, export

_EXAMPLE: Final = """example:
  $ recovery export --checkpoints /data/clicks --uid per-user --into /data/per-user --format parquet
  /data/per-user/count.parquet: 1,000,000 rows, 14.2 MB
  /data/per-user/last.parquet: 998,104 rows, 12.7 MB
  all of epoch 212-2, of which 31.4 MB were read
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "export", "write the keyed state of an epoch as tables", _EXAMPLE, _run)
    add_tree(parser)
    add_epoch(parser)
    parser.add_argument("--uid", required=True, help="of the operator")
    parser.add_argument("--state", help="one state of it (all)")
    parser.add_argument("--into", required=True, type=Path, metavar="FOLDER", help="a folder that is not there yet")
    forms = [form.value for form in TableFormat]
    parser.add_argument("--format", default=forms[0], choices=forms, help="%(default)s, or one of the others")
    add_dry_run(parser)


def _run(arguments: argparse.Namespace) -> None:
    tree, form = open_tree(arguments.checkpoints), TableFormat(arguments.format)
    with Progress("exporting", 0, "rows") as progress:
        done = export(
            tree,
            arguments.epoch,
            arguments.uid,
            arguments.into,
            form,
            arguments.state,
            dry_run=arguments.dry_run,
            on_rows=progress.more,
        )
    show(done, in_words(done, dry_run=arguments.dry_run), as_json=arguments.json)


def in_words(done: Exported, *, dry_run: bool) -> str:
    """Describe the exported tables for people."""
    if dry_run:
        states = ", ".join(done.states)
        return (
            f"{done.uid}, epoch {done.epoch}: the tables of {states} would be written, and {amount(done.read)} read\n"
            "nothing was done, as this is a dry run"
        )
    lines = [f"{table.path}: {table.rows:,} rows, {amount(table.bytes)}" for table in done.tables]
    return in_lines([*lines, f"all of epoch {done.epoch}, of which {amount(done.read)} were read"])
