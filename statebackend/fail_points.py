"""Named places at which a test can look, wait or crash; without a test in the process they do nothing.

Invariant: a name is reached in one place of the code only, so a test that names it knows where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

BLOB_UNFINISHED: Final = "blob unfinished"
RUN_BEGUN: Final = "run begun"
RESTORE_DOWNLOADED: Final = "restore downloaded"
RESTORE_FETCHED: Final = "restore fetched"
RESTORE_OPENED: Final = "restore opened"
DELTA_FROZEN: Final = "delta frozen"
FILE_WRITTEN: Final = "file written"
DELTA_WRITTEN: Final = "delta written"
DELTA_UPLOADED: Final = "delta uploaded"
SNAPSHOT_COMPLETED: Final = "snapshot completed"
BEFORE_INGEST: Final = "before ingest"
AFTER_INGEST: Final = "after ingest"
BASE_LINKED: Final = "base linked"
BASE_WRITTEN: Final = "base written"
BASE_UPLOADED: Final = "base uploaded"
LINKS_PRUNED: Final = "links pruned"
SNAPSHOTS_REMOVED: Final = "snapshots removed"
GARBAGE_DELETED: Final = "garbage deleted"

POINTS: Final = (
    BLOB_UNFINISHED,
    RUN_BEGUN,
    RESTORE_DOWNLOADED,
    RESTORE_FETCHED,
    RESTORE_OPENED,
    DELTA_FROZEN,
    FILE_WRITTEN,
    DELTA_WRITTEN,
    DELTA_UPLOADED,
    SNAPSHOT_COMPLETED,
    BEFORE_INGEST,
    AFTER_INGEST,
    BASE_LINKED,
    BASE_WRITTEN,
    BASE_UPLOADED,
    LINKS_PRUNED,
    SNAPSHOTS_REMOVED,
    GARBAGE_DELETED,
)
"""All of them, in the order in which a run comes to them."""

_hooks: dict[str, Callable[[], None]] = {}


def reached(point: str) -> None:
    """Say that the code has come to this point; whatever a test has hung there runs now, in this thread."""
    hook = _hooks.get(point)
    if hook is not None:
        hook()


@contextmanager
def at(point: str, hook: Callable[[], None], points: Collection[str] = POINTS) -> Iterator[None]:
    """Call `hook` whenever the point is reached while the block runs. What it raises is raised there.

    `points` are those that the caller knows of; a caller with points of its own gives them as well.
    """
    if point not in points:
        raise ValueError(f"there is no fail point {point!r}; there are {', '.join(points)}")
    _hooks[point] = hook
    try:
        yield
    finally:
        del _hooks[point]
