"""The parts of the system that a simulation replaces: time, chance, threads, selectors, sockets, processes.

Invariant: outside of a simulation each name that Python has as well is Python's own, so a call costs what it costs
there. The product says `means.monotonic()` in a function: a name that is imported from here, or used where a module or
a class is made, as in the default value of an argument, would stay the real one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from fcntl import flock
from os import _exit as exit_process
from os import getpid, getppid, getpriority, kill, setpriority
from pathlib import Path
from queue import Queue, SimpleQueue
from random import random
from resource import RUSAGE_SELF, getpagesize, getrusage
from secrets import randbits, token_bytes, token_hex
from selectors import BaseSelector, DefaultSelector
from socket import gethostname, socket, socketpair
from threading import Condition, Event, Lock, RLock, Thread, get_ident, get_native_id
from time import monotonic, process_time, sleep
from time import time as wall
from time import time_ns as wall_ns
from typing import Any, Final, Generic, TypeVar

__all__ = [
    "Condition",
    "Event",
    "Lock",
    "Queue",
    "RLock",
    "SimpleQueue",
    "Thread",
    "exit_process",
    "flock",
    "get_ident",
    "get_native_id",
    "gethostname",
    "getpid",
    "getppid",
    "getpriority",
    "kill",
    "memory_of_process",
    "monotonic",
    "own_disk",
    "process_state",
    "process_time",
    "randbits",
    "random",
    "selector",
    "setpriority",
    "sleep",
    "socket",
    "socketpair",
    "token_bytes",
    "token_hex",
    "use_disk",
    "wall",
    "wall_ns",
]

selector: Callable[[], BaseSelector] = DefaultSelector
"""Make a selector; the constants for it, and for sockets, come from Python's modules."""


def memory_of_process() -> int:
    """Return the bytes that this process holds; where the kernel does not say so, the most that it ever held."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
    except OSError:
        return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def use_disk(action: str) -> None:
    """Do nothing before this is done on the local disk; a simulation may wait, or raise an `OSError`, as a disk may."""


def own_disk(folder: Path) -> Path:
    """Return the folder; in a simulation, in which all machines share a disk, this machine's own part of it."""
    return folder


_STATE: Final[dict[Hashable, Any]] = {}
os.register_at_fork(after_in_child=_STATE.clear)


def process_state() -> dict[Hashable, Any]:
    """Return what this process has once (see `OncePerProcess`); a forked process begins with nothing."""
    return _STATE


NAMES: Final = tuple(__all__)
"""All that a simulation brings."""


@contextmanager
def replaced(others: object) -> Iterator[None]:
    """Use what `others`, such as a module, has under each of these names, while the block runs, in all threads.

    Raise `AttributeError` if it lacks one. An object that was made before, such as a lock, stays the one that it is.
    """
    found = {name: getattr(others, name) for name in NAMES}
    before = {name: globals()[name] for name in NAMES}
    globals().update(found)
    try:
        yield
    finally:
        globals().update(before)


_Made = TypeVar("_Made")


class OncePerProcess(Generic[_Made]):
    """A thing that a process makes when it first asks for it, and has once; for what would be a module's own otherwise.

    A process that was forked, like one that is simulated, makes its own.
    """

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make

    def __call__(self) -> _Made:
        """Return the one of this process."""
        state = process_state()
        try:
            return state[self]  # type: ignore[no-any-return]
        except KeyError:
            return state.setdefault(self, self._make())  # type: ignore[no-any-return]
