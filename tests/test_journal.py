"""The fold of the journal: what each entry means, and which may not stand where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from snapshot.journal.entries import (
    Body,
    Claimed,
    Closed,
    Committed,
    Completed,
    DamagedJournal,
    Entry,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
    Rewound,
    Unpinned,
)
from snapshot.journal.entry_json import decode_summary, encode_summary
from snapshot.journal.machine import Reason, apply, refusal
from snapshot.journal.state import (
    EMPTY,
    NO_OUTPUT,
    NONCES_KEPT,
    EpochState,
    JournalState,
    OutputMade,
    Pin,
    Removal,
)
from statebackend.files import PathError
from statebackend.ids import Epoch, Generation

G1, G2 = Generation(1), Generation(2)
ONE, TWO, THREE, FOUR = (Epoch(G1, number) for number in (1, 2, 3, 4))
PIN = PinId("reader-1")


def complete(epoch: Epoch, has_committables: bool = False) -> Completed:
    return Completed(epoch, manifest(epoch), "sha256:00", has_committables)


def manifest(epoch: Epoch) -> str:
    return f"epochs/{epoch}-x/manifest.json"


def removed(*epochs: Epoch, by: Generation = G1) -> Removed:
    return Removed(by, epochs, ("shared/1.sst",), tuple(map(manifest, epochs)))


def fold(*bodies: Body) -> JournalState:
    state = EMPTY
    for body in bodies:
        state = apply(state, Entry(state.number + 1, Nonce(f"n{state.number + 1}"), body))
    return state


CLAIM = Claimed(G1, "driver-1")
PINNED = Pinned(PIN, ONE, Pinner.READER)
CLOSED = Closed(G1, "s3://bucket/there")


def states_of(state: JournalState) -> dict[Epoch, EpochState]:
    return {record.epoch: record.state for record in state.epochs}


def test_a_claim_makes_its_generation_the_newest() -> None:
    state = fold(CLAIM, Claimed(G2, "driver-2"))
    assert (state.number, state.generation, state.driver) == (2, G2, "driver-2")


def test_a_commit_covers_everything_up_to_its_epoch() -> None:
    state = fold(CLAIM, complete(ONE, True), complete(TWO, True), complete(THREE, True), Committed(G1, TWO))
    assert list(states_of(state).values()) == [EpochState.COMMITTED, EpochState.COMMITTED, EpochState.COMPLETE]
    assert [record.epoch for record in state.usable if record.awaits_commit] == [THREE]


def test_a_later_generation_commits_what_an_earlier_completed() -> None:
    state = fold(CLAIM, complete(ONE, True), Claimed(G2, "driver-2"), Committed(G2, ONE))
    assert states_of(state) == {ONE: EpochState.COMMITTED}


def test_a_rewind_gives_up_what_is_newer_and_its_ids_are_not_used_again() -> None:
    state = fold(CLAIM, complete(ONE), complete(TWO, True), complete(THREE), Rewound(G1, ONE))
    assert list(states_of(state).values()) == [EpochState.COMPLETE, EpochState.GIVEN_UP, EpochState.GIVEN_UP]
    assert [record.epoch for record in state.usable] == [ONE]
    assert reason(state, complete(TWO)) is Reason.EPOCH_NOT_RISING
    assert reason(state, Committed(G1, TWO)) is Reason.NO_SUCH_EPOCH


def test_a_removal_says_what_may_be_deleted_until_it_is_summarised() -> None:
    state = fold(CLAIM, complete(ONE), complete(TWO), removed(ONE))
    assert state.removals == (Removal(4, (ONE,), ("shared/1.sst",), (manifest(ONE),)),)
    assert states_of(state) == {ONE: EpochState.REMOVED, TWO: EpochState.COMPLETE}
    assert states_of(state.summarised()) == {TWO: EpochState.COMPLETE}
    assert state.summarised().removals == ()


def test_a_pin_holds_until_it_is_lifted() -> None:
    state = fold(CLAIM, complete(ONE), complete(TWO), PINNED)
    assert state.pins == (Pin(PIN, ONE, Pinner.READER),)
    assert reason(state, removed(ONE)) is Reason.PINNED
    assert refusal(apply(state, Entry(5, Nonce("n5"), Unpinned(PIN))), removed(ONE)) is None


def test_a_given_up_epoch_may_be_removed_though_it_was_never_committed() -> None:
    state = fold(CLAIM, complete(ONE), complete(TWO, True), Rewound(G1, ONE))
    assert refusal(state, removed(TWO)) is None


def test_the_newest_nonces_are_remembered_with_their_numbers() -> None:
    pins: list[Body] = [PINNED, Unpinned(PIN)]
    state = fold(CLAIM, complete(ONE), *pins * NONCES_KEPT)
    assert state.number_of(Nonce(f"n{state.number}")) == state.number
    oldest = state.number - NONCES_KEPT + 1
    assert state.number_of(Nonce(f"n{oldest}")) == oldest
    assert state.remembers(oldest)
    assert state.number_of(Nonce(f"n{oldest - 1}")) is None
    assert not state.remembers(oldest - 1)
    assert not state.remembers(state.number + 1)


def reason(state: JournalState, body: Body) -> Reason | None:
    refused = refusal(state, body)
    return refused.reason if refused is not None else None


TAKEN_OVER = (CLAIM, complete(ONE, True), complete(TWO), Claimed(G2, "driver-2"))

REFUSED: dict[str, tuple[tuple[Body, ...], Body, Reason]] = {
    "a stale generation completes nothing": (TAKEN_OVER, complete(THREE), Reason.FENCED),
    "a stale generation commits nothing": (TAKEN_OVER, Committed(G1, ONE), Reason.FENCED),
    "a stale generation removes nothing": (TAKEN_OVER, removed(ONE), Reason.FENCED),
    "a stale generation rewinds nothing": (TAKEN_OVER, Rewound(G1, ONE), Reason.FENCED),
    "who has not claimed completes nothing": ((CLAIM,), complete(Epoch(G2, 1)), Reason.NOT_CLAIMED),
    "a generation is claimed once": ((CLAIM,), CLAIM, Reason.GENERATION_TAKEN),
    "no generation is skipped": ((CLAIM,), Claimed(Generation(3), ""), Reason.NOT_CLAIMED),
    "an epoch completes once": ((CLAIM, complete(ONE)), complete(ONE), Reason.EPOCH_NOT_RISING),
    "epochs complete in order": ((CLAIM, complete(TWO)), complete(ONE), Reason.EPOCH_NOT_RISING),
    "epoch numbers rise across generations": (TAKEN_OVER, complete(Epoch(G2, 2)), Reason.EPOCH_NOT_RISING),
    "what is not complete is not committed": ((CLAIM,), Committed(G1, ONE), Reason.NO_SUCH_EPOCH),
    "an epoch is committed once": (
        (CLAIM, complete(ONE), Committed(G1, ONE)),
        Committed(G1, ONE),
        Reason.ALREADY_COMMITTED,
    ),
    "what is removed is not committed": (
        (CLAIM, complete(ONE), complete(TWO), removed(ONE)),
        Committed(G1, ONE),
        Reason.NO_SUCH_EPOCH,
    ),
    "a job does not rewind to what is not there": ((CLAIM, complete(ONE)), Rewound(G1, TWO), Reason.NO_SUCH_EPOCH),
    "a job does not rewind to where it is": ((CLAIM, complete(ONE)), Rewound(G1, ONE), Reason.NOTHING_TO_DO),
    "the newest epoch is not removed": ((CLAIM, complete(ONE)), removed(ONE), Reason.NEWEST_EPOCH),
    "what others are given up for is not removed": (
        (CLAIM, complete(ONE), complete(TWO), Rewound(G1, ONE)),
        removed(ONE),
        Reason.NEWEST_EPOCH,
    ),
    "what is uncommitted is not removed": (
        (CLAIM, complete(ONE, True), complete(TWO)),
        removed(ONE),
        Reason.NOT_COMMITTED,
    ),
    "an epoch is removed once": (
        (CLAIM, complete(ONE), complete(TWO), removed(ONE)),
        removed(ONE),
        Reason.NO_SUCH_EPOCH,
    ),
    "a removal names each epoch once": ((CLAIM, complete(ONE), complete(TWO)), removed(ONE, ONE), Reason.NOTHING_TO_DO),
    "a removal names some epoch": ((CLAIM,), removed(), Reason.NOTHING_TO_DO),
    "a removal names no other epoch's manifest": (
        (CLAIM, complete(ONE), complete(TWO)),
        Removed(G1, (ONE,), (), (manifest(TWO),)),
        Reason.OTHER_MANIFESTS,
    ),
    "what is removed is not pinned": (
        (CLAIM, complete(ONE), complete(TWO), removed(ONE)),
        PINNED,
        Reason.NO_SUCH_EPOCH,
    ),
    "what is given up is not pinned": (
        (CLAIM, complete(ONE), complete(TWO), Rewound(G1, ONE)),
        Pinned(PIN, TWO, Pinner.SAVEPOINT),
        Reason.NO_SUCH_EPOCH,
    ),
    "a pin is set once": ((CLAIM, complete(ONE), PINNED), PINNED, Reason.PIN_TAKEN),
    "what is not pinned is not unpinned": ((CLAIM,), Unpinned(PIN), Reason.NO_SUCH_PIN),
    "no generation follows when the job was moved": ((CLAIM, CLOSED), Claimed(G2, "driver-2"), Reason.CLOSED),
    "no epoch follows when the job was moved": ((CLAIM, CLOSED), complete(ONE), Reason.CLOSED),
    "no pin follows when the job was moved": ((CLAIM, complete(ONE), CLOSED), PINNED, Reason.CLOSED),
    "a job is moved to one place": ((CLAIM, CLOSED), Closed(G1, "/elsewhere"), Reason.CLOSED),
    "a stale generation moves nothing": (TAKEN_OVER, CLOSED, Reason.FENCED),
}


@pytest.mark.parametrize(("past", "body", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused_and_damage_if_it_is_there_all_the_same(past: tuple[Body, ...], body: Body, expected: Reason) -> None:
    state = fold(*past)
    assert reason(state, body) is expected
    assert reason(state.summarised(), body) is expected, "a summary admits the same"
    with pytest.raises(DamagedJournal, match=f"entry {state.number + 1} "):
        apply(state, Entry(state.number + 1, Nonce("stray"), body))


def test_a_gap_or_a_nonce_that_is_there_twice_is_damage() -> None:
    state = fold(CLAIM)
    with pytest.raises(DamagedJournal, match="entry 3 cannot follow entry 1"):
        apply(state, Entry(3, Nonce("x"), complete(ONE)))
    with pytest.raises(DamagedJournal, match="nonce n1 of entry 1"):
        apply(state, Entry(2, Nonce("n1"), complete(ONE)))


def test_entries_that_could_not_be_read_back_cannot_be_made() -> None:
    with pytest.raises(PathError, match="climbs out"):
        Removed(G1, (ONE,), ("../other-job/1.sst",), ())
    with pytest.raises(ValueError, match="digest"):
        Completed(ONE, manifest(ONE), "1234", False)
    with pytest.raises(ValueError, match="nonce"):
        Entry(1, Nonce(""), CLAIM)
    with pytest.raises(ValueError, match="pin"):
        Pinned(PinId("a b"), ONE, Pinner.READER)
    with pytest.raises(ValueError, match="numbered from 1"):
        Entry(0, Nonce("n"), CLAIM)
    with pytest.raises(ValueError, match="closed for a place"):
        Closed(G1, "")


# --- what is remembered of output that was removed


def test_how_many_epochs_had_output_after_another_is_known_when_they_are_removed_and_forgotten() -> None:
    state = fold(CLAIM, complete(ONE), complete(TWO, True), Committed(G1, TWO), complete(THREE))
    state = forgotten(after(state, removed(TWO)))
    assert [record.epoch for record in state.epochs] == [ONE, THREE]
    assert state.output_after(state.epochs[0]) == OutputMade(1, TWO)
    assert state.output_after(state.epochs[1]) == NO_OUTPUT


def test_an_epoch_that_only_carries_output_of_an_earlier_one_has_none_of_its_own() -> None:
    state = fold(CLAIM, complete(ONE, True), Completed(TWO, manifest(TWO), "sha256:00", True, only_carried=True))
    assert state.usable[-1].awaits_commit
    assert state.output_after(state.usable[0]) == NO_OUTPUT
    with pytest.raises(ValueError, match="carries none"):
        Completed(TWO, manifest(TWO), "sha256:00", has_committables=False, only_carried=True)


def test_output_that_was_given_up_is_not_asked_about_again_and_what_is_older_still_is() -> None:
    state = fold(CLAIM, complete(ONE), complete(TWO, True), complete(THREE, True), Rewound(G1, TWO))
    one, two = state.usable
    assert state.output_after(two) == NO_OUTPUT
    assert state.output_after(one) == OutputMade(1, TWO)


def test_a_copy_knows_of_output_that_was_made_elsewhere_until_somebody_goes_back_all_the_same() -> None:
    origin = fold(CLAIM, complete(ONE, True))
    copied = forgotten(replace(origin, made_elsewhere=OutputMade(4, THREE)))
    assert copied.output_after(copied.usable[0]) == OutputMade(4, THREE)
    on = after(copied, complete(FOUR))
    assert on.output_after(on.usable[0]) == OutputMade(4, THREE), "an epoch does not hide it"
    assert after(on, Rewound(G1, ONE)).made_elsewhere == NO_OUTPUT
    back = after(copied, Rewound(G1, ONE))
    assert back.output_after(back.usable[0]) == NO_OUTPUT
    assert reason(back, Rewound(G1, ONE)) is Reason.NOTHING_TO_DO


def after(state: JournalState, *entries: Body) -> JournalState:
    for body in entries:
        state = apply(state, Entry(state.number + 1, Nonce(f"after-{state.number}"), body))
    return state


def forgotten(state: JournalState) -> JournalState:
    """As whoever reads the journal finds it when it has been compacted just now."""
    return decode_summary(state.number, encode_summary(state))


class RememberedOutput(RuleBasedStateMachine):
    """Any life of a journal that is compacted anywhere, beside a model that forgets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.state = after(EMPTY, CLAIM)
        self.course: list[tuple[Epoch, bool]] = []

    @rule(output=st.sampled_from(["none", "carried", "new"]), skipped=st.integers(0, 2))
    def complete(self, output: str, skipped: int) -> None:
        epoch = Epoch(self.state.generation, self.state.newest_complete.number + 1 + skipped)
        entry = Completed(epoch, manifest(epoch), "sha256:00", output != "none", output == "carried")
        self.state = after(self.state, entry)
        self.course.append((epoch, output == "new"))

    @rule()
    def commit(self) -> None:
        self.write(Committed(self.state.generation, self.state.newest_usable))

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        if self.state.usable:
            to = data.draw(st.sampled_from(self.state.usable)).epoch
            if self.write(Rewound(self.state.generation, to)):
                self.course = [(epoch, output) for epoch, output in self.course if epoch <= to]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.state.retained:
            self.write(removed(data.draw(st.sampled_from(self.state.retained)).epoch, by=self.state.generation))

    @rule()
    def claim(self) -> None:
        self.write(Claimed(Generation(self.state.generation + 1), "driver"))

    @rule()
    def compact(self) -> None:
        self.state = forgotten(self.state)

    def write(self, body: Body) -> bool:
        allowed = refusal(self.state, body) is None
        if allowed:
            self.state = after(self.state, body)
        return allowed

    @invariant()
    def each_epoch_knows_what_came_after_it(self) -> None:
        for record in self.state.usable:
            made = [epoch for epoch, output in self.course if output and epoch > record.epoch]
            assert self.state.output_after(record) == (OutputMade(len(made), made[-1]) if made else NO_OUTPUT)


