"""The conformance kit for two states that do the same, of which one at a time, the primary, writes the files of both.

`check_replicated_state(Options(...))` runs them through a random history beside plain dictionaries: each goes through
the same changes and cuts at its own pace, epochs are complete or abandoned, the word of it comes early or late, uploads
wait and fail, roles are switched, a state dies and another one joins from the newest complete epoch, both go back in
place. What is read must always be what the dictionaries say; what the newest complete epoch names must be in the store,
and must be the state as it was when that epoch was cut; and files that no complete epoch names, and no later one may
name anew, are deleted as soon as they may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Final

from hypothesis import settings as HowFar  # noqa: N812
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from statebackend import means
from statebackend.files import FileSet
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.keyed_state import KeyedState
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.uploads import Durable
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.testing.keyed_job import BrokenPromise
from statebackend.testing.keyed_model import Key, Model, Place
from statebackend.testing.keyed_state import FEW, KEYS, MANY, NAMESPACES, hasty, restless
from statebackend.testing.keyed_subjects import (
    MAX_PARALLELISM,
    ONE_TABLE,
    SUBJECTS,
    TABLES,
    TWO_TABLES,
    Alarms,
    Subject,
)

_PATIENCE: Final = 60.0
_EACH: Final = 1 << 32
"""So many names has each state; they rise."""


@dataclass(slots=True, eq=False)
class _Member:
    """One of the states, with dictionaries of its own."""

    state: KeyedState
    model: Model
    number: int
    at: int
    """Its place in the history."""
    is_primary: bool
    told: list[Callable[[_Member], None]] = field(default_factory=list)
    """The messages that were sent to it and have not arrived."""
    cut: list[Epoch] = field(default_factory=list)
    """The epochs that it has cut as a primary, and of which nothing was heard."""
    durable: dict[Epoch, Durable] = field(default_factory=dict)
    names: int = 0
    names_at: dict[Epoch, int] = field(default_factory=dict)


class Replicas:
    """The members of one partition, the history that all of them go through, and the epochs that are complete."""

    def __init__(self, operator: Operator, folder: Path, store: FaultyStore, options: Sequence[Options]) -> None:
        self.store = store
        self.history: list[Callable[[_Member], None]] = []
        self.complete = NO_EPOCH
        self.files = FileSet(operator.all_groups)
        self.models: dict[Epoch, Model] = {NO_EPOCH: Model()}
        self._operator, self._folder, self._options = operator, folder, options
        self._numbers, self._folders = count(), count()
        self._cuts: dict[Epoch, int] = {NO_EPOCH: 0}
        self._in_flight: list[Epoch] = []
        self._newest = NO_EPOCH
        self._naming = means.Lock()
        self.members = [self._opened(is_primary=True), self._opened(is_primary=False)]

    @property
    def primary(self) -> _Member:
        """Return the member that is the primary, whether it has heard it or not."""
        return self.members[0]

    def _opened(self, *, is_primary: bool) -> _Member:
        number = next(self._numbers)
        options = self._options[number % len(self._options)]
        folder = self._folder / f"member-{next(self._folders)}"
        member: _Member | None = None

        def name() -> str:
            assert member is not None
            return self._name(member)

        state = KeyedState(self._operator, folder, self.store, name, self.files, options)
        model = self.models[self.complete].copy()
        member = _Member(state, model, number, self._cuts[self.complete], is_primary)
        state.advance(watermark=model.watermark, processing_time=model.clock)
        if not is_primary:
            state.become_shadow()
        return member

    def _name(self, member: _Member) -> str:
        with self._naming:
            member.names += 1
            return f"shared/{member.number * _EACH + member.names}.sst"

    # --- what all do ----------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Let an epoch be cut at this place of the history."""
        epoch = self._newest = Epoch(Generation(1), self._newest.number + 1)

        def step(member: _Member) -> None:
            member.names_at[epoch] = member.names
            member.state.cut(epoch)
            if member.is_primary:
                member.cut.append(epoch)
            self.models.setdefault(epoch, member.model.copy())

        self._in_flight.append(epoch)
        self.history.append(step)
        self._cuts[epoch] = len(self.history)

    def go_on(self, which: int, steps: int | None = None) -> None:
        """Let a member go so far through the history; all of it, unless said."""
        member = self.members[which]
        end = len(self.history) if steps is None else min(member.at + steps, len(self.history))
        while member.at < end:
            member.at += 1
            self.history[member.at - 1](member)
            self._poll(member)

    def listen(self, which: int, words: int | None = None) -> None:
        """Let a member hear what it was told; all of it, unless said."""
        member = self.members[which]
        heard = len(member.told) if words is None else words
        for word in member.told[:heard]:
            word(member)
        del member.told[:heard]

    # --- epochs ---------------------------------------------------------------------------------------------------

    def hear(self, fault: Fault) -> None:
        """Wait until it is known what became of all that the primary has cut."""
        self.store.fault = fault
        self.store.go_on()
        deadline = time.monotonic() + _PATIENCE
        while self.primary.is_primary and self.primary.cut:
            if time.monotonic() > deadline:
                raise BrokenPromise(f"nothing was heard of epoch {self.primary.cut[0]} for {_PATIENCE} s")
            self._poll(self.primary, 0.02)
        self.store.fault = Fault.NONE

    def _poll(self, member: _Member, timeout: float = 0) -> None:
        for news in member.state.poll(timeout):
            if member.is_primary and news.epoch > self.complete and news.epoch not in member.cut:
                raise BrokenPromise(f"epoch {news.epoch} was reported twice, or cut by a shadow: {news}")
            if isinstance(news, Durable):
                member.durable[news.epoch] = news
            member.cut = [epoch for epoch in member.cut if epoch != news.epoch]
        # One that was complete before it was cut here is not reported: the files of another primary are adopted.
        member.cut = [epoch for epoch in member.cut if epoch > self.complete]

    def acknowledged(self) -> list[Epoch]:
        """Return the epochs that can be complete, as the primary has reported them, and they were not abandoned."""
        return [epoch for epoch in self._in_flight if epoch in self.primary.durable]

    def publish(self, epoch: Epoch) -> None:
        """Let the epoch be complete; both are told with which files."""
        durable = self.primary.durable[epoch]
        self.complete, self.files = epoch, durable.files
        self._in_flight = [later for later in self._in_flight if later > epoch]
        for member in self.members:
            member.told.append(_completed(epoch, durable.files))
        self.store_has_what_is_named()
        self._delete(durable)

    def store_has_what_is_named(self) -> None:
        """Check that nothing is missing that the newest complete epoch names."""
        there = {info.path for info in self.store.list()}
        missing = [file.path for file in self.files.files if file.path not in there]
        if missing:
            raise BrokenPromise(f"epoch {self.complete} names {missing}, which are not in the store")

    def _delete(self, durable: Durable) -> None:
        """Delete what no complete epoch names and, as the primary says, no later one may name anew."""
        named = {file.path for file in self.files.files}
        first = self.primary.number * _EACH
        last = first + self.primary.names_at.get(durable.since, 0)
        for info in self.store.list():
            number = int(info.path.removeprefix("shared/").removesuffix(".sst"))
            if info.path not in named and first < number <= last:
                self.store.delete(info.path)

    def abandon(self) -> None:
        """Abandon all epochs in flight."""
        self._in_flight.clear()

    # --- roles, and losses ----------------------------------------------------------------------------------------

    def switch(self) -> None:
        """Let the other member be the primary; epochs in flight are abandoned."""
        self.abandon()
        self.members.reverse()
        primary, shadow = self.members
        primary.told += [_completed(self.complete, self.files), _promoted]
        shadow.told.append(_demoted)

    def lose(self, which: int) -> None:
        """Let a member die, and another one join from the newest complete epoch."""
        self.store.go_on()
        if which == 0:
            self.switch()
        self.members.pop().state.close()
        self.members.append(self._opened(is_primary=False))

    def go_back(self, *, switched: bool) -> int:
        """Let both go back to the newest complete epoch, in place if they can; return how many could."""
        rewound = 0
        if switched:
            self.members.reverse()
        self.abandon()
        del self.history[self._cuts[self.complete] :]
        for place, member in enumerate(self.members):
            if self._goes_back(member):
                rewound += 1
                if place == 0:
                    member.state.become_primary()
                else:
                    member.state.become_shadow()
                member.is_primary = place == 0
            else:
                self.store.go_on()
                member.state.close()
                self.members[place] = self._opened(is_primary=place == 0)
        return rewound

    def _goes_back(self, member: _Member) -> bool:
        number, before = next(self._numbers), member.number
        member.number, member.names = number, 0
        if not member.state.rewind(self.complete, self.files, lambda: self._name(member)):
            member.number = before
            return False
        member.model, member.at = self.models[self.complete].copy(), self._cuts[self.complete]
        member.state.advance(watermark=member.model.watermark, processing_time=member.model.clock)
        member.told, member.cut, member.durable, member.names_at = [], [], {}, {}
        return True

    def settle(self) -> None:
        """Let both do all that is before them, until nothing of the newest complete epoch waits for its adoption."""
        self.store.go_on()
        for which, member in enumerate(self.members):
            self.listen(which)
            self.go_on(which)
            since = sum(epoch > self.complete for epoch in member.names_at)
            deadline = time.monotonic() + _PATIENCE
            while member.state.statistics().background.epochs_pending > since:
                if time.monotonic() > deadline:
                    raise BrokenPromise(f"epoch {self.complete} was not adopted for {_PATIENCE} s")
                self._poll(member, 0.02)

    def restored(self) -> tuple[KeyedState, Model]:
        """Return a state that is opened from what the newest complete epoch names, and what it has to be like."""
        folder, model = self._folder / f"restored-{next(self._folders)}", self.models[self.complete].copy()
        state = KeyedState(self._operator, folder, self.store, lambda: "", self.files, self._options[0])
        state.advance(watermark=model.watermark, processing_time=model.clock)
        return state, model

    def close(self) -> None:
        """Give both up."""
        self.store.go_on()
        for member in self.members:
            member.state.close()


