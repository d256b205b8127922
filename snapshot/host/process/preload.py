"""The modules that a partition's process needs, loaded before the fork, so that a process starts in milliseconds.

Invariant: after `preload` this process has no thread but its own, so forking it is safe; nothing is opened and
no pool of threads is started. A forked process draws other random numbers than its siblings.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Final

MODULES: Final = "EPOCHCUT_MODULES"
"""The variable in which a driver tells Spark's daemon what its job needs: names with commas in between."""

_PACKAGES: Final = ("statebackend", "snapshot")
_TASKS: Final = Path("/proc/self/task")
_JEMALLOC: Final = "JE_ARROW_MALLOC_CONF"


def preload(modules: Iterable[str]) -> None:
    """Load these modules, as far as they are installed, and what every partition's process needs."""
    with _no_thread_for_jemalloc():
        import numpy as np
        import pyarrow as pa
    pa.array(np.zeros(1))  # the first one imports pandas if it is there
    import_module("snapshot.host.process.worker")
    for module in modules:
        with suppress(ImportError):
            import_module(module)
    os.register_at_fork(after_in_child=_reseed)
    _leave_threads_behind()
    gc.collect()
    gc.freeze()  # or each process would copy what it looks through for cycles


def wanted_modules() -> Iterable[str]:
    """Return the modules that the driver has asked for; if it cannot say, all that any program may need."""
    wanted = os.environ.get(MODULES)
    return _all_modules() if wanted is None else wanted.split(",")


def _all_modules() -> Iterable[str]:
    for package in _PACKAGES:
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            if ".testing" not in found.name and not found.ispkg and not found.name.startswith("snapshot.host."):
                yield found.name


def loaded_modules() -> Sequence[str]:
    """Return the modules loaded in this process that its program and its store are made of."""
    return [name for name in list(sys.modules) if name.partition(".")[0] in _PACKAGES and ".testing" not in name]


def threads() -> int:
    """Return how many threads this process has, including those that are not Python's where the kernel tells."""
    return len(list(_TASKS.iterdir())) if _TASKS.exists() else threading.active_count()


@contextmanager
def _no_thread_for_jemalloc() -> Iterator[None]:
    """Load Arrow in the block without the thread that one of its allocators starts, even if another one is used."""
    given = os.environ.get(_JEMALLOC)
    os.environ.setdefault(_JEMALLOC, "background_thread:false")
    try:
        yield
    finally:
        if given is None:
            del os.environ[_JEMALLOC]


def _leave_threads_behind() -> None:
    """Fork once: the library behind numpy ends its threads before that, and starts them again where they are wanted."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _reseed() -> None:
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
