"""A picture of a page in few bytes: a PNG as a browser writes it becomes one with a table of at most 256 colours.

Invariant: the size of the picture stays, and each point has one of its 256 most frequent colours, the nearest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.uint8]
"""Lines of points of three colours each."""

_HEAD: Final = b"\x89PNG\r\n\x1a\n"
_STEP: Final = 16
"""Shades that are nearer to each other than this become one."""


def smaller(png: bytes) -> bytes:
    """Return the same picture in fewer bytes. It has eight bits for each channel, and its lines in their order."""
    points = _points(png)
    shades = (points // _STEP) * (255 // (256 // _STEP - 1))
    colours, which, counts = np.unique(shades.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    kept = colours[np.argsort(-counts)[:256]]
    distances = ((colours[:, None, :].astype(np.int32) - kept[None].astype(np.int32)) ** 2).sum(axis=2)
    height, width = points.shape[:2]
    indices = np.argmin(distances, axis=1)[which.reshape(-1)].astype(np.uint8).reshape(height, width)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1).tobytes()
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = {b"IHDR": head, b"PLTE": kept.tobytes(), b"IDAT": zlib.compress(lines, 9), b"IEND": b""}
    return _HEAD + b"".join(_chunk(kind, content) for kind, content in parts.items())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_HEAD)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _points(png: bytes) -> Points:
    """Return the points of a picture, without their opacity."""
    head = next(content for kind, content in _chunks(png) if kind == b"IHDR")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    channels = {2: 3, 6: 4}[colour]
    assert depth == 8
    assert not interlaced
    packed = b"".join(content for kind, content in _chunks(png) if kind == b"IDAT")
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    lines, above = np.zeros((height, width * channels), np.uint8), np.zeros(width * channels, np.int32)
    for place in range(height):
        above = _unfiltered(int(raw[place, 0]), raw[place, 1:].astype(np.int32), above, channels)
        lines[place] = above
    return lines.reshape(height, width, channels)[:, :, :3]


def _unfiltered(kind: int, line: NDArray[np.int32], above: NDArray[np.int32], channels: int) -> NDArray[np.int32]:
    """Return a line as it was before its filter, of the five that PNG has."""
    match kind:
        case 0:
            return line
        case 1:
            return (np.cumsum(line.reshape(-1, channels), axis=0) & 255).reshape(-1).astype(np.int32)
        case 2:
            return (line + above) & 255
        case _:
            found = line.tolist()
            over = above.tolist()
            for at in range(len(found)):
                left, corner = (found[at - channels], over[at - channels]) if at >= channels else (0, 0)
                guess = (left + over[at]) // 2 if kind == 3 else _nearest(left, over[at], corner)
                found[at] = (found[at] + guess) & 255
            return np.array(found, np.int32)


def _nearest(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))
