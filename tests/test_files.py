"""File sets: whatever a job wrote, deleted, consolidated and rescaled, a restore gives back just what was there.

A small job is simulated next to a plain dict. Its files are dicts in which None is a tombstone. Every restore of every
history is compared with the dict: by a store that takes whole files, by one that takes their valid groups, and by one
that takes whole files, deletes nothing and hides what is below the floors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from statebackend.files import (
    Clear,
    Clip,
    FileKind,
    FileRef,
    FileSet,
    FileSetError,
    PathError,
    Step,
    Take,
    check_path,
    floors,
    mergeable,
    rescaled,
    restore_plan,
    union,
)
from statebackend.ids import Epoch, Generation, KeyGroup, Partition
from statebackend.keygroups import KeyGroupRange, joined, range_of

GROUPS = 3


@dataclass(frozen=True, slots=True, order=True)
class Key:
    group: KeyGroup
    name: str


State = dict[Key, int]
Contents = Mapping[str, Mapping[Key, int | None]]
Restore = Callable[[Sequence[FileSet], KeyGroupRange, Contents], State]
"""What a partition with these groups starts with, from its parents' sets and the files' contents."""


# --- the history of a job


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is written, and the cut that ends it."""

    writes: Mapping[Key, int | None]
    completes: bool
    consolidated: KeyGroupRange | None = None
    late: bool = False
    """The base is made from the cut before this one."""
    merged: slice | None = None
    """Which deltas are merged, if they may be: as they are before this cut, and put in place after its base."""


@dataclass(frozen=True, slots=True)
class Restart:
    parallelism: int
    back: int
    """How many complete epochs are rewound."""


Op = Stretch | Restart


def groups(first: int, end: int) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


KEYS = [Key(KeyGroup(group), name) for group in range(GROUPS) for name in "ab"]
SLICES = [groups(first, end) for first in range(GROUPS) for end in range(first + 1, GROUPS + 1)]


