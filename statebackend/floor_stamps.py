"""Floors as backends compare them: per key group, the lowest stamp that is visible, as the bytes a value begins with.

What always holds: a value is visible exactly if its bytes are not less than those of its group's floor.
"""

from __future__ import annotations

from collections.abc import Iterable

from statebackend.backend import Floors
from statebackend.entries import META_KEY, STAMP, group_of
from statebackend.keygroups import KeyGroupRange


class FloorStamps(dict[bytes, bytes]):
    """Asked for with the first two bytes of a name. Never changed once it is used, but for what it has looked up."""

    def __init__(self, floors: Floors) -> None:
        super().__init__({META_KEY[:2]: b""})
        self._floors = floors

    def __missing__(self, group: bytes) -> bytes:
        stamp = self[group] = STAMP.pack(self._floors.of(group_of(group)))
        return stamp

    def raised(self, groups: Iterable[KeyGroupRange], floor: int) -> FloorStamps:
        """Others, in which the floor of these groups is at least this one."""
        higher = FloorStamps(self._floors)
        higher.update(self)
        stamp = STAMP.pack(floor)
        for group_range in groups:
            for group in group_range:
                head = group.to_bytes(2, "big")
                higher[head] = max(self[head], stamp)
        return higher
