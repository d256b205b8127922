"""The marker rule against a model: whatever arrives in whichever order, every cut is exactly what its mode promises."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.aligner import (
    Aborted,
    Aligner,
    AlignerEvent,
    AlignerInstruction,
    AlignmentBegan,
    AlignmentTimedOut,
    AllEnded,
    Arrived,
    ChannelEnded,
    Cut,
    InFlight,
    Missed,
    Proceed,
    Process,
    Triggered,
    WhyMissed,
)
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.ids import ChannelId
from statebackend.ids import Epoch, Generation, Partition, Uid

ALIGNED, UNALIGNED, AT_LEAST_ONCE = MarkerMode.ALIGNED, MarkerMode.UNALIGNED, MarkerMode.AT_LEAST_ONCE
LAST = 6
"""The epoch whose marker every channel delivers at last, unless it ends."""


def channel(sender: int) -> ChannelId:
    return ChannelId(Uid("up"), Uid("down"), Partition(sender), Partition(0))


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


@dataclass(frozen=True)
class Input:
    """What each channel delivers, the base marker of every epoch, and what happens in between."""

    channels: dict[ChannelId, list[Frame]]
    ordered: frozenset[ChannelId]
    markers: dict[int, Marker]
    steps: list[tuple[str, int]]


@st.composite
def inputs(draw: st.DrawFn, *, orderly: bool) -> Input:
    """Channels that deliver every marker in order, or, unless `orderly`, skip, repeat and confuse some."""
    mode = draw(st.sampled_from([ALIGNED, UNALIGNED, AT_LEAST_ONCE]))
    savepoints = draw(st.sets(st.integers(1, LAST), max_size=2))
    turned = draw(st.booleans())
    markers = {n: Marker(epoch(n), ALIGNED if n in savepoints else mode, n in savepoints) for n in range(1, LAST + 1)}
    channels = {
        channel(sender): _frames(draw, sender, markers, turned, orderly) for sender in range(draw(st.integers(1, 4)))
    }
    ordered = draw(st.sets(st.sampled_from(list(channels)), max_size=2))
    kinds = st.sampled_from(["arrive"] * 6 + ["proceed"] * 4 + ["time out", "trigger"] + ["abort"] * (not orderly))
    steps = draw(st.lists(st.tuples(kinds, st.integers(0, 11)), max_size=60))
    return Input(channels, frozenset(ordered), markers, steps)


def _frames(draw: st.DrawFn, sender: int, markers: dict[int, Marker], turned: bool, orderly: bool) -> list[Frame]:
    """Data and watermarks between markers; the last frame is the marker of the last epoch or the end."""
    numbers = list(markers)
    ends = draw(st.booleans())
    if ends:
        numbers = numbers[: draw(st.integers(0, LAST))]
    if not orderly:
        numbers = draw(st.lists(st.sampled_from(numbers), max_size=LAST)) if numbers else []
        numbers = sorted(numbers) if draw(st.booleans()) else numbers
        numbers += [] if ends else [LAST]
    frames: list[Frame] = []
    for number in [*numbers, 0]:
        for _ in range(draw(st.integers(0, 2))):
            serial = len(frames)
            frames.append(Data((sender, serial), 1) if draw(st.booleans()) else Watermark(serial))
        if number:
            marker = markers[number]
            # An aligned epoch may have turned unaligned upstream; a savepoint never does.
            if turned and marker.mode is ALIGNED and not marker.savepoint and draw(st.booleans()):
                marker = Marker(marker.epoch, UNALIGNED)
            frames.append(marker)
    return [*frames, End()] if ends else frames


@dataclass
class Model:
    """What an observer knows: everything that was and will be sent, and what was processed, cut and reported."""

    input: Input
    processed: dict[ChannelId, list[Frame]] = field(default_factory=lambda: defaultdict(list))
    cuts: dict[Epoch, Marker] = field(default_factory=dict)
    state_at: dict[Epoch, dict[ChannelId, list[Frame]]] = field(default_factory=dict)
    in_flight: dict[Epoch, dict[ChannelId, list[Frame]]] = field(default_factory=dict)
    missed: dict[Epoch, WhyMissed] = field(default_factory=dict)
    overtaking: list[Epoch] = field(default_factory=list)  # subsumed by the cut that comes next
    began: set[Epoch] = field(default_factory=set)
    aborted: set[Epoch] = field(default_factory=set)
    ended: list[ChannelId] = field(default_factory=list)
    all_ended: bool = False

    def before(self, of: ChannelId, number: int) -> list[Frame] | None:
        """The data that belongs to an epoch; None if the channel skips the epoch."""
        data: list[Frame] = []
        for frame in self.input.channels[of]:
            if isinstance(frame, Data):
                data.append(frame)
            elif isinstance(frame, Marker) and frame.epoch.number >= number:
                return data if frame.epoch.number == number else None
        return data

    def is_on_all(self, number: int) -> bool:
        return all(self.before(of, number) is not None for of in self.input.channels)

    def happened(self, instruction: AlignerInstruction) -> None:
        assert not self.all_ended or isinstance(instruction, Cut | InFlight), instruction
        match instruction:
            case Process(of, frame):
                self.processed[of].append(frame)
                sent = [frame for frame in self.input.channels[of] if isinstance(frame, Data | Watermark)]
                assert self.processed[of] == sent[: len(self.processed[of])], "in the order of the channel, and once"
            case AlignmentBegan(began):
                assert began not in self.began | self.cuts.keys() | self.aborted
                self.began.add(began)
            case Cut(marker):
                assert not self.overtaking or marker.mode is UNALIGNED, "only a cut that overtakes subsumes"
                assert all(older < marker.epoch for older in self.overtaking)
                self.overtaking.clear()
                self._cut(marker)
            case InFlight(recorded, channels):
                self._recorded(recorded, {of: list(frames) for of, frames in channels})
            case Missed(missed, why):
                assert missed not in self.missed.keys() | self.aborted | self.in_flight.keys()
                assert missed not in self.cuts or self.cuts[missed].mode is UNALIGNED
                self.missed[missed] = why
                if why is WhyMissed.SUBSUMED:
                    assert not self.input.markers[missed.number].savepoint, "a savepoint is waited for"
                    self.overtaking.append(missed)
            case ChannelEnded(ended):
                assert ended not in self.ended
                assert self._is_processed(ended)
                self.ended.append(ended)
            case AllEnded():
                assert set(self.ended) == set(self.input.channels)
                self.all_ended = True

    def _is_processed(self, of: ChannelId) -> bool:
        return self.processed[of] == [f for f in self.input.channels[of] if isinstance(f, Data | Watermark)]

    def _cut(self, marker: Marker) -> None:
        assert all(marker.epoch > other for other in self.cuts), "epochs are cut in rising order, and once"
        assert marker.epoch not in self.aborted | self.missed.keys()
        state: dict[ChannelId, list[Frame]] = {
            of: [frame for frame in self.processed[of] if isinstance(frame, Data)] for of in self.input.channels
        }
        self.cuts[marker.epoch] = marker
        self.state_at[marker.epoch] = state
        base = self.input.markers[marker.epoch.number]
        assert marker.savepoint == base.savepoint
        assert marker.mode is base.mode or (base.mode is ALIGNED and marker.mode is UNALIGNED and not base.savepoint)
        if marker.mode is UNALIGNED:
            return
        for of, at_cut in state.items():
            before = self.before(of, marker.epoch.number)
            assert before is not None, "a skipped epoch is not cut"
            assert at_cut[: len(before)] == before
            assert marker.mode is AT_LEAST_ONCE or at_cut == before

    def _recorded(self, recorded: Epoch, frames: dict[ChannelId, list[Frame]]) -> None:
        assert self.cuts[recorded].mode is UNALIGNED
        assert recorded not in self.in_flight.keys() | self.missed.keys() | self.aborted
        assert self.input.ordered.isdisjoint(frames), "ordered channels have no channel state"
        assert all(frames.values())
        self.in_flight[recorded] = frames
        for of, at_cut in self.state_at[recorded].items():
            assert at_cut + frames.get(of, []) == self.before(of, recorded.number), of

    def check_end(self, aligner: Aligner, triggered: int) -> None:
        """Everything has arrived, and the subtask has processed all that it could."""
        assert all(self._is_processed(of) for of in self.input.channels), "nothing is held back for ever"
        assert aligner.idle
        assert not aligner.held_back
        assert aligner.queued_bytes == 0
        assert self.all_ended == all(
            isinstance(f[-1:], list) and f[-1:] == [End()] for f in self.input.channels.values()
        )
        overtaken = [cut for cut, marker in self.cuts.items() if marker.mode is UNALIGNED]
        for number, marker in self.input.markers.items():
            this = marker.epoch
            came = number <= triggered or any(
                isinstance(f, Marker) and f.epoch == this for frames in self.input.channels.values() for f in frames
            )
            if this in self.aborted or not came or not self.is_on_all(number):
                continue
            if self.missed.get(this) is WhyMissed.SUBSUMED:
                continue
            assert this in self.cuts, "an epoch whose marker came on all channels is cut"
            assert self.cuts[this].mode is not UNALIGNED or this in self.in_flight, "and its channel state complete"
        for cut in overtaken:
            assert cut in self.in_flight.keys() | self.missed.keys() | self.aborted, "or it is known that it cannot be"


def play(input: Input) -> None:
    """Let everything happen, in the order that the steps say and then in turns, and check it."""
    aligner = Aligner(input.channels, ordered=input.ordered)
    model = Model(input)
    left = {of: list(frames) for of, frames in input.channels.items()}
    triggered = 0

    def tell(event: AlignerEvent) -> None:
        for instruction in aligner.handle(event):
            model.happened(instruction)
        assert not model.overtaking, "the cut that subsumes follows at once"

    def arrive(of: ChannelId) -> None:
        if left[of]:
            tell(Arrived(of, left[of].pop(0)))

    for kind, argument in input.steps:
        match kind:
            case "arrive":
                arrive(list(left)[argument % len(left)])
            case "proceed":
                tell(Proceed())
            case "time out":
                tell(AlignmentTimedOut(epoch(argument % LAST + 1)))
            case "trigger" if triggered < LAST:
                triggered += 1
                tell(Triggered(input.markers[triggered]))
            case "abort":
                model.aborted.add(epoch(argument % LAST + 1))
                tell(Aborted(epoch(argument % LAST + 1)))
            case _:
                pass
    while any(left.values()) or not aligner.idle:
        for of in left:
            arrive(of)
        tell(Proceed())
    model.check_end(aligner, triggered)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(inputs(orderly=True))
def test_every_epoch_on_orderly_channels_is_cut_as_its_mode_promises(input: Input) -> None:
    play(input)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(inputs(orderly=False))
def test_no_disorder_of_markers_and_no_abort_makes_a_cut_wrong_or_holds_anything_back(input: Input) -> None:
    play(input)
