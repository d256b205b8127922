"""A link between two network devices that takes its time: a process that hands frames on when they have been on their
way for long enough.

python -m tests.servers.slow_link NAME NAME

makes two TAP devices of these names in the network namespace it runs in, and says so by a line. Each line that it is
given then, such as `0.04 0.01`, is the delay in seconds, and by how much more at most a frame comes later by chance;
that it is in effect is said by a line as well.

Invariant: frames come out in the order in which they went in, whatever becomes of the delay, and unchanged; one
is lost only where the device to hand it to is down. The process, and with it both devices, ends when its input does:
when whoever started it closes it, or is dead.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

DEVICE: Final = "/dev/net/tun"
_TUNSETIFF: Final = 0x400454CA
_TAP_WITH_FRAMES_ALONE: Final = 0x1002  # IFF_TAP | IFF_NO_PI
_LONGEST_FRAME: Final = 1 << 16


class Way:
    """One direction: what is on its way, and when it arrives."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.delay = self.jitter = 0.0
        self._chance = chance
        self._frames: deque[tuple[float, bytes]] = deque()
        self._last = 0.0

    @property
    def next_due(self) -> float | None:
        """When the next frame arrives, if one is on its way."""
        return self._frames[0][0] if self._frames else None

    def put(self, frame: bytes, now: float) -> None:
        """It has been sent. None arrives before one that was sent earlier."""
        self._last = max(self._last, now + self.delay + self.jitter * self._chance())
        self._frames.append((self._last, frame))

    def take(self, now: float) -> list[bytes]:
        """All that have arrived by now."""
        arrived = []
        while self._frames and self._frames[0][0] <= now:
            arrived.append(self._frames.popleft()[1])
        return arrived


def main(names: list[str]) -> None:
    one, other = map(_tap, names)
    there, back = Way(), Way()
    print("linked", flush=True)
    while True:
        dues = [way.next_due for way in (there, back) if way.next_due is not None]
        wait = max(0.0, min(dues) - time.monotonic()) if dues else None
        readable, _, _ = select.select([0, one, other], [], [], wait)
        if 0 in readable:
            line = sys.stdin.readline()
            if not line:
                return
            for way in (there, back):
                way.delay, way.jitter = map(float, line.split())
            print("set", flush=True)
        for way, source, target in ((there, one, other), (back, other, one)):
            if source in readable:
                way.put(os.read(source, _LONGEST_FRAME), time.monotonic())
            for frame in way.take(time.monotonic()):
                _write(target, frame)


def _tap(name: str) -> int:
    """A new device, which is there for as long as its file is open."""
    tap = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _TAP_WITH_FRAMES_ALONE))
    return tap


def _write(tap: int, frame: bytes) -> None:
    with suppress(OSError):  # the device is down: a link that is cut loses what it carries
        os.write(tap, frame)


if __name__ == "__main__":
    main(sys.argv[1:])
