"""Connections that carry nothing although both of their ends live: the kernel finds out, and breaks them.

Invariant: only silence of the other end's kernel breaks a connection. It answers for its process, so that one
that is slow, stopped, or takes nothing because it has too much to do, is waited for as long as it takes.

That is why of a channel the receiving end asks: it has nothing of its own under way, so what it waits for is an answer
to its question alone. A sending end would also count the time in which the other takes nothing, as TCP_USER_TIMEOUT
does; so both may ask only where what is sent nearly always has room in the kernel (see `control.SILENCE`).
"""

from __future__ import annotations

import socket
from typing import Final

from statebackend import means

_OPTIONS: Final = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
_MOST_QUESTIONS: Final = 127


def break_if_silent(sock: means.socket, milliseconds: int) -> None:
    """Let a connection on which we only receive, or next to nothing is sent, fail with `ETIMEDOUT` after so long.

    The kernel counts whole seconds: it asks for the first time after a third of the time, and then again and again.
    Where it cannot be told how long, as on other systems than Linux, it is asked to look, and takes its own time.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not all(hasattr(socket, name) for name in _OPTIONS):
        return
    between = max(1, milliseconds // 3_000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, between)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _MOST_QUESTIONS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
