"""Histories in which a seeded error shows, as traces for the specification that may see it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from pytest import MonkeyPatch

from recovery.testing import job as simulated
from recovery.testing.requests import Answer
from recovery.testing.worker import TARGET
from snapshot.cut.aligner import Aligner, Cut, Process
from snapshot.cut.frames import Data, Marker
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.testing import History, Kind, Schedule, Violation
from snapshot.testing.tla import Step, Trace
from tests.seeded import worlds
from tests.seeded.error import ERRORS, SeededError
from tests.seeded.seeds import found
from tests.specs import job

HISTORIES: Final = 400
"""In which an error is searched for, from the seed that is noted for it."""

UNSEEN: Final = {
    "an ended channel is still waited for": "nothing wrong is done, only less",
    "event time follows the fastest input": "the specifications know no event time but that of a cut",
    "a reader does not pin what it reads": "the specifications know no readers",
    "what an attempt has uploaded stays when it is rolled back, and goes with its generation alone": (
        "nothing wrong is done, only less"
    ),
}
"""Errors that no specification rejects, and why. The journal's own protocol, with seven errors, is not specified."""

SELDOM: Final = {"an aligned marker overtakes data", "a worker of an older attempt of the same generation is heard"}
"""Errors that most histories show by their consequences alone; several are given to the specifications."""


def traces() -> Iterator[tuple[str, Trace]]:
    """Yield the name of a specification with each history in which a seeded error of its world shows."""
    for error in ERRORS:
        with MonkeyPatch.context() as patch:
            if error.world in (simulated.run, simulated.run_going_back):
                yield from _of_a_job(error, patch)
            elif error.world is worlds.run_committers:
                yield "Commit", _of_committers(error, _schedule(error, patch))
            elif error.world is worlds.run_receiver:
                schedule = _schedule(error, patch)
                yield "Epochs", _of_a_receiver(error, schedule)


def _schedule(error: SeededError, patch: MonkeyPatch) -> Schedule:
    example = found(error, patch, HISTORIES, error.seed)
    assert example is not None, f"{HISTORIES} histories do not show that {error.sentence}"
    return Schedule(example.schedule)


def _of_a_job(error: SeededError, patch: MonkeyPatch) -> Iterator[tuple[str, Trace]]:
    if error.sentence in SELDOM:
        error.switch_on(patch)
        several = (job.trace(error.world, schedule, error.sentence) for schedule in job.schedules(HISTORIES, 3))
        shown = list(islice((trace for trace, violation in several if violation is not None), 12))
    else:
        trace, violation = job.trace(error.world, _schedule(error, patch), error.sentence)
        shown = [trace] if violation is not None else []
    assert shown, f"no history shows that {error.sentence}"
    for name, actions in job.SPECIFICATIONS.items():
        yield from ((name, job.only(trace, actions)) for trace in shown)


def _run(error: SeededError, schedule: Schedule) -> History:
    try:
        error.world(schedule)
    except Violation:
        assert schedule.history is not None
        return schedule.history
    raise AssertionError(f"the history does not show again that {error.sentence}")


CONFIG: Final = {
    "exactly": False,
    "splits": {0, 1},
    "attempts": [{"generation": 1, "size": 1}],
    "generations": 1,
    "workers": {"worker"},
}


def _of_committers(error: SeededError, schedule: Schedule) -> Trace:
    """Return the writes of two committers of a transaction that an epoch has, which is there from the beginning."""
    history = _run(error, schedule)
    own: dict[str, object] = {"attempt": 1, "partition": 0}
    steps = [
        Step("Claim", {"generation": 1}),
        Step("Trigger", {"epoch": 1001}),
        Step("Begin", {**own, "tx": 1}),
        Step("Seal", {**own, "tx": 1, "epoch": 1001, "empty": False}),
        Step("Prepare", {**own, "tx": 1}),
        Step("Acknowledge", {**own, "epoch": 1001, "txs": {1}}),
        Step("Decide", {"attempt": 1, "epoch": 1001}),
        Step("Complete", {"attempt": 1, "epoch": 1001, "txs": {(1, 1001)}}),
    ]
    for record in history.of(TARGET, Kind.SENT):
        if isinstance(record.payload, Answer) and record.payload.body is TargetAnswer.DONE:
            steps.append(Step("Commit", {"tx": 1}, record.at))
    return Trace(steps, CONFIG, history, error.sentence)


def _of_a_receiver(error: SeededError, schedule: Schedule) -> Trace:
    """Return what one operator does with what two sources send it, each a split of its own."""
    noted: list[Step] = []
    right = Aligner.handle
    seen: set[int] = set()

    def handle(self: Aligner, event: Any) -> Any:
        instructions = right(self, event)
        at = len(schedule.history or ()) - 1
        for instruction in instructions:
            match instruction:
                case Process(channel, Data(tuple() as id)):
                    seen.add(job.number(id))
                    fields = {"from": int(channel.sender), "record": job.number(id)}
                    noted.append(Step("Process", {"attempt": 1, "partition": 0, **fields}, at))
                case Cut(_):
                    cut = {"unaligned": False, "entries": set[int](), "held": set(seen), "watermark": -1}
                    noted.append(Step("Cut", {"attempt": 1, "partition": 0, "epoch": 1001, **cut}, at))
                case _:
                    pass
        return instructions

    with MonkeyPatch.context() as patch:
        patch.setattr(Aligner, "handle", handle)
        history = _run(error, schedule)
    share = {"entries": set(), "inFlight": set(), "held": set(), "read": {0: -1, 1: -1}, "watermark": -1}
    before = [Step("Claim", {"generation": 1}), Step("Deploy", {"attempt": 1, "epoch": 0})]
    before += [Step("Restore", {"attempt": 1, "partition": one, **share}) for one in (0, 1)]
    for split in (0, 1):
        before += [
            Step("HandOut", {"attempt": 1, "partition": split, "split": split}),
            Step("Assigned", {"attempt": 1, "partition": split, "split": split}),
        ]
    before.append(Step("Trigger", {"attempt": 1, "epoch": 1001}))
    steps = [*_sent(history), *noted]
    steps.sort(key=lambda step: step.at or 0)
    return Trace([*before, *steps], {**CONFIG, "attempts": [{"generation": 1, "size": 2}]}, history, error.sentence)


def _sent(history: History) -> Iterator[Step]:
    marked: set[str] = set()
    for record in history.kinds(Kind.SENT):
        own: dict[str, object] = {"attempt": 1, "partition": worlds.SENDERS.index(record.process)}
        match record.payload:
            case (_, Data(tuple() as id)):
                yield Step("Emit", {**own, "to": 0, "record": job.number(id)}, record.at)
            case (_, Marker()) if record.process not in marked:
                marked.add(record.process)
                yield Step("Mark", {**own, "epoch": 1001}, record.at)
            case _:
                pass
