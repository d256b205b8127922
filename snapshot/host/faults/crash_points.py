"""Crashes that a test asks for: the process kills itself when it comes to a named place for the n-th time.

Invariant: without the variable in the environment nothing is changed; each crash happens once, in whichever
process comes to it first, and leaves its file behind as a proof.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from snapshot.fail_points import POINTS
from statebackend import means
from statebackend.errors import OptionError
from statebackend.fail_points import at

VARIABLE: Final = "EPOCHCUT_CRASH_AT"
"""One or more of `point:n:file`, with a semicolon between two: a process that comes to the point for the n-th time
makes the file and dies by SIGKILL at once; if the file is there already, it goes on.
"""


class UnknownCrash(OptionError, ValueError):
    """A crash was asked for that is not readable, or names a point that does not exist."""


@contextmanager
def crashing(environment: Mapping[str, str], points: Collection[str] = POINTS) -> Iterator[None]:
    """Crash, while the block runs, where the environment says so, at one of the points that the caller has."""
    with ExitStack() as armed:
        for asked in filter(None, environment.get(VARIABLE, "").split(";")):
            point, _, rest = asked.partition(":")
            count, _, file = rest.partition(":")
            if point not in points or not count.isdecimal() or not file:
                raise UnknownCrash(f"{VARIABLE} has {asked!r}; expected point:n:file, of {', '.join(points)}")
            armed.enter_context(at(point, _Crash(int(count), Path(file)), points))
        yield


class _Crash:
    def __init__(self, count: int, file: Path) -> None:
        self._left = count
        self._file = file

    def __call__(self) -> None:
        self._left -= 1
        if self._left != 0:
            return
        try:
            self._file.open("x").close()
        except FileExistsError:
            return
        means.kill(means.getpid(), signal.SIGKILL)
