"""A snapshot is under way, a worker is killed, the job rolls back: one simulated run, drawn, and its output checked.

The driver and the workers are those of a real job; clocks, threads, links, the store and the target are simulated.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent, wrap

from recovery.testing import Act, Job, run_job
from snapshot.testing import Cut, History, Kind, Record, Schedule, as_svg, as_text

DRIVER, WORKERS = "driver1", ("worker1", "worker2")

# What the job is, in the bytes of a schedule: rows of 4 splits, 6 of each, are numbered by key and counted in windows
# of event time; a split gives a row each 20 ms. Zeros say the simplest of all else, and then that all is calm.
JOB = bytes([0, 0, 0, 255, 128, 0, 128])
CALM, CRASH = 37, 20

GRAPH = """\
                      worker1                                            24 rows in 4 splits are read by two sources,
             ┌──▸ source 0 ──┬──▸ function 0 ──▸ sink 0 ──┐              sent to the owners of their keys, numbered by
   splits ───┤               ╳                            ├──▸ target    key, and written to a target in transactions:
             └──▸ source 1 ──┴──▸ function 1 ──▸ sink 1 ──┘              exactly once. A driver coordinates.
                      worker2
"""

READING = """\
   A trigger tells a source to cut: it notes its positions and sends a marker to both functions. These cut when the last
   marker is there: the double line. The epoch is complete when both workers have acknowledged that their part of it is
   durable. Left out: what the workers send each other, and what says nothing about epochs."""

MESSAGES = ("TriggerEpoch", "Acknowledgement", "EpochIsOver", "Deploy", "Restored", "Failed")
REMARKS = ("marker sent", "state cut")
EVENTS = ("EpochTriggered", "EpochCompleted", "Deployed", "Running")


@dataclass(frozen=True, slots=True)
class Story:
    """A run with its moments that matter: epoch `lost` was under way at the crash, `kept` is what came back.

    `again` is the attempt that went on from there.
    """

    job: Job
    history: History
    crash: Record
    kept: str
    lost: str
    again: str

    @property
    def acknowledged(self) -> list[str]:
        """Whose acknowledgement of the lost epoch had arrived."""
        begun = next(at for at, epoch in told(self.history, "EpochTriggered") if epoch == self.lost)
        return [
            str(record.peer)
            for record in self.history[begun : self.crash.at]
            if record.kind is Kind.RECEIVED and record.payload == "Acknowledgement"
        ]

    @property
    def wanted(self) -> Counter[object]:
        """The ids of all rows of the source."""
        splits = self.job.drawn.shape.sources["rows"].splits
        ids = (getattr(item, "id", None) for split in splits for item in split)  # a pause has none
        return Counter(each for each in ids if each is not None)

    @property
    def seen(self) -> Counter[object]:
        """The ids in the rows that readers of the target see."""
        return Counter(row[2] for row in self.job.output["numbers"])


def told(records: Sequence[Record], event: str) -> Iterator[tuple[int, str]]:
    """The places at which a driver has told such an event, each with the epoch or the attempt that it names last."""
    for record in records:
        if record.kind is Kind.NOTED and record.process == DRIVER and str(record.payload).startswith(f"{event} "):
            yield record.at, str(record.payload).split()[-1]


def story_of(job: Job, history: History) -> Story | None:
    """What there is to tell, if a worker was killed while markers of an epoch were on their way, and nothing else."""
    crashes = [record for record in history if record.kind is Kind.CRASHED]
    if len(crashes) != 1 or crashes[0].process not in WORKERS or job.met[Act.CRASH.value] != 1:
        return None
    crash = crashes[0]
    past, after = history[: crash.at], history[crash.at :]
    triggered = [epoch for _, epoch in told(past, "EpochTriggered")]
    completed = [epoch for _, epoch in told(past, "EpochCompleted")]
    again = [attempt for _, attempt in told(after, "Deployed")]
    if not completed or triggered[-1] == completed[-1] or not again:
        return None
    begun = max(at for at, _ in told(past, "EpochTriggered"))
    on_their_way = any(record.payload == "marker sent" for record in history[begun : crash.at])
    story = Story(job, history, crash, completed[-1], triggered[-1], again[0])
    return story if on_their_way and len(story.acknowledged) < len(WORKERS) else None


def find(first: int, tries: int) -> Story | None:
    """The first such story, with the crash at one moment after the other."""
    for number in range(first, first + tries):
        moment, victim = divmod(number, 2)
        schedule = Schedule(JOB + bytes(CALM) + bytes([moment % 256, CRASH, (128, 255)[victim]]))
        job = run_job(schedule)
        assert schedule.history is not None
        story = story_of(job, schedule.history)
        if story is not None:
            return story
    return None


def picture(story: Story) -> tuple[History, Cut, int]:
    """The part of the history that is worth a drawing, the cut of the epoch in it, and the place of the crash."""
    history, part = story.history, History((DRIVER, *WORKERS))
    begin = next(at for at, epoch in told(history, "EpochTriggered") if epoch == story.kept)
    end = next(at for at, _ in told(history, "Running") if at > story.crash.at)
    while history[begin - 1].payload in ("trigger sent", "TriggerEpoch"):
        begin -= 1
    frontier: dict[str, int] = {}
    places: dict[int, int] = {}
    for record in history[begin : end + 1]:
        cause = None if record.cause is None else places.get(record.cause)
        if not is_shown(record) or (record.kind is Kind.RECEIVED and cause is None):
            continue
        place = part.append(record.process, record.incarnation, record.kind, record.peer, record.payload, cause)
        places[record.at] = place
        if record.payload in ("state cut", f"EpochTriggered {story.kept}"):
            frontier.setdefault(record.process, place)
    return part, Cut(frontier, name=f"the cut of epoch {story.kept}"), places[story.crash.at]


def is_shown(record: Record) -> bool:
    """Whether a record has a place in the picture."""
    if record.process not in (DRIVER, *WORKERS):
        return False
    match record.kind:
        case Kind.SENT | Kind.RECEIVED:
            return record.payload in MESSAGES
        case Kind.NOTED:
            return record.payload in REMARKS or str(record.payload).split()[0] in EVENTS
        case _:
            return record.kind in (Kind.CRASHED, Kind.STARTED)


def decision(story: Story) -> str:
    """What the crash has met, and what was done about it."""
    lines = [
        f"killed      {story.crash.process}, while epoch {story.lost} was under way",
        f"it had      the acknowledgement of {' and '.join(story.acknowledged) or 'nobody'}; it needs both",
        f"went back   to epoch {story.kept}, the last complete one; nothing of {story.lost} is used",
        f"goes on     as attempt {story.again}, in the worker that is left and in a new one",
    ]
    return "\n".join(wrapped for line in lines for wrapped in wrap(line, 117, subsequent_indent=" " * 12))


def proof(story: Story) -> tuple[str, bool]:
    """The rows that readers of the target see, next to those of a run without a crash; whether they are the same."""
    wanted, seen = story.wanted, story.seen
    lost, extra = (wanted - seen).total(), (seen - wanted).total()
    completed = " ".join(map(str, story.job.observer.completed))
    text = f"   epochs {completed} were completed\n"
    text += f"   {wanted.total()} rows expected, {seen.total()} rows seen: {lost} lost, {extra} twice or wrong"
    return text, not lost and not extra


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Run a small job in simulation, kill a worker in the middle of a snapshot, and draw what happens.",
        epilog="example: python -m examples.simulated_recovery --svg recovery.svg",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the picture into this file as well")
    parser.add_argument("--seed", type=int, default=460, help="the first moment of a crash to try (%(default)s)")
    parser.add_argument("--tries", type=int, default=100, help="how many to try at most (%(default)s)")
    options = parser.parse_args(arguments)
    story = find(options.seed, options.tries)
    if story is None:
        print(f"None of {options.tries} crashes comes in the middle of a snapshot; try others with --seed.")
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
