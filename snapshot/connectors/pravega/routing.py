"""The segment for each event, by its key: events of one key stay in order, also those of other programs.

Invariant: a key is in the segment in which Pravega's own clients put it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Final

from snapshot.connectors.pravega.controller import Segment

_SEED: Final = 1741865571
"""The hash of "EventRouter" in Java, which all clients of Pravega use."""
_ONE: Final = 0x3FF0000000000000
_EXPONENT_BITS: Final = 12


def place_of(key: str) -> float:
    """Return the hash of a key, from 0 to below 1."""
    import mmh3

    [hash, _] = mmh3.hash64(key.encode("utf-16-le", "surrogatepass"), _SEED, x64arch=True, signed=False)
    (above_one,) = struct.unpack(">d", struct.pack(">Q", _ONE | hash >> _EXPONENT_BITS))
    return float(above_one) - 1


def routed(
    events: Sequence[tuple[str | None, bytes]], segments: Sequence[Segment]
) -> Mapping[Segment, Sequence[bytes]]:
    """Return the events of each segment, in order; events without a key go to the segments in turn."""
    found: dict[Segment, list[bytes]] = {}
    known: dict[str, list[bytes]] = {}
    turns = cycle(segments)
    for key, event in events:
        if key is None:
            found.setdefault(next(turns), []).append(event)
            continue
        if key not in known:
            place = place_of(key)
            segment = next(one for one in segments if one.low <= place < one.high)
            known[key] = found.setdefault(segment, [])
        known[key].append(event)
    return found
