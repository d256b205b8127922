"""Processes on a network in which a schedule chooses every delivery, delay, crash, cut and restart.

Invariant: what one event makes a process do is done at once, or up to the point where it crashes; and when the schedule
has run out, all processes are woken and restarted, everything is delivered in a fair order, and the history ends in a
state in which nothing is left to happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar, assert_never

from snapshot.testing.faults import NO_FAULTS, Fault, Faults, Swarm
from snapshot.testing.history import STIMULI, History, Kind, Violation
from snapshot.testing.network import Break, InFlight, Link, Network
from snapshot.testing.process import (
    ORDINARY,
    Acted,
    Action,
    Broken,
    Effect,
    Event,
    Note,
    Process,
    Received,
    Save,
    Send,
    Started,
)
from snapshot.testing.schedule import Schedule

P = TypeVar("P", bound=Process)

Always: TypeAlias = Callable[[Mapping[str, P], Sequence[InFlight]], object]
"""A check after each step, of the processes that are up and of the messages on their way: it raises an `AssertionError`
such as `Violation`, or returns a `Violation` or False, if a promise is broken."""


@dataclass(slots=True)
class Statistics:
    """The extent of a search: steps, histories, how many of these differ from each other, and what befell them.

    `met` counts the acts of adversaries by their kinds, where a simulation tells them.
    """

    steps: int = 0
    histories: int = 0
    seen: set[int] = field(default_factory=set, repr=False)
    met: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def distinct(self) -> int:
        """Return how many different histories there were."""
        return len(self.seen)

    def __str__(self) -> str:
        met = "".join(f"; {kind} {count} times" for kind, count in sorted(self.met.items()))
        return f"{self.steps} steps in {self.histories} histories, {self.distinct} of them distinct{met}"


EXPLORED = Statistics()
"""The figures of all simulations of this Python process together."""


@dataclass(slots=True, eq=False)
class _Step(Generic[P]):
    """An action that a process offers now."""

    node: _Node[P]
    action: Action
    number: int
    weight: int


class _Rest:
    """The choice to let the history end, when nothing but the optional is left."""

    weight = 1


_REST = _Rest()


class _Node(Generic[P]):
    """The place of a process in the simulation, which survives its crashes."""

    def __init__(self, number: int, name: str, factory: Callable[[], P], swarm: Swarm) -> None:
        self.number = number
        self.name = name
        self.factory = factory
        self.weight = swarm.returning
        """The eagerness of the scheduler to bring the process back when it is down or paused."""
        self.speed = swarm.speed(name) * swarm.eagerness
        self.process: P | None = None
        self.incarnation = -1
        self.saved: object | None = None
        self.paused = False
        self.doomed = False
        """True if it crashes in the middle of the next thing that it does."""
        self.turn = 0
        """Counts its fair turns, so that none of its actions starves the others."""
        self.drains: list[_Step[P]] = []
        self.extras: list[_Step[P]] = []

    def offer(self, actions: Sequence[Action]) -> None:
        """Replace the actions on offer by these."""
        self.drains = []
        self.extras = []
        for number, action in enumerate(actions):
            step = _Step(self, action, number, max(1, action.weight * self.speed // ORDINARY**2))
            (self.drains if action.drain else self.extras).append(step)


class Simulation(Generic[P]):
    """One run of `processes` under a schedule; each is made by its factory at the start and after each crash.

    The same schedule gives the same history if the processes are deterministic.

    `always` is asked after each step, when what one event makes a process do is done: with the processes that are up,
    by name, and the messages on their way. Two processes that pass a token on, and one that lets go of it too late:

    >>> class Holder:
    ...     def __init__(self, holds):
    ...         self.holds, self.passes = holds, holds
    ...     def handle(self, event):
    ...         match event:
    ...             case Acted():
    ...                 self.passes = False  # it should let go of the token as well
    ...                 return [Send("second", "token")]
    ...             case Received():
    ...                 self.holds = True
    ...         return []
    ...     def actions(self):
    ...         return [Action("pass on")] if self.passes else []
    >>> def one_token(processes, in_flight):
    ...     return sum(process.holds for process in processes.values()) + len(in_flight) <= 1
    >>> holders = {"first": lambda: Holder(True), "second": lambda: Holder(False)}
    >>> Simulation(holders, Schedule(b""), always=one_token).run()
    Traceback (most recent call last):
    ...
    snapshot.testing.history.Violation: what must always hold does not after #2 first acted: pass on
    """

    def __init__(
        self,
        processes: Mapping[str, Callable[[], P]],
        schedule: Schedule,
        faults: Faults = NO_FAULTS,
        statistics: Statistics = EXPLORED,
        always: Always[P] | None = None,
    ) -> None:
        self.history = schedule.history = History(processes)
        self._schedule = schedule
        self._faults = faults
        self._statistics = statistics
        self._always = always
        self._checked = 0
        """The number of records at the last call of `always`."""
        self._swarm = Swarm(schedule, faults)
        self._network = Network(self.history, self._swarm, faults)
        self._nodes = {
            name: _Node(number, name, factory, self._swarm) for number, (name, factory) in enumerate(processes.items())
        }
        self._acting: dict[_Node[P], None] = {}
        self._away: dict[_Node[P], None] = {}
        self._steps = 0
        self._digest = hash(self.history.processes)

    @property
    def processes(self) -> dict[str, P]:
        """Return the processes that are up now: after the run, all of them."""
        return {name: node.process for name, node in self._nodes.items() if node.process is not None}

    def run(self, fair_steps: int = 10_000) -> History:
        """Run until the schedule has run out and nothing is left to happen; to be called once.

        Raises `Violation` if a process raises anything or sends to an unknown process, if what must always hold does
        not, or if the processes do not come to rest within `fair_steps` after the last adverse choice.
        """
        try:
            for node in self._nodes.values():
                self._start(node)
            self._check_always()
            while self._adverse_step():
                self._steps += 1
                self._check_always()
            self._settle(fair_steps)
        finally:
            self._statistics.steps += self._steps
            self._statistics.histories += 1
            self._statistics.seen.add(self._digest)
        return self.history

    def _check_always(self) -> None:
        """Raise `Violation` if what must always hold does not; it shows the step, unless it names another place."""
        if self._always is None:
            return
        history = self.history
        step = history[min(self._checked, len(history) - 1)]
        self._checked = len(history)
        try:
            answer = self._always(self.processes, self._network.in_flight())
        except AssertionError as error:
            answer = error
        if isinstance(answer, Violation):
            if not answer.at:
                answer.at = (step.at,)
            raise answer
        if isinstance(answer, AssertionError):
            raise Violation(f"{str(answer) or 'what must always hold does not'}, after {step}", [step.at]) from answer
        if answer is False:
            raise Violation(f"what must always hold does not after {step}", [step.at])

    def _adverse_step(self) -> bool:
        """Let the schedule choose one step; False when it has run out or chooses to end here.

        The order of the options is that of their harmlessness, since byte 0 takes the first.
        """
        if self._swarm.calm:
            self._swarm.calm -= 1
            calm = self._fair_option(returning=False)
            if calm is not None:
                self._take(calm)
                return True
            self._swarm.calm = 0
        options: list[Link | _Node[P] | _Step[P] | _Rest] = [*self._network.ready, *self._away]
        for node in self._acting:
            options += node.drains
        if not options:
            options.append(_REST)
        for node in self._acting:
            options += node.extras
        rate = self._swarm.rate
        if not rate and options[-1] is _REST:
            return False
        chosen = self._schedule.choose([option.weight for option in options], rate)
        if chosen is None:
            return False
        if chosen == len(options):
            self._strike()
            return True
        option = options[chosen]
        if isinstance(option, _Rest):
            return False
        self._take(option)
        return True

    def _settle(self, limit: int) -> None:
        """End all adversity: bring every process back, deliver everything, and take every action that must be taken.

        Raises `Violation` if the processes do not come to rest within `limit` steps.
        """
        for node in self._nodes.values():
            node.doomed = False
        for _ in range(limit):
            option = self._fair_option(returning=True)
            if option is None:
                return
            self._take(option)
            self._steps += 1
            self._check_always()
        last = Counter(f"{r.process} {r.what}" for r in self.history[-limit // 2 :] if r.kind in STIMULI)
        often = "; ".join(f"{what} ({times} times)" for what, times in last.most_common(3))
        raise Violation(f"the processes did not come to rest within {limit} steps without faults; lately {often}")

    def _fair_option(self, *, returning: bool) -> Link | _Node[P] | _Step[P] | None:
        """Return the next fair step: returning before delivering before acting; among equals, the one longest ago."""
        for node in self._away if returning else ():
            return node
        for link in self._network.ready:
            return link
        for node in self._acting:
            if node.drains:
                node.turn += 1
                return node.drains[(node.turn - 1) % len(node.drains)]
        return None

    def _take(self, option: Link | _Node[P] | _Step[P]) -> None:
        if isinstance(option, Link):
            self._deliver(option)
        elif isinstance(option, _Step):
            node = option.node
            self._mark(1, node.number, option.number)
            del self._acting[node]  # to the end of the queue, if it goes on acting
            at = self._record(node, Kind.ACTED, payload=option.action)
            self._handle(node, Acted(option.action), at)
        else:
            self._mark(2, option.number)
            self._bring_back(option)

    def _mark(self, *chosen: int) -> None:
        """Add a choice to the digest that tells this history from others."""
        self._digest = hash((self._digest, chosen))

    def _deliver(self, link: Link) -> None:
        node = self._nodes[link.receiver]
        item = self._network.take(link, self._schedule)
        self._mark(0, link.number if isinstance(item, Break) else item.sent)
        if isinstance(item, Break):
            at = self._record(node, Kind.BROKEN, link.sender, cause=item.cause)
            self._handle(node, Broken(link.sender), at)
        else:
            at = self._record(node, Kind.RECEIVED, link.sender, item.message, item.sent)
            self._handle(node, Received(link.sender, item.message), at)

    def _bring_back(self, node: _Node[P]) -> None:
        del self._away[node]
        if node.process is None:
            self._network.restart(node.name)
            self._start(node)
            return
        node.paused = False
        self._record(node, Kind.RESUMED)
        self._network.undeafen(node.name)
        self._acting[node] = None

    def _start(self, node: _Node[P]) -> None:
        node.incarnation += 1
        node.process = node.factory()
        at = self._record(node, Kind.STARTED, payload=node.saved)
        self._handle(node, Started(node.saved), at)

    def _handle(self, node: _Node[P], event: Event, at: int) -> None:
        process = node.process
        assert process is not None
        try:
            effects = process.handle(event)
            if node.doomed:
                effects = list(effects)
                effects = effects[: self._schedule.number(len(effects) + 1)]
            for effect in effects:
                self._do(node, effect)
            offered = process.actions()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{self.history[at]}, and raised {error!r}", [at]) from error
        if node.doomed:
            self._crash(node)
            return
        node.offer(offered)
        if offered:
            self._acting.setdefault(node)
        else:
            self._acting.pop(node, None)

    def _do(self, node: _Node[P], effect: Effect) -> None:
        match effect:
            case Send(to, message):
                if to not in self._nodes:
                    raise Violation(f"{node.name} sent {message} to {to!r}, and there is no such process")
                self._network.send(node.name, node.incarnation, to, message)
            case Note(what):
                self._record(node, Kind.NOTED, payload=what)
            case Save(value):
                node.saved = value
                self._record(node, Kind.SAVED, payload=value)
            case _:
                assert_never(effect)

    def _record(
        self,
        node: _Node[P],
        kind: Kind,
        peer: str | None = None,
        payload: object = None,
        cause: int | None = None,
    ) -> int:
        return self.history.append(node.name, node.incarnation, kind, peer, payload, cause)

    def _strike(self) -> None:
        """Let the schedule choose a fault and its victim; do nothing if there is no possible victim."""
        swarm = self._swarm
        kinds = list(swarm.budget)
        chosen = self._schedule.choose([swarm.rates[kind] for kind in kinds])
        if chosen is None:
            return
        fault = kinds[chosen]
        victims: list[_Node[P]] | list[Link]
        match fault:
            case Fault.CRASH:
                victims = self._up(self._faults.crashable)
            case Fault.PAUSE:
                victims = self._up(self._faults.pausable)
            case Fault.CUT:
                victims = self._network.cuttable()
            case Fault.LOSS:
                victims = self._network.losable()
            case Fault.CALM:
                swarm.spend(fault)
                swarm.calm = swarm.calm_steps(self._schedule)
                return
        if victims:
            victim = victims[self._schedule.number(len(victims))]
            swarm.spend(fault)
            self._mark(3 + list(Fault).index(fault), victim.number)
            self._befall(fault, victim)

    def _up(self, allowed: Collection[str] | None) -> list[_Node[P]]:
        return [
            node
            for node in self._nodes.values()
            if node.process is not None and not node.paused and (allowed is None or node.name in allowed)
        ]

    def _befall(self, fault: Fault, victim: _Node[P] | Link) -> None:
        if isinstance(victim, Link):
            if fault is Fault.LOSS:
                self._network.lose(victim)
            else:
                node = self._nodes[victim.sender]
                self._record(node, Kind.CUT, victim.receiver)
                self._network.cut(victim, self._schedule)
        elif fault is Fault.PAUSE:
            victim.paused = True
            self._record(victim, Kind.PAUSED)
            self._network.deafen(victim.name)
            self._acting.pop(victim, None)
            self._away[victim] = None
        elif self._schedule.flag():
            victim.doomed = True
        else:
            self._crash(victim)

    def _crash(self, node: _Node[P]) -> None:
        node.doomed = False
        node.process = None
        node.offer(())
        self._acting.pop(node, None)
        self._away[node] = None
        at = self._record(node, Kind.CRASHED)
        self._network.crash(node.name, at, self._schedule)
