"""The inputs of a stage: the marker rule, rows on their way to the operator, event time, and what senders may send.

Invariant: what is in front of a marker is handed on before the aligner hears that the marker was reached, unless the
marker overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol

from snapshot import fail_points
from snapshot.cut.frames import Data, Frame, Watermark
from snapshot.cut.watermarks import Watermarks, going_on
from snapshot.fail_points import reached
from snapshot.host.flow.allowances import Allowance, Allowances
from snapshot.host.flow.gathering import RowGatherer
from snapshot.host.flow.inlets import Instruction
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.channel_state import recalled
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.too_far_behind import MOST_KEPT, TooFarBehind
from snapshot.host.protocol.stage_now import InputsNow
from snapshot.ids import ChannelId, Copy, Member
from snapshot.operators.rows import Rows, keys_in
from snapshot.program.plan import Edge, Exchange
from statebackend.ids import NO_EPOCH, Epoch, Uid
from statebackend.keygroups import KeyGroupRange, range_of
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType


class ReceivingEnd(Protocol):
    """The receiving end of a channel, as far as a stage governs it."""

    def pause(self) -> None:
        """Do not read from the channel."""

    def resume(self) -> None:
        """Read from the channel again."""

    def allow(self, allowance: Allowance) -> None:
        """Allow the sender this much."""


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """An edge that ends in a stage; `key_type` with the partition's groups if it is keyed."""

    edge: Edge
    key_type: KeyType | None
    groups: KeyGroupRange

    @property
    def port_of(self) -> tuple[Uid, int]:
        """Return the edge's source and port, which tell the stage's edges apart."""
        return self.edge.source, self.edge.port


