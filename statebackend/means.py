"""The parts of the system that a simulation replaces: time, chance, threads, selectors, sockets, processes.

Invariant: outside of a simulation each name is Python's own function or class, so a call costs what it costs there. The
product says `means.monotonic()`, and never imports a name from here: such a name would stay the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import _exit as exit_process
from os import getpid, getpriority, kill, setpriority
from queue import Queue, SimpleQueue
from random import random
from secrets import randbits, token_bytes, token_hex
from selectors import BaseSelector, DefaultSelector
from socket import gethostname, socket, socketpair
from threading import Condition, Event, Lock, RLock, Thread, get_ident, get_native_id
from time import monotonic, process_time, sleep
from time import time as wall
from time import time_ns as wall_ns
from typing import Final

__all__ = [
    "Condition",
    "Event",
    "Lock",
    "Queue",
    "RLock",
    "SimpleQueue",
    "Thread",
    "exit_process",
    "get_ident",
    "get_native_id",
    "gethostname",
    "getpid",
    "getpriority",
    "kill",
    "monotonic",
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
    "wall",
    "wall_ns",
]

selector: Callable[[], BaseSelector] = DefaultSelector
"""Make a selector; the constants for it, and for sockets, come from Python's modules."""

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
