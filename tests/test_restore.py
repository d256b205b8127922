"""What each partition starts from: everything of an epoch is dealt out, once, at any parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decisions.restore import earliest, plan_restore
from snapshot.cut.frames import LATEST, Watermark
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import ChannelId, TransactionId
from snapshot.tree.frozen_json import NULL, Json
from snapshot.tree.manifest import (
    ChannelState,
    CommitPayload,
    Inline,
    OperatorSnapshot,
    SplitPosition,
    SubtaskSnapshot,
)
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Epoch, Generation, KeyGroup, Partition, Uid
from statebackend.keygroups import KeyGroupRange, range_of

UP, COUNT = Uid("up"), Uid("count")
MAX = 8


def groups(first: int, end: int) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def file(name: str, ranges: KeyGroupRange) -> FileRef:
    return FileRef(f"shared/{name}", (ranges,), epoch(1), FileKind.DELTA, 1, "none:0")


def committable(name: str, sealed_in: int) -> Committable[CommitPayload]:
    return Committable(TransactionId(name), epoch(sealed_in), CommitPayload(NULL))


def position(split: str) -> SplitPosition:
    return SplitPosition(split, Json.of(len(split)))


def in_flight(receiver: int, *items: int, sender: int = 0) -> ChannelState:
    """Items are the key groups of the data."""
    channel = ChannelId(UP, COUNT, Partition(sender), Partition(receiver))
    return ChannelState(channel, (Inline(bytes(items)),))


def keyed(parallelism: int, *, watermarks: Sequence[Watermark | None] = ()) -> OperatorSnapshot:
    """Every partition has one file, data in flight for each of its key groups on two channels, and a committable."""
    subtasks = []
    for index in range(parallelism):
        own = range_of(Partition(index), parallelism, MAX)
        subtasks.append(
            SubtaskSnapshot(
                Partition(index),
                FileSet.of(own, [file(f"file-{index}", own)]),
                watermark=watermarks[index] if watermarks else Watermark(10 * (index + 1)),
                channels=(in_flight(index, *own), in_flight(index, *own, *own, sender=1)),
                committables=(committable(f"t{index}", 5 - index),),
            )
        )
    return OperatorSnapshot(COUNT, parallelism, tuple(subtasks))


def source(*splits: Sequence[str], watermarks: Sequence[Watermark | None] = ()) -> OperatorSnapshot:
    subtasks = (
        SubtaskSnapshot(
            Partition(index),
            positions=tuple(position(split) for split in own),
            watermark=watermarks[index] if watermarks else Watermark(index),
        )
        for index, own in enumerate(splits)
    )
    return OperatorSnapshot(UP, len(splits), tuple(subtasks))


def own_data(restore: SubtaskSnapshot) -> list[tuple[ChannelId, int]]:
    """What a partition keeps of the data in flight that it is given: its own key groups."""
    assert restore.state is not None
    return [
        (state.channel, group)
        for state in restore.channels
        for part in state.parts
        for group in (part.data if isinstance(part, Inline) else b"")
        if KeyGroup(group) in restore.state.range
    ]


def restored_then_cut(uid: Uid, restores: Sequence[SubtaskSnapshot]) -> OperatorSnapshot:
    """The next epoch, if nothing has happened in between: data in flight arrives at its new owner."""
    subtasks = []
    for restore in restores:
        data: dict[Partition, list[int]] = {}
        for channel, group in own_data(restore) if restore.state else ():
            data.setdefault(channel.sender, []).append(group)
        subtasks.append(
            SubtaskSnapshot(
                restore.partition,
                restore.state,
                restore.positions,
                restore.watermark,
                tuple(in_flight(restore.partition, *items, sender=sender) for sender, items in sorted(data.items())),
                restore.committables,
            )
        )
    return OperatorSnapshot(uid, len(restores), tuple(subtasks))


def test_at_the_same_parallelism_every_partition_gets_its_own_again() -> None:
    operator = keyed(3, watermarks=[Watermark(1), None, Watermark(3, idle=True)])
    assert plan_restore(operator, 3, MAX) == operator.subtasks


def test_a_partition_that_is_divided_gives_its_state_and_its_data_in_flight_to_both() -> None:
    two = keyed(2)
    first, second, third, fourth = plan_restore(two, 4, MAX)
    shared = file("file-0", groups(0, 4))
    assert first.state == FileSet.of(groups(0, 4), [shared]).projected(groups(0, 2))
    assert second.state == FileSet.of(groups(0, 4), [shared]).projected(groups(2, 4))
    assert first.channels == second.channels == two.subtasks[0].channels
    assert third.channels == fourth.channels == two.subtasks[1].channels
    assert [one.watermark for one in (first, second, third, fourth)] == [Watermark(at) for at in (10, 10, 20, 20)]


def test_partitions_that_are_joined_give_all_their_files_and_the_earlier_watermark() -> None:
    four = keyed(4)
    low, high = plan_restore(four, 2, MAX)
    assert low.state is not None
    assert [item.path for item in low.state.files] == ["shared/file-0", "shared/file-1"]
    assert low.channels == four.subtasks[0].channels + four.subtasks[1].channels
    assert (low.watermark, high.watermark) == (Watermark(10), Watermark(30))


def test_a_partition_between_two_parents_takes_from_both() -> None:
    middle = plan_restore(keyed(2), 3, MAX)[1]
    assert middle.state is not None
    assert middle.state.range == groups(3, 6)
    assert [(item.path, item.ranges) for item in middle.state.files] == [
        ("shared/file-0", (groups(3, 4),)),
        ("shared/file-1", (groups(4, 6),)),
    ]
    assert middle.watermark == Watermark(10)


def test_committables_are_dealt_out_once_and_in_the_order_in_which_they_were_sealed() -> None:
    dealt = [[item.transaction for item in one.committables] for one in plan_restore(keyed(4), 3, MAX)]
    assert dealt == [["t3", "t0"], ["t1"], ["t2"]]


def test_a_partition_may_get_no_committables_and_no_splits() -> None:
    assert [len(one.committables) for one in plan_restore(keyed(2), 4, MAX)] == [1, 1, 0, 0]
    assert [len(one.positions) for one in plan_restore(source(["a"], ["b"]), 4, MAX)] == [1, 1, 0, 0]


def test_splits_are_dealt_out_in_turn_and_stay_in_order() -> None:
    restores = plan_restore(source(["a", "d", "e"], ["b", "c"]), 3, MAX)
    assert [one.positions for one in restores] == [
        (position("a"), position("d")),
        (position("b"), position("e")),
        (position("c"),),
    ]
    assert {one.state for one in restores} == {None}


def test_a_source_that_is_rescaled_starts_from_the_earliest_watermark_of_all() -> None:
    operator = source(["a"], ["b"], ["c"], watermarks=[Watermark(7), Watermark(3), Watermark(9)])
    assert [one.watermark for one in plan_restore(operator, 2, MAX)] == [Watermark(3), Watermark(3)]


def test_partitions_that_are_joined_wait_for_one_that_is_idle_and_has_rows_in_flight() -> None:
    (both,) = plan_restore(keyed(2, watermarks=[Watermark(100), Watermark(50, idle=True)]), 1, MAX)
    assert both.watermark == Watermark(50)


@pytest.mark.parametrize(
    ("watermarks", "of_a_source", "with_keyed_state"),
    [
        ([], None, None),
        ([None], None, None),
        ([Watermark(5), None], None, None),
        ([Watermark(5), Watermark(3)], Watermark(3), Watermark(3)),
        ([Watermark(5), Watermark(3, idle=True)], Watermark(5), Watermark(3)),
        ([Watermark(3), Watermark(5, idle=True)], Watermark(3), Watermark(3)),
        ([Watermark(5, idle=True), Watermark(3, idle=True)], Watermark(3, idle=True), Watermark(3, idle=True)),
        ([None, Watermark(3, idle=True)], None, None),
        ([Watermark(LATEST), Watermark(3, idle=True)], Watermark(3, idle=True), Watermark(3)),
        ([Watermark(LATEST), None], None, None),
        ([Watermark(LATEST), Watermark(LATEST)], Watermark(LATEST), Watermark(LATEST)),
    ],
    ids=str,
)
def test_the_earliest_watermark_makes_no_row_late_that_is_still_to_come(
    watermarks: list[Watermark | None], of_a_source: Watermark | None, with_keyed_state: Watermark | None
) -> None:
    assert earliest(watermarks, keyed=False) == of_a_source
    assert earliest(watermarks, keyed=True) == with_keyed_state


@pytest.mark.parametrize("parallelism", [0, 9])
def test_a_parallelism_out_of_bounds_is_refused(parallelism: int) -> None:
    with pytest.raises(ValueError, match="out of bounds: 1 to the maximum parallelism 8"):
        plan_restore(keyed(2), parallelism, MAX)


@pytest.mark.parametrize("parallelisms", [(2, 4, 3), (3, 1, 4), (4, 3, 2), (1, 8, 5, 2)], ids=str)
def test_nothing_is_lost_or_dealt_twice_over_several_rescales(parallelisms: tuple[int, ...]) -> None:
    check_history(parallelisms)


@given(st.lists(st.integers(1, MAX), min_size=2, max_size=4))
def test_nothing_is_lost_or_dealt_twice_at_any_parallelism(parallelisms: list[int]) -> None:
    check_history(parallelisms)


def check_history(parallelisms: Sequence[int]) -> None:
    """Restore at one parallelism after the other, and compare what all partitions have together."""
    operator = keyed(parallelisms[0])
    splits = source(*[[f"{index}-{n}" for n in range(index + 1)] for index in range(parallelisms[0])])
    committables = sorted(item.transaction for subtask in operator.subtasks for item in subtask.committables)
    names = sorted(at.split for subtask in splits.subtasks for at in subtask.positions)
    for before, after in pairwise(parallelisms):
        restores, sources = plan_restore(operator, after, MAX), plan_restore(splits, after, MAX)
        assert [one.partition for one in restores] == list(range(after))
        assert [one.state.range for one in restores if one.state] == [
            range_of(Partition(index), after, MAX) for index in range(after)
        ]
        assert sorted(item.transaction for one in restores for item in one.committables) == committables
        assert sorted(at.split for one in sources for at in one.positions) == names
        # Each key group was in flight once on a channel of sender 0 and twice on one of sender 1.
        data = sorted((channel.sender, group) for one in restores for channel, group in own_data(one))
        assert data == sorted((sender, group) for group in range(MAX) for sender in (0, 1, 1))
        for one in restores:
            assert one.state is not None
            files = {(item.path, group) for item in one.state.files for part in item.ranges for group in part}
            assert len(files) == len(one.state.range), "each key group has its one file"
            own = one.state.range
            parents = [s for s in operator.subtasks if s.state and s.state.range.intersection(own)]
            assert one.watermark == min((s.watermark for s in parents if s.watermark), key=lambda at: at.timestamp)
        assert len(operator.subtasks) == before
        operator, splits = restored_then_cut(COUNT, restores), restored_then_cut(UP, sources)
