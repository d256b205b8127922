"""Connections as they are after a handshake, for tests that make none."""

from __future__ import annotations

import socket
from typing import Final

from snapshot.cut.seals import Seals
from snapshot.host.net.handshake_io import Proved

NEAR: Final = Seals(b"near" * 8, b"far!" * 8)
"""The keys of the one end, and of the other."""
FAR: Final = Seals(NEAR.hearing, NEAR.speaking)


def plain(sock: socket.socket) -> Proved:
    """An end of a connection on which nothing is sealed, as on one that is encrypted."""
    return Proved(sock, None)


def sealed(near: socket.socket, far: socket.socket) -> tuple[Proved, Proved]:
    """Both ends of a connection that is not encrypted."""
    return Proved(near, NEAR), Proved(far, FAR)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]
