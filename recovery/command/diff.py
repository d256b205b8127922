"""`recovery diff`: what differs between the keyed state of two epochs."""

from __future__ import annotations

import argparse
import json
from typing import Final

from recovery.command.arguments import Verbs, add_tree, add_verb, amount, in_lines, show
from recovery.command.exits import WrongUsage
from recovery.offline.job_tree import NEWEST, open_tree
from recovery.savepoints.comparing import Compared, KeyDiff, diff
from statebackend.readable import one_line

_EXAMPLE: Final = """examples:
  $ recovery diff --checkpoints /data/clicks --epoch 212-2 --epoch 213-3 --rows
  - {"uid": "per-user", "state": "count", "key": "ann", "namespace": null, "value": 16, ...}
  + {"uid": "per-user", "state": "count", "key": "ann", "namespace": null, "value": 17, ...}
  per-user, count: 0 keys added, 0 removed, 1 changed
  from epoch 212-2 to 213-3; 127 of 128 key groups have the same files; 2.9 kB in 2 files were read
  $ recovery diff --checkpoints /data/clicks --with /data/clicks-tried
"""


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "diff", "compare the keyed state of two epochs", _EXAMPLE, _run)
    add_tree(parser)
    parser.add_argument("--with", dest="other", metavar="URI", help="the tree of the second epoch, if it is another")
    parser.add_argument(
        "--epoch",
        action="append",
        default=[],
        metavar="EPOCH",
        help=f"twice: newest, newest-savepoint, 17 or 17-2; of two trees {NEWEST} each, unless said",
    )
    parser.add_argument("--uid", help="of one operator (all)")
    parser.add_argument("--state", help="one state of it (all)")
    parser.add_argument("--rows", action="store_true", help="show the rows of the keys that differ as well")


def _run(arguments: argparse.Namespace) -> None:
    epochs = list(arguments.epoch)
    if arguments.other is None and len(epochs) != 2:
        raise WrongUsage("which two epochs? give --epoch twice, or --with another tree")
    if len(epochs) > 2:
        raise WrongUsage("two epochs are compared; give --epoch twice at most")
    epochs += [NEWEST] * (2 - len(epochs))
    if arguments.state is not None and arguments.uid is None:
        raise WrongUsage("of which operator? give --uid")
    one, other = open_tree(arguments.checkpoints), open_tree(arguments.other or arguments.checkpoints)
    on_key = None if not arguments.rows else _as_json if arguments.json else _in_rows
    found = diff(one, epochs[0], epochs[1], arguments.uid, arguments.state, on_key, other=other)
    show(found, in_words(found), as_json=arguments.json)


def _as_json(key: KeyDiff) -> None:
    print(json.dumps({"uid": key.uid, "state": key.state, "before": key.before, "after": key.after}))


def _in_rows(key: KeyDiff) -> None:
    for sign, rows in (("-", key.before), ("+", key.after)):
        for row in rows:
            print(one_line(f"{sign} {json.dumps({'uid': key.uid, **row}, ensure_ascii=False)}"))


def in_words(found: Compared) -> str:
    """Describe the differences for people."""
    lines = [
        f"{one.uid}, {one.state}: {one.added} keys added, {one.removed} removed, {one.changed} changed"
        for one in found.states
    ]
    nothing = "" if lines else " nothing differs"
    read = f"{amount(found.read.bytes)} in {found.read.files} files were read"
    same = f"{found.same_files} of {found.groups} key groups have the same files"
    lines.append(f"from epoch {found.before} to {found.after}{nothing}; {same}; {read}")
    return in_lines(lines)
