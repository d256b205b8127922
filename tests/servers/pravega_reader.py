"""What a reader sees in a stream of Pravega now: read by Pravega's own client, which shares no code with the sink.

The client is for Python 3.11 alone, and holds the interpreter's lock while it waits for a server. So what may read
while the server is down reads in a process of its own.

    python -m tests.servers.pravega_reader tcp://127.0.0.1:9090 scope stream
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from collections.abc import Sequence
from secrets import token_hex
from typing import Final

_HEADER: Final = 8
"""Bytes before each event in a segment."""
_LENGTH: Final = struct.Struct(">I")
_PATIENCE: Final = 60.0


def events(controller: str, scope: str, stream: str) -> Sequence[bytes]:
    """Return the events of a stream that has had no other segments than it has now."""
    return asyncio.run(asyncio.wait_for(_events(controller, scope, stream), _PATIENCE))


async def _events(controller: str, scope: str, stream: str) -> Sequence[bytes]:
    from pravega_client import StreamManager

    manager = StreamManager(controller)
    ends = manager.create_reader_group(token_hex(8), scope, stream, True, None).get_streamcut()
    group = manager.create_reader_group(token_hex(8), scope, stream, False, None)
    left = sum(ends.get_segment_offset_map().values())
    reader, found = group.create_reader("reader"), list[bytes]()
    while left > 0:
        part = await reader.get_segment_slice_async()
        for event in part:
            found.append(bytes(event.data()))
            left -= _HEADER + len(found[-1])
        reader.release_segment(part)
    reader.reader_offline()
    return found


def events_by_another_process(controller: str, scope: str, stream: str) -> Sequence[bytes]:
    """Return the same; `subprocess.SubprocessError` if the server does not answer."""
    command = [sys.executable, "-m", __name__, controller, scope, stream]
    data = subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE).stdout
    found, place = [], 0
    while place < len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        place += _LENGTH.size + length
        found.append(data[place - length : place])
    return found


if __name__ == "__main__":
    for one in events(*sys.argv[1:]):
        sys.stdout.buffer.write(_LENGTH.pack(len(one)) + one)
