"""The command itself: its verbs, and how each of them may end.

Invariant: it ends with a code of `exits`. Ctrl-C ends it wherever it is: what it was to make is there as a whole, or
not at all. Nothing that it prints for people reaches a terminal as a command.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from types import TracebackType
from typing import Final, NoReturn

from recovery.command import (
    bootstrap,
    compare,
    copies,
    diff,
    edit,
    ending,
    export,
    inject,
    inspect,
    listing,
    page,
    repair,
    rescale,
    restore,
    sinks,
    status,
    upgrade,
    upkeep,
)
from recovery.command.arguments import CHECKPOINTS, complain
from recovery.command.choices import in_command
from recovery.command.exits import MEANINGS, Exit, exit_of
from snapshot.program.problems import near_names
from statebackend.readable import readable

_UNKNOWN: Final = re.compile(r"argument VERB: invalid choice: '(.*?)' \(choose from (.*)\)")

_VERBS = (
    listing,
    status,
    page,
    ending,
    inspect,
    export,
    diff,
    edit,
    bootstrap,
    restore,
    rescale,
    copies,
    sinks,
    upgrade,
    upkeep,
    repair,
    inject,
    compare,
)
"""In the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and say how it ended."""
    sys.excepthook = _show_in_full
    given = _parser(os.environ.get(CHECKPOINTS)).parse_args(arguments)
    try:
        given.run(given)
        return Exit.DONE
    except KeyboardInterrupt:
        complain("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:  # who read what we print has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Exception as error:
        code = exit_of(error)
        if code is None:
            raise
        complain(in_command(str(error), has_option="accept_duplicates" in given))
        return code


def _show_in_full(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error, whose message may have any text in it, with its traceback."""
    print(readable("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Says which verb was meant."""

    def error(self, message: str) -> NoReturn:
        """End with a sentence."""
        unknown = _UNKNOWN.search(message)
        if unknown is not None:
            verb, verbs = unknown.group(1), [name.strip(" '") for name in unknown.group(2).split(",")]
            message = f"there is no verb {verb!r}; {near_names(verb, verbs)}"
        super().error(message)


@cache  # parsing takes a tenth of the time; the value of the variable is among the defaults
def _parser(_checkpoints: str | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="recovery",
        description="What is done with the jobs of epochcut from a terminal.",
        epilog="exit codes:\n" + "\n".join(f"  {code.value:3}  {meaning}" for code, meaning in MEANINGS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"epochcut {version('epochcut')}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=argparse.ArgumentParser)
    for verb in _VERBS:
        verb.add_to(verbs)
    return parser