TestRememberedOutput = RememberedOutput.TestCase
TestRememberedOutput.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    generation = Generation(draw(st.integers(1, 4)))
    epoch = Epoch(Generation(draw(st.integers(1, 3))), draw(st.integers(1, 6)))
    pin = PinId(draw(st.sampled_from("pq")))
    if draw(st.integers(0, 40)) == 40:
        return Closed(generation, "/there")
    offered: list[Body] = [
        Claimed(generation, "driver"),
        complete(epoch, True),
        complete(epoch),
        Committed(generation, epoch),
        Rewound(generation, epoch),
        removed(epoch, by=generation),
        Pinned(pin, epoch, Pinner.READER),
        Unpinned(pin),
    ]
    return draw(st.sampled_from(offered))


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.lists(bodies(), max_size=80), st.sets(st.integers(0, 80)))
def test_a_fold_over_summaries_is_the_fold_and_keeps_what_must_be_kept(
    offered: list[Body], summaries: set[int]
) -> None:
    plain, over_summaries, completed = EMPTY, EMPTY, set[Epoch]()
    for place, body in enumerate(offered):
        assert reason(plain, body) is reason(over_summaries, body)
        if place in summaries:
            over_summaries = over_summaries.summarised()
        if refusal(plain, body) is not None:
            continue
        entry = Entry(plain.number + 1, Nonce(f"n{plain.number}"), body)
        plain, over_summaries = apply(plain, entry), apply(over_summaries, entry)
        assert plain.summarised() == over_summaries.summarised()
        assert plain.pinned <= {record.epoch for record in plain.retained}
        assert not plain.epochs or plain.usable, "there is always something to come back to"
        if isinstance(body, Completed):
            assert body.epoch not in completed
            completed.add(body.epoch)
