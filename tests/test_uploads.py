"""From frozen changes to durable file sets: an epoch that is declined or abandoned loses nothing to the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keygroups import KeyGroupRange, joined, without
from statebackend.snapshots.uploads import (
    Durable,
    Emptied,
    Merged,
    NotDurable,
    Persist,
    Persisted,
    Uploads,
    UploadsError,
)
from tests.test_files import Key, State, by_floors, by_whole_files

ALL = KeyGroupRange(KeyGroup(0), KeyGroup(8))
LOW, HIGH = KeyGroupRange(KeyGroup(0), KeyGroup(4)), KeyGroupRange(KeyGroup(4), KeyGroup(8))


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def delta(number: int, name: str = "delta", ranges: KeyGroupRange = ALL) -> FileRef:
    return FileRef(f"shared/{name}-{number}", (ranges,), epoch(number), FileKind.DELTA, 1, "none:0")


def base(number: int, ranges: KeyGroupRange = ALL) -> FileRef:
    return FileRef(f"shared/base-{number}", (ranges,), epoch(number), FileKind.BASE, 1, "none:0")


def durable(number: int, *files: FileRef) -> Durable:
    return Durable(epoch(number), FileSet.of(ALL, files))


def not_durable(number: int, because_of: int) -> NotDurable:
    return NotDurable(epoch(number), f"persisting what epoch {epoch(because_of)} changed failed: disk full")


def persist(*numbers: int) -> list[Persist]:
    return [Persist(epoch(number)) for number in numbers]


def wrote(*files: FileRef) -> Persisted:
    return Persisted(files)


RESTORED = FileSet.of(ALL, [delta(1)])


def test_the_state_is_the_restored_one_and_what_was_persisted_since() -> None:
    uploads = Uploads(RESTORED)
    assert uploads.freeze(epoch(2)) == persist(2)
    assert uploads.persisted(epoch(2), wrote(delta(2))) == [durable(2, delta(1), delta(2))]
    assert uploads.freeze(epoch(3)) == persist(3)
    assert uploads.persisted(epoch(3), wrote()) == [durable(3, delta(1), delta(2))]


def test_an_epoch_is_durable_only_when_all_before_it_are() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    uploads.freeze(epoch(3))
    assert uploads.persisted(epoch(3), wrote(delta(3))) == []
    assert uploads.persisted(epoch(2), wrote(delta(2))) == [
        durable(2, delta(1), delta(2)),
        durable(3, delta(1), delta(2), delta(3)),
    ]


def test_a_base_takes_the_place_of_the_files_before_it() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    assert uploads.persisted(epoch(2), wrote(base(2), delta(2))) == [durable(2, base(2))]


def test_a_base_of_some_key_groups_leaves_the_others_as_they_were() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    [seen] = uploads.persisted(epoch(2), wrote(base(2, LOW), delta(2)))
    assert [(file.path, file.ranges) for file in seen.files.files] == [
        ("shared/delta-1", (HIGH,)),
        ("shared/delta-2", (HIGH,)),
        ("shared/base-2", (LOW,)),
    ]


def test_an_epoch_whose_changes_are_not_durable_is_declined_and_so_are_those_after_it() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    uploads.freeze(epoch(3))
    assert uploads.failed(epoch(2), "disk full") == [not_durable(2, 2), not_durable(3, 2)]
    assert uploads.persisted(epoch(3), wrote(delta(3))) == []


def test_a_failure_leaves_the_epochs_before_it_alone() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    uploads.freeze(epoch(3))
    assert uploads.failed(epoch(3), "disk full") == [not_durable(3, 3)]
    assert uploads.persisted(epoch(2), wrote(delta(2))) == [durable(2, delta(1), delta(2))]


def test_what_could_not_be_persisted_is_tried_again_and_goes_with_the_next_epoch() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    uploads.freeze(epoch(3))
    uploads.failed(epoch(2), "disk full")
    assert uploads.freeze(epoch(4)) == persist(2, 4)
    assert uploads.persisted(epoch(4), wrote(delta(4))) == []
    assert uploads.persisted(epoch(3), wrote(delta(3))) == []
    assert uploads.persisted(epoch(2), wrote(delta(2, "again"))) == [
        durable(4, delta(1), delta(2, "again"), delta(3), delta(4))
    ]


def test_what_fails_twice_is_declined_once_for_each_epoch() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    assert uploads.failed(epoch(2), "disk full") == [not_durable(2, 2)]
    uploads.freeze(epoch(3))
    assert uploads.failed(epoch(2), "disk full") == [not_durable(3, 2)]
    assert uploads.failed(epoch(3), "disk full") == []
    assert uploads.freeze(epoch(4)) == persist(2, 3, 4)


@given(st.lists(st.sampled_from(["freeze", "persist", "fail", "persist last"]), max_size=40), st.data())
def test_whatever_fails_an_epoch_is_durable_with_all_that_changed_before_it_or_declined(
    steps: list[str], data: st.DataObject
) -> None:
    uploads = Uploads(RESTORED)
    frozen = 1
    asked: list[int] = []
    answered: set[int] = set()
    said: dict[Epoch, Durable | NotDurable] = {}

    def note(results: list[Durable] | list[NotDurable]) -> None:
        for result in results:
            assert result.epoch not in said, "an epoch is answered once"
            said[result.epoch] = result
            if isinstance(result, Durable):
                number = result.epoch.number
                assert result.files == FileSet.of(ALL, [delta(n) for n in range(1, number + 1)])
                assert answered >= set(range(2, number + 1)), "all that is named is durable"

    def persisted(number: int) -> None:
        asked.remove(number)
        answered.add(number)
        note(uploads.persisted(epoch(number), wrote(delta(number))))

    for step in [*steps, "freeze"]:
        if step == "freeze":
            frozen += 1
            due = [persist.epoch.number for persist in uploads.freeze(epoch(frozen))]
            assert set(due).isdisjoint(asked), "what is under way is not begun again"
            asked += due
        elif asked and step == "fail":
            number = data.draw(st.sampled_from(asked))
            asked.remove(number)
            note(uploads.failed(epoch(number), "disk full"))
        elif asked:
            persisted(asked[-1] if step == "persist last" else data.draw(st.sampled_from(asked)))
    while asked:
        persisted(asked[-1])
    assert isinstance(said[epoch(frozen)], Durable), "the next epoch that nothing goes wrong with has it all"
    assert set(said) == {epoch(number) for number in range(2, frozen + 1)}


def merged(number: int, *names: str) -> Merged:
    return Merged(frozenset(names), delta(number, "merged"))


def test_a_late_base_an_emptying_and_a_merge_take_effect_with_the_epoch_that_they_come_with() -> None:
    uploads = Uploads(FileSet.of(ALL, [delta(1), delta(2)]))
    for number in (3, 4):
        uploads.freeze(epoch(number))
    changes = Persisted((delta(4), base(2, LOW)), (Emptied((KeyGroupRange(KeyGroup(4), KeyGroup(5)),), epoch(3)),))
    assert uploads.persisted(epoch(4), changes) == []
    assert uploads.files == FileSet.of(ALL, [delta(1), delta(2)])
    first, second = uploads.persisted(
        epoch(3), Persisted((delta(3),), merged=(merged(2, "shared/delta-1", "shared/delta-2"),))
    )
    assert [file.path for file in first.files.files] == ["shared/merged-2", "shared/delta-3"]
    assert [(file.path, str(file.ranges[-1])) for file in second.files.files] == [
        ("shared/merged-2", "[5, 8)"),
        ("shared/base-2", "[0, 4)"),
        ("shared/delta-3", "[5, 8)"),
        ("shared/delta-4", "[0, 8)"),
    ]
    assert uploads.files == second.files


def test_nothing_takes_effect_before_what_it_was_made_of_is_durable() -> None:
    uploads = Uploads(RESTORED)
    for number in (2, 3):
        uploads.freeze(epoch(number))
    with pytest.raises(UploadsError, match="shared/base-3 is of epoch 3-1 and cannot come with the earlier epoch 2-1"):
        uploads.persisted(epoch(2), wrote(delta(2), base(3)))
    with pytest.raises(UploadsError, match=r"the emptying of .* is of epoch 3-1"):
        uploads.persisted(epoch(2), Persisted(emptied=(Emptied((LOW,), epoch(3)),)))
    with pytest.raises(UploadsError, match="merges files up to epoch 2-1, but only those up to 1-1 are durable"):
        uploads.persisted(epoch(3), Persisted((delta(3),), merged=(merged(2, "shared/delta-1", "shared/delta-2"),)))
    assert uploads.files == RESTORED


def test_a_base_that_is_older_than_what_replaced_its_groups_meanwhile_does_not_come_back_there() -> None:
    uploads = Uploads(RESTORED)
    for number in (2, 3, 4):
        uploads.freeze(epoch(number))
    rest = KeyGroupRange(KeyGroup(7), KeyGroup(8))
    uploads.persisted(epoch(2), wrote(delta(2)))
    uploads.persisted(
        epoch(3), Persisted((base(3, KeyGroupRange(KeyGroup(4), KeyGroup(7))),), (Emptied((rest,), epoch(3)),))
    )
    [seen] = uploads.persisted(epoch(4), Persisted((base(2),), (Emptied((HIGH,), epoch(1)),)))
    assert [(file.path, str(file.ranges[0])) for file in seen.files.files] == [
        ("shared/base-2", "[0, 4)"),
        ("shared/base-3", "[4, 7)"),
    ]


def test_a_base_that_is_wholly_overtaken_is_left_out() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    uploads.freeze(epoch(3))
    uploads.persisted(epoch(2), Persisted(emptied=(Emptied((ALL,), epoch(2)),)))
    assert uploads.persisted(epoch(3), wrote(base(1))) == [durable(3)]


def test_pinned_is_what_is_durable_what_will_be_and_what_a_rollback_may_go_back_to() -> None:
    uploads = Uploads(RESTORED)
    for number in (2, 3, 4, 5):
        uploads.freeze(epoch(number))
    uploads.persisted(epoch(2), wrote(delta(2)))
    uploads.persisted(epoch(3), wrote(delta(3), base(3)))
    uploads.persisted(epoch(5), Persisted((delta(5),), merged=(merged(3, "shared/delta-3"),)))
    ahead = {"shared/base-3", "shared/delta-5", "shared/merged-3"}
    assert uploads.pinned() == {"shared/delta-1", "shared/delta-2", *ahead}
    uploads.completed(epoch(2))
    assert uploads.pinned() == {"shared/delta-1", "shared/delta-2", *ahead}
    uploads.completed(epoch(3))
    assert uploads.pinned() == ahead


def test_what_a_declined_epoch_wrote_is_pinned_as_it_goes_with_the_next_one() -> None:
    uploads = Uploads(RESTORED)
    uploads.freeze(epoch(2))
    uploads.freeze(epoch(3))
    uploads.failed(epoch(2), "disk full")
    uploads.persisted(epoch(3), wrote(delta(3)))
    assert uploads.pinned() == {"shared/delta-1", "shared/delta-3"}


# --- bases that are late, against the state that was there


CELLS = [Key(KeyGroup(group), name) for group in range(3) for name in "ab"]
THREE = KeyGroupRange(KeyGroup(0), KeyGroup(3))


def consolidated(
    state: State, part: KeyGroupRange, number: int, path: str
) -> tuple[tuple[FileRef, ...], tuple[Emptied, ...], State]:
    """A base of a part of a state, the groups in which there is nothing, and the base's content."""
    content = {key: value for key, value in state.items() if key.group in part}
    full = joined(KeyGroupRange(key.group, KeyGroup(key.group + 1)) for key in content)
    empty = without((part,), full)
    files = (FileRef(path, full, epoch(number), FileKind.BASE, 1, "none:0"),) if full else ()
    return files, (Emptied(empty, epoch(number)),) if empty else (), content