class StageInputs:
    """The channels that end in a stage, in one attempt that starts from `epoch`.

    `take` is given rows of an input, and says how many of the first ones it took. The caller owes `connect`, then
    `opening` or `take_back`, and carries out the instructions that `arrived` and the `inlet` return: in their order,
    rows by `gather`, before the next call.
    """

    def __init__(
        self,
        edges: Sequence[Edge],
        placement: StatePlacement,
        epoch: Epoch | None,
        take: Callable[[Input, Rows], int],
        parts: StageParts,
        clock: StageClock,
    ) -> None:
        self._placement = placement
        self._clock = clock
        self._inputs = _inputs(edges, placement)
        self._wires = {place.port_of: RowsWire(place.edge.schema, place.edge.timed) for place in self._inputs.values()}
        ordered = [channel for channel, place in self._inputs.items() if place.edge.ordered]
        restored = epoch if epoch is not None else NO_EPOCH
        self.inlet = parts.inlet(
            tuple(self._inputs), ordered, restored, placement.options.input_buffer, self._last_rows
        )
        # An input without event time, such as a control stream, says nothing of it, and holds nobody back.
        self._timed = frozenset(channel for channel, place in self._inputs.items() if place.edge.timed)
        self._watermarks = Watermarks(self._timed, going_on(placement.role.watermark))
        self._gathering: RowGatherer[Input] = parts.gatherer(take, placement.options.batch_rows, self._taken)
        self._gates: dict[Copy, ReceivingEnd] = {}
        self._parked: dict[Copy, tuple[ReceivingEnd, Epoch]] = {}
        self._allowances = Allowances(tuple(self._inputs))
        self._goes_on = False  # where another process is, so senders have put rows that this one was never sent
        self._is_behind = False  # the other members, as one that joins is until it has worked on all that has come
        self._backlog_since: float | None = None
        self._taken_back: dict[ChannelId, int] = {}  # what no sender of this attempt has sent

    @property
    def channels(self) -> tuple[ChannelId, ...]:
        """Return the channels that end here."""
        return tuple(self._inputs)

    @property
    def any_timed(self) -> bool:
        """True if an input has event time."""
        return bool(self._timed)

    @property
    def all_timed(self) -> bool:
        """True if every input has event time."""
        return len(self._timed) == len(self._inputs)

    def of(self, channel: ChannelId) -> Input:
        """Return the input that a channel is of."""
        return self._inputs[channel]

    # --- beginning ------------------------------------------------------------------------------------------------

    def connect(self, gates: Mapping[Copy, ReceivingEnd]) -> None:
        """Take the receiving ends of the channels."""
        self._gates.update(gates)
        self.inlet.connect(gates)
        if self._goes_on:
            for copy, gate in gates.items():
                gate.allow(self._allowances.told(copy.channel))

    def park(self, gates: Mapping[Copy, ReceivingEnd], after: Epoch) -> None:
        """Keep the ways from a process that joins behind a marker, of an epoch `after` this one."""
        for copy, gate in gates.items():
            gate.pause()
            self._parked[copy] = gate, after

    @property
    def parked(self) -> Collection[Copy]:
        """Return the ways from those that have not joined."""
        return self._parked.keys()

    def admit(self, epoch: Epoch) -> None:
        """Expect frames of those that have waited for the marker of this epoch, to which all channels have come."""
        joining = {copy: gate for copy, (gate, after) in self._parked.items() if epoch > after}
        self._parked = {copy: parked for copy, parked in self._parked.items() if copy not in joining}
        self._gates.update(joining)
        self.inlet.join(joining, epoch)
        for copy, gate in joining.items():
            gate.allow(self._allowances.told(copy.channel))
            gate.resume()

    def now(self) -> InputsNow:
        """Return where the inputs are."""
        return InputsNow(deepcopy(self._watermarks), tuple(self.inlet.ended), self._allowances.taken)

    def go_on(self, now: InputsNow) -> None:
        """Begin where another process is."""
        self._goes_on = self._is_behind = True
        self._watermarks = now.watermarks
        self._allowances.go_on(now.taken)
        self.inlet.go_on(now.ended)

    def drop(self, sender: Member) -> None:
        """Expect nothing more from a process that is gone; another one has its role."""
        self._parked = {copy: parked for copy, parked in self._parked.items() if copy.sender != sender}
        for copy in [copy for copy in self._gates if copy.sender == sender]:
            del self._gates[copy]
            self.inlet.drop(copy)

    def joined(self, gates: Mapping[Copy, ReceivingEnd]) -> None:
        """Take the receiving ends of channels on which another process sends from now on."""
        self.connect(gates)
        for copy in gates:
            self._allowances.begin_anew(copy.channel)

    def opening(self) -> None:
        """Let senders go on while the stage's state is awaited."""
        self._allowances.opening(self._placement.window)
        self._allow()

    def take_back(self) -> None:
        """Take what was in flight before any new input."""
        for state in self._placement.role.channels:
            channel = self._channel_for(state.channel)
            place = self._inputs[channel]
            for frame in recalled(state, self._placement.files):
                rows = self._own(place, self._wires[place.port_of].decode(frame))
                self._gathering.add(place, channel, rows)
                self._taken_back[channel] = self._taken_back.get(channel, 0) + len(rows)
        reached(fail_points.IN_FLIGHT_TAKEN_BACK)

    def _own(self, place: Input, rows: Rows) -> Rows:
        """Return the rows whose keys are this partition's; after a rescale others come as well."""
        if place.key_type is None:
            return rows
        groups = key_column(keys_in(rows.batch, place.edge.keys), place.key_type).groups(
            self._placement.max_parallelism
        )
        return rows.where((groups >= place.groups.first) & (groups < place.groups.end))

    def _channel_for(self, channel: ChannelId) -> ChannelId:
        """Return this channel; if it is of another parallelism, another one of the same input."""
        if channel in self._inputs:
            return channel
        return next(own for own, place in self._inputs.items() if place.port_of == (channel.source, channel.port))

    # --- what comes, and in which order it is taken ---------------------------------------------------------------

    def arrived(self, copy: Copy, frame: Frame) -> Sequence[Instruction]:
        """Take a frame that has come in on a channel."""
        if self._backlog_since is None:
            self._backlog_since = self._clock.monotonic()
        return self.inlet.arrived(copy, frame)

    # --- rows -----------------------------------------------------------------------------------------------------

    def gather(self, channel: ChannelId, frame: Data) -> None:
        """Process the frame with what waits behind it, before anything else that comes behind it."""
        place, payload = self._inputs[channel], frame.payload
        rows = payload if isinstance(payload, Rows) else self._wires[place.port_of].decode(frame)
        self._gathering.add(place, channel, rows)

    def _last_rows(self, channel: ChannelId, frame: Data, count: int) -> Data:
        payload = frame.payload
        rows = payload if isinstance(payload, Rows) else self._wires[self._inputs[channel].port_of].decode(frame)
        last = rows.slice(len(rows) - count, count)
        return Data(last, last.size, count)

    @property
    def gathered(self) -> bool:
        """True if rows wait to be handed on."""
        return bool(self._gathering)

    @property
    def are_to_be_handed_on(self) -> bool:
        """True if rows wait that are enough, or that no other rows can join."""
        return bool(self._gathering) and (self._gathering.is_enough or not self.inlet.has_more_rows or self.has_unowned)

    @property
    def has_unowned(self) -> bool:
        """True if rows wait that no sender can send again, where senders do that with all others.

        So they are handed on, and let out, before any other rows are taken, and a cut that comes before has them.
        """
        return self.inlet.cuts_anywhere and any(self._taken_back.values())

    def hand_on(self, most: int) -> None:
        """Hand on a batch of so many rows at most."""
        self._gathering.hand_on(most)

    def left(self) -> dict[ChannelId, list[Data]]:
        """Return the rows that wait to be handed on, by channel."""
        return {channel: [Data(rows, rows.size) for rows in some] for channel, some in self._gathering.left().items()}

    def unowned(self) -> dict[ChannelId, list[Data]]:
        """Return what a cut that may come anywhere has of the rows that wait: those which no sender can send again.

        They are on the channels within this partition, so that it sends them again if it restarts alone.
        """
        found: dict[ChannelId, list[Data]] = {}
        for channel, some in (self.left() if self.has_unowned else {}).items():
            found.setdefault(replace(channel, sender=channel.receiver), []).extend(some)
        return found

    def encoded(self, channel: ChannelId, rows: Rows) -> Data | None:
        """Encode rows of a channel; None if it does not end here. Any thread may ask."""
        place = self._inputs.get(channel)
        return None if place is None else self._wires[place.port_of].encode(rows)

    # --- event time -----------------------------------------------------------------------------------------------

    def heard(self, channel: ChannelId, watermark: Watermark) -> Watermark | None:
        """Return the event time that holds after a watermark on a channel; None if it is that of before."""
        return self._watermarks.advance(channel, watermark) if channel in self._timed else None

    def ended(self, channel: ChannelId) -> Watermark | None:
        """Return the event time that holds after the end of a channel; None if it is that of before."""
        if channel not in self._timed:
            return None
        return self._watermarks.rest(channel) if self._placement.time_goes_on else self._watermarks.end(channel)

    # --- what senders may send ------------------------------------------------------------------------------------

    def govern(self, *, opening: bool = False) -> None:
        """Read from those channels alone whose frames are wanted now; `opening` while a state is awaited.

        A member that joins reads from all of them until it has caught up, as the others would wait for it soon. Raise
        `TooFarBehind` if it cannot keep so much until it has its state.
        """
        if self._is_behind:
            queued = self.queued_bytes
            if opening and queued > MOST_KEPT:
                raise TooFarBehind(
                    f"{queued >> 20} MiB have come to {self._placement.uid} while the state is opened with which this "
                    "process joins, and it keeps no more; the other members go on, and a join is tried again"
                )
            self._is_behind = opening or self._placement.options.input_buffer <= queued <= MOST_KEPT
        if self._is_behind:
            return
        gating = self.inlet.gating(self._gates)
        for copy in gating.pause:
            self._gates[copy].pause()
        for copy in gating.resume:
            self._gates[copy].resume()

    def account(self, *, busy: bool) -> None:
        """Note how long the rows that came took, and tell the senders what they may send; `busy` if more is to do."""
        if self._backlog_since is not None:
            now = self._clock.monotonic()
            self._allowances.worked(now - self._backlog_since)
            is_done = self.inlet.idle and not self._gathering and not busy
            self._backlog_since = None if is_done else now
            self._allow()

    def _allow(self) -> None:
        news = self._allowances.news()
        if news:
            for copy, gate in self._gates.items():
                if copy.channel in news:
                    gate.allow(news[copy.channel])

    def dropped(self, channel: ChannelId, rows: int) -> None:
        """Count rows as processed that were not handed on."""
        self._allowances.processed(channel, rows)

    def _taken(self, channel: ChannelId, rows: int) -> None:
        back = min(rows, self._taken_back.get(channel, 0))
        if back:
            self._taken_back[channel] -= back
        self._allowances.processed(channel, rows - back)

    # --- figures --------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes have come and were not processed yet."""
        return self.inlet.queued_bytes + self._gathering.bytes

    @property
    def window(self) -> int:
        """Return how many rows each sender may have under way; 0 while the stage's pace is not known."""
        return self._allowances.window


def _inputs(edges: Sequence[Edge], placement: StatePlacement) -> dict[ChannelId, Input]:
    groups = range_of(placement.partition, placement.parallelism, placement.max_parallelism)
    inputs: dict[ChannelId, Input] = {}
    for edge in edges:
        declared = tuple(edge.schema.field(name).type for name in edge.keys)
        key_type = None
        if edge.exchange is Exchange.KEYED:
            key_type = KeyType.of(declared[0] if len(declared) == 1 else declared)
        place = Input(edge, key_type, groups)
        for sender in edge.senders(placement.partition, placement.parallelism):
            inputs[edge.channel(sender, placement.partition)] = place
    return inputs
