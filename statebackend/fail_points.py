"""Named places at which a test can look, wait or crash; without a test in the process they do nothing.

What always holds: a name is reached in one place of the code only, so a test that names it knows where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

DELTA_FROZEN: Final = "delta frozen"
DELTA_WRITTEN: Final = "delta written"
DELTA_LINKED: Final = "delta linked"
DELTA_UPLOADED: Final = "delta uploaded"
BASE_WRITTEN: Final = "base written"
BASE_UPLOADED: Final = "base uploaded"
BEFORE_INGEST: Final = "before ingest"
AFTER_INGEST: Final = "after ingest"
RESTORE_FETCHED: Final = "restore fetched"
RESTORE_OPENED: Final = "restore opened"

POINTS: Final = (
    DELTA_FROZEN,
    DELTA_WRITTEN,
    DELTA_LINKED,
    DELTA_UPLOADED,
    BASE_WRITTEN,
    BASE_UPLOADED,
    BEFORE_INGEST,
    AFTER_INGEST,
    RESTORE_FETCHED,
    RESTORE_OPENED,
)
"""All of them, in the order of an epoch's life."""

_hooks: dict[str, Callable[[], None]] = {}


def reached(point: str) -> None:
    """Say that the code has come to this point; whatever a test has hung there runs now, in this thread."""
    hook = _hooks.get(point)
    if hook is not None:
        hook()


@contextmanager
def at(point: str, hook: Callable[[], None]) -> Iterator[None]:
    """While the block runs, call `hook` whenever the point is reached. What it raises is raised there."""
    if point not in POINTS:
        raise ValueError(f"there is no fail point {point!r}; there are {', '.join(POINTS)}")
    _hooks[point] = hook
    try:
        yield
    finally:
        del _hooks[point]
