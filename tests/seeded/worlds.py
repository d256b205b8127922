"""Two small simulations for errors that a whole job shows too rarely: committers of one committable, and one aligner.

Invariant: the cores are the real ones, and the schedule alone decides what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from recovery.testing.messages import Payload
from recovery.testing.requests import Answer, Requests
from recovery.testing.sink import Sink, TargetKind
from recovery.testing.stream import Row
from recovery.testing.target import SimulatedTarget
from recovery.testing.worker import TARGET
from snapshot.cut.aligner import Aligner, Arrived, Cut, Proceed
from snapshot.cut.aligner import Process as Processed
from snapshot.cut.frames import Data, Frame, Marker, MarkerMode
from snapshot.epochs.transaction_events import Commit, CommitOutcome, Committable, TransactionEvent
from snapshot.ids import ChannelId, TransactionId
from snapshot.testing.faults import Faults
from snapshot.testing.history import Channel, Violation
from snapshot.testing.process import Acted, Action, Broken, Effect, Event, Process, Received, Send, Started
from snapshot.testing.schedule import Schedule
from snapshot.testing.simulation import Simulation
from statebackend.ids import Epoch, Generation, Partition, Uid

EPOCH = Epoch(Generation(1), 1)
COMMITTERS = ("committer1", "committer2")
SENDERS = ("sender0", "sender1")


# --- committers ------------------------------------------------------------------------------------------------------


def run_committers(schedule: Schedule) -> None:
    """Two processes commit the same committable by its token, until each is told that it is committed."""
    rows: list[Row] = []
    processes: dict[str, Callable[[], Process]] = {
        TARGET: partial(SimulatedTarget, rows, WrittenOnce()),
        **dict.fromkeys(COMMITTERS, Committer),
    }
    lossy = [Channel(TARGET, name) for name in COMMITTERS]
    Simulation(processes, schedule, Faults(losses=2, pauses=2, lossy=lossy)).run(fair_steps=500)
    if len(rows) != 1:
        raise Violation(f"one row was to be committed, and there are {len(rows)}")


class WrittenOnce:
    """Objects to nothing; how often rows were written is counted at the end."""

    def committing(self, transaction: TransactionId, rows: tuple[Row, ...]) -> None:
        pass


class Committer:
    """A worker that has restored the committable, or has prepared it: it does not matter who."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._target = Requests(TARGET, 0)
        self._to_commit = True
        self._sink = Sink(TargetKind.TOKENS, Partition(0), self._target, self._effects, self._answered)

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted(Action("commit")):
                self._to_commit = False
                payload = Payload("sink/0", (Row(0, 10, ((0, 0),)),))
                self._sink.commit(Commit(Committable(TransactionId("t"), EPOCH, payload)))
            case Acted(Action(argument=int() as late)):
                self._target.time_out(late)
            case Received(_, Answer() as answer):
                self._target.answered(answer)
            case _:
                pass
        effects, self._effects[:] = list(self._effects), []
        return effects

    def actions(self) -> Sequence[Action]:
        return [*([Action("commit")] if self._to_commit else []), *self._target.actions()]

    def _answered(self, event: TransactionEvent[Payload]) -> None:
        self._to_commit = getattr(event, "outcome", None) is CommitOutcome.RETRY_LATER


# --- one aligner -----------------------------------------------------------------------------------------------------


def run_receiver(schedule: Schedule) -> None:
    """Two senders, who may repeat themselves, and one at-least-once receiver: its cut has all that came before."""
    processes: dict[str, Callable[[], Process]] = {
        "receiver": Receiver,
        **{name: partial(Sender, index) for index, name in enumerate(SENDERS)},
    }
    Simulation(processes, schedule, Faults(pauses=1)).run(fair_steps=500)


class Sender:
    """Sends three records with a marker before the last; a marker may go out twice."""

    def __init__(self, index: int) -> None:
        self._channel = ChannelId(Uid("sender"), Uid("receiver"), Partition(index), Partition(0))
        marker = Marker(EPOCH, MarkerMode.AT_LEAST_ONCE)
        self._frames: list[Frame] = [Data((index, 0), 1), Data((index, 1), 1), marker, Data((index, 2), 1)]
        self._repeat: Frame | None = None

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted(Action("send")):
                frame = self._frames.pop(0)
                self._repeat = frame if isinstance(frame, Marker) else None
                return [Send("receiver", (self._channel, frame))]
            case Acted() if self._repeat is not None:
                repeated, self._repeat = self._repeat, None
                return [Send("receiver", (self._channel, repeated))]
            case _:
                return []

    def actions(self) -> Sequence[Action]:
        send = [Action("send")] if self._frames else []
        return [*send, *([Action("repeat", drain=False)] if self._repeat is not None else [])]


class Receiver:
    """Processes what the aligner gives it; checks its cut."""

    def __init__(self) -> None:
        channels = [ChannelId(Uid("sender"), Uid("receiver"), Partition(i), Partition(0)) for i in range(len(SENDERS))]
        self._aligner = Aligner(channels)
        self._processed: set[object] = set()

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Received(_, (ChannelId() as channel, (Data() | Marker()) as frame)):
                self._step(Arrived(channel, frame))
            case Acted():
                self._step(Proceed())
            case Started() | Broken() | Received():
                pass
        return []

    def actions(self) -> Sequence[Action]:
        return [] if self._aligner.idle else [Action("process")]

    def _step(self, event: Arrived | Proceed) -> None:
        for instruction in self._aligner.handle(event):
            match instruction:
                case Processed(_, Data(payload)):
                    self._processed.add(payload)
                case Cut():
                    lost = {(sender, n) for sender in range(len(SENDERS)) for n in range(2)} - self._processed
                    if lost:
                        raise Violation(f"the cut has lost {sorted(lost)}")
                case _:
                    pass