STEPS = st.tuples(
    st.dictionaries(st.sampled_from(CELLS), st.none() | st.integers(0, 9)),
    st.booleans(),
    st.none()
    | st.tuples(
        st.integers(0, 4), st.sampled_from([THREE, *(KeyGroupRange(KeyGroup(g), KeyGroup(3)) for g in (1, 2))])
    ),
)


@given(steps=st.lists(STEPS, min_size=1, max_size=12), late=st.booleans())
def test_what_is_durable_is_the_state_however_late_bases_come(
    steps: list[tuple[dict[Key, int | None], bool, tuple[int, KeyGroupRange] | None]], late: bool
) -> None:
    uploads = Uploads(FileSet(THREE))
    states: list[State] = [{}]
    contents: dict[str, dict[Key, int | None]] = {}
    answers: list[tuple[int, Persisted]] = []
    for number, (writes, all_of_it, base) in enumerate(steps, start=1):
        states.append({key: value for key, value in {**states[-1], **writes}.items() if value is not None})
        uploads.freeze(epoch(number))
        files: tuple[FileRef, ...] = ()
        emptied: tuple[Emptied, ...] = ()
        if all_of_it:
            files, emptied, content = consolidated(states[number], THREE, number, f"all-{number}")
            contents[f"all-{number}"] = {**content}
        elif writes:
            ranges = joined(KeyGroupRange(key.group, KeyGroup(key.group + 1)) for key in writes)
            files = (FileRef(f"delta-{number}", ranges, epoch(number), FileKind.DELTA, 1, "none:0"),)
            contents[f"delta-{number}"] = writes
        if base is not None:
            since = max(1, number - base[0])
            more, also, content = consolidated(states[since], base[1], since, f"base-{number}")
            contents[f"base-{number}"] = {**content}
            files, emptied = (*files, *more), (*emptied, *also)
        answers.append((number, Persisted(files, emptied)))
    for number, changes in reversed(answers) if late else answers:
        for durable in uploads.persisted(epoch(number), changes):
            for restore in (by_floors, by_whole_files):
                assert restore([durable.files], THREE, contents) == states[durable.epoch.number]
    assert uploads.files.range == THREE
