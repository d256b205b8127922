"""The channels of a simulation: FIFO, reliable until something breaks, and then honest about it.

Invariant: what is delivered on a channel is what was sent on it, in that order (unless it is declared
to overtake), with nothing missing in between but what a declared loss took; and a process whose connection
broke hears of it behind the last message that still arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from snapshot.testing.faults import Faults, Swarm
from snapshot.testing.history import Channel, History, Kind
from snapshot.testing.process import ORDINARY
from snapshot.testing.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Packet:
    """A message on its way, and the place in the history where it was sent."""

    sent: int
    message: object


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message on its way on a channel; `sent` is the place in the history where it was sent."""

    channel: Channel
    message: object
    sent: int


@dataclass(frozen=True, slots=True)
class Break:
    """The end of a connection, and the place of the crash that ended it, if it was one."""

    cause: int | None


class Link:
    """One direction between two processes."""

    __slots__ = ("breaks", "channel", "number", "ordered", "queue", "receiver", "sender", "used", "weight")

    def __init__(self, number: int, channel: Channel, weight: int) -> None:
        self.number = number
        self.channel = channel
        self.sender = channel.sender
        self.receiver = channel.receiver
        self.weight = weight
        self.ordered = True
        self.queue: deque[Packet | Break] = deque()
        self.breaks = 0
        """The number of breaks in the queue: until the receiver knows of them it talks into the void."""
        self.used = False
        """True if anything was sent since the last break, so that there is a connection to break."""


class Network:
    """All links, and which of them have something to deliver to a process that listens (`ready`).

    `ready` is ordered: the link that was served last comes last.
    """

    def __init__(self, history: History, swarm: Swarm, faults: Faults) -> None:
        self.ready: dict[Link, None] = {}
        self._history = history
        self._swarm = swarm
        self._faults = faults
        self._links: dict[tuple[str, str], Link] = {}
        self._deaf: set[str] = set()
        self._down: dict[str, int] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def in_flight(self) -> list[InFlight]:
        """Return the messages on their way now, channel by channel, on each in the order in which they were sent."""
        return [
            InFlight(link.channel, item.message, item.sent)
            for link in self
            for item in link.queue
            if isinstance(item, Packet)
        ]

    def send(self, sender: str, incarnation: int, to: str, message: object) -> None:
        """Put a message on its channel, or lose it, if the sender has yet to learn that the connection is gone."""
        sent = self._history.append(sender, incarnation, Kind.SENT, to, message)
        back = self._link(to, sender)
        if to in self._down:
            self._lose(sent)
            if not back.breaks:
                self._put(back, Break(self._down[to]))
        elif back.breaks:
            self._lose(sent)
        else:
            link = self._link(sender, to)
            link.used = True
            self._put(link, Packet(sent, message))

    def take(self, link: Link, schedule: Schedule) -> Packet | Break:
        """Take the next item of a ready link, or one that the schedule picks if messages may overtake each other."""
        if link.ordered or isinstance(link.queue[0], Break):
            item = link.queue.popleft()
        else:
            overtaken = schedule.number(self._current(link.queue))
            item = link.queue[overtaken]
            del link.queue[overtaken]
        del self.ready[link]
        if link.queue:
            self.ready[link] = None
        if isinstance(item, Break):
            link.breaks -= 1
        return item

    def crash(self, process: str, at: int, schedule: Schedule) -> None:
        """Lose all messages to a process, and the end of those on their way from it; tell its peers."""
        self._down[process] = at
        for link in list(self._links.values()):
            if link.sender == process != link.receiver:
                connected = link.used or self._link(link.receiver, process).used
                self._shorten(link, schedule)
                if connected and link.receiver not in self._down:
                    self._put(link, Break(at))
        for link in self._links.values():
            if link.receiver == process:
                while link.queue:
                    self._drop(link)
                link.breaks = 0
                self.ready.pop(link, None)
            if process in (link.sender, link.receiver):
                link.used = False

    def restart(self, process: str) -> None:
        """Let the process listen again."""
        del self._down[process]

    def cut(self, link: Link, schedule: Schedule) -> None:
        """Lose the end of the messages on a link, both ways, and tell both ends."""
        for way in (link, self._link(link.receiver, link.sender)):
            self._shorten(way, schedule)
            self._put(way, Break(None))
            way.used = False

    def lose(self, link: Link) -> None:
        """Drop the next message of a ready link, and tell no process."""
        self._drop(link, last=False)
        if not link.queue:
            del self.ready[link]

    def deafen(self, process: str) -> None:
        """Deliver nothing to a process for now."""
        self._deaf.add(process)
        self.ready = {link: None for link in self.ready if link.receiver != process}

    def undeafen(self, process: str) -> None:
        """Deliver to a process again, also the messages that have been waiting."""
        self._deaf.remove(process)
        self.ready.update({link: None for link in self if link.receiver == process and link.queue})

    def cuttable(self) -> list[Link]:
        """Return the links in use that may be cut now; a connection in use both ways has both of its links here."""
        return [
            link
            for link in self._links.values()
            if link.used
            and link.sender != link.receiver
            and (self._faults.cuttable is None or link.channel in self._faults.cuttable)
        ]

    def losable(self) -> list[Link]:
        """Return the ready links whose next message may be lost."""
        return [link for link in self.ready if link.channel in self._faults.lossy and isinstance(link.queue[0], Packet)]

    def _link(self, sender: str, receiver: str) -> Link:
        link = self._links.get((sender, receiver))
        if link is None:
            speed = self._swarm.speed(receiver) * self._swarm.speed(sender, receiver)
            link = Link(len(self._links), Channel(sender, receiver), max(1, speed // ORDINARY))
            link.ordered = link.channel not in self._faults.overtaking
            self._links[sender, receiver] = link
        return link

    def _put(self, link: Link, item: Packet | Break) -> None:
        link.queue.append(item)
        if isinstance(item, Break):
            link.breaks += 1
        if link.receiver not in self._deaf:
            self.ready.setdefault(link)

    def _shorten(self, link: Link, schedule: Schedule) -> None:
        """Lose as many of the last messages as the schedule says; those of an earlier connection are safe."""
        for _ in range(schedule.number(self._current(reversed(link.queue)) + 1)):
            self._drop(link)

    def _current(self, items: Iterable[Packet | Break]) -> int:
        """Return how many messages come before the first break."""
        return sum(1 for _ in takewhile(lambda item: isinstance(item, Packet), items))

    def _drop(self, link: Link, *, last: bool = True) -> None:
        item = link.queue.pop() if last else link.queue.popleft()
        if isinstance(item, Packet):
            self._lose(item.sent)

    def _lose(self, sent: int) -> None:
        origin = self._history[sent]
        self._history.append(origin.process, origin.incarnation, Kind.LOST, origin.peer, origin.payload, sent)
