"""The marker rule of Chandy and Lamport (1985): a snapshot of any strongly connected graph, cycles included.

Invariant: the process states that are recorded, together with the channel states, are a state that the whole system
could have been in, although no process ever looked at the whole system.

The rule, on reliable FIFO channels, for each snapshot:

*Sending*: a process records its own state, and before it sends anything else it sends one marker on each of its
outgoing channels.

*Receiving* a marker on channel c: a process that has not recorded its state does so now, and the state of c is
empty. Otherwise the state of c is what arrived on c since the process recorded its state.

Why a message that was received before the cut was also sent before it: one that is sent after its sender's
recording travels behind the marker, and when the marker arrived the receiver had recorded at the latest. Any
process may start a snapshot, several may start the same one, and any number of snapshots can be under way at once.

A job runs `snapshot/cut/aligner.py` instead, which applies the rule to graphs without cycles; this module is the rule
as it was published, for any graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Channel = TypeVar("Channel", bound=Hashable)
Snapshot = TypeVar("Snapshot", bound=Hashable)
State = TypeVar("State")
Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class SendMarkers(Generic[Channel, Snapshot]):
    """Send the snapshot's marker on each of these channels, before anything else is sent on any of them."""

    snapshot: Snapshot
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Recorded(Generic[Channel, Snapshot, State, Message]):
    """This process's whole part of a snapshot: its state, and what was in flight on each incoming channel."""

    snapshot: Snapshot
    state: State
    channels: Mapping[Channel, tuple[Message, ...]]


@dataclass(slots=True)
class _Recording(Generic[Channel, State, Message]):
    state: State
    in_flight: dict[Channel, list[Message]]
    awaited: set[Channel] = field(default_factory=set)


class MarkerRule(Generic[Channel, Snapshot, State, Message]):
    """One process's part in all snapshots of its system.

    The caller owes: every message and marker is reported in the order of its channel, a message before the process
    acts on it; `state` gives a copy of the process's state as it is at that moment; instructions are carried out
    before anything else is sent. A snapshot whose process crashed stays unfinished everywhere; it does no harm.
    """

    def __init__(
        self,
        incoming: Collection[Channel],
        outgoing: Collection[Channel],
        state: Callable[[], State],
    ) -> None:
        self._incoming = tuple(incoming)
        self._outgoing = tuple(outgoing)
        self._state = state
        self._recordings: dict[Snapshot, _Recording[Channel, State, Message]] = {}

    def start(
        self, snapshot: Snapshot
    ) -> list[SendMarkers[Channel, Snapshot] | Recorded[Channel, Snapshot, State, Message]]:
        """Begin a snapshot here, of one's own accord; nothing happens if it is already known."""
        if snapshot in self._recordings:
            return []
        return [self._record(snapshot), *self._finish(snapshot)]

    def message(self, channel: Channel, message: Message) -> None:
        """Take an arrived message, as in flight for each snapshot whose marker has yet to come on its channel."""
        for recording in self._recordings.values():
            if channel in recording.awaited:
                recording.in_flight[channel].append(message)

    def marker(
        self, channel: Channel, snapshot: Snapshot
    ) -> list[SendMarkers[Channel, Snapshot] | Recorded[Channel, Snapshot, State, Message]]:
        """Take a marker that has arrived: the state of its channel is complete."""
        markers = [] if snapshot in self._recordings else [self._record(snapshot)]
        recording = self._recordings[snapshot]
        if channel not in recording.awaited:
            return []
        recording.awaited.remove(channel)
        return [*markers, *self._finish(snapshot)]

    def forget(self, snapshot: Snapshot) -> None:
        """Drop what is kept of a snapshot; the caller knows that none of its markers is still under way."""
        self._recordings.pop(snapshot, None)

    def _record(self, snapshot: Snapshot) -> SendMarkers[Channel, Snapshot]:
        in_flight: dict[Channel, list[Message]] = {channel: [] for channel in self._incoming}
        self._recordings[snapshot] = _Recording(self._state(), in_flight, set(self._incoming))
        return SendMarkers(snapshot, self._outgoing)

    def _finish(self, snapshot: Snapshot) -> list[Recorded[Channel, Snapshot, State, Message]]:
        recording = self._recordings[snapshot]
        if recording.awaited:
            return []
        channels = {channel: tuple(messages) for channel, messages in recording.in_flight.items()}
        return [Recorded(snapshot, recording.state, channels)]
