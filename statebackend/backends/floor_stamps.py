"""Floors as backends compare them: per key group, the lowest stamp that is visible, as the bytes a value begins with.

What always holds: a value is visible exactly if its bytes are not less than those of its group's floor.
"""

from __future__ import annotations

from statebackend.backends.backend import Floors
from statebackend.entries import META_KEY, STAMP, group_of


class FloorStamps(dict[bytes, bytes]):
    """Asked for with the first two bytes of a name, a floor is looked up once."""

    def __init__(self, floors: Floors) -> None:
        super().__init__({META_KEY[:2]: b""})
        self._floors = floors

    def __missing__(self, group: bytes) -> bytes:
        stamp = self[group] = STAMP.pack(self._floors.of(group_of(group)))
        return stamp
