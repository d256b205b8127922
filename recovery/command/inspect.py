"""`recovery inspect`: which states an epoch has, and rows of them, for people or one JSON object a line."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from recovery.attached import attach
from recovery.command.arguments import Verbs, add_epoch, add_tree, add_verb, in_columns, in_lines, show
from recovery.command.exits import WrongUsage
from recovery.driver.report.event_log import plain
from recovery.offline.job_tree import NEWEST, open_tree
from recovery.offline.reading import EpochReading, read_epoch
from recovery.savepoints.inspecting import StateRows, Summary, Wanted, rows_of, summarise
from statebackend.readable import one_line

_EXAMPLE: Final = """examples:
  $ recovery inspect --checkpoints /data/clicks
  epoch 212-2, 128 key groups
  per-user: keys of type string, 2 partitions, 14 files, 1,203,551 bytes
    count: value of int
    last: value of timestamp[us], expires in event time
  $ recovery inspect --checkpoints /data/clicks --uid per-user --state count --key ann
  key  value  key_group
  ann  17     93
  $ recovery inspect --checkpoints /data/clicks --uid per-user --key-group 93 --limit 0 --json
"""
_SHOWN: Final = 100
_AT_ONCE: Final = 1000
_WIDEST: Final = 60


@dataclass(frozen=True, slots=True)
class _End:
    """The last line of rows as JSON: what they are of, how many came, and what was read for them."""

    epoch: str
    rows: int
    more: bool
    files: int
    bytes: int


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "inspect", "look into the keyed state of an epoch", _EXAMPLE, _run)
    add_tree(parser)
    add_epoch(parser)
    parser.add_argument("--uid", help="of the operator; without it, which states there are is shown")
    parser.add_argument("--state", help="one state of it (all)")
    parser.add_argument("--key", help='one key: text, a number, hex digits for bytes, a JSON list as ["eu", 7]')
    parser.add_argument("--key-group", type=int, metavar="GROUP", help="the keys of one key group")
    parser.add_argument("--prefix", help="keys that begin so: of text, of hex digits, or the first fields as a list")
    parser.add_argument(
        "--live", action="store_true", help="what a running job has of the --key now; it may still be undone"
    )
    parser.add_argument("--limit", type=int, default=_SHOWN, metavar="N", help="so many rows, 0 for all (%(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="say how much was read as well")


def _run(arguments: argparse.Namespace) -> None:
    one_group = arguments.key is not None or arguments.key_group is not None
    wanted = Wanted(arguments.key, arguments.key_group, arguments.prefix)
    if arguments.uid is None and (arguments.state is not None or wanted != Wanted()):
        raise WrongUsage("of which operator? give --uid; without it, all states are listed")
    if arguments.limit < 0:
        raise WrongUsage(f"{arguments.limit} rows cannot be shown; give 0 for all")
    if arguments.live:
        _show_live(arguments)
        return
    with read_epoch(open_tree(arguments.checkpoints), arguments.epoch, pin=not one_group) as reading:
        if arguments.uid is None:
            summary = summarise(reading)
            show(summary, _in_words(summary), as_json=arguments.json)
        else:
            _show_rows(reading, arguments, wanted)


def _show_live(arguments: argparse.Namespace) -> None:
    if arguments.uid is None or arguments.key is None or arguments.epoch != NEWEST:
        raise WrongUsage("a live read is of one key, and of no epoch: give --uid and --key, and no --epoch")
    with attach(arguments.checkpoints) as job:
        found = job.read(arguments.uid, arguments.key, arguments.state)
    batches = [StateRows(name, batch) for name, table in found.tables.items() for batch in table.to_batches()]
    rows = [row for batch in batches for row in batch.in_json()]
    if arguments.json:
        print("\n".join(map(json.dumps, rows)), end="\n" if rows else "")
        print(json.dumps({"live": True, "partition": found.partition, "rows": len(rows)}))
        return
    print("\n".join(_table(rows, arguments.state is None)) if rows else "no rows")
    print(f"live, from partition {found.partition}: no epoch has this yet, and a roll-back would undo it")


def _show_rows(reading: EpochReading, arguments: argparse.Namespace, wanted: Wanted) -> None:
    found = (row for rows in rows_of(reading, arguments.uid, arguments.state, wanted) for row in rows.in_json())
    some = found if arguments.limit == 0 else islice(found, arguments.limit)
    shown = 0
    while chunk := list(islice(some, _AT_ONCE)):
        shown += len(chunk)
        print("\n".join(map(json.dumps, chunk) if arguments.json else _table(chunk, arguments.state is None)))
    more = next(found, None) is not None
    if arguments.json:
        end = _End(str(reading.epoch), shown, more, reading.read.files, reading.read.bytes)
        print(json.dumps(plain(end)))
        return
    if not shown:
        print(f"no rows in epoch {reading.epoch}")
    if more:
        print("... and more; --limit 0 shows all")
    if arguments.verbose:
        files, size = reading.read.files, reading.read.bytes
        print(f"epoch {reading.epoch}: {files} file{'' if files == 1 else 's'} with {size:,} bytes read")


def _table(rows: list[dict[str, Any]], with_state: bool) -> list[str]:
    """Put the columns side by side; those without a value in any row are left out."""
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    names = [name for name in names if with_state or name != "state"]
    return in_columns(names, [[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: object) -> str:
    text = one_line(value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _in_words(summary: Summary) -> str:
    lines = [f"epoch {summary.epoch}, {summary.max_parallelism} key groups"]
    for one in summary.operators:
        keys = "nothing written yet" if one.key_type is None else f"keys of type {one.key_type}"
        lines.append(f"{one.uid}: {keys}, {one.partitions} partitions, {one.files} files, {one.bytes:,} bytes")
        for state in one.states:
            what = f" of {state.holds}" if state.holds else ""
            expires = "" if state.expires is None else f", expires in {state.expires} time"
            lines.append(f"  {state.name}: {state.kind.value}{what}{expires}")
    lines += [f"{uid}: broadcast state" for uid in summary.broadcast]
    return in_lines(lines)
