"""The coordinator under any sequence of events, legal and stale ones: the promises of its module always hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.coordinator_events import (
    Abandon,
    AbandonReason,
    Acknowledged,
    AttemptBroken,
    AttemptStarted,
    CommitFailed,
    Committed,
    Complete,
    ContributorChanged,
    CoordinatorEvent,
    CoordinatorInstruction,
    Declined,
    EpochRequested,
    Fenced,
    Promote,
    Publish,
    Published,
    PublishFailed,
    RecordCommitted,
    RemoveOlder,
    RollBack,
    SavepointRequested,
    Skipped,
    SkipReason,
    Stop,
    Ticked,
    Trigger,
)
from snapshot.epochs.coordinator_options import CoordinatorOptions, Rhythm
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

GENERATION = Generation(3)
PARTITIONS = tuple(Partition(index) for index in range(2))
REPLAYED = Epoch(Generation(2), 5)


def of_attempt(attempt: int) -> Incarnation:
    return Incarnation(GENERATION, Attempt(attempt))


class Observer:
    """A host that does what it is told, and knows what must hold."""

    def __init__(self, options: CoordinatorOptions, *, replays: bool) -> None:
        self.options = options
        complete = REPLAYED if replays else None
        self.coordinator: Coordinator[str] = Coordinator(
            options, GENERATION, now=0, complete=complete, last_number=5, uncommitted=[REPLAYED] if replays else []
        )
        self.now = 0
        self.attempt = 1
        self.running = False
        self.stopped = False
        self.complete = complete
        self.publishing: Epoch | None = None
        self.changed: list[Partition] = []  # contributors, to whom nothing was handed over yet
        self.told: Epoch | None = complete  # the newest that the partitions know to be complete
        self.in_flight: dict[Epoch, Epoch | None] = {}  # and their bases
        self.triggered: list[Epoch] = []
        self.triggered_at: dict[Epoch, int] = {}
        self.savepoints: set[Epoch] = set()
        self.acknowledged: set[tuple[Epoch, Partition]] = set()
        self.committers: dict[Epoch, set[Partition]] = {REPLAYED: set(PARTITIONS)} if replays else {}
        self.committed: dict[Partition, Epoch] = {}
        self.recorded: list[Epoch] = []
        self.skipped = 0
        self.paused_until = 0
        self.last_trigger = 0

    def tell(self, event: CoordinatorEvent[str]) -> None:
        """Note what the event makes true, and check what follows from it."""
        self._note(event)
        instructions = self.coordinator.handle(event)
        assert not (instructions and self.stopped), "who has stopped says nothing"
        incarnation = (
            event.incarnation if isinstance(event, Acknowledged | Declined | Committed | CommitFailed) else None
        )
        if incarnation is not None and incarnation != of_attempt(self.attempt):
            assert instructions == [], "a stale report changes nothing"
        for instruction in instructions:
            self._check(instruction, event)
        statistics = self.coordinator.statistics
        assert set(self.coordinator.in_flight) == set(self.in_flight)
        assert statistics.triggered == len(self.triggered)
        assert statistics.triggered == statistics.completed + statistics.abandoned + len(self.in_flight)
        assert statistics.skipped == self.skipped
        assert self.coordinator.complete == self.complete
        assert self.coordinator.incarnation == of_attempt(self.attempt)
        assert (self.coordinator.state is CoordinatorState.STOPPED) == self.stopped

    def _note(self, event: CoordinatorEvent[str]) -> None:
        if self.stopped:
            return
        match event:
            case Ticked(now):
                self.now = now
            case Acknowledged(epoch, incarnation, partition, _, output):
                if incarnation == of_attempt(self.attempt) and epoch in self.in_flight and partition in PARTITIONS:
                    if output and (epoch, partition) not in self.acknowledged:
                        self.committers.setdefault(epoch, set()).add(partition)
                    self.acknowledged.add((epoch, partition))
            case Published(epoch):
                del self.in_flight[epoch]
                self.complete, self.publishing = epoch, None
                self.paused_until = self.now + self.options.min_pause
                self._rest(epoch)
            case PublishFailed():
                self.publishing = None
            case Committed(epoch, incarnation, partition) if incarnation == of_attempt(self.attempt):
                self.committed[partition] = max(epoch, self.committed.get(partition, epoch))
            case AttemptStarted(incarnation) if incarnation == of_attempt(self.attempt) and not self.running:
                self.running = True
                if self.options.rhythm is Rhythm.ONE_BY_ONE:
                    self.last_trigger = self.now - self.options.interval
                for epoch in self.committers:
                    self.committers[epoch] = set(PARTITIONS)
            case AttemptBroken(incarnation) if incarnation == of_attempt(self.attempt):
                self.running = False
                self.changed.clear()
            case ContributorChanged(incarnation, partition) if self.running and incarnation == of_attempt(self.attempt):
                if partition not in self.changed:
                    self.changed.append(partition)
            case _:
                pass

    def _check(self, instruction: CoordinatorInstruction[str], event: CoordinatorEvent[str]) -> None:
        match instruction:
            case Trigger(marker, participants):
                assert self.running
                assert not self.changed, "a contributor that has not heard where it begins takes part in no epoch"
                assert participants == frozenset(PARTITIONS)
                assert not self.triggered or marker.epoch > self.triggered[-1], "no epoch id is used twice"
                assert marker.savepoint == isinstance(event, SavepointRequested)
                if marker.savepoint:
                    self.savepoints.add(marker.epoch)
                elif not isinstance(event, EpochRequested):
                    assert len(self.in_flight) < self.options.max_in_flight
                    assert self.now >= max(self.paused_until, self.last_trigger + self.options.interval)
                    self.last_trigger = self.now
                self.triggered.append(marker.epoch)
                self.triggered_at[marker.epoch] = self.now
                self.in_flight[marker.epoch] = self.complete
            case Skipped(reason):
                self.skipped += 1
                assert reason is not SkipReason.IN_FLIGHT or self.options.rhythm is Rhythm.OVERLAPPING
                assert (reason is SkipReason.PROMOTING) == bool(self.running and self.changed)
            case Abandon(epoch, reason):
                del self.in_flight[epoch]
                self._rest(epoch)
                self.committers.pop(epoch, None)
                assert epoch != self.publishing
                assert reason is not AbandonReason.SUBSUMED or epoch not in self.savepoints
                if isinstance(event, ContributorChanged):
                    assert reason is AbandonReason.CONTRIBUTOR_CHANGED
            case Publish(epoch, base, incarnation, savepoint, contents, output):
                self._check_publish(epoch)
                assert (base, incarnation) == (self.in_flight[epoch], of_attempt(self.attempt))
                assert savepoint == (epoch in self.savepoints)
                assert dict(contents) == {partition: f"{epoch}/{partition}" for partition in PARTITIONS}
                assert output == bool(self.committers.get(epoch))
            case Complete(epoch):
                assert event == Published(epoch)
                assert self.running
                self.told = epoch
            case Promote(partition, epoch):
                assert self.running
                assert not self.in_flight, "what it cannot acknowledge is abandoned"
                assert epoch == self.complete == self.told, "it begins at the newest epoch, of which all have heard"
                self.changed.remove(partition)
            case RecordCommitted(epoch):
                assert self.running
                assert epoch in self.committers
                assert all(self.committed.get(partition, epoch) >= epoch for partition in self.committers[epoch])
                assert self.committers[epoch] <= self.committed.keys()
                assert self.complete is not None
                assert epoch <= self.complete, "committed only after it is complete"
                assert not self.recorded or epoch > self.recorded[-1], "in order, and once"
                self.recorded.append(epoch)
            case RemoveOlder(retain, oldest_base):
                assert retain == self.options.retain
                assert oldest_base == min((base for base in self.in_flight.values() if base), default=None)
            case RollBack(epoch, incarnation):
                assert self.publishing is None, "the outcome of the publication decides where to"
                assert not self.in_flight
                assert epoch == self.complete
                assert incarnation == of_attempt(self.attempt + 1)
                self.attempt += 1
                self.running = False
                self.told = self.complete
                self.committed.clear()
            case Stop():
                assert isinstance(event, Fenced | CommitFailed)
                self.stopped = True

    def _rest(self, epoch: Epoch) -> None:
        if self.options.rhythm is Rhythm.WITH_REST and self.running:
            self.paused_until = max(self.paused_until, self.now + self.now - self.triggered_at[epoch])

    def _check_publish(self, epoch: Epoch) -> None:
        assert self.running
        assert self.publishing is None, "one at a time"
        assert self.complete is None or epoch > self.complete, "in order"
        assert all((epoch, partition) in self.acknowledged for partition in PARTITIONS)
        assert epoch == min(self.in_flight), "nothing before it is waited for any more"
        self.publishing = epoch


KINDS = st.sampled_from(
    ["tick"] * 5 + ["acknowledge"] * 10 + ["answer"] * 4 + ["commit"] * 4 + ["start"] * 3
    + ["savepoint", "request", "decline", "fail to publish", "break", "fence", "refuse"]
    + ["change"] * 2
)  # fmt: skip
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 63)), max_size=80)
OPTIONS = st.builds(
    CoordinatorOptions,
    interval=st.just(10),
    timeout=st.sampled_from([15, 60]),
    max_in_flight=st.integers(1, 3),
    retain=st.integers(1, 2),
    tolerated_failures=st.sampled_from([None, 0, 1]),
) | st.builds(
    CoordinatorOptions,
    interval=st.just(10),
    min_pause=st.sampled_from([0, 25]),
    max_in_flight=st.just(1),
    tolerated_failures=st.sampled_from([None, 1]),
    rhythm=st.sampled_from(Rhythm),
)


def take(observer: Observer, kind: str, number: int) -> None:
    """One step: the low bits of the number choose the epoch, partition and attempt that an event speaks of."""
    partition = PARTITIONS[number % 2]
    attempt = of_attempt(observer.attempt + (1 if number % 16 == 14 else -1 if number % 16 == 15 else 0))
    known = observer.triggered or [REPLAYED]
    epoch = known[-1 - (number // 2) % min(4, len(known))]
    match kind:
        case "tick":
            observer.tell(Ticked(observer.now + 1 + number % 24))
        case "acknowledge":
            observer.tell(Acknowledged(epoch, attempt, partition, f"{epoch}/{partition}", number >= 32))
        case "answer" if observer.publishing is not None:
            observer.tell(Published(observer.publishing))
        case "fail to publish" if observer.publishing is not None:
            observer.tell(PublishFailed(observer.publishing, "no space"))
        case "commit" if observer.complete is not None:
            observer.tell(Committed(observer.complete, attempt, partition))
        case "start":
            observer.tell(AttemptStarted(attempt, frozenset(PARTITIONS)))
        case "savepoint":
            observer.tell(SavepointRequested())
        case "request":
            observer.tell(EpochRequested())
        case "decline":
            observer.tell(Declined(epoch, attempt, partition, "no"))
        case "break":
            observer.tell(AttemptBroken(attempt, "lost"))
        case "change":
            observer.tell(ContributorChanged(attempt, partition))
        case "fence" if number == 63:
            observer.tell(Fenced(Generation(4)))
        case "refuse" if number == 63 and observer.complete is not None:
            observer.tell(CommitFailed(observer.complete, attempt, partition, "gone"))
        case _:
            pass


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(OPTIONS, st.booleans(), STEPS)
def test_no_sequence_of_events_makes_it_break_a_promise(
    options: CoordinatorOptions, replays: bool, steps: list[tuple[str, int]]
) -> None:
    observer = Observer(options, replays=replays)
    for kind, number in steps:
        take(observer, kind, number)


@settings(deadline=None)
@given(OPTIONS, st.booleans(), STEPS)
def test_when_all_goes_well_again_everything_is_published_and_committed(
    options: CoordinatorOptions, replays: bool, steps: list[tuple[str, int]]
) -> None:
    observer = Observer(options, replays=replays)
    for kind, number in steps:
        if kind not in ("fence", "refuse"):
            take(observer, kind, number)
    for _ in range(4):
        take(observer, "answer", 0)
        observer.tell(AttemptStarted(of_attempt(observer.attempt), frozenset(PARTITIONS)))
        for epoch in list(observer.in_flight):
            for partition in PARTITIONS:
                content = f"{epoch}/{partition}"
                observer.tell(Acknowledged(epoch, of_attempt(observer.attempt), partition, content, True))
    for _ in range(4):
        take(observer, "answer", 0)
    assert not observer.in_flight
    for partition in PARTITIONS:
        take(observer, "commit", partition)
    assert all(epoch in observer.recorded for epoch in observer.committers)


@settings(deadline=None)
@given(OPTIONS, STEPS)
def test_an_attempt_that_runs_with_nothing_in_flight_has_its_next_epoch_when_the_coordinator_says(
    options: CoordinatorOptions, steps: list[tuple[str, int]]
) -> None:
    observer = Observer(options, replays=False)
    for kind, number in steps:
        if kind not in ("fence", "refuse"):
            take(observer, kind, number)
    if observer.running and not observer.in_flight:
        before, due = len(observer.triggered), observer.coordinator.deadline
        longest = max(
            options.interval, options.min_pause, max(observer.now - at for at in [0, *observer.triggered_at.values()])
        )
        assert due <= observer.now + longest
        observer.tell(Ticked(max(due, observer.now)))
        assert len(observer.triggered) == before + 1
