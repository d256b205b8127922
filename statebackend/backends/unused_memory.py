"""Memory that is not used any more goes back to the system, which does not see that by itself.

Invariant: nothing depends on it; where the C library cannot do it, the memory stays with the process.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

import pyarrow as pa

_ARENAS: Final = -8
"""`M_ARENA_MAX`."""


class _Heap(ctypes.Structure):
    """The result of `mallinfo2`; `fordblks` counts the free bytes of all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Heap
        library.malloc_trim.argtypes = (ctypes.c_size_t,)
    except (OSError, AttributeError):  # another system, or another C library than glibc
        return None
    return library


_GLIBC: Final = _glibc()


def keep_together() -> None:
    """Let threads that start from now on share the pools of memory that there are, which most often is one.

    By default threads have pools of their own, up to eight for each core, and what is free at the end of such a pool
    stays there: some tens of megabytes. It holds for the whole process, unless `MALLOC_ARENA_MAX` says how many.
    """
    if _GLIBC is not None and "MALLOC_ARENA_MAX" not in os.environ:
        _GLIBC.mallopt(_ARENAS, 1)


def give_back_of_thread() -> None:
    """Give back what Arrow keeps for this thread, which no other can do. It takes about a tenth of a millisecond."""
    pa.default_memory_pool().release_unused()


def give_back(more_than: int) -> None:
    """Give back what the C library and Arrow keep, if it is more than so many bytes.

    That is not done lightly: for each 100 MB other threads may wait for some tens of milliseconds when they allocate.
    """
    if _GLIBC is not None and _GLIBC.mallinfo2().fordblks > more_than:
        pa.default_memory_pool().release_unused()
        _GLIBC.malloc_trim(0)
