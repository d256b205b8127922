"""Histories of whole simulated jobs, as traces for `Epochs.tla`, `Commit.tla` and `Retention.tla`."""

from __future__ import annotations

from recovery.testing import simulated_job
from snapshot.testing import History, Schedule
from snapshot.testing.tla import Step, Trace
from statebackend.ids import Epoch, Incarnation
from tests.planted.seeds import schedule_of
from tests.specs.notes import Notes
from tests.specs.watching import watched

SPECIFICATIONS = {
    name: frozenset(actions.split())
    for name, actions in {
        "Epochs": "Claim GoBack Deploy Follow Restore HandOut Assigned Trigger Emit EndChannel Mark Process Cut GiveUp "
        "Acknowledge Complete",
        "Commit": "Claim GoBack Trigger Take Begin Seal Prepare Acknowledge Decide Complete Accept Commit AbortOthers "
        "Settle Note Over",
        "Retention": "Write Complete Pin Unpin Remove Delete",
    }.items()
}
"""The actions that each specification sees."""

_MOST_GENERATIONS = 300


def trace(schedule: Schedule, name: str = "a history of the job") -> tuple[Trace, AssertionError | None]:
    """Run one history; return it for the specifications, and what its own checks have found."""
    notes, violation = Notes(), None
    with watched(notes):
        try:
            simulated_job.run(schedule)
        except AssertionError as found:
            violation = found
    history = schedule.history
    assert history is not None
    return _numbered(notes, history, name), violation


def _numbered(notes: Notes, history: History, name: str) -> Trace:
    """Give attempts and epochs numbers, in their order."""
    mentioned = {one for step in notes.steps for one in step.fields.values() if isinstance(one, Incarnation)}
    attempts = sorted({*mentioned, *notes.attempts, *(node.attempt for node in notes.nodes)})
    numbers = {attempt: number for number, attempt in enumerate(attempts, start=1)}

    def plain(value: object) -> object:
        match value:
            case Incarnation():
                return numbers[value]
            case Epoch():
                return value.generation * 1000 + value.number
            case set():
                return {plain(one) for one in value}
            case tuple():
                return tuple(map(plain, value))
            case _:
                return value

    def fields(step: Step) -> dict[str, object]:
        found = {key: plain(one) for key, one in step.fields.items()}
        return {**found, "empty": found["tx"] in notes.empty} if step.action == "Seal" else found

    assert notes.job is not None
    splits: set[int] = set().union(*notes.splits.values())
    workers = {step.fields["worker"] for step in notes.steps if step.action == "Follow"}
    config: dict[str, object] = {
        "exactly": notes.job.shape.exactly_once,
        "splits": splits,
        "attempts": [{"generation": one.generation, "size": notes.attempts.get(one, 1)} for one in attempts],
        "nodes": [
            {
                "attempt": numbers[node.attempt],
                "partition": node.partition,
                "ins": node.ins,
                "splits": set() if node.source is None else notes.splits[str(node.source)],
            }
            for node in notes.nodes
        ],
        "channels": list(notes.channels.values()),
        "edges": notes.edges,
        "generations": _MOST_GENERATIONS,
        "workers": workers or {0},
    }
    return Trace([Step(step.action, fields(step), step.at) for step in notes.steps], config, history, name)


def only(trace: Trace, actions: frozenset[str]) -> Trace:
    """Return the trace with the steps of these actions alone."""
    return Trace([step for step in trace.steps if step.action in actions], trace.config, trace.history, trace.name)


def traces(count: int, first: int) -> list[Trace]:
    """Return as many honest histories of a job, from this number on; raise what their own checks find."""
    found = []
    for number in range(first, first + count):
        made, violation = trace(Schedule(schedule_of(number)))
        if violation is not None:
            raise violation
        found.append(made)
    return found
