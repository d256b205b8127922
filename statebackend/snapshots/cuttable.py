"""The contract of keyed state in memory that is cut, as the threads that make files of it see it.

Invariant: what was frozen does not change any more, and is readable until it is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Clearable(Protocol):
    """Memory that is held until it is given up."""

    def clear(self) -> None:
        """Give back the memory, once it is read no more. In the background: a huge dict takes a while to go."""


class Frozen(Clearable, Protocol):
    """The changes between two cuts, in memory. They are cleared after their release."""

    @property
    def size(self) -> int:
        """Return about how many bytes it will be in a file."""

    @property
    def is_all(self) -> bool:
        """True if it is not only what changed, but all there is: then it can be a base."""

    @property
    def renews(self) -> bool:
        """True if it is all there is but for keys that the last cut which was all has kept.

        Then it takes the place of all that cuts in between have changed.
        """

    @property
    def lasting(self) -> float:
        """Return which part of its bytes stays in a backend until a base takes their place.

        If it renews, the rest takes the place of what the last such cut has said.
        """

    def entries(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Return all, sorted by name, None for what is gone. Called in the background; again after a failure."""

    def written(self) -> None:
        """Note that `entries` is not asked for any more, as all of it is in files. Called in the background."""


class Cuttable(Protocol):
    """Keyed state in memory. `settled` is called in the background, all else by the thread that owns the state."""

    def freeze(self, epoch_number: int, *, alone: bool = False) -> Frozen:
        """Set apart what changed since the last cut; if `alone`, so that it refers to nothing that a former cut says.

        For tables that may take a copy of all accumulators; else the time does not depend on the size of the state.
        """

    def completed(self, epoch_number: int) -> None:
        """Forget what only going back to a cut before that of this epoch would need."""

    def release(self, frozen: Frozen) -> None:
        """Let go of a part that the backend has now: it need not be kept in memory. The oldest comes first."""

    def settled(self, live: Iterator[tuple[bytes, bytes]], epoch_number: int) -> Iterator[tuple[bytes, bytes]]:
        """Return what a base of this epoch says for these entries, which are all there are of some key groups."""
