"""The recovery decision: what a start does with every state in which its predecessors may have left the tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.decision import (
    Condition,
    Decision,
    Fault,
    FoundManifest,
    Observed,
    Refuse,
    Restore,
    StartFresh,
    Unusable,
    Why,
    decide,
)
from snapshot.journal_entries import PinId, Pinner
from snapshot.journal_state import EpochRecord, EpochState, JournalState, Pin
from statebackend.ids import Epoch, Generation

OURS = Generation(3)
COMPLETE, COMMITTED = EpochState.COMPLETE, EpochState.COMMITTED
GIVEN_UP, REMOVED = EpochState.GIVEN_UP, EpochState.REMOVED
SOUND, MISSING, DAMAGED, NEWER = Condition.SOUND, Condition.MISSING, Condition.DAMAGED, Condition.NEWER


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1 + number // 4), number)


def record(number: int, state: EpochState, output: bool = True) -> EpochRecord:
    return EpochRecord(epoch(number), f"epochs/{epoch(number)}-x/manifest.json", f"sha256:{number:02x}", output, state)


def found(number: int, condition: Condition = SOUND) -> FoundManifest:
    return FoundManifest(epoch(number), condition, "", f"sha256:{number:02x}", frozenset({f"shared/{number}"}))


def observed(*epochs: tuple[EpochRecord, Condition], accept_duplicates: bool = False) -> Observed:
    records = tuple(item for item, _ in epochs)
    journal = JournalState(number=9, generation=OURS, driver="us", epochs=records)
    manifests = tuple(found(item.epoch.number, condition) for item, condition in epochs)
    present = frozenset(f"shared/{item.epoch.number}" for item in records)
    return Observed(journal, OURS, manifests, present, accept_duplicates)


def restored(decision: Decision) -> tuple[int, list[int], list[int], list[Fault]]:
    assert isinstance(decision, Restore), decision
    return (
        decision.epoch.number,
        [item.number for item in decision.replay],
        [item.number for item in decision.gives_up],
        [item.fault for item in decision.skipped],
    )


def refused(decision: Decision) -> list[tuple[Why, list[int]]]:
    assert isinstance(decision, Refuse), decision
    return [(item.why, [epoch.number for epoch in item.epochs]) for item in decision.hindrances]


def test_a_job_without_a_complete_epoch_starts_fresh() -> None:
    assert decide(observed()) == StartFresh()


def test_a_start_that_has_claimed_nothing_decides_nothing() -> None:
    assert refused(decide(replace(observed(), generation=Generation(4)))) == [(Why.NOT_CLAIMED, [])]


def test_a_fenced_start_decides_nothing() -> None:
    seen = observed((record(1, COMPLETE), SOUND))
    assert refused(decide(replace(seen, generation=Generation(2)))) == [(Why.FENCED, [])]


def test_an_epoch_that_nobody_has_looked_at_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="nothing was observed of epoch 1-1"):
        decide(replace(observed((record(1, COMPLETE), SOUND)), manifests=()))


RESTORED = {
    "the newest epoch is restored": (
        [(record(1, COMMITTED), SOUND), (record(2, COMMITTED), SOUND)],
        (2, [], [], []),
    ),
    "what is complete and not committed is committed again, in epoch order": (
        [(record(1, COMMITTED), SOUND), (record(2, COMPLETE), SOUND), (record(3, COMPLETE), SOUND)],
        (3, [2, 3], [], []),
    ),
    "an epoch without output needs no commit": (
        [(record(1, COMPLETE), SOUND), (record(2, COMPLETE, output=False), SOUND)],
        (2, [1], [], []),
    ),
    "removed and given up epochs do not exist": (
        [(record(1, REMOVED), MISSING), (record(2, COMMITTED), SOUND), (record(3, GIVEN_UP), SOUND)],
        (2, [], [], []),
    ),
    "an older damaged epoch does no harm once it is committed": (
        [(record(1, COMMITTED), DAMAGED), (record(2, COMPLETE), SOUND)],
        (2, [2], [], [Fault.DAMAGED]),
    ),
    "an older damaged epoch is covered by a later sound one, which carries what is not committed": (
        [(record(1, COMPLETE), MISSING), (record(2, COMPLETE), SOUND)],
        (2, [2], [], [Fault.MISSING]),
    ),
    "an older epoch of a newer program is covered too": (
        [(record(1, COMPLETE), NEWER), (record(2, COMPLETE), SOUND)],
        (2, [2], [], [Fault.NEWER]),
    ),
    "a damaged newest epoch without output is given up": (
        [(record(1, COMPLETE), SOUND), (record(2, COMPLETE, output=False), DAMAGED)],
        (1, [1], [2], [Fault.DAMAGED]),
    ),
}


@pytest.mark.parametrize(("epochs", "expected"), RESTORED.values(), ids=RESTORED)
def test_restored(
    epochs: list[tuple[EpochRecord, Condition]], expected: tuple[int, list[int], list[int], list[Fault]]
) -> None:
    assert restored(decide(observed(*epochs))) == expected


REFUSED = {
    "a damaged newest epoch whose output is committed": (
        [(record(1, COMMITTED), SOUND), (record(2, COMMITTED), DAMAGED)],
        [(Why.OUTPUT_MAY_REPEAT, [2])],
    ),
    "a missing newest epoch whose output may be committed, though no entry says so": (
        [(record(1, COMMITTED), SOUND), (record(2, COMPLETE), MISSING)],
        [(Why.OUTPUT_MAY_REPEAT, [2])],
    ),
    "a newest epoch of a newer program": (
        [(record(1, COMMITTED), SOUND), (record(2, COMPLETE, output=False), NEWER)],
        [(Why.MANIFEST_NEWER, [2])],
    ),
    "no sound epoch": (
        [(record(1, COMMITTED), MISSING), (record(2, COMMITTED), DAMAGED)],
        [(Why.NO_SOUND_EPOCH, [1, 2])],
    ),
}


@pytest.mark.parametrize(("epochs", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(epochs: list[tuple[EpochRecord, Condition]], expected: list[tuple[Why, list[int]]]) -> None:
    assert refused(decide(observed(*epochs))) == expected


def test_an_operator_who_accepts_repeated_output_goes_back_behind_the_damage() -> None:
    epochs = [(record(1, COMPLETE), SOUND), (record(2, COMMITTED), DAMAGED), (record(3, COMPLETE), MISSING)]
    assert restored(decide(observed(*epochs, accept_duplicates=True))) == (
        1,
        [1],
        [2, 3],
        [Fault.DAMAGED, Fault.MISSING],
    )


@pytest.mark.parametrize("condition", [NEWER, MISSING])
def test_accepting_repeated_output_allows_neither_an_older_program_nor_a_start_from_nothing(
    condition: Condition,
) -> None:
    assert isinstance(decide(observed((record(1, COMMITTED), condition), accept_duplicates=True)), Refuse)


def test_a_sound_manifest_that_is_not_the_journalled_one_is_not_used() -> None:
    seen = observed((record(1, COMPLETE), SOUND), (record(2, COMPLETE, output=False), SOUND))
    other = replace(found(2), digest="sha256:ff")
    decision = decide(replace(seen, manifests=(found(1), other)))
    assert restored(decision) == (1, [1], [2], [Fault.OTHER_DIGEST])


def test_an_epoch_whose_files_are_missing_is_not_used_and_the_files_are_named() -> None:
    seen = observed((record(1, COMPLETE), SOUND), (record(2, COMPLETE, output=False), SOUND))
    decision = decide(replace(seen, present=frozenset({"shared/1"})))
    assert isinstance(decision, Restore)
    assert decision.skipped == (Unusable(epoch(2), Fault.FILES_MISSING, "shared/2"),)


def test_pins_do_not_bear_on_the_decision() -> None:
    seen = observed((record(1, COMMITTED), SOUND), (record(2, COMMITTED), SOUND))
    pinned = replace(seen.journal, pins=(Pin(PinId("p"), epoch(1), Pinner.READER),))
    assert decide(replace(seen, journal=pinned)) == decide(seen)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    """Any mixture of epochs; as in any journal, whatever is before a committed epoch is committed."""
    numbers = range(1, draw(st.integers(0, 6)) + 1)
    committed = draw(st.integers(0, 6))
    epochs = []
    for number in numbers:
        gone = draw(st.sampled_from([None, None, None, GIVEN_UP, REMOVED]))
        state = gone or (COMMITTED if number <= committed else COMPLETE)
        epochs.append((record(number, state, draw(st.booleans())), draw(st.sampled_from([SOUND, *Condition]))))
    seen = observed(*epochs, accept_duplicates=draw(st.booleans()))
    if not seen.present or not draw(st.booleans()):
        return seen
    return replace(seen, present=seen.present - draw(st.sets(st.sampled_from(sorted(seen.present)))))


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(observations())
def test_whatever_was_left_nothing_is_lost_repeated_or_made_up_without_consent(seen: Observed) -> None:
    decision = decide(seen)
    assert decision == decide(replace(seen, manifests=seen.manifests[::-1])), "the order of looking does not matter"
    usable = {item.epoch: item for item in seen.journal.usable}
    sound = {
        item.epoch
        for item in seen.manifests
        if item.epoch in usable and item.condition is SOUND and item.files <= seen.present
    }
    match decision:
        case StartFresh():
            assert not usable
        case Refuse():
            newest = max(usable)
            assert newest not in sound, "what is sound and newest is never refused"
            assert decision.hindrances
            assert all(item.text for item in decision.hindrances)
        case Restore(epoch=epoch, replay=replay, gives_up=gives_up):
            assert epoch == max(sound)
            assert set(gives_up) == {other for other in usable if other > epoch}
            assert seen.accept_duplicates or not any(usable[other].has_committables for other in gives_up)
            waiting = [other for other in sorted(usable) if usable[other].awaits_commit]
            before = [other for other in waiting if other <= epoch]
            sound_ones = [other for other in before if other in sound]
            assert list(replay) in ([sound_ones] if sound_ones == before else [sound_ones, [*sound_ones, epoch]])
            assert sound_ones == before or replay[-1] == epoch, "what is unusable is settled with the restored epoch"
            named = {item.epoch for item in decision.skipped}
            assert set(waiting) <= set(replay) | named | set(gives_up), "no output is passed over in silence"


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(observations())
def test_a_start_that_dies_after_giving_up_epochs_is_followed_by_the_same_decision(seen: Observed) -> None:
    decision = decide(seen)
    if not isinstance(decision, Restore):
        return
    gone = set(decision.gives_up)
    records = (replace(item, state=GIVEN_UP) if item.epoch in gone else item for item in seen.journal.epochs)
    again = decide(replace(seen, journal=replace(seen.journal, epochs=tuple(records)), accept_duplicates=False))
    assert isinstance(again, Restore)
    assert (again.epoch, again.replay, again.gives_up) == (decision.epoch, decision.replay, ())
