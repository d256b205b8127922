"""Clean-up: what somebody still needs, or may need, is never deleted, and what nobody needs goes in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.decisions.cleanup import (
    CleanupError,
    EpochFiles,
    Fate,
    InFlight,
    NamedFrom,
    ObservedTree,
    classify,
    plan_removal,
    removable_epochs,
)
from snapshot.ids import Replica, numbered_from
from snapshot.journal.entries import (
    Body,
    Claimed,
    Committed,
    Completed,
    Entry,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
    Rewound,
    Unpinned,
)
from snapshot.journal.machine import apply
from snapshot.journal.state import EMPTY, JournalState
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

FIRST, SECOND = Generation(1), Generation(2)


def epoch(number: int, generation: Generation = FIRST) -> Epoch:
    return Epoch(generation, number)


def manifest(of: Epoch) -> str:
    return f"epochs/{of}-x/manifest.json"


def complete(of: Epoch, has_committables: bool = False) -> Completed:
    return Completed(of, manifest(of), "sha256:00", has_committables)


def state_after(*bodies: Body) -> JournalState:
    return continued(EMPTY, Claimed(FIRST, "driver"), *bodies)


def continued(state: JournalState, *bodies: Body) -> JournalState:
    for body in bodies:
        state = apply(state, Entry(state.number + 1, Nonce(f"n{state.number}"), body))
    return state


def file(number: int, generation: Generation = FIRST, attempt: int = 1) -> str:
    return f"shared/{generation}-0-{attempt}-{number}.sst"


def refers(of: Epoch, *files: str) -> EpochFiles:
    return EpochFiles(of, frozenset(files))


ONE, TWO, THREE, FOUR = (epoch(number) for number in range(1, 5))
THREE_COMPLETE = (complete(ONE), complete(TWO), complete(THREE))


# --- retention


def test_the_newest_epochs_are_retained_and_the_older_may_go() -> None:
    assert removable_epochs(state_after(*THREE_COMPLETE), 1, None) == (ONE, TWO)
    assert removable_epochs(state_after(*THREE_COMPLETE), 2, None) == (ONE,)
    assert removable_epochs(state_after(*THREE_COMPLETE), 3, None) == ()


def test_an_epoch_with_uncommitted_output_stays_until_it_is_committed() -> None:
    state = state_after(complete(ONE, has_committables=True), complete(TWO), complete(THREE))
    assert removable_epochs(state, 1, None) == (TWO,)
    assert removable_epochs(continued(state, Committed(FIRST, ONE)), 1, None) == (ONE, TWO)


def test_a_pinned_epoch_stays_until_it_is_unpinned() -> None:
    state = state_after(*THREE_COMPLETE, Pinned(PinId("p"), ONE, Pinner.SAVEPOINT))
    assert removable_epochs(state, 1, None) == (TWO,)
    assert removable_epochs(continued(state, Unpinned(PinId("p"))), 1, None) == (ONE, TWO)


def test_nothing_from_the_oldest_base_in_flight_on_is_removed() -> None:
    assert removable_epochs(state_after(*THREE_COMPLETE), 1, TWO) == (ONE,)
    assert removable_epochs(state_after(*THREE_COMPLETE), 1, ONE) == ()


def test_given_up_epochs_do_not_count_as_retained_and_may_go() -> None:
    state = state_after(complete(ONE), complete(TWO, has_committables=True), Rewound(FIRST, ONE), complete(THREE))
    assert removable_epochs(state, 2, None) == (TWO,)


def test_a_job_that_would_retain_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        removable_epochs(EMPTY, 0, None)


# --- removals


def test_a_removal_names_what_only_the_removed_epochs_refer_to_oldest_first() -> None:
    state = state_after(*THREE_COMPLETE)
    references = (refers(ONE, "a", "b", "s"), refers(TWO, "a0", "b", "s"), refers(THREE, "s", "t"))
    planned = plan_removal(ObservedTree(state, references), FIRST, 1)
    assert planned == Removed(FIRST, (ONE, TWO), ("a", "b", "a0"), (manifest(ONE), manifest(TWO)))


def test_a_removal_spares_what_was_acknowledged_for_an_epoch_in_flight() -> None:
    tree = ObservedTree(
        state_after(*THREE_COMPLETE),
        (refers(ONE, "a"), refers(TWO, "b"), refers(THREE, "c")),
        in_flight=(InFlight(FOUR, THREE, frozenset({"a"})),),
    )
    planned = plan_removal(tree, FIRST, 1)
    assert planned is not None
    assert planned.files == ("b",)


def test_the_files_of_a_base_survive_the_completion_of_a_later_epoch() -> None:
    tree = ObservedTree(
        state_after(*THREE_COMPLETE),
        (refers(ONE, "a"), refers(TWO, "b"), refers(THREE, "c")),
        in_flight=(InFlight(FOUR, ONE),),
    )
    assert plan_removal(tree, FIRST, 1) is None


def test_nothing_is_removed_while_an_epoch_that_stays_cannot_be_read() -> None:
    state = state_after(*THREE_COMPLETE)
    unreadable = (refers(ONE, "a"), refers(TWO, "b"), EpochFiles(THREE, None))
    assert plan_removal(ObservedTree(state, unreadable), FIRST, 1) is None
    unreadable = (refers(ONE, "a"), EpochFiles(TWO, None), refers(THREE, "c"))
    planned = plan_removal(ObservedTree(state, unreadable), FIRST, 1)
    assert planned == Removed(FIRST, (ONE, TWO), ("a",), (manifest(ONE), manifest(TWO)))


def test_an_epoch_that_nobody_has_looked_at_stops_the_clean_up() -> None:
    with pytest.raises(CleanupError, match="its manifest was not read"):
        classify(ObservedTree(state_after(complete(ONE)), ()))


def test_a_base_that_is_gone_stops_the_clean_up() -> None:
    with pytest.raises(CleanupError, match="in flight on 1-1"):
        classify(ObservedTree(state_after(), (), in_flight=(InFlight(TWO, ONE),)))


# --- classification


def test_every_object_has_one_fate() -> None:
    state = state_after(*THREE_COMPLETE, Removed(FIRST, (ONE,), (file(2), file(1)), (manifest(ONE),)))
    state = continued(state, Claimed(SECOND, "other"))
    entry, lost, kept, left = "journal/0000000001.json", manifest(epoch(9)), file(3), file(4)
    acknowledged, new = file(1, SECOND), file(2, SECOND)
    foreign = ("notes.txt", "shared/notes.txt")
    found = (file(1), file(2), entry, manifest(ONE), manifest(TWO), lost, acknowledged, new, left, kept, *foreign)
    in_flight = (InFlight(Epoch(SECOND, 4), THREE, frozenset({acknowledged})),)
    fates = classify(ObservedTree(state, (refers(TWO, kept), refers(THREE, kept)), found, in_flight))
    assert fates.of(Fate.NEEDED) == (manifest(TWO), entry, kept, acknowledged)
    assert fates.of(Fate.REMOVABLE) == (file(2), file(1), manifest(ONE)), "in the order of the removal"
    assert fates.of(Fate.ORPHANED) == (lost, left)
    assert fates.of(Fate.IN_FLIGHT_POSSIBLE) == (new,)
    assert fates.of(Fate.FOREIGN) == foreign


def test_what_a_removal_names_and_somebody_refers_to_is_needed() -> None:
    state = state_after(complete(ONE), complete(TWO), Removed(FIRST, (ONE,), (file(1),), (manifest(ONE),)))
    fates = classify(ObservedTree(state, (refers(TWO, file(1)),), (file(1),)))
    assert fates.of(Fate.NEEDED) == (file(1),)


def test_a_removal_that_names_the_journal_does_not_delete_it() -> None:
    entry = "journal/0000000001.json"
    state = state_after(complete(ONE), complete(TWO), Removed(FIRST, (ONE,), (entry, "notes.txt"), (manifest(ONE),)))
    fates = classify(ObservedTree(state, (refers(TWO),), (entry, "notes.txt")))
    assert (fates.of(Fate.NEEDED), fates.of(Fate.FOREIGN)) == ((entry,), ("notes.txt",))


def test_leftovers_are_unexplained_while_a_retained_manifest_cannot_be_read() -> None:
    state = continued(state_after(complete(ONE)), Claimed(SECOND, "other"))
    fates = classify(ObservedTree(state, (EpochFiles(ONE, None),), (file(1),)))
    assert fates.of(Fate.UNEXPLAINED) == (file(1),)


# --- attempts that are over


def test_files_of_attempts_that_are_over_are_orphans_unless_a_retained_epoch_refers_to_them() -> None:
    state, present = state_after(complete(ONE)), Incarnation(FIRST, Attempt(3))
    kept, rolled_back, before, new = file(1), file(2, attempt=1), file(3, attempt=2), file(4, attempt=3)
    observed = ObservedTree(state, (refers(ONE, kept),), (kept, rolled_back, before, new), attempt=present)
    fates = classify(observed)
    assert fates.of(Fate.NEEDED) == (kept,)
    assert fates.of(Fate.ORPHANED) == (rolled_back, before)
    assert fates.of(Fate.IN_FLIGHT_POSSIBLE) == (new,)
    from_outside = classify(replace(observed, attempt=None))
    assert from_outside.of(Fate.IN_FLIGHT_POSSIBLE) == (rolled_back, before, new), "its driver alone knows the attempt"


def test_files_of_attempts_that_are_over_stay_while_a_retained_manifest_cannot_be_read() -> None:
    present = Incarnation(FIRST, Attempt(2))
    observed = ObservedTree(state_after(complete(ONE)), (EpochFiles(ONE, None),), (file(1),), attempt=present)
    assert classify(observed).of(Fate.UNEXPLAINED) == (file(1),)


def test_files_of_the_present_attempt_are_orphans_below_the_number_from_which_its_epochs_name_files() -> None:
    present = Incarnation(FIRST, Attempt(1))
    named, left, new, in_flight, staged = file(1), file(2), file(3), "shared/1-0-1-2.channel", "shared/1-0-1-2.staged"
    of_others = ("shared/1-1-1-2.sst", "shared/1-0-2-2.sst", f"shared/1-2-1-{numbered_from(Replica(0)) + 2}.sst")
    named_from = NamedFrom(present, {Partition(0): 3, Partition(2): numbered_from(Replica(1)) + 3})
    found = (named, left, new, in_flight, staged, *of_others, f"shared/1-2-1-{numbered_from(Replica(1)) + 2}.sst")
    observed = ObservedTree(state_after(complete(ONE)), (refers(ONE, named),), found, attempt=present)
    assert classify(observed).of(Fate.ORPHANED) == ()
    fates = classify(replace(observed, named_from=named_from))
    assert fates.of(Fate.NEEDED) == (named,)
    assert set(fates.of(Fate.ORPHANED)) == {left, in_flight, found[-1]}
    assert set(fates.of(Fate.IN_FLIGHT_POSSIBLE)) == {new, staged, *of_others}
    unreadable = replace(observed, named_from=named_from, references=(EpochFiles(ONE, None),))
    assert classify(unreadable).of(Fate.ORPHANED) == ()


def test_a_manifest_is_an_orphan_as_soon_as_a_later_epoch_is_complete_instead() -> None:
    lost, ahead = "epochs/1-1-lost/manifest.json", "epochs/3-1-ahead/manifest.json"
    state = state_after(complete(TWO))
    fates = classify(ObservedTree(state, (refers(TWO),), (manifest(TWO), lost, ahead)))
    assert fates.of(Fate.NEEDED) == (manifest(TWO),)
    assert fates.of(Fate.ORPHANED) == (lost,)
    assert fates.of(Fate.IN_FLIGHT_POSSIBLE) == (ahead,)


# --- any history


class Job:
    """A job whose epochs share files; it is cleaned up at random moments, by clean-ups that may die half-way.

    Its driver's sweeps look at the journal at one moment, and list the tree at any later one.
    """

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        self.state = state_after()
        self.files: dict[Epoch, frozenset[str]] = {}
        self.in_flight: list[InFlight] = []
        self.there: set[str] = set()
        self.counter = 0
        self.attempt = Incarnation(FIRST, Attempt(1))
        self.over: list[Incarnation] = []
        self.sweeps: list[ObservedTree] = []

    def write(self, *bodies: Body) -> None:
        self.state = continued(self.state, *bodies)

    def trigger(self) -> None:
        base = self.state.usable[-1].epoch if self.state.usable else None
        number = max([self.state.newest_complete.number, *(item.epoch.number for item in self.in_flight)]) + 1
        self.in_flight.append(InFlight(Epoch(self.state.generation, number), base))

    def complete(self) -> None:
        """The oldest in flight completes with any files of its base and a new one."""
        if not self.in_flight:
            return
        item = self.in_flight.pop(0)
        of_base = sorted(self.files[item.base]) if item.base is not None else []
        kept = self.draw.draw(st.sets(st.sampled_from(of_base))) if of_base else set()
        self.files[item.epoch] = frozenset(kept | {self.made(self.attempt)})
        self.there.add(manifest(item.epoch))
        self.write(complete(item.epoch, has_committables=self.draw.draw(st.booleans())))

    def made(self, by: Incarnation) -> str:
        self.counter += 1
        path = file(self.counter, by.generation, by.attempt)
        self.there.add(path)
        return path

    def commit(self) -> None:
        if self.state.usable and self.state.usable[-1].awaits_commit:
            self.write(Committed(self.state.generation, self.state.usable[-1].epoch))

    def pin(self) -> None:
        if self.state.usable and len(self.state.pins) < 2:
            chosen = self.draw.draw(st.sampled_from(self.state.usable))
            self.write(Pinned(PinId(f"p{self.state.number}"), chosen.epoch, Pinner.READER))

    def unpin(self) -> None:
        if self.state.pins:
            self.write(Unpinned(self.state.pins[0].pin))

    def roll_back(self, generation: Generation | None = None) -> None:
        """What was in flight leaves its files behind."""
        for _ in self.in_flight:
            self.made(self.attempt)
        self.in_flight.clear()
        self.over.append(self.attempt)
        after = Incarnation(self.attempt.generation, Attempt(self.attempt.attempt + 1))
        self.attempt = after if generation is None else Incarnation(generation, Attempt(1))

    def restart(self) -> None:
        """A crash of the driver."""
        self.write(Claimed(Generation(self.state.generation + 1), "driver"))
        self.roll_back(self.state.generation)

    def upload_late(self) -> None:
        """A process of an attempt that is over wakes up."""
        if self.over:
            self.made(self.draw.draw(st.sampled_from(self.over)))

    def begin_sweep(self) -> None:
        self.sweeps.append(replace(self.tree(), attempt=self.attempt, in_flight=()))

    def end_sweep(self) -> None:
        """Perhaps generations later, by a driver that does not know that it is fenced."""
        if self.sweeps:
            observed = self.sweeps.pop(0)
            self.there.difference_update(classify(replace(observed, found=tuple(self.there))).of(Fate.ORPHANED))

    def remove(self) -> None:
        planned = plan_removal(self.tree(), self.state.generation, self.draw.draw(st.integers(1, 3)))
        if planned is not None:
            self.write(planned)

    def clean(self, limit: int | None = None) -> None:
        fates = classify(self.tree())
        deletions = fates.of(Fate.REMOVABLE) + fates.of(Fate.ORPHANED)
        for path in deletions[: self.draw.draw(st.integers(0, len(deletions))) if limit is None else limit]:
            self.there.remove(path)

    def summarise(self) -> None:
        self.state = self.state.summarised()

    def tree(self) -> ObservedTree:
        references = tuple(EpochFiles(record.epoch, self.files[record.epoch]) for record in self.state.retained)
        return ObservedTree(self.state, references, tuple(self.there), tuple(self.in_flight))

    def check(self) -> None:
        bases = {item.base for item in self.in_flight if item.base is not None}
        for needed in {record.epoch for record in self.state.retained} | self.state.pinned | bases:
            lost = (self.files[needed] | {manifest(needed)}) - self.there
            assert not lost, f"epoch {needed} has lost {lost}"


OFTEN = ("trigger", "trigger", "complete", "complete", "commit", "remove", "clean")
SWEEPS = ("roll_back", "begin_sweep", "end_sweep", "upload_late")
MOVES = (*OFTEN, *OFTEN, *SWEEPS, "pin", "unpin", "restart", "summarise")


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.data())
def test_nothing_reachable_is_ever_deleted_and_leftovers_go_in_the_end(data: st.DataObject) -> None:
    job = Job(data)
    for move in data.draw(st.lists(st.sampled_from(MOVES), min_size=20, max_size=60)):
        getattr(job, move)()
        job.check()
    if data.draw(st.booleans()):
        job.restart()
    else:
        job.roll_back()
        job.begin_sweep()
        job.sweeps = job.sweeps[-1:]
        job.end_sweep()
        job.check()
    job.clean(limit=len(job.there))
    job.check()
    reachable = frozenset().union(
        *(job.files[record.epoch] | {manifest(record.epoch)} for record in job.state.retained)
    )
    assert job.there == reachable