def writes_of(code: int) -> dict[Key, int | None]:
    """What is done to each key, one ternary digit each: nothing, a deletion or a write."""
    digits = {key: code // 3**place % 3 for place, key in enumerate(KEYS)}
    return {key: None if digit == 1 else code for key, digit in digits.items() if digit}


def histories() -> st.SearchStrategy[list[Op]]:
    stretches = st.builds(
        Stretch,
        writes=st.integers(0, 3 ** len(KEYS) - 1).map(writes_of),
        completes=st.sampled_from([True, True, True, False]),
        consolidated=st.none() | st.sampled_from(SLICES),
        late=st.sampled_from([False, False, True]),
        merged=st.none() | st.builds(slice, st.integers(0, 3), st.integers(5, 8), st.sampled_from([1, 1, 2])),
    )
    restarts = st.builds(Restart, st.integers(1, GROUPS), st.sampled_from([0, 0, 0, 0, 1]))
    one: st.SearchStrategy[Op] = stretches | restarts
    return st.lists(one, min_size=4, max_size=20)


@dataclass(slots=True)
class Worker:
    """One partition: its files, its state, and its state at the cut before."""

    files: FileSet
    state: State
    last_cut: tuple[Epoch, State]


@dataclass(frozen=True, slots=True)
class Complete:
    epoch: Epoch
    files: tuple[FileSet, ...]
    state: State


class Job:
    """Carries out a history; `wrong` names the first restore that gave something else than was there."""

    def __init__(self, restore: Restore) -> None:
        self.restore = restore
        self.generation = 1
        self.number = 0
        self.contents: dict[str, Mapping[Key, int | None]] = {}
        self.complete = [Complete(Epoch(Generation(1), 0), (FileSet(groups(0, GROUPS)),), {})]
        self.workers: list[Worker] = []
        self.wrong: str | None = None
        self._start(1)

    def run(self, history: Iterable[Op]) -> Job:
        for op in [*history, Stretch({}, completes=True), Restart(3, 0), Restart(1, 0)]:
            match op:
                case Stretch():
                    self._stretch(op)
                case Restart():
                    del self.complete[max(1, len(self.complete) - op.back) :]
                    self._start(op.parallelism)
        return self

    def _start(self, parallelism: int) -> None:
        origin = self.complete[-1]
        self.generation += 1
        self.number = origin.epoch.number
        self.workers = []
        for partition in range(parallelism):
            own = range_of(Partition(partition), parallelism, GROUPS)
            expected = {key: value for key, value in origin.state.items() if key.group in own}
            restored = self.restore(origin.files, own, self.contents)
            if restored != expected and self.wrong is None:
                self.wrong = f"{own} at epoch {origin.epoch}: {restored} instead of {expected}"
            files = rescaled(origin.files, own)
            self.workers.append(Worker(files, expected, (origin.epoch, expected)))

    def _epoch(self) -> Epoch:
        return Epoch(Generation(self.generation), self.number)

    def _stretch(self, op: Stretch) -> None:
        self.number += 1
        for worker in self.workers:
            writes = {key: value for key, value in op.writes.items() if key.group in worker.files.range}
            worker.state = taken(worker.state, writes)
            self._persist(worker, writes, op)
        if op.completes:
            state = {key: value for worker in self.workers for key, value in worker.state.items()}
            self.complete.append(Complete(self._epoch(), tuple(worker.files for worker in self.workers), state))

    def _persist(self, worker: Worker, delta: Mapping[Key, int | None], op: Stretch) -> None:
        run, merge = self._merge(worker.files, op.merged) if op.merged else ([], None)
        if delta:
            worker.files = worker.files.added(self._file(FileKind.DELTA, self._epoch(), worker.files.range, delta))
        epoch, state = worker.last_cut if op.late else (self._epoch(), worker.state)
        part = op.consolidated.intersection(worker.files.range) if op.consolidated else None
        if part is not None:
            base = {key: value for key, value in state.items() if key.group in part}
            if base:
                worker.files = worker.files.consolidated(self._file(FileKind.BASE, epoch, part, base))
            else:
                worker.files = worker.files.emptied((part,), epoch)
        if merge is not None:
            worker.files = worker.files.merged(run, merge)
        worker.last_cut = self._epoch(), worker.state

    def _merge(self, files: FileSet, which: slice) -> tuple[list[str], FileRef | None]:
        """A delta of what a run of deltas says, if it may be merged."""
        run = [file for file in files.files if file.kind is FileKind.DELTA][which]
        others = [file for file in files.files if file not in run]
        newest: dict[Key, int | None] = {}
        for file in run:
            newest |= {key: v for key, v in self.contents[file.path].items() if holds(file.ranges, key)}
        if len(run) < 2 or not newest or not mergeable(run, others, run[-1].epoch):
            return [], None
        ranges = joined(groups(key.group, key.group + 1) for key in newest)
        return [file.path for file in run], self._new(FileKind.DELTA, run[-1].epoch, ranges, newest)

    def _file(self, kind: FileKind, epoch: Epoch, valid: KeyGroupRange, content: Mapping[Key, int | None]) -> FileRef:
        return self._new(kind, epoch, (valid,), content)

    def _new(
        self, kind: FileKind, epoch: Epoch, ranges: tuple[KeyGroupRange, ...], content: Mapping[Key, int | None]
    ) -> FileRef:
        path = f"shared/{1000 - len(self.contents)}.sst"  # names fall: they say nothing about the order
        self.contents[path] = dict(content)
        return FileRef(path, ranges, epoch, kind, len(content), "crc32:00000000")


# --- stores that carry out a plan


def holds(ranges: Iterable[KeyGroupRange], key: Key) -> bool:
    return any(key.group in part for part in ranges)


def taken(state: State, content: Mapping[Key, int | None]) -> State:
    on_top = {**state, **content}
    return {key: value for key, value in on_top.items() if value is not None}


def carried_out(steps: Iterable[Step], contents: Contents, *, whole: bool) -> State:
    state: State = {}
    for step in steps:
        match step:
            case Clear(ranges):
                state = {key: value for key, value in state.items() if not holds(ranges, key)}
            case Take(file):
                content = contents[file.path]
                state = taken(state, {key: v for key, v in content.items() if whole or holds(file.ranges, key)})
            case Clip(keep):
                state = {key: value for key, value in state.items() if holds(keep, key)}
    return state


def by_whole_files(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    return carried_out(restore_plan(rescaled(parents, own)), contents, whole=True)


def by_valid_groups(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    return carried_out(restore_plan(rescaled(parents, own)), contents, whole=False)


def hidden_below(
    parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents, floor: Callable[[FileSet, KeyGroup], int]
) -> State:
    files = rescaled(parents, own)
    stored: dict[Key, tuple[int, int]] = {}
    for file in files.files:
        for key, value in contents[file.path].items():
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = file.epoch.number, value
    return {k: v for k, (number, v) in stored.items() if k.group in own and number >= floor(files, k.group)}


def by_floors(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    return hidden_below(parents, own, contents, lambda files, group: floors(files).of(group))


@pytest.mark.parametrize("restore", [by_whole_files, by_valid_groups, by_floors])
@settings(suppress_health_check=[HealthCheck.differing_executors])
@given(history=histories())
def test_a_restore_gives_back_what_was_there_after_any_history(restore: Restore, history: list[Op]) -> None:
    assert Job(restore).run(history).wrong is None


# --- stores that go about it the wrong way, each of which the same histories must find out


def parent_after_parent(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    steps: list[Step] = []
    for parent in parents:
        part = parent.range.intersection(own)
        if part is not None:
            steps += [step for step in restore_plan(parent.projected(part)) if not isinstance(step, Clip)]
    return carried_out([*steps, Clip((own,))], contents, whole=True)


def without_clearing(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    steps = [step for step in restore_plan(rescaled(parents, own)) if not isinstance(step, Clear)]
    return carried_out(steps, contents, whole=True)


def without_clipping(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    steps = [step for step in restore_plan(rescaled(parents, own)) if not isinstance(step, Clip)]
    return carried_out(steps, contents, whole=True)


def clipped_to_the_range_alone(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    steps = [Clip((own,)) if isinstance(step, Clip) else step for step in restore_plan(rescaled(parents, own))]
    return carried_out(steps, contents, whole=True)


def in_order(files: Iterable[FileRef], contents: Contents, own: KeyGroupRange) -> State:
    steps: list[Step] = []
    for file in files:
        steps += [Clear(file.ranges), Take(file)] if file.kind is FileKind.BASE else [Take(file)]
    return carried_out([*steps, Clip((own,))], contents, whole=False)


def by_name(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    return in_order(sorted(rescaled(parents, own).files, key=lambda file: file.path), contents, own)


def bases_first(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    """Whole bases, then whole deltas, as though a base could only be older than every delta."""
    files = sorted(rescaled(parents, own).files, key=lambda file: (file.kind is FileKind.DELTA, file.epoch))
    return carried_out([*map(Take, files), Clip((own,))], contents, whole=True)


def tombstones_dropped(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    living = {path: {k: v for k, v in content.items() if v is not None} for path, content in contents.items()}
    return by_valid_groups(parents, own, living)


def floors_of_bases_alone(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    """As though nothing older could be left in a group that has no base."""

    def floor(files: FileSet, group: KeyGroup) -> int:
        bases = [file for file in files.files if file.kind is FileKind.BASE and holds(file.ranges, Key(group, ""))]
        return bases[0].epoch.number if bases else 0

    return hidden_below(parents, own, contents, floor)


def floors_above_the_oldest(parents: Sequence[FileSet], own: KeyGroupRange, contents: Contents) -> State:
    return hidden_below(parents, own, contents, lambda files, group: floors(files).of(group) + 1)


@pytest.mark.parametrize(
    "restore",
    [
        parent_after_parent,
        without_clearing,
        without_clipping,
        clipped_to_the_range_alone,
        by_name,
        bases_first,
        tombstones_dropped,
        floors_of_bases_alone,
        floors_above_the_oldest,
    ],
    ids=lambda restore: str(restore.__name__),
)
def test_a_restore_that_goes_about_it_the_wrong_way_is_found_out(restore: Restore) -> None:
    history = find(
        histories(),
        lambda history: Job(restore).run(history).wrong is not None,
        settings=settings(max_examples=2000, database=None, deadline=None, phases=[Phase.generate]),
        random=Random(0),
    )
    assert Job(by_whole_files).run(history).wrong is None


# --- the rules one by one


def file(path: str, *ranges: KeyGroupRange, epoch: int = 1, kind: FileKind = FileKind.DELTA) -> FileRef:
    return FileRef(path, ranges, Epoch(Generation(1), epoch), kind, 10, "crc32:0badcafe")


def test_a_key_deleted_after_scaling_up_stays_deleted_after_scaling_down() -> None:
    shared = file("shared/old.sst", groups(0, 4))
    upper_base = file("shared/base.sst", groups(2, 4), epoch=3, kind=FileKind.BASE)
    lower = FileSet.of(groups(0, 4), [shared]).projected(groups(0, 2))
    upper = FileSet.of(groups(0, 4), [shared]).projected(groups(2, 4)).consolidated(upper_base)
    assert upper.files == (upper_base,)
    assert restore_plan(rescaled([lower, upper], groups(1, 4))) == (
        Take(replace(shared, ranges=(groups(1, 2),))),
        Clear((groups(2, 4),)),
        Take(upper_base),
        Clip((groups(1, 4),)),
    )


def test_a_file_shared_by_parents_that_do_not_touch_any_more_is_taken_once_with_both_ranges() -> None:
    shared = file("shared/old.sst", groups(0, 4))
    whole = FileSet.of(groups(0, 4), [shared])
    middle = whole.projected(groups(1, 3)).emptied((groups(1, 3),), shared.epoch)
    both = union([whole.projected(groups(3, 4)), middle, whole.projected(groups(0, 1))])
    assert both.files == (replace(shared, ranges=(groups(0, 1), groups(3, 4))),)


def test_the_files_of_all_parents_are_taken_in_the_order_of_their_epochs() -> None:
    parents = [
        FileSet.of(groups(0, 2), [file("a", groups(0, 2), epoch=1), file("c", groups(0, 2), epoch=3)]),
        FileSet.of(groups(2, 4), [file("b", groups(2, 4), epoch=2), file("d", groups(2, 4), epoch=4)]),
    ]
    plan = restore_plan(rescaled(parents, groups(0, 4)))
    assert [step.file.path for step in plan if isinstance(step, Take)] == ["a", "b", "c", "d"]


def test_a_set_whose_numbers_contradict_its_generations_is_refused() -> None:
    older = FileRef("z", (groups(0, 1),), Epoch(Generation(1), 9), FileKind.DELTA, 1, "crc32:00")
    same = replace(older, path="a", epoch=Epoch(Generation(2), 9))
    with pytest.raises(FileSetError, match="a of epoch 9-2 is younger than z of epoch 9-1, yet its number"):
        FileSet.of(groups(0, 1), [same, older])
    younger = replace(same, epoch=Epoch(Generation(2), 10))
    assert FileSet.of(groups(0, 1), [younger, older]).files == (older, younger)


def test_a_late_base_replaces_what_is_older_and_leaves_later_deltas() -> None:
    deltas = [file("one", groups(0, 4), epoch=1), file("two", groups(0, 4), epoch=2)]
    base = file("base", groups(1, 4), epoch=1, kind=FileKind.BASE)
    files = FileSet.of(groups(0, 4), deltas).consolidated(base)
    assert files.files == (replace(deltas[0], ranges=(groups(0, 1),)), base, deltas[1])


def test_an_empty_set_needs_no_step_and_hides_nothing() -> None:
    assert restore_plan(FileSet(groups(0, 4))) == ()
    assert [floors(FileSet(groups(1, 3))).of(KeyGroup(group)) for group in (1, 2)] == [0, 0]


def test_the_floor_of_a_group_is_its_oldest_file_and_above_all_files_where_none_is_valid() -> None:
    files = [
        file("old", groups(0, 1), epoch=2),
        file("base", groups(2, 3), epoch=5, kind=FileKind.BASE),
        file("new", groups(0, 1), groups(2, 4), epoch=7),
    ]
    found = floors(FileSet.of(groups(0, 5), files))
    assert [found.of(KeyGroup(group)) for group in range(5)] == [2, 8, 5, 7, 8]


def test_a_merge_takes_the_place_of_the_youngest_of_its_run() -> None:
    deltas = [file(f"d{number}", groups(0, 4), epoch=number) for number in (1, 2, 3)]
    base = file("base", groups(0, 2), epoch=1, kind=FileKind.BASE)
    merge = file("merge", groups(0, 4), epoch=2)
    files = FileSet.of(groups(0, 4), deltas).consolidated(base).merged(["d1", "d2"], merge)
    assert files.files == (base, merge, deltas[2])


def test_a_merge_is_not_valid_where_a_younger_base_came_before_it() -> None:
    deltas = [file(f"d{number}", groups(0, 4), epoch=number) for number in (1, 2)]
    merge = file("merge", groups(0, 4), epoch=2)
    base = file("base", groups(0, 3), epoch=3, kind=FileKind.BASE)
    files = FileSet.of(groups(0, 4), deltas).consolidated(base)
    assert files.merged(["d1", "d2"], merge).files == (replace(merge, ranges=(groups(3, 4),)), base)
    everywhere = files.emptied((groups(0, 4),), base.epoch)
    assert everywhere.merged(["d1", "d2"], merge) == everywhere


def test_a_merge_that_would_overtake_another_delta_or_replace_a_base_is_refused() -> None:
    deltas = [file(f"d{number}", groups(0, 4), epoch=number) for number in (1, 2, 3)]
    base = file("base", groups(0, 2), epoch=1, kind=FileKind.BASE)
    files = FileSet.of(groups(0, 4), deltas).consolidated(base)
    with pytest.raises(FileSetError, match="would hide what others"):
        files.merged(["d1", "d3"], file("merge", groups(0, 4), epoch=3))
    with pytest.raises(FileSetError, match="replaces bases or files of later epochs"):
        files.merged(["d1", "base"], file("merge", groups(0, 4), epoch=1))
    with pytest.raises(FileSetError, match="replaces bases or files of later epochs"):
        files.merged(["d2", "d3"], file("merge", groups(0, 4), epoch=2))


def test_files_that_hold_nothing_of_the_narrower_range_are_dropped() -> None:
    files = FileSet.of(groups(0, 4), [file("low", groups(0, 1)), file("high", groups(2, 4))])
    assert [ref.path for ref in files.projected(groups(0, 2)).files] == ["low"]


BASE = FileKind.BASE


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([file("a", groups(0, 1)), file("a", groups(1, 2))], "a is twice"),
        ([file("a", groups(3, 5))], r"a is valid for \[3, 5\) in a set of key groups \[0, 4\)"),
        ([file("a", groups(0, 2)), file("b", groups(1, 3), epoch=2, kind=BASE)], r"b replaces key groups \[1, 2\)"),
        ([file("a", groups(0, 2)), file("b", groups(1, 3), kind=BASE)], r"b replaces key groups \[1, 2\)"),
        ([file("a", groups(0, 2), kind=BASE), file("b", groups(1, 3), kind=BASE)], r"b replaces key groups \[1, 2\)"),
    ],
)
def test_a_set_that_breaks_a_rule_cannot_be_made(files: list[FileRef], complaint: str) -> None:
    with pytest.raises(FileSetError, match=complaint):
        FileSet.of(groups(0, 4), files)


def test_files_out_of_order_are_refused() -> None:
    with pytest.raises(FileSetError, match="b of epoch 1-1 stands after a of epoch 2-1"):
        FileSet(groups(0, 4), (file("a", groups(0, 1), epoch=2), file("b", groups(0, 1), epoch=1)))


def test_a_base_older_than_the_one_in_place_is_refused() -> None:
    files = FileSet(groups(0, 4)).consolidated(file("new", groups(0, 2), epoch=5, kind=BASE))
    with pytest.raises(FileSetError, match="new replaces key groups"):
        files.consolidated(file("old", groups(1, 3), epoch=4, kind=BASE))


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([(0, 2), (3, 4)], "between 2 and 3 are missing"),
        ([(0, 3), (2, 4)], "between 2 and 3 belong to two sets"),
        ([], "no key groups"),
    ],
)
def test_a_union_with_a_gap_or_two_owners_of_a_group_is_refused(parts: list[tuple[int, int]], complaint: str) -> None:
    with pytest.raises(FileSetError, match=complaint):
        union(FileSet(groups(*part)) for part in parts)


def test_parents_that_contradict_each_other_on_a_file_are_refused() -> None:
    one = file("a", groups(0, 2))
    other = replace(one, ranges=(groups(2, 4),), size=11)
    with pytest.raises(FileSetError, match="contradict each other on a"):
        union([FileSet(groups(0, 2), (one,)), FileSet(groups(2, 4), (other,))])


def test_a_partition_whose_parents_lack_some_of_its_groups_is_refused() -> None:
    with pytest.raises(FileSetError, match=r"hold key groups \[1, 2\) of \[1, 3\)"):
        rescaled([FileSet(groups(0, 2))], groups(1, 3))
    with pytest.raises(FileSetError, match=r"no parent holds any of the key groups \[2, 3\)"):
        rescaled([FileSet(groups(0, 2))], groups(2, 3))
    with pytest.raises(FileSetError, match="cannot be narrowed"):
        FileSet(groups(0, 2)).projected(groups(1, 3))


@pytest.mark.parametrize(
    ("ranges", "size", "checksum", "complaint"),
    [
        ((), 1, "crc32:00", "no key group"),
        ((groups(2, 3), groups(0, 1)), 1, "crc32:00", "ascending"),
        ((groups(0, 1), groups(1, 2)), 1, "crc32:00", "do not touch"),
        ((groups(0, 1),), -1, "crc32:00", "-1 bytes"),
        ((groups(0, 1),), 1, "00ff", "<algorithm>:<hex digits>"),
    ],
)
def test_a_reference_that_makes_no_sense_is_refused(
    ranges: tuple[KeyGroupRange, ...], size: int, checksum: str, complaint: str
) -> None:
    with pytest.raises(FileSetError, match=complaint):
        FileRef("a", ranges, Epoch(Generation(1), 1), FileKind.DELTA, size, checksum)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/etc/passwd", "absolute"),
        ("\\\\server\\share", "absolute"),
        ("C:\\state.sst", "absolute"),
        ("s3://bucket/state.sst", "scheme"),
        ("shared/../../state.sst", "climbs"),
        ("shared\\..\\state.sst", "climbs"),
        ("shared\\state.sst", "expected segments"),
        ("file:state.sst", "expected segments"),
        ("shared//state.sst", "expected segments"),
        ("./state.sst", "expected segments"),
        (".hidden", "expected segments"),
        ("shared/", "expected segments"),
        ("%2e%2e/state.sst", "expected segments"),
        ("shared/state.sst\n", "expected segments"),
        ("shared/state\0.sst", "expected segments"),
        ("", "expected segments"),
        ("x" * 201, "too long"),
        ("x/" * 400 + "x", "too long"),
    ],
)
def test_a_path_that_may_point_outside_the_tree_is_refused(path: str, complaint: str) -> None:
    with pytest.raises(PathError, match=complaint):
        check_path(path)
