"""Namespaces: what else than the key a state is kept by, such as the window that a record falls into.

Invariant: windows' namespaces sort by their ends, then by their starts, so those that end first lie first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statebackend.entries import sortable, unsortable
from statebackend.errors import ProgramError

NO_NAMESPACE: Final = b""
"""State that is kept by the key alone."""

_SIZE: Final = 16


class NotAWindow(ProgramError, ValueError):
    """A namespace that is not that of a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """The times from `start` up to, not including, `end`, in milliseconds."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not -(1 << 63) <= self.start < self.end < 1 << 63:
            raise ValueError(f"[{self.start}, {self.end}) is no window: expected start < end, in 64 bits")

    @property
    def namespace(self) -> bytes:
        """Return the namespace in which the window's state is kept."""
        return sortable(self.end) + sortable(self.start)

    @classmethod
    def of(cls, namespace: bytes) -> Window:
        """Return the window with this namespace; raise `NotAWindow` if it is not that of a window."""
        if len(namespace) != _SIZE:
            raise NotAWindow(
                f"a window's namespace has {_SIZE} bytes, this has {len(namespace)}: {namespace[:40].hex()}"
            )
        try:
            return cls(unsortable(namespace, _SIZE // 2), unsortable(namespace))
        except ValueError as error:
            raise NotAWindow(f"{namespace.hex()}: {error}") from error
