"""The scale of a simulated job: what happens after megabytes and minutes elsewhere happens in it after a few rows.

Invariant: only thresholds differ from those of a real job, and all of them are as before when the block ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from recovery.decisions import cleanup
from recovery.driver.tree import owned
from snapshot.host.partition import attempt
from statebackend.backends import unused_memory
from statebackend.snapshots import consolidation
from statebackend.tables.memory import space

_SMALL: Final[Mapping[ModuleType, Mapping[str, Any]]] = {
    cleanup: {"_PAUSES": (0.05, 0.2, 1.0)},
    owned: {"_INLINE": 64},
    attempt: {"_INLINE": 400},
    unused_memory: {"_GLIBC": None},  # the memory is that of all histories
}


@contextmanager
def small_scale(*, slice_bytes: int | None = None) -> Iterator[None]:
    """Make a job's thresholds small while the block lasts.

    With `slice_bytes` it also rewrites its state, all the time: few bytes make many bases, more of them many merges.
    """
    chosen = {**_SMALL, **({} if slice_bytes is None else _restless(slice_bytes))}
    before = {module: {name: getattr(module, name) for name in names} for module, names in chosen.items()}
    _set(chosen)
    try:
        yield
    finally:
        _set(before)


def _restless(slice_bytes: int) -> Mapping[ModuleType, Mapping[str, Any]]:
    return {
        consolidation: {"SMALLEST_SLICE": slice_bytes, "_FEWEST_DELTAS": 2, "_MOST_DELTAS": 2, "_FAN": 2},
        space: {"_FEWEST_KEPT": 1},
    }


def _set(values: Mapping[ModuleType, Mapping[str, Any]]) -> None:
    for module, names in values.items():
        for name, value in names.items():
            setattr(module, name, value)
