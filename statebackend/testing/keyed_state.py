"""The conformance kit for keyed state on any backend: a random job beside plain dictionaries, which must agree.

`check_keyed_state(Options(...))` is all that a test needs; a backend of one's own goes into `Options(backend=...)`.
With several options the job changes between them when it is restored. What is done to it: states of all kinds are
changed in several namespaces, time passes, epochs are cut (several at once), uploads wait and fail, epochs complete,
the partitions go back in place to an epoch that they know, another process follows the epochs with its own state and
takes over, and the job starts again from any complete epoch, with another parallelism, on this machine or on one
without links.
What is read must always be what the dictionaries say; after a rewind or a restore, what they said when the epoch was
cut.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Final

from hypothesis import settings as HowFar  # noqa: N812
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from statebackend.ids import NO_EPOCH, Epoch
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.consolidation import Policy
from statebackend.states.namespaces import NO_NAMESPACE, Window
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.testing.keyed_job import BrokenPromise, KeyedJob
from statebackend.testing.keyed_model import Key, Model, Place
from statebackend.testing.keyed_subjects import (
    MAX_PARALLELISM,
    ONE_TABLE,
    SUBJECTS,
    TABLES,
    TWO_TABLES,
    Alarms,
    Subject,
)

NAMESPACES: Final = (NO_NAMESPACE, Window(-5, 5).namespace, b"\x00")
FEW: Final = 8
_LONG: Final = 1 << 40
MANY: Final = 300
"""More than fit into any cache of restless state."""

KEYS: Final[tuple[tuple[object, tuple[Key, ...]], ...]] = (
    (str, (None, "", "a", "ä", "\x00", "k" * 80, *(f"key-{number}" for number in range(MANY)))),
    (int, (None, 0, -1, 1 << 62, *range(1, MANY))),
)
"""Types of keys, and keys of them."""


@dataclass(frozen=True, slots=True)
class Restless(Policy):
    """Rewrites all the time: bases of some key groups every few epochs, and deltas are merged as soon as can be."""

    @property
    def pace(self) -> float:
        """Return a pace at which small deltas become bases, but not before some were merged."""
        return 20.0

    def most_bytes(self, live: float, delta: float) -> float:  # noqa: ARG002
        """Return a ceiling that is always passed."""
        return 0.0

    def most_deltas(self, live: float) -> int:  # noqa: ARG002
        """Return the fewest of which a run can be made."""
        return 8

    def largest_slice(self, live: float) -> float:
        """Return a third."""
        return live / 3


@dataclass(frozen=True, slots=True)
class Hasty(Restless):
    """Makes bases of some key groups in each epoch, of whatever has changed."""

    @property
    def pace(self) -> float:
        """Return a pace at which the smallest delta pays for a slice."""
        return 1000.0


def spilling(options: Options) -> Options:
    """Return the same options with hardly any memory, so that caches and tables become rows all the time."""
    return replace(options, memory=1 << 15)


def restless(options: Options) -> Options:
    """Return the same options with files that are rewritten all the time."""
    return replace(options, policy=Restless())


def hasty(options: Options) -> Options:
    """Return the same options with bases that are made of each epoch, or a little later."""
    return replace(options, policy=Hasty())


def check_keyed_state(
    *options: Options, how_far: HowFar | None = None, subjects: Sequence[Subject] | None = None
) -> None:
    """Search for a job that reads something else than it should; `BrokenPromise` or another error says what it is.

    With `subjects`, such as `TWO_TABLES`, the job has just these states.
    """
    machine = type("KeyedStateMachine", (KeyedStateMachine,), {"options": options, "only": subjects})
    run_state_machine_as_test(machine, settings=how_far)


class KeyedStateMachine(RuleBasedStateMachine):
    """The random job. A subclass may say with which `options` the job is run."""

    options: Sequence[Options] = (Options(),)
    only: Sequence[Subject] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._options = self.options
        self._scratch = TemporaryDirectory()
        self._store = FaultyStore(token_hex(8))
        self._model = Model()
        self._models = {NO_EPOCH: Model()}
        self._keys: Sequence[Key] = ()
        self._subjects: Sequence[Subject] = ()
        self._newest = NO_EPOCH
        self._in_flight = 0
        self._has_job = False
        self._is_short = False

    @initialize(
        keys=st.sampled_from(KEYS),
        parallelism=st.integers(1, 4),
        change=st.sampled_from([[restless], [hasty], [restless, spilling], [spilling], []]),
        subjects=st.sampled_from([SUBJECTS, SUBJECTS, TABLES, ONE_TABLE, TWO_TABLES]),
    )
    def begin(
        self,
        keys: tuple[object, Sequence[Key]],
        parallelism: int,
        change: list[Callable[[Options], Options]],
        subjects: Sequence[Subject],
    ) -> None:
        """Begin a job without a past."""
        key_type, self._keys = keys
        self._order = {key: place for place, key in enumerate(self._keys)}
        self._subjects = subjects if self.only is None else self.only
        states = {subject.name: subject.declaration for subject in self._subjects}
        operator = Operator("kit", key_type, states, MAX_PARALLELISM)
        for changed in change:
            self._options = [changed(options) for options in self._options]
        self._is_short = spilling in change
        self._job = KeyedJob(operator, Path(self._scratch.name), self._store)
        self._has_job = True
        self._job.start(NO_EPOCH, parallelism, self._options, elsewhere=True)
        self._job.advance(None, 0)

    @rule(
        which=st.integers(0, len(SUBJECTS) - 1),
        first=st.integers(0, FEW - 1),
        count=st.sampled_from([1, 2, FEW]),
        namespace=st.sampled_from(NAMESPACES),
        number=st.integers(1, 60),
    )
    def change(self, which: int, first: int, count: int, namespace: bytes, number: int) -> None:
        """Change one state for a few keys, and read them."""
        subject, keys = self._chosen(which), self._keys[first : first + count]
        self._change(subject, keys, namespace, number)
        self._compare(subject, namespace)

    @rule(first=st.integers(0, MANY // 2), number=st.integers(1, 60), which=st.sets(st.integers(0, len(SUBJECTS) - 1)))
    def change_many(self, first: int, number: int, which: set[int]) -> None:
        """Change states for many keys."""
        for subject in map(self._chosen, sorted(which)):
            self._change(subject, self._keys[first:], NO_NAMESPACE, number)

    def _chosen(self, which: int) -> Subject:
        return self._subjects[which % len(self._subjects)]

    def _change(self, subject: Subject, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        for state, own in self._job.by_owner(keys):
            if own:
                subject.change(state, self._model, own, namespace, number)

    @rule(event=st.integers(0, 8), clock=st.integers(0, 8))
    def let_time_pass(self, event: int, clock: int) -> None:
        """Let time pass; event time begins with the first watermark."""
        self._model.watermark = (self._model.watermark or 0) + event
        self._model.clock += clock
        self._job.advance(self._model.watermark, self._model.clock)

    @rule()
    def fire(self) -> None:
        """Take the timers that are due."""
        for subject in self._subjects:
            if isinstance(subject, Alarms):
                for state in self._job.states:
                    subject.fire(state, self._model)

    @precondition(lambda self: self._in_flight < 5)
    @rule()
    def cut(self) -> None:
        """Cut an epoch, which has the dictionaries as they are now."""
        self._models[self._job.cut()] = self._model.copy()
        self._in_flight += 1

    @rule()
    def stall(self) -> None:
        """Let the store answer late."""
        self._store.stall()

    @rule(fault=st.sampled_from([Fault.NONE, *Fault]))
    def hear(self, fault: Fault) -> None:
        """Wait for news of the epochs; the store fails them, or not."""
        self._newest = max([self._newest, *self._job.hear(fault)])
        self._in_flight = 0

    @precondition(lambda self: self._newest != NO_EPOCH)
    @rule()
    def complete(self) -> None:
        """Complete the newest epoch."""
        self._job.completed(self._newest)

    @rule(
        epochs=st.integers(2, 30),
        which=st.lists(st.integers(0, len(SUBJECTS) - 1), min_size=1, max_size=4),
        namespaces=st.sampled_from([NAMESPACES[:1], NAMESPACES]),
        width=st.sampled_from([4, 40, 280, 280]),
        narrow=st.sampled_from([100, 3, 4]),
        lag=st.integers(1, 3),
        number=st.integers(1, 60),
        fault=st.sampled_from([Fault.NONE, *Fault]),
        parallelism=st.integers(1, 4),
        steady=st.sampled_from([100, 2, 5]),
        followed=st.sampled_from([100, 1, 2, 5]),
        together=st.sampled_from([1, 3, 5, 13]),
    )
    def go_on_for_epochs(
        self,
        epochs: int,
        which: Sequence[int],
        namespaces: Sequence[bytes],
        width: int,
        narrow: int,
        lag: int,
        number: int,
        fault: Fault,
        parallelism: int,
        steady: int,
        followed: int,
        together: int,
    ) -> None:
        """Go through epochs, `lag` of them on their way at once, with rewinds and a process that follows; then restore.

        The following process takes over before the restore. In each epoch one namespace changes; or one of one state,
        and now and then all keys of all of them `together`.
        """
        subjects = list(map(self._chosen, which))
        for step in range(epochs):
            few = step % narrow == narrow - 1
            keys = self._keys[(number + step) * width % (MANY - width) :][: FEW if few else width]
            if together == 1:
                for subject in subjects:
                    self._change(subject, keys, namespaces[step % len(namespaces)], number + step)
            elif (step + number) % together:
                self._change(subjects[0], keys, namespaces[0], number + step)
            else:
                for subject in subjects:
                    for namespace in NAMESPACES:
                        self._change(subject, self._keys, namespace, number + step)
            self.cut()
            if step % lag == 0:
                self.hear(fault if step % 3 == 1 else Fault.NONE)
            if self._newest != NO_EPOCH and step % (2 * lag) == 0:
                self.complete()
            self._compare(self._chosen(which[0]), namespaces[0])
            if step % steady == steady - 1:
                self.rewind(which=0)
            if step % followed == followed - 1 and self._newest != NO_EPOCH:
                self.follow()
        if followed < epochs and self._newest != NO_EPOCH:
            self.take_over()
        self.restore(which=number % 2, parallelism=parallelism, options=range(4), elsewhere=number % 4 == 0)

    @rule(which=st.integers(0, 3))
    def rewind(self, which: int) -> None:
        """Go back in place to the newest complete epoch that all know, or to an older one."""
        epochs = sorted(filter(self._job.may_rewind, self._job.snapshots))
        epoch = epochs[max(0, len(epochs) - 1 - which)]
        rewound = self._job.rewind(epoch)
        if rewound < len(self._job.states) and not self._is_short:
            raise BrokenPromise(f"only {rewound} of {len(self._job.states)} partitions went back to epoch {epoch}")
        self._go_back_to(epoch)

    @precondition(lambda self: self._newest != NO_EPOCH)
    @rule()
    def follow(self) -> None:
        """Let another process open the state as the newest complete epoch has it."""
        self._job.follow(self._newest)

    @precondition(lambda self: self._newest != NO_EPOCH)
    @rule()
    def take_over(self) -> None:
        """Let the other process go on from there."""
        self._job.take_over(self._newest)
        self._go_back_to(self._newest)

    @rule(
        which=st.integers(0, 3),
        parallelism=st.integers(1, 4),
        options=st.permutations(range(4)),
        elsewhere=st.booleans(),
    )
    def restore(self, which: int, parallelism: int, options: Sequence[int], elsewhere: bool) -> None:
        """Start again from the newest complete epoch, or from an older one; all has to be as it was."""
        epochs = sorted(self._job.snapshots)
        epoch = epochs[max(0, len(epochs) - 1 - which)]
        chosen = [self._options[number % len(self._options)] for number in options]
        self._job.start(epoch, parallelism, chosen, elsewhere=elsewhere)
        self._go_back_to(epoch)

    def _go_back_to(self, epoch: Epoch) -> None:
        clock = self._model.clock
        self._model = self._models[epoch].copy()
        self._model.clock = clock
        self._job.advance(self._model.watermark, clock)
        self._newest, self._in_flight = epoch, 0
        self.look()

    @rule()
    def look(self) -> None:
        """Read everything."""
        for subject in self._subjects:
            for namespace in NAMESPACES:
                self._compare(subject, namespace)
        if self._store.fault is Fault.NONE and not self._store.was_disturbed:
            for state in self._job.states:
                trouble = state.statistics().background.trouble
                if trouble is not None:
                    raise BrokenPromise(f"there is trouble in the background: {trouble}")

    def _compare(self, subject: Subject, namespace: bytes) -> None:
        known = {place.key for place in self._model.places(subject.name) if place.namespace == namespace}
        keys = list(dict.fromkeys([*self._keys[:FEW], *sorted(known, key=self._order.__getitem__)]))
        for state, own in self._job.by_owner(keys):
            found: dict[Key, object] = subject.read(state, own, namespace, self._model.clock) if own else {}
            for key in own:
                place = Place(subject.name, key, namespace)
                expected = subject.expected(self._model, place)
                if found[key] != expected:
                    raise BrokenPromise(f"{place} is {found[key]!r}, and ought to be {expected!r}")
                subject.was_read(self._model, place)

    def teardown(self) -> None:
        """Read everything, whatever has happened; unless something is wrong anyway."""
        try:
            if self._has_job and sys.exception() is None:
                self.look()
                self.let_time_pass(event=_LONG, clock=_LONG)
                self.fire()
        finally:
            if self._has_job:
                self._job.stop()
            self._store.clear()
            self._scratch.cleanup()
