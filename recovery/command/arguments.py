"""The parts that verbs share: the choice of a job, and the printing of results.

Invariant: with --json a result is JSON on the standard output and nothing else is; without, it is for people.

A line is one line, whatever its text is made of; a column is as wide as its widest item, and numbers stand at the
right. A line of progress is shown on the standard error of a terminal alone, and is gone when the work is done.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from os import environ
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO, TypeAlias

from recovery.attached import Attached, attach
from recovery.command.exits import WrongUsage
from recovery.driver.report.event_log import plain
from recovery.offline.job_tree import NEWEST
from statebackend.readable import one_line, readable

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

CHECKPOINTS: Final = "EPOCHCUT_CHECKPOINTS"
"""The variable whose value is meant where --checkpoints is left out."""

Verb = Callable[[argparse.Namespace], None]


def add_verb(verbs: Verbs, name: str, summary: str, example: str, run: Verb) -> argparse.ArgumentParser:
    """Add a verb, which is run with its arguments; `example` is shown in its help."""
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
    """Add the options that name a running job."""
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
    """Add the option that names a job's tree, whether the job runs or not."""
    given = environ.get(CHECKPOINTS)
    parser.add_argument(
        "--checkpoints",
        required=given is None,
        default=given,
        metavar="URI",
        help=f"the folder or URI of the job's checkpoints (${CHECKPOINTS})",
    )


def add_epoch(parser: argparse.ArgumentParser) -> None:
    """Add the option that names an epoch of the tree."""
    parser.add_argument(
        "--epoch", default=NEWEST, metavar="EPOCH", help="newest, newest-savepoint, 17 or 17-2 (%(default)s)"
    )


def add_job_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option for where to look whether the job runs, for verbs that refuse a running job."""
    parser.add_argument(
        "--job-folder",
        metavar="FOLDER",
        type=Path,
        help="the folder for the job's files, if it was started with another (`local`): it must not run there",
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add `--dry-run`, for every verb that changes something."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")


def add_accept_duplicates(parser: argparse.ArgumentParser) -> None:
    """Add `--accept-duplicates`, for verbs that may give up epochs."""
    parser.add_argument(
        "--accept-duplicates",
        action="store_true",
        help="go back behind epochs whose output may be committed, so that it is made once more",
    )


def add_accept_place(parser: argparse.ArgumentParser) -> None:
    """Add `--accept-place`, for verbs that commit output."""
    parser.add_argument(
        "--accept-place",
        metavar="PLACE",
        action="append",
        default=[],
        help="also commit output that was prepared for this place, as `sinks list` names it, though the program's sink "
        "writes elsewhere; repeatable",
    )


def attached_to(arguments: argparse.Namespace) -> Attached:
    """Attach to the job that the arguments name."""
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


def in_lines(lines: Iterable[str]) -> str:
    """Join the texts, one line each."""
    return "\n".join(map(one_line, lines))


def in_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table; the columns named in `right` are aligned there."""
    rows = [[one_line(item) for item in row] for row in rows]
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    sides = [">" if head in right else "<" for head in heads]
    return [
        "  ".join(f"{item:{side}{width}}" for item, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]


_EVERY: Final = 0.1
_WIDTH: Final = 24


class Progress:
    """The done part of a `total`; any thread may add to it. `unit` is "bytes", or what is counted: "files", "rows".

    A total of 0 is not known: then only what is done is shown.
    """

    def __init__(self, what: str, total: int, unit: str = "bytes", stream: TextIO | None = None) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._shows = self._stream.isatty()
        self._done = 0
        self._shown_at = -_EVERY
        self._lock = threading.Lock()

    def more(self, amount: int) -> None:
        """Add `amount` to what is done."""
        with self._lock:
            self._done += amount
            now = time.monotonic()
            if self._shows and now - self._shown_at >= _EVERY:
                self._shown_at = now
                self._stream.write(f"\r\x1b[K{self.line()}")
                self._stream.flush()

    def line(self) -> str:
        """Return the line that is shown now."""
        if self._total <= 0:
            return f"{self._what}: {amount(self._done, self._unit)}"
        part = min(self._done / self._total, 1.0)
        bar = "#" * round(part * _WIDTH)
        done, total = amount(self._done, self._unit), amount(self._total, self._unit)
        return f"{self._what} [{bar:<{_WIDTH}}] {part:4.0%} {done} of {total}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shows:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def amount(number: int, unit: str = "bytes") -> str:
    """Format a number of bytes, or of other things, for people."""
    if unit != "bytes":
        return f"{number:,} {unit}"
    if number < 1000:
        return f"{number} bytes"
    value = float(number)
    for name in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or name == "GB":
            break
    return f"{value:.3g} {name}" if value < 999.5 else f"{value:,.0f} {name}"
