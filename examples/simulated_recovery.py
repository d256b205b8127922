"""A snapshot is under way, a worker is killed, the job rolls back: one simulated run, drawn, and its output checked.

Workers, driver, store and target are simulated; what decides about markers, epochs, files and transactions is the code
that decides in a real job.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from textwrap import indent, wrap
from typing import TypeVar

from recovery.testing import (
    STORE,
    TARGET,
    Acknowledgement,
    CoordinatorOptions,
    Data,
    Deploy,
    Driver,
    DriverPlan,
    EpochIsOver,
    Item,
    Marker,
    Observer,
    OnChannel,
    RecordId,
    Restored,
    SimulatedStore,
    SimulatedTarget,
    Stream,
    TargetKind,
    TriggerEpoch,
    Worker,
    WorkerPlan,
)
from snapshot.testing import Cut, Faults, History, Kind, Process, Record, Schedule, Simulation, as_svg, as_text
from statebackend import Epoch, Incarnation

T = TypeVar("T")

STREAM = Stream(splits=4, length=10, window=50)
DRIVER, WORKERS = "driver", ("worker1", "worker2", "spare")
FAULTS = Faults(crashes=1, calms=8, crashable=WORKERS[:2])

# What every schedule begins with: 150 calm steps, then now and then a calm or the crash; nobody is slower than others.
CALM = bytes([160, 255, 0, 0, 0, 160])

GRAPH = """\
                      worker1                                          40 records in 4 splits are read by two sources,
             ┌──▸ source 0 ──┬──▸ windows 0 ──▸ sink 0 ──┐             sent to the owners of their keys, and collected
   splits ───┤               ╳                           ├──▸ target   in windows of event time, whose rows go to a
             └──▸ source 1 ──┴──▸ windows 1 ──▸ sink 1 ──┘             target in transactions: exactly once.
                      worker2                                          A third worker is spare; a driver coordinates.
