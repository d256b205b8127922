"""The network of the simulated world: TCP between processes, over links that can be slow, cut and healed.

Invariant: the bytes of a connection arrive in the order in which they were sent, each once, or the connection
breaks; a link that is cut keeps what is on its way until it is healed, as TCP sends again. When a process has crashed,
its kernel lets what it had taken arrive, and then ends the connections; when a machine is lost, nothing more comes of
it.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from recovery.testing.world.kernel import SimProcess, World

QUICKEST: Final = 50e-6
"""Seconds from one process to another over a link with nothing wrong."""
FIRST_PORT: Final = 20_000
_END: Final = b""
_RESET: Final = None


class Packet(NamedTuple):
    """Bytes on their way; empty for the end of what is sent, None for a reset."""

    data: bytes | None
    sender: SimProcess


class Link:
    """The way from one process to another, by name: those that are started again use the same one."""

    def __init__(self, sender: str, receiver: str) -> None:
        self.sender = sender
        self.receiver = receiver
        self.cut = False
        self.cut_since = 0.0
        self.slower = 0.0
        """Seconds that everything takes longer."""
        self.held: list[Callable[[], None]] = []


class End:
    """One end of a connection: what a kernel has of it, which lives on when the process is gone."""

    __slots__ = (
        "address", "arriving", "broken", "closed", "hot", "inbox", "network", "other", "owner", "peer_name", "room",
        "saw_end", "sent_end", "silence", "unread", "waiting",
    )  # fmt: skip

    def __init__(self, network: Network, owner: SimProcess, address: tuple[str, int], peer: str, room: int) -> None:
        self.network = network
        self.owner = owner
        self.address = address
        self.peer_name = peer
        self.other: End | None = None
        self.room = room
        """Bytes that may be on their way to this end, or unread."""
        self.unread = 0
        self.inbox: deque[bytes] = deque()
        self.saw_end = False
        self.sent_end = False
        self.broken = 0
        """The number of the error by which the connection has ended."""
        self.closed = False
        self.silence = 0.0
        """Seconds of silence of the other machine after which the connection breaks."""
        self.arriving = 0.0
        """The time at which the last bytes that were sent to this end arrive."""
        self.hot: Callable[[], None] | None = None
        """Called when reading or writing may have become possible."""
        self.waiting = 0

    @property
    def readable(self) -> bool:
        """True if a read returns at once."""
        return bool(self.inbox) or self.saw_end or bool(self.broken)

    @property
    def writable(self) -> bool:
        """True if a write takes something, or fails at once."""
        other = self.other
        return bool(self.broken) or other is None or other.unread < other.room

    def send(self, data: bytes) -> int:
        """Take as much as there is room for; raise `BlockingIOError` if there is none."""
        self._raise_if_broken()
        other = self.other
        if other is None or self.sent_end:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = other.room - other.unread
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if len(data) > room:
            data = data[:room]
        other.unread += len(data)
        self.network.carry(self, other, data)
        return len(data)

    def receive(self, most: int) -> bytes:
        """Return bytes that have arrived, empty at the end; raise `BlockingIOError` if there are none yet."""
        inbox = self.inbox
        if not inbox:
            self._raise_if_broken()
            if self.saw_end:
                return b""
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        data = inbox.popleft()
        while inbox and len(data) < most:
            data += inbox.popleft()
        if len(data) > most:
            inbox.appendleft(data[most:])
            data = data[:most]
        was_full = self.unread >= self.room
        self.unread -= len(data)
        if was_full and self.other is not None and self.other.hot is not None:
            self.other.hot()
        return data

    def finish(self) -> None:
        """Send nothing more."""
        if not self.sent_end and self.other is not None:
            self.sent_end = True
            if not self.broken:
                self.network.carry(self, self.other, _END)

    def close(self) -> None:
        """Read and send nothing more: the other end hears of it, by a reset if it was not read to its end."""
        if self.closed:
            return
        self.closed = True
        self.hot = None
        if self.other is not None and not self.broken:
            if self.inbox:
                self.network.carry(self, self.other, _RESET)
            else:
                self.finish()
        self.inbox.clear()

    def arrive(self, data: bytes | None) -> None:
        """Take what has arrived."""
        if self.closed:
            if data and self.other is not None and not self.other.closed:
                self.network.carry(self, self.other, _RESET)
            return
        if data is None:
            self.break_off(errno.ECONNRESET)
        elif data:
            self.inbox.append(data)
        else:
            self.saw_end = True
        if self.hot is not None:
            self.hot()

    def break_off(self, code: int) -> None:
        """End the connection with an error, of which the other end hears nothing."""
        if not self.closed and not self.broken:
            self.broken = code
            if self.hot is not None:
                self.hot()

    def _raise_if_broken(self) -> None:
        if self.broken:
            name = "Connection timed out" if self.broken == errno.ETIMEDOUT else "Connection reset by peer"
            raise OSError(self.broken, name)


class Host(NamedTuple):
    """A port at which a process listens: `accept` gets each end that a caller has connected to."""

    process: SimProcess
    accept: Callable[[End], None]


class Network:
    """All links, ports and connections. `chance` draws how long things take; with None all take the same time.

    `room` is how many bytes a connection holds.
    """

    def __init__(self, world: World, chance: Random | None = None, room: int = 1 << 18) -> None:
        self.world = world
        self.chance = chance
        self.room = room
        self.links: dict[tuple[str, str], Link] = {}
        self._ports: dict[tuple[str, int], Host] = {}
        self._next_port = count(FIRST_PORT)
        self._ends: dict[End, None] = {}

    # --- ports --------------------------------------------------------------------------------------------------------

    def listen(self, process: SimProcess, host: str, port: int, accept: Callable[[End], None]) -> tuple[str, int]:
        """Listen at a port, at any free one for 0; raise `OSError` if a process has it."""
        place = (host, port or next(self._next_port))
        if place in self._ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._ports[place] = Host(process, accept)
        process.on_gone.append(lambda: self.stop_listening(place))
        return place

    def stop_listening(self, place: tuple[str, int]) -> None:
        """Free the port."""
        self._ports.pop(place, None)

    def connect(self, process: SimProcess, place: tuple[str, int], answered: Callable[[End | int], None]) -> None:
        """Reach for a port; `answered` gets the connection's end, or the number of an error, or nothing ever."""
        host = self._ports.get(place)
        target = host.process.name if host is not None else self._name_at(place[0])
        there, back = self.link(process.name, target), self.link(target, process.name)
        if there.cut or back.cut:
            return

        def arrived() -> None:
            found = self._ports.get(place)
            if found is None or not process.alive:
                self._after(back, lambda: answered(errno.ECONNREFUSED))
                return
            near, far = self.pair(process, (process.host, next(self._next_port)), found.process, place)
            found.accept(far)
            self._after(back, lambda: answered(near))

        self._after(there, arrived)

    def pair(
        self, one: SimProcess, address: tuple[str, int], other: SimProcess, place: tuple[str, int]
    ) -> tuple[End, End]:
        """Return the two ends of a new connection."""
        near = End(self, one, address, other.name, self.room)
        far = End(self, other, place, one.name, self.room)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends[end] = None
            end.owner.on_gone.append(end.close)
        return near, far

    def _name_at(self, host: str) -> str:
        """Return the name of the process that was last at an address."""
        return next((process.name for process in reversed(self.world.processes) if process.host == host), "")

    # --- what travels -------------------------------------------------------------------------------------------------

    def carry(self, source: End, target: End, data: bytes | None) -> None:
        """Let bytes travel to the other end."""
        world, sender = self.world, source.owner
        world.digest = crc32(len(data or b"").to_bytes(4), world.digest)
        if sender is target.owner:
            target.arrive(data)
            return
        link = self.link(sender.name, target.owner.name)
        when = world.now + self._takes(link)
        target.arriving = when = max(when, target.arriving)
        world.at(when, lambda: self._deliver(link, target, data))

    def _deliver(self, link: Link, target: End, data: bytes | None) -> None:
        if link.cut:
            link.held.append(lambda: target.arrive(data))
        else:
            target.arrive(data)

    def _after(self, link: Link, call: Callable[[], None]) -> None:
        self.world.after(self._takes(link), lambda: None if link.cut else call())

    def _takes(self, link: Link) -> float:
        drawn = 0.0 if self.chance is None else self.chance.random() ** 4 * 0.004
        return QUICKEST + link.slower + drawn

    # --- faults -------------------------------------------------------------------------------------------------------

    def link(self, sender: str, receiver: str) -> Link:
        """Return the way from one process to another."""
        found = self.links.get((sender, receiver))
        if found is None:
            found = self.links[sender, receiver] = Link(sender, receiver)
        return found

    def break_if_silent(self, end: End, seconds: float) -> None:
        """Let the connection break when the other machine has been silent for so long."""
        end.silence = seconds
        for link in (self.link(end.owner.name, end.peer_name), self.link(end.peer_name, end.owner.name)):
            if link.cut:
                self._watch(link, end)

    def cut(self, link: Link) -> None:
        """Let nothing arrive over this link until it is healed; connections break that would notice."""
        if link.cut:
            return
        link.cut, link.cut_since = True, self.world.now
        self.forget_closed()
        for end in self._ends:
            if end.silence and not end.closed and {end.owner.name, end.peer_name} == {link.sender, link.receiver}:
                self._watch(link, end)

    def _watch(self, link: Link, end: End) -> None:
        since = link.cut_since

        def if_still_cut() -> None:
            if link.cut and link.cut_since == since:
                end.break_off(errno.ETIMEDOUT)

        self.world.after(end.silence, if_still_cut)

    def heal(self, link: Link) -> None:
        """Let everything arrive that has waited, and what comes."""
        if link.cut:
            link.cut = False
            held, link.held = link.held, []
            for call in held:
                call()

    def lose(self, process: SimProcess) -> None:
        """Lose the machine of a process: nothing of it arrives any more, and no connection is ended in order."""
        for end in [end for end in self._ends if end.owner is process]:
            end.closed, end.hot = True, None
            other = end.other
            if other is not None and other.silence and not other.closed:
                self.world.after(other.silence, partial(other.break_off, errno.ETIMEDOUT))

    def forget_closed(self) -> None:
        """Drop connections that are closed at both ends."""
        self._ends = {end: None for end in self._ends if not (end.closed and (end.other is None or end.other.closed))}
