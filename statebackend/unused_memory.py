"""Memory that nobody uses any more goes back to the system, which does not see that by itself.

What always holds: nothing depends on it; where the C library cannot do it, the memory stays with the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, cast

import pyarrow as pa


def _trimming() -> Callable[[int], int] | None:
    try:
        return cast("Callable[[int], int]", ctypes.CDLL(None).malloc_trim)
    except (OSError, AttributeError):  # another system, or another C library than glibc
        return None


_TRIM: Final = _trimming()


def give_back() -> None:
    """Give back what the C library and Arrow keep. Takes milliseconds, in which other threads go on."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
