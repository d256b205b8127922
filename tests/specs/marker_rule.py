"""Histories of the marker rule on any graph, as steps of `ChandyLamport.tla`.

They come from `snapshot/cut/chandy_lamport.py`. A job runs `snapshot/cut/aligner.py`, whose histories `job.py` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

from snapshot.cut.chandy_lamport import Recorded
from snapshot.testing import History, Kind, Note, Record, Schedule, Send, Simulation, Statistics
from snapshot.testing.process import Effect, Event, Received
from snapshot.testing.tla import Step, Steps, Trace, trace_of
from tests.test_chandy_lamport import (
    Branch,
    CutHere,
    ForgetsWhatWasInFlight,
    Instruction,
    Marker,
    MarkerAfterOneMoreMessage,
    Money,
    SendsNoMarkerBackToWhereItCameFrom,
    TakesAMarkerForOneOnEveryChannel,
    any_strongly_connected_graph,
)

SNAPSHOTS = frozenset(range(4))


def steps_of(history: History) -> Steps:
    """Return what a record of this history is to the specification."""

    def steps(record: Record) -> Iterable[Step]:
        me, peer = record.process, record.peer
        match record.kind, record.payload:
            case Kind.ACTED, _:
                for note in _noted(history, record):
                    yield Step("Start", {"snapshot": note.snapshot, "process": me})
            case Kind.SENT, Money() as money:
                yield Step("Send", {"from": me, "to": peer, "message": _name(money)})
            case Kind.SENT, Marker(snapshot):
                yield Step("SendMarker", {"snapshot": snapshot, "from": me, "to": peer})
            case Kind.RECEIVED, Money() as money:
                yield Step("Receive", {"from": peer, "to": me, "message": _name(money)})
            case Kind.RECEIVED, Marker(snapshot):
                records = bool(_noted(history, record))
                fields = {"snapshot": snapshot, "from": peer, "to": me, "records": records}
                yield Step("ReceiveMarker", fields)
            case Kind.NOTED, Recorded(snapshot, _, channels):
                held = {sender: [_name(money) for money in messages] for sender, messages in channels.items()}
                yield Step("Finish", {"snapshot": snapshot, "process": me, "channels": held})
            case _:
                pass

    return steps


def _noted(history: History, stimulus: Record) -> list[CutHere]:
    effects = history.effects(stimulus)
    return [one.payload for one in effects if one.kind is Kind.NOTED and isinstance(one.payload, CutHere)]


def _name(money: Money) -> str:
    return f"{money.amount}/{money.hops}"


def trace(schedule: Schedule, branch: type[Branch] = Branch, statistics: Statistics | None = None) -> Trace:
    """Run one history of branches of a bank; return it for the specification."""
    graph = any_strongly_connected_graph(schedule)
    snapshots, transfers = 1 + schedule.number(3), schedule.number(4)
    branches: Mapping[str, Callable[[], Branch]] = {
        name: partial(branch, graph.incoming(name), graph.outgoing(name), snapshots, transfers, name == graph.names[0])
        for name in graph.names
    }
    history = Simulation(branches, schedule, statistics=statistics or Statistics()).run()
    config = {"nodes": set(graph.names), "edges": set(graph.edges), "snapshots": SNAPSHOTS}
    found = trace_of(history, steps_of(history), config, f"a history of {branch.__name__}")
    return Trace([*found.steps, Step("End", at=len(history) - 1)], config, history, found.name)


def traces(
    count: int, branch: type[Branch] = Branch, seed: int = 0, statistics: Statistics | None = None
) -> list[Trace]:
    """Return as many histories, under schedules that follow from the seed."""
    random = Random(f"{seed}/{branch.__name__}")
    return [trace(Schedule(random.randbytes(random.randrange(120))), branch, statistics) for _ in range(count)]


class RecordsAtTheSecondMarker(Branch):
    """Takes the first marker of a snapshot for noise."""

    def handle(self, event: Event) -> Iterable[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Marker):
            heard: set[object] = self.__dict__.setdefault("heard", set())
            if event.message.snapshot not in heard and len(self.rule._incoming) > 1:
                heard.add(event.message.snapshot)
                return []
        return super().handle(event)


class SendsItsMarkersTwice(Branch):
    """Repeats what it has sent."""

    def carry_out(self, instructions: Iterable[Instruction]) -> Iterable[Effect]:
        effects = list(super().carry_out(instructions))
        return [*effects, *(e for e in effects if isinstance(e, Send) and isinstance(e.message, Marker))]


class SaysThatItIsDoneTooSoon(Branch):
    """Says what its channels held before the last marker has come."""

    def carry_out(self, instructions: Iterable[Instruction]) -> Iterable[Effect]:
        for effect in super().carry_out(instructions):
            yield effect
            if isinstance(effect, Note) and isinstance(effect.what, CutHere):
                recording = self.rule._recordings[effect.what.snapshot]
                yield Note(Recorded(effect.what.snapshot, recording.state, dict.fromkeys(recording.in_flight, ())))


class CountsWhatCameAfterTheMarker(Branch):
    """Goes on recording a channel when its marker has come."""

    def handle(self, event: Event) -> Iterable[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Money):
            for recording in self.rule._recordings.values():
                if event.sender not in recording.awaited:
                    recording.in_flight[event.sender].append(event.message)
        return super().handle(event)


WRONG: tuple[type[Branch], ...] = (
    MarkerAfterOneMoreMessage,
    ForgetsWhatWasInFlight,
    TakesAMarkerForOneOnEveryChannel,
    SendsNoMarkerBackToWhereItCameFrom,
    RecordsAtTheSecondMarker,
    SendsItsMarkersTwice,
    SaysThatItIsDoneTooSoon,
    CountsWhatCameAfterTheMarker,
)
"""Branches that break the rule, each in another way."""

MUTATIONS: Mapping[str, tuple[str, str]] = {
    "what arrives between cut and marker is not in flight": ("Append(@, m)] ELSE inFlight[s]", "@] ELSE inFlight[s]"),
    "the first marker does not close its channel": ("Into(p) \\ arrived", "Into(p)"),
    "no marker goes out": ("owed' = owed \\cup {<<s, c>> : c \\in OutOf(p)}", "owed' = owed"),
    "messages overtake markers": ("Head(wire[c]) = Message(m)", 'Head(wire[c]).kind = "marker"'),
    "a second marker records again": ("records = (c[2] \\notin has[s])", "records = TRUE"),
}
"""Errors of the specification, each as a text of it and what to put there."""