def _completed(epoch: Epoch, files: FileSet) -> Callable[[_Member], None]:
    return lambda member: member.state.completed(epoch, files)


def _promoted(member: _Member) -> None:
    member.is_primary, member.cut = True, []
    member.state.become_primary()


def _demoted(member: _Member) -> None:
    member.is_primary, member.cut = False, []
    member.state.become_shadow()


def check_replicated_state(*options: Options, how_far: HowFar | None = None) -> None:
    """Search for a history after which something else is read than ought to be, or a file is missing."""
    machine = type("ReplicatedStateMachine", (ReplicatedStateMachine,), {"options": options})
    run_state_machine_as_test(machine, settings=how_far)


class ReplicatedStateMachine(RuleBasedStateMachine):
    """The random history."""

    options: Sequence[Options] = (Options(),)

    def __init__(self) -> None:
        super().__init__()
        self._scratch = TemporaryDirectory()
        self._store = FaultyStore(token_hex(8))
        self._replicas: Replicas | None = None
        self._keys: Sequence[Key] = ()
        self._subjects: Sequence[Subject] = ()

    @initialize(
        keys=st.sampled_from(KEYS),
        change=st.sampled_from([[restless], [hasty], []]),
        subjects=st.sampled_from([SUBJECTS, TABLES, ONE_TABLE, ONE_TABLE, TWO_TABLES]),
    )
    def begin(
        self,
        keys: tuple[object, Sequence[Key]],
        change: list[Callable[[Options], Options]],
        subjects: Sequence[Subject],
    ) -> None:
        """Begin without a past."""
        key_type, self._keys = keys
        self._order = {key: place for place, key in enumerate(self._keys)}
        self._subjects = subjects
        states = {subject.name: subject.declaration for subject in subjects}
        options = self.options
        for changed in change:
            options = [changed(one) for one in options]
        operator = Operator("kit", key_type, states, MAX_PARALLELISM)
        self._replicas = Replicas(operator, Path(self._scratch.name), self._store, options)

    @property
    def _all(self) -> Replicas:
        assert self._replicas is not None
        return self._replicas

    # --- the history ----------------------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, len(SUBJECTS) - 1),
        first=st.integers(0, FEW - 1),
        count=st.sampled_from([1, 2, FEW]),
        namespace=st.sampled_from(NAMESPACES),
        number=st.integers(1, 60),
    )
    def change(self, which: int, first: int, count: int, namespace: bytes, number: int) -> None:
        """Change one state for a few keys, and read them."""
        self._change(which, self._keys[first : first + count], namespace, number)

    @rule(first=st.integers(0, MANY // 2), number=st.integers(1, 60), which=st.integers(0, len(SUBJECTS) - 1))
    def change_many(self, first: int, number: int, which: int) -> None:
        """Change a state for many keys."""
        self._change(which, self._keys[first:], NAMESPACES[0], number)

    def _change(self, which: int, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        subject = self._subjects[which % len(self._subjects)]

        def step(member: _Member) -> None:
            subject.change(member.state, member.model, keys, namespace, number)
            self._compare(member.state, member.model, subject, namespace)

        self._all.history.append(step)

    @rule(event=st.integers(0, 8), clock=st.integers(0, 8))
    def let_time_pass(self, event: int, clock: int) -> None:
        """Let time pass, and take the timers that are due."""

        def step(member: _Member) -> None:
            model = member.model
            model.watermark = (model.watermark or 0) + event
            model.clock += clock
            member.state.advance(watermark=model.watermark, processing_time=model.clock)
            for subject in self._subjects:
                if isinstance(subject, Alarms):
                    subject.fire(member.state, model)

        self._all.history.append(step)

    @rule()
    def cut(self) -> None:
        """Cut an epoch."""
        self._all.cut()

    @rule(which=st.integers(0, 1), steps=st.integers(1, 6))
    def go_on(self, which: int, steps: int) -> None:
        """Let one of them go on."""
        self._all.go_on(which, steps)

    @rule(which=st.integers(0, 1), words=st.integers(1, 3))
    def listen(self, which: int, words: int) -> None:
        """Let one of them hear what it was told."""
        self._all.listen(which, words)

    @rule()
    def stall(self) -> None:
        """Let the store answer late."""
        self._store.stall()

    @rule(fault=st.sampled_from([Fault.NONE, Fault.NONE, *Fault]))
    def hear(self, fault: Fault) -> None:
        """Let the primary go on, and wait for news of the epochs that it has cut."""
        self._all.go_on(0)
        self._all.hear(fault)

    @precondition(lambda self: self._replicas is not None and self._replicas.acknowledged())
    @rule(which=st.integers(0, 3))
    def publish(self, which: int) -> None:
        """Let an epoch be complete."""
        acknowledged = self._all.acknowledged()
        self._all.publish(acknowledged[min(which, len(acknowledged) - 1)])

    @rule()
    def abandon(self) -> None:
        """Abandon what is in flight."""
        self._all.abandon()

    @rule(
        epochs=st.integers(2, 12),
        which=st.integers(0, len(SUBJECTS) - 1),
        width=st.sampled_from([4, 280, 300]),
        behind=st.integers(0, 6),
        deaf=st.sampled_from([1, 1, 2, 3]),
        number=st.integers(1, 60),
        fault=st.sampled_from([Fault.NONE, *Fault]),
        switched=st.sampled_from([100, 1, 2, 4]),
    )
    def go_on_for_epochs(
        self, epochs: int, which: int, width: int, behind: int, deaf: int, number: int, fault: Fault, switched: int
    ) -> None:
        """Go through epochs, with a shadow that is behind, or hears late, and roles that are switched."""
        replicas = self._all
        for step in range(epochs):
            self._change(which, self._keys[step % 8 :][:width], NAMESPACES[0], number + step)
            replicas.cut()
            replicas.listen(0)
            self.hear(fault if step % 3 == 1 else Fault.NONE)
            replicas.go_on(1, max(0, len(replicas.history) - behind - replicas.members[1].at))
            if replicas.acknowledged():
                replicas.publish(replicas.acknowledged()[-1])
            if step % deaf == 0:
                replicas.listen(1)
            if step % switched == switched - 1:
                replicas.switch()
        self.restore()

    # --- roles, and losses ----------------------------------------------------------------------------------------

    @rule()
    def switch(self) -> None:
        """Let the shadow be the primary."""
        self._all.switch()

    @rule(which=st.integers(0, 1))
    def lose(self, which: int) -> None:
        """Lose one of them."""
        self._all.lose(which)

    @rule(switched=st.booleans(), settled=st.booleans())
    def go_back(self, *, switched: bool, settled: bool) -> None:
        """Go back to the newest complete epoch, in place if both have adopted it."""
        if settled:
            self._all.settle()
        rewound = self._all.go_back(switched=switched)
        if settled and rewound < 2:
            raise BrokenPromise(f"only {rewound} of 2 went back to epoch {self._all.complete}")
        self._look()

    @rule()
    def restore(self) -> None:
        """Open what the newest complete epoch names: it has to be as it was when that was cut."""
        self._all.store_has_what_is_named()
        state, model = self._all.restored()
        with state:
            for subject in self._subjects:
                for namespace in NAMESPACES:
                    self._compare(state, model, subject, namespace)

    @rule()
    def look(self) -> None:
        """Let both go on, and read everything."""
        self._all.settle()
        self._look()

    def _look(self) -> None:
        for subject in self._subjects:
            for namespace in NAMESPACES:
                for member in self._all.members:
                    self._compare(member.state, member.model, subject, namespace)

    def _compare(self, state: KeyedState, model: Model, subject: Subject, namespace: bytes) -> None:
        known = {place.key for place in model.places(subject.name) if place.namespace == namespace}
        keys = list(dict.fromkeys([*self._keys[:FEW], *sorted(known, key=self._order.__getitem__)]))
        found = subject.read(state, keys, namespace, model.clock)
        for key in keys:
            place = Place(subject.name, key, namespace)
            expected = subject.expected(model, place)
            if found[key] != expected:
                raise BrokenPromise(f"{place} is {found[key]!r}, and ought to be {expected!r}")
            subject.was_read(model, place)

    def teardown(self) -> None:
        """End both, whatever has happened."""
        if self._replicas is not None:
            self._replicas.close()
        self._store.clear()
        self._scratch.cleanup()
