"""The calls of a process to its stores, counted by their kind: how many, how long, how many in vain.

Invariant: a count never goes down while the process lives. Any thread may count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statebackend import means


@dataclass(frozen=True, slots=True)
class StoreCalls:
    """The calls of one kind: how many, how long they took together, and how many failed or got no answer."""

    calls: int = 0
    errors: int = 0
    ms: float = 0.0

    def __add__(self, other: StoreCalls) -> StoreCalls:
        return StoreCalls(self.calls + other.calls, self.errors + other.errors, self.ms + other.ms)

    def __sub__(self, other: StoreCalls) -> StoreCalls:
        return StoreCalls(self.calls - other.calls, self.errors - other.errors, self.ms - other.ms)


def count(kind: str, calls: StoreCalls) -> None:
    """Count calls of this process."""
    _COUNTED().add(kind, calls)


def store_calls() -> Mapping[str, StoreCalls]:
    """Return the calls that this process has made to limited stores so far, by their kind, such as `upload`."""
    return _COUNTED().show()


def since(before: Mapping[str, StoreCalls], now: Mapping[str, StoreCalls]) -> Mapping[str, StoreCalls]:
    """Return the calls between two counts of one process."""
    return {kind: calls - before.get(kind, StoreCalls()) for kind, calls in now.items()}


class _Counted:
    """The calls of a process, by their kind. Any thread may count."""

    def __init__(self) -> None:
        self._lock = means.Lock()
        self._calls: dict[str, StoreCalls] = {}

    def add(self, kind: str, calls: StoreCalls) -> None:
        """Count calls."""
        with self._lock:
            self._calls[kind] = self._calls.get(kind, StoreCalls()) + calls

    def show(self) -> Mapping[str, StoreCalls]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._calls)


_COUNTED: Final = means.OncePerProcess(_Counted)
