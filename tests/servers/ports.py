"""Ports for the servers of tests, as many at once as one of them needs.

Invariant: they are different, and nobody listens at them at the moment; who takes them is not known.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence


def free_ports(number: int) -> Sequence[int]:
    """Of the loopback interface."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
