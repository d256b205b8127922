"""The recovery decision: what a start does with every state in which its predecessors may have left the tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.decisions.start import (
    ACCEPT_DUPLICATES,
    Condition,
    Decision,
    Fault,
    FoundManifest,
    GivenUp,
    Observed,
    Refuse,
    Restore,
    StartFresh,
    Unusable,
    Why,
    decide,
    in_words,
)
from snapshot.journal.entries import PinId, Pinner
from snapshot.journal.state import NO_OUTPUT, EpochRecord, EpochState, JournalState, OutputMade, Pin
from statebackend.ids import Epoch, Generation

OURS = Generation(3)
COMPLETE, COMMITTED = EpochState.COMPLETE, EpochState.COMMITTED
GIVEN_UP, REMOVED = EpochState.GIVEN_UP, EpochState.REMOVED
SOUND, MISSING, DAMAGED, NEWER = Condition.SOUND, Condition.MISSING, Condition.DAMAGED, Condition.NEWER


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1 + number // 4), number)


def record(number: int, state: EpochState, output: bool = True) -> EpochRecord:
    manifest, digest = f"epochs/{epoch(number)}-x/manifest.json", f"sha256:{number:02x}"
    return EpochRecord(epoch(number), manifest, digest, output, NO_OUTPUT, state)


def found(number: int, condition: Condition = SOUND) -> FoundManifest:
    return FoundManifest(epoch(number), condition, "", f"sha256:{number:02x}", frozenset({f"shared/{number}"}))


def observed(
    *epochs: tuple[EpochRecord, Condition], accept_duplicates: bool = False, damaged: Iterable[int] = ()
) -> Observed:
    records = counted(item for item, _ in epochs)
    journal = JournalState(number=9, generation=OURS, driver="us", epochs=records)
    manifests = tuple(found(item.epoch.number, condition) for item, condition in epochs)
    present = frozenset(f"shared/{item.epoch.number}" for item in records)
    faults = {f"shared/{number}": "its content is another" for number in damaged}
    return Observed(journal, OURS, manifests, present, accept_duplicates, faults)


def counted(records: Iterable[EpochRecord]) -> tuple[EpochRecord, ...]:
    """The same as a journal has them: each knows what output was made up to it, of epochs that were removed, too."""
    known, output = [], NO_OUTPUT
    for item in records:
        output = output.and_of(item.epoch) if item.has_committables and item.state is not GIVEN_UP else output
        known.append(replace(item, output=output))
    return tuple(known)


def restored(decision: Decision) -> tuple[int, list[int], list[int], list[Fault]]:
    assert isinstance(decision, Restore), decision
    return (
        decision.epoch.number,
        [item.number for item in decision.replay],
        [item.number for item in decision.gives_up.epochs],
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


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("output", [False, True])
def test_a_damaged_file_and_a_missing_one_have_the_same_consequences(output: bool, accepted: bool) -> None:
    epochs = ((record(1, COMPLETE), SOUND), (record(2, COMPLETE, output=output), SOUND))
    damaged = decide(observed(*epochs, accept_duplicates=accepted, damaged=[2, 7]))
    missing = decide(replace(observed(*epochs, accept_duplicates=accepted), present=frozenset({"shared/1"})))
    unusable = Unusable(epoch(2), Fault.FILES_DAMAGED, "shared/2: its content is another")
    if output and not accepted:
        assert refused(damaged) == refused(missing) == [(Why.OUTPUT_MAY_REPEAT, [2])]
        assert isinstance(damaged, Refuse)
        assert damaged.unusable == (unusable,)
    else:
        assert isinstance(damaged, Restore)
        assert isinstance(missing, Restore)
        assert replace(damaged, skipped=()) == replace(missing, skipped=())
        assert damaged.skipped == (unusable,)


IDLE = [(record(1, COMMITTED), SOUND), (record(2, REMOVED), MISSING), (record(3, REMOVED), MISSING)]
"""Epochs 1 to 3 had output, and 2 and 3 are removed."""


def test_output_of_removed_epochs_is_not_made_again_behind_an_idle_epoch_that_is_lost() -> None:
    decision = decide(observed(*IDLE, (record(4, COMMITTED, output=False), MISSING)))
    assert refused(decision) == [(Why.OUTPUT_MAY_REPEAT, [4])]
    assert isinstance(decision, Refuse)
    (hindrance,) = decision.hindrances
    assert f"the output of 2 epochs after {epoch(1)}, up to epoch {epoch(3)}," in hindrance.text
    assert ACCEPT_DUPLICATES in hindrance.text


def test_who_accepts_that_removed_epochs_make_their_output_again_is_told_of_how_many() -> None:
    decision = decide(observed(*IDLE, (record(4, COMMITTED, output=False), MISSING), accept_duplicates=True))
    assert isinstance(decision, Restore)
    assert decision.gives_up == GivenUp((epoch(4),), OutputMade(2, epoch(3)))


def test_a_copy_of_an_epoch_after_which_the_job_made_output_is_not_started_unasked() -> None:
    seen = observed((record(1, COMMITTED), SOUND))
    copied = replace(seen, journal=replace(seen.journal, made_elsewhere=OutputMade(5, epoch(9))))
    decision = decide(copied)
    assert refused(decision) == [(Why.OUTPUT_MAY_REPEAT, [])]
    assert isinstance(decision, Refuse)
    assert f"a copy of epoch {epoch(1)}" in decision.hindrances[0].text
    accepted = decide(replace(copied, accept_duplicates=True))
    assert isinstance(accepted, Restore)
    assert accepted.gives_up.is_anything


def test_it_is_said_of_which_epochs_nobody_knows_whether_they_had_output() -> None:
    assert in_words(OutputMade(1, epoch(3)), epoch(1)) == f"the output of 1 epoch after {epoch(1)}, up to epoch 3-1,"
    assert "(4 of them removed before the journal counted" in in_words(OutputMade(6, epoch(9), 4), epoch(1))


def test_pins_do_not_bear_on_the_decision() -> None:
    seen = observed((record(1, COMMITTED), SOUND), (record(2, COMMITTED), SOUND))
    pinned = replace(seen.journal, pins=(Pin(PinId("p"), epoch(1), Pinner.READER),))
    assert decide(replace(seen, journal=pinned)) == decide(seen)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    """Any mixture of epochs; as in any journal, whatever is before a committed epoch is committed, and what was removed
    after the newest that is usable was given up before.
    """
    numbers = range(1, draw(st.integers(0, 6)) + 1)
    committed = draw(st.integers(0, 6))
    epochs = []
    for number in numbers:
        gone = draw(st.sampled_from([None, None, None, GIVEN_UP, REMOVED]))
        state = gone or (COMMITTED if number <= committed else COMPLETE)
        epochs.append((record(number, state, draw(st.booleans())), draw(st.sampled_from([SOUND, *Condition]))))
    newest = max((item.epoch for item, _ in epochs if item.usable), default=epoch(0))
    epochs = [
        (replace(item, state=GIVEN_UP) if item.state is REMOVED and item.epoch > newest else item, condition)
        for item, condition in epochs
    ]
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
            assert set(gives_up.epochs) == {other for other in usable if other > epoch}
            again = [item for item in seen.journal.epochs if item.epoch > epoch and item.state is not GIVEN_UP]
            assert gives_up.repeats.epochs == sum(item.has_committables for item in again), "removed ones are counted"
            assert seen.accept_duplicates or not gives_up.repeats.epochs
            waiting = [other for other in sorted(usable) if usable[other].awaits_commit]
            before = [other for other in waiting if other <= epoch]
            sound_ones = [other for other in before if other in sound]
            assert list(replay) in ([sound_ones] if sound_ones == before else [sound_ones, [*sound_ones, epoch]])
            assert sound_ones == before or replay[-1] == epoch, "what is unusable is settled with the restored epoch"
            named = {item.epoch for item in decision.skipped}
            assert set(waiting) <= set(replay) | named | set(gives_up.epochs), "no output is passed over in silence"


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(observations())
def test_a_start_that_dies_after_giving_up_epochs_is_followed_by_the_same_decision(seen: Observed) -> None:
    decision = decide(seen)
    if not isinstance(decision, Restore):
        return
    gone = set(decision.gives_up.epochs)
    records = (replace(item, state=GIVEN_UP) if item.epoch in gone else item for item in seen.journal.epochs)
    again = decide(replace(seen, journal=replace(seen.journal, epochs=tuple(records)), accept_duplicates=False))
    assert isinstance(again, Restore)
    assert (again.epoch, again.replay, again.gives_up.is_anything) == (decision.epoch, decision.replay, False)
