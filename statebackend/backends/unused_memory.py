"""Memory that nobody uses any more goes back to the system, which does not see that by itself.

What always holds: nothing depends on it; where the C library cannot do it, the memory stays with the process.
"""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa


class _Heap(ctypes.Structure):
    """What `mallinfo2` returns; `fordblks` is what is free in all arenas."""

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


def give_back(more_than: int) -> None:
    """Give back what the C library and Arrow keep, if it is more than so many bytes.

    That is not done lightly: for each 100 MB other threads may wait for some tens of milliseconds when they allocate.
    """
    if _GLIBC is not None and _GLIBC.mallinfo2().fordblks > more_than:
        pa.default_memory_pool().release_unused()
        _GLIBC.malloc_trim(0)
