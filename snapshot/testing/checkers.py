"""The promises of a correct snapshot, checked on a recorded history.

Invariant: a checker changes nothing and returns nothing; it raises a `Violation` that names the
processes and messages that show the promise broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from snapshot.testing.history import STIMULI, Channel, Cut, History, Kind, Record, Violation
from snapshot.testing.process import Acted, Action, Broken, Event, Process, Received, Send, Started

P = TypeVar("P", bound=Process)

Content: TypeAlias = Callable[[object], object | None]
"""The application's message inside of what a protocol sends; None for what is the protocol's own, such as a marker."""


def everything(message: object) -> object | None:
    """Return the message itself, where no messages are the protocol's own."""
    return message


def check_consistent(history: History, cut: Cut, content: Content = everything) -> None:
    """Check that no message is received inside the cut but sent outside of it."""
    for record in history.kinds(Kind.RECEIVED):
        message = content(record.payload)
        if record.cause is None or message is None or not cut.includes(record):
            continue
        sent = history[record.cause]
        if not cut.includes(sent):
            raise Violation(
                f"{cut.name} is not consistent: {record.process} had received {message} from {sent.process} "
                f"(#{record.at}), but {sent.process} had not sent it yet (#{sent.at})",
                [sent.at, record.at],
                cut,
            )


def check_channel_state(history: History, cut: Cut, content: Content = everything) -> None:
    """Check that `cut.channels` holds the messages sent inside the cut and received outside, in order of arrival.

    A channel that is not named was recorded as empty. What was lost on its way belongs to no state.
    """
    crossing: dict[Channel, list[Record]] = {}
    for record in history.kinds(Kind.RECEIVED):
        assert record.cause is not None
        sent = history[record.cause]
        if cut.includes(sent) and not cut.includes(record) and content(record.payload) is not None:
            crossing.setdefault(Channel(sent.process, record.process), []).append(sent)
    for channel in sorted({*crossing, *cut.channels}):
        sends = crossing.get(channel, [])
        truth = [content(sent.payload) for sent in sends]
        recorded = list(cut.channels.get(channel, ()))
        if recorded != truth:
            raise Violation(
                f"{cut.name} records {_listed(recorded)} in flight on {channel}, but it was {_listed(truth)}",
                [sent.at for sent in sends],
                cut,
            )


def check_sequential(
    history: History,
    cut: Cut,
    factories: Mapping[str, Callable[[], P]],
    state: Callable[[P], object],
    content: Content = everything,
) -> None:
    """Check that a sequential execution, which is run here on fresh processes, reaches the state of the cut.

    It handles one event after the other, those in the past of the cut and no others. At its end every process
    must be in the state that the cut recorded (`state` looks at it; a process that is down has none), and what is
    then on its way must be what the cut recorded as in flight. The processes must be deterministic.
    """
    replay = _Replay(history, cut, factories)
    for record in history:
        replay.take(record)
    for name in history.processes:
        process = replay.processes.get(name)
        reached = None if process is None else state(process)
        if reached != cut.states.get(name):
            raise Violation(
                f"{cut.name} records {cut.states.get(name)} as the state of {name}, "
                f"but the events in its past lead to {reached}",
                [cut.frontier[name]] if cut.frontier.get(name, -1) >= 0 else (),
                cut,
            )
    left = replay.left(content)
    for channel in sorted({*left, *cut.channels}):
        recorded, reached = list(cut.channels.get(channel, ())), left.get(channel, [])
        if recorded != reached:
            raise Violation(
                f"{cut.name} records {_listed(recorded)} in flight on {channel}, "
                f"but the events in its past leave {_listed(reached)} there",
                cut=cut,
            )


def check_exactly_once(expected: Iterable[Hashable], got: Iterable[Hashable], what: str = "the output") -> None:
    """Check that nothing is lost, nothing is there twice, and nothing comes from nowhere. The order is free."""
    wanted, found = Counter(expected), Counter(got)
    surplus = found - wanted
    wrong = [
        f"{sum(items.values())} {how} (such as {_listed(list(items)[:3])})"
        for how, items in (
            ("lost", wanted - found),
            ("too many", Counter({item: n for item, n in surplus.items() if item in wanted})),
            ("from nowhere", Counter({item: n for item, n in surplus.items() if item not in wanted})),
        )
        if items
    ]
    if wrong:
        raise Violation(f"{what} is not exactly-once: {', '.join(wrong)}")


class _Replay(Generic[P]):
    """A sequential execution of the past of a cut, on fresh processes and a network of its own."""

    def __init__(self, history: History, cut: Cut, factories: Mapping[str, Callable[[], P]]) -> None:
        self.processes: dict[str, P] = {}
        self._history = history
        self._cut = cut
        self._factories = factories
        self._in_flight: dict[int, object] = {}

    def take(self, record: Record) -> None:
        """Let the recorded event happen, if it is in the past of the cut."""
        if record.kind is Kind.LOST and record.cause is not None:
            self._in_flight.pop(record.cause, None)
        elif self._cut.includes(record):
            if record.kind is Kind.CRASHED:
                del self.processes[record.process]
            elif record.kind in STIMULI:
                self._handle(record, self._event(record))

    def left(self, content: Content) -> dict[Channel, list[object]]:
        """Return the messages sent and neither received nor lost, in the order in which they will be received."""
        left: dict[Channel, list[object]] = {}
        arrivals = {record.cause: record.at for record in self._history.kinds(Kind.RECEIVED)}
        never = len(self._history)
        for sent, payload in sorted(self._in_flight.items(), key=lambda item: arrivals.get(item[0], never)):
            message, record = content(payload), self._history[sent]
            if message is not None and record.peer is not None:
                left.setdefault(Channel(record.process, record.peer), []).append(message)
        return left

    def _event(self, record: Record) -> Event:
        match record.kind, record.payload, record.peer:
            case Kind.STARTED, saved, _:
                self.processes[record.process] = self._factories[record.process]()
                return Started(saved)
            case Kind.ACTED, Action() as action, _:
                return Acted(action)
            case Kind.BROKEN, _, str(peer):
                return Broken(peer)
            case Kind.RECEIVED, payload, str(peer) if record.cause in self._in_flight:
                return Received(peer, self._in_flight.pop(record.cause))
            case _, payload, peer:
                raise Violation(
                    f"{self._cut.name} is in no sequential execution: {record.process} had received {payload} "
                    f"(#{record.at}) before {peer} had sent it",
                    [record.at],
                    self._cut,
                )

    def _handle(self, stimulus: Record, event: Event) -> None:
        """Handle as the history did; messages that the process sent outside of the cut are not sent here."""
        effects = self.processes[stimulus.process].handle(event)
        sends = iter([effect for effect in effects if isinstance(effect, Send)])
        for sent in self._history.effects(stimulus):
            if sent.kind is not Kind.SENT or not self._cut.includes(sent):
                continue
            again = next(sends, None)
            if again != Send(sent.peer or "", sent.payload):
                raise Violation(
                    f"{sent.process} is not deterministic: when it {stimulus.what} it once {sent.what}, "
                    f"and another time it did {again}",
                    [sent.at],
                    self._cut,
                )
            self._in_flight[sent.at] = again.message


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items)) or "nothing"
