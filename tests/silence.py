"""Connections that carry nothing any more, though neither end has closed them: as if a cable had been pulled."""

from __future__ import annotations

import ctypes
import gc
import socket
import struct
from typing import Final

from snapshot.host.net.channels import ReceivingChannel, SendingChannel

_SO_ATTACH_FILTER: Final = 26
_DROP_ALL: Final = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A filter program of one instruction: of what has come, keep nothing."""


def deafen(sock: socket.socket) -> None:
    """The kernel drops all that comes for this end from now on, answers and questions of the other end's included."""
    program = ctypes.create_string_buffer(_DROP_ALL)
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def deafen_channels() -> int:
    """Do so to all channels between this process's partition and others; how many that were."""
    found = [one for one in gc.get_objects() if isinstance(one, ReceivingChannel | SendingChannel)]
    sockets = [channel._sock for channel in found if channel._sock.fileno() >= 0]
    for sock in sockets:
        deafen(sock)
    return len(sockets)
