"""In-flight data of a cut as bytes, and back: what a marker overtook, kept with the epoch.

Invariant: frames come back one by one, in the order in which they were on the channel. However much there is,
no more of it than a few megabytes, or one frame, is in memory a second time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from snapshot.cut.frames import Data
from snapshot.cut.wire import Buffer
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.ids import ChannelId
from snapshot.operators.rows import Rows
from snapshot.tree.manifest import ChannelState, Inline
from statebackend.backends.backend import DamagedFile

_LENGTH: Final = struct.Struct(">I")

_AT_ONCE: Final = 4 << 20
"""Files have about so many bytes, as each is put together in memory."""

Frames = Mapping[ChannelId, Sequence[Data]]
"""Frames by their channel, encoded or as rows."""

Encode = Callable[[ChannelId, Rows], Data]
"""Encodes rows of a channel; any thread may call it."""


def size_of(frames: Frames) -> int:
    """Return the bytes of all data."""
    return sum(frame.size for some in frames.values() for frame in some)


def stored(frames: Frames, files: TreeFiles, inline: int, encode: Encode) -> tuple[ChannelState, ...]:
    """Make in-flight data durable: in the manifest if it is at most `inline` bytes, else in files of the tree.

    May wait for the store, and raises what that raises.
    """
    small = size_of(frames) <= inline
    return tuple(
        ChannelState(
            channel,
            tuple(Inline(data) if small else files.put_channel(data) for data in _packed(channel, some, encode)),
        )
        for channel, some in sorted(frames.items())
        if some
    )


def recalled(state: ChannelState, files: TreeFiles) -> list[Data]:
    """Return a channel's stored frames; raise `MissingFile` or `DamagedFile` if they are not there as they were."""
    frames: list[Data] = []
    for part in state.parts:
        data, where = (part.data, "the manifest") if isinstance(part, Inline) else (files.get(part), part.path)
        frames += _unpacked(data, f"{where}, channel {state.channel}")
    return frames


def _packed(channel: ChannelId, frames: Iterable[Data], encode: Encode) -> Iterator[bytes]:
    """Yield the frames in pieces, none of which is empty."""
    pieces: list[Buffer] = []
    size = 0
    for frame in frames:
        whole = encode(channel, frame.payload) if isinstance(frame.payload, Rows) else frame
        assert isinstance(whole.payload, bytes | bytearray | memoryview)
        pieces += (_LENGTH.pack(whole.size), whole.payload)
        size += whole.size
        if size >= _AT_ONCE:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def _unpacked(data: bytes, where: str) -> list[Data]:
    frames: list[Data] = []
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        end = start + (_LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0)
        if start > len(data) or end > len(data):
            raise DamagedFile(f"{where}: in-flight data ends inside a frame, at byte {at} of {len(data)}")
        frames.append(Data(data[start:end], end - start))
        at = end
    return frames
