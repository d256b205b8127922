"""Deal splits of a source out to readers: every split is, at every cut, in exactly one place.

Invariant: a split is either unassigned here or assigned to one partition. The coordinator cuts this state
in the same step in which it sends the trigger, and assignments travel to a partition on the channel of its
triggers. So a split assigned before the cut reaches its reader before the trigger and is in the reader's part of
the epoch; one assigned after it is still unassigned in ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Split = TypeVar("Split", bound=Hashable)


class SplitEnumerator(Generic[Split]):
    """The splits of one source that no partition reads yet, and those that are known already."""

    def __init__(self, known: Iterable[Split], unassigned: Iterable[Split]) -> None:
        self._known = set(known)
        self._unassigned = deque(unassigned)
        self._known.update(self._unassigned)

    @property
    def unassigned(self) -> tuple[Split, ...]:
        """Return the splits without a reader: this enumerator's part of a cut, beside the positions of the readers."""
        return tuple(self._unassigned)

    @property
    def known(self) -> frozenset[Split]:
        """Return all splits that there have ever been."""
        return frozenset(self._known)

    def discover(self, splits: Iterable[Split]) -> None:
        """Take in the splits that a look at the source found; those that are known already change nothing."""
        for split in splits:
            if split not in self._known:
                self._known.add(split)
                self._unassigned.append(split)

    def assign(self) -> Split | None:
        """Take out the next split for a partition; it must be sent on the channel of that partition's triggers."""
        return self._unassigned.popleft() if self._unassigned else None