"""

READING = """\
   A trigger tells a source to cut: it notes its positions and sends a marker to both window operators. These cut when
   the last marker is there: the double line. The epoch is complete when both workers have acknowledged that their part
   of it is durable. Left out: markers of a worker to itself, and records that arrive before the crash."""


def run(schedule: Schedule) -> Observer:
    """One history of the job, to its end."""
    observer = Observer(STREAM, exactly_once=True)
    options = CoordinatorOptions(interval=10, timeout=100_000, max_in_flight=1)
    plan = DriverPlan(STREAM, WORKERS, (2,), options, suspicions=0)
    work = WorkerPlan(STREAM, TargetKind.STAGES, consolidate_every=3, repeats=0)
    processes: dict[str, Callable[[], Process]] = {
        DRIVER: partial(Driver, DRIVER, plan, observer, starts=True),
        **{name: partial(Worker, (DRIVER,), work) for name in WORKERS},
        STORE: partial(SimulatedStore, observer.objects, observer, 0),
        TARGET: partial(SimulatedTarget, observer.rows, observer),
    }
    Simulation(processes, schedule, FAULTS).run()
    return observer


@dataclass(frozen=True, slots=True)
class Story:
    """A run with its moments that matter: `lost` was under way at the crash, `kept` is what the job went back to."""

    history: History
    observer: Observer
    crash: Record
    kept: Epoch
    lost: Epoch
    deploys: tuple[Deploy, ...]

    @property
    def places(self) -> str:
        """Who takes which partition after the crash."""
        first = self.deploys[0]
        return ", ".join(f"partition {number} on {worker}" for number, worker in enumerate(first.workers))

    def sent(self, incarnation: Incarnation) -> set[RecordId]:
        """The records that were put on their way in an attempt."""
        return {
            message.frame.payload.id
            for record in self.history.kinds(Kind.SENT)
            if isinstance(message := record.payload, OnChannel) and message.incarnation == incarnation
            if isinstance(message.frame, Data) and isinstance(message.frame.payload, Item)
        }

    @property
    def acknowledged(self) -> list[str]:
        """Whose acknowledgement of the lost epoch had arrived."""
        acks = _payloads(self.history[: self.crash.at], Acknowledgement, Kind.RECEIVED)
        return [str(self.history[at].peer) for at, ack in acks if ack.epoch == self.lost]

    @property
    def replayed(self) -> list[RecordId]:
        """What was on its way before the crash and was read again after it."""
        after = self.deploys[0].incarnation
        return sorted(self.sent(self.before) & self.sent(after))

    @property
    def before(self) -> Incarnation:
        """The attempt that the crash has ended."""
        return list(_payloads(self.history[: self.crash.at], TriggerEpoch, Kind.SENT))[-1][1].incarnation

    @property
    def in_flight(self) -> set[int]:
        """The places at which something was sent that had not arrived when the worker was killed."""
        past = self.history[: self.crash.at]
        arrived = {record.cause for record in past}
        return {record.at for record in past if record.kind is Kind.SENT and record.at not in arrived}


def story_of(history: History, observer: Observer) -> Story | None:
    """What there is to tell, if a worker was killed in the right moment; see `_is_good`."""
    for crash in history.kinds(Kind.CRASHED):
        past, after = history[: crash.at], history[crash.at :]
        triggers = [message.marker.epoch for _, message in _payloads(past, TriggerEpoch, Kind.SENT)]
        complete = [message.epoch for _, message in _payloads(past, EpochIsOver, Kind.RECEIVED) if message.complete]
        deploys = tuple(message for _, message in _payloads(after, Deploy, Kind.SENT))
        if triggers and complete and len(deploys) == len(deploys[0].workers if deploys else ()):
            story = Story(history, observer, crash, max(complete), triggers[-1], deploys)
            return story if _is_good(story) else None
    return None


def _is_good(story: Story) -> bool:
    """Whether there is something to go back to, and markers of the next epoch were on their way or beyond."""
    past = story.history[: story.crash.at]
    markers = [message.frame for _, message in _payloads(past, OnChannel, Kind.SENT)]
    return (
        story.crash.process not in story.acknowledged
        and story.lost.number == story.kept.number + 1
        and {deploy.epoch for deploy in story.deploys} == {story.kept}
        and all(any(deploy.role.positions.values()) for deploy in story.deploys)
        and any(isinstance(marker, Marker) and marker.epoch == story.lost for marker in markers)
    )


def find(first: int, tries: int) -> Story | None:
    """The first such story, trying one schedule after the other."""
    for seed in range(first, first + tries):
        schedule = Schedule(CALM + Random(seed).randbytes(200))
        observer = run(schedule)
        assert schedule.history is not None
        story = story_of(schedule.history, observer)
        if story is not None:
            return story
    return None


def picture(story: Story) -> tuple[History, Cut, int]:
    """The part of the history that is worth a drawing, the cut of the epoch in it, and the place of the crash."""
    history, part = story.history, History((DRIVER, *WORKERS))
    begin = next(
        at for at, trigger in _payloads(history, TriggerEpoch, Kind.SENT) if trigger.marker.epoch == story.kept
    )
    end = [at for at, _ in _payloads(history, Restored, Kind.RECEIVED) if at > story.crash.at][1]
    in_flight = story.in_flight
    frontier = {DRIVER: -1}
    places: dict[int, int] = {}
    for record in history[begin : end + 1]:
        cause = None if record.cause is None else places.get(record.cause)
        said = _in_short(record, shown=record.at in in_flight or record.cause in in_flight)
        if said is None or (record.kind in (Kind.RECEIVED, Kind.LOST) and cause is None):
            continue
        place = part.append(record.process, record.incarnation, record.kind, record.peer, said or None, cause)
        places[record.at] = place
        match record.payload:
            case TriggerEpoch(_, marker) if marker.epoch == story.kept and record.kind is Kind.SENT:
                frontier[DRIVER] = place
            case TriggerEpoch(_, marker) | OnChannel(_, _, Marker() as marker) if marker.epoch == story.kept:
                frontier[record.process] = place
            case _:
                pass
    return part, Cut(frontier, name=f"the cut of epoch {story.kept}"), places[story.crash.at]


def _in_short(record: Record, *, shown: bool) -> str | None:
    """What the picture says of a record; None if it has no place there. Of data, only what is `shown`."""
    if record.process not in (DRIVER, *WORKERS) or record.kind in (Kind.ACTED, Kind.SAVED):
        return None
    if record.kind in (Kind.CRASHED, Kind.STARTED, Kind.BROKEN):
        return "" if record.peer in (None, DRIVER, *WORKERS) else None
    match record.payload:
        case TriggerEpoch() | Acknowledgement() | EpochIsOver():
            return str(record.payload)
        case OnChannel(_, _, Marker()) if record.peer != record.process:
            return str(record.payload)
        case OnChannel() if shown and _is_record(record) and record.peer != record.process:
            return f"record {record.payload}"
        case Deploy(_, epoch, role):
            return f"partition {role.partition} from {epoch}"
        case Restored():
            return "restored"
        case _:
            return None


def _is_record(record: Record) -> bool:
    message = record.payload
    if not isinstance(message, OnChannel) or record.peer == record.process:
        return False
    return isinstance(message.frame, Data)


def _payloads(records: Sequence[Record], of: type[T], kind: Kind) -> Iterator[tuple[int, T]]:
    """The messages of a type that were sent, or that were received, each with its place."""
    for record in records:
        if record.kind is kind and isinstance(record.payload, of):
            yield record.at, record.payload


def decision(story: Story) -> str:
    """What the crash has met, and what was done about it."""
    history = story.history
    lost = [str(history[at].payload) for at in sorted(story.in_flight) if _is_record(history[at])]
    positions = sorted(item for deploy in story.deploys for item in deploy.role.positions.items())
    again = [f"{split}.{index}" for split, index in story.replayed]
    lines = [
        f"killed      {story.crash.process}, while epoch {story.lost} was under way",
        f"it had      the acknowledgement of {' and '.join(story.acknowledged) or 'nobody'}; it needs both",
        f"on its way  {'record ' + ', '.join(lost) if lost else 'no record'} between the workers",
        f"went back   to epoch {story.kept}, the last complete one; nothing of {story.lost} is used",
        f"goes on     as attempt {story.deploys[0].incarnation}: {story.places}",
        f"reads from  {', '.join(f'record {split}.{at}' for split, at in positions)} (split.record); the others as "
        "they are assigned again",
        f"read again  {len(again)} records: {', '.join(again)}",
    ]
    return "\n".join(wrapped for line in lines for wrapped in wrap(line, 117, subsequent_indent=" " * 12))


def proof(story: Story) -> tuple[str, bool]:
    """The rows that readers of the target see, next to those of a run without a crash; whether they are the same."""
    expected, seen = Counter(STREAM.expected()), Counter(story.observer.rows)
    lost, extra = (expected - seen).total(), (seen - expected).total()
    completed = " ".join(map(str, story.observer.completed))
    text = f"   epochs {completed} were completed\n"
    text += f"   {expected.total()} rows expected, {seen.total()} rows seen: {lost} lost, {extra} twice or wrong"
    return text, not lost and not extra


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Run a small job in simulation, kill a worker in the middle of a snapshot, and draw what happens.",
        epilog="example: python -m examples.simulated_recovery --svg recovery.svg",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the picture into this file as well")
    parser.add_argument("--seed", type=int, default=150, help="the first schedule to try (%(default)s)")
    parser.add_argument("--tries", type=int, default=300, help="how many to try at most (%(default)s)")
    options = parser.parse_args(arguments)
    story = find(options.seed, options.tries)
    if story is None:
        print(f"None of {options.tries} schedules kills a worker in the middle of a snapshot; try others with --seed.")
        return 1
    part, cut, crash = picture(story)
    rows, exact = proof(story)
    print(f"1. What runs\n\n{GRAPH}")
    print(f"2. What happens to epochs {story.kept} and {story.lost}\n\n{READING}\n\n{as_text(part, cut, [crash])}")
    print(f"3. What recovery does\n\n{indent(decision(story), '   ')}\n")
    print(f"4. What comes out\n\n{rows}")
    if options.svg:
        options.svg.parent.mkdir(parents=True, exist_ok=True)
        options.svg.write_text(as_svg(part, cut, [crash]), encoding="utf-8")
        print(f"\nThe picture is drawn in {options.svg}.")
    return 0 if exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
