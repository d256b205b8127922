"""The rolling rewrite of a state's files, over long histories of sizes: its ceilings hold at the cost that is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.files import FileKind, FileRef, FileSet, bottoms, rescaled
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keygroups import KeyGroupRange, joined
from statebackend.snapshots.consolidation import Consolidate, Merge, Planner, Policy, cheapest_run

MB = 1_000_000
LATER = Epoch(Generation(1), 1_000_000)
Sizes = Mapping[KeyGroup, float]


def groups(first: int, end: int) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


def ranges_of(content: Iterable[KeyGroup]) -> tuple[KeyGroupRange, ...]:
    return joined(groups(group, group + 1) for group in content)


@dataclass(slots=True)
class World:
    """What lives in each key group, and what of each group is in which file: nothing but sizes."""

    files: FileSet
    planner: Planner
    live: dict[KeyGroup, float]
    content: dict[str, Sizes] = field(default_factory=dict)
    number: int = 0
    delta_bytes: int = 0
    largest_delta: int = 0
    base_bytes: int = 0
    merge_bytes: int = 0

    @classmethod
    def of(cls, own: KeyGroupRange, live: float, policy: Policy) -> World:
        return cls(FileSet(own), Planner(policy), {group: live / len(own) for group in own})

    def even(self, size: float) -> dict[KeyGroup, float]:
        return dict.fromkeys(self.files.range, size / len(self.files.range))

    def epoch(self, delta: Sizes) -> None:
        self.number += 1
        file = self._file(FileKind.DELTA, self._now(), delta)
        if file is not None:
            self.files = self.files.added(file)
            self.delta_bytes += file.size
            self.largest_delta = max(self.largest_delta, file.size)
        before = self.base_bytes
        for instruction in self.planner.changed(self.files, file.size if file is not None else 0, self._now()):
            match instruction:
                case Consolidate(part):
                    self._consolidate(part)
                case Merge(run):
                    self._merge(run)
        self.planner.answered(self.base_bytes - before)

    def own_bytes(self) -> float:
        """The sizes of all files, as far as they are of groups that live here."""
        return sum(sum(self.content[file.path].get(group, 0) for group in self.live) for file in self.files.files)

    def measured(self) -> float:
        """What lived in the groups when each was last written whole."""
        return sum(self.content[file.path].get(group, 0) for part, file in bottoms(self.files) for group in part)

    def count(self, kind: FileKind) -> int:
        return sum(file.kind is kind for file in self.files.files)

    def _now(self) -> Epoch:
        return Epoch(Generation(1), self.number)

    def _consolidate(self, part: KeyGroupRange) -> None:
        base = self._file(FileKind.BASE, self._now(), {group: self.live[group] for group in part})
        if base is None:
            self.files = self.files.emptied((part,), self._now())
        else:
            self.base_bytes += base.size
            self.files = self.files.consolidated(base)

    def _merge(self, run: tuple[FileRef, ...]) -> None:
        content: dict[KeyGroup, float] = {}
        for file in run:
            for group in (group for part in file.ranges for group in part):
                content[group] = content.get(group, 0) + self.content[file.path].get(group, 0)
        merged = self._file(FileKind.DELTA, run[-1].epoch, content)
        assert merged is not None
        self.merge_bytes += merged.size
        self.files = self.files.merged([file.path for file in run], merged)

    def _file(self, kind: FileKind, epoch: Epoch, content: Sizes) -> FileRef | None:
        filled = {group: size for group, size in content.items() if size > 0}
        if not filled:
            return None
        path = f"shared/{len(self.content)}"
        self.content[path] = filled
        return FileRef(path, ranges_of(filled), epoch, kind, round(sum(filled.values())) + 1, "none:0")


# --- any history


@dataclass(frozen=True, slots=True)
class Phase:
    what: str
    epochs: int
    share: float
    """Of what lives: how much an epoch changes, adds or deletes."""


PHASES = st.lists(
    st.builds(
        Phase,
        st.sampled_from(
            ["update", "update", "insert", "delete", "a few groups", "one burst", "half the range", "restart"]
        ),
        st.integers(1, 60),
        st.sampled_from([0.00001, 0.001, 0.01, 0.05, 0.3, 1.0]),
    ),
    min_size=1,
    max_size=10,
)


def live_through(world: World, phase: Phase, policy: Policy) -> Iterable[None]:
    match phase.what:
        case "half the range":
            own = world.files.range
            if len(own) > 1:
                world.files = rescaled([world.files], groups(own.first, own.first + len(own) // 2))
                world.live = {group: world.live[group] for group in world.files.range}
            world.planner = Planner(policy)
        case "restart":
            world.planner = Planner(policy)
        case "one burst":
            world.epoch(world.even(2 * phase.share * sum(world.live.values()) + 1))
            yield
        case _:
            for number in range(phase.epochs):
                one_epoch(world, phase, number)
                yield


def one_epoch(world: World, phase: Phase, number: int) -> None:
    size = phase.share * sum(world.live.values()) + 1
    match phase.what:
        case "a few groups":
            own = list(world.live)
            touched = {own[(number * 7 + place) % len(own)] for place in range(3)}
            world.epoch({group: min(size, 1000) for group in touched})
        case "insert":
            added = world.even(min(size, 30 * MB))
            world.live = {group: live + added[group] for group, live in world.live.items()}
            world.epoch(added)
        case "delete":
            world.live = {group: live * (1 - phase.share) for group, live in world.live.items()}
            world.epoch(world.even(size))
        case _:
            world.epoch(world.even(size))


@settings(max_examples=settings().max_examples // 4)
@given(
    phases=PHASES,
    amplification=st.sampled_from([1.5, 2.0, 2.25, 3.0]),
    live=st.sampled_from([1_000.0, 3.0 * MB, 67.0 * MB]),
    first=st.sampled_from([0, 5, 32]),
)
def test_whatever_happens_space_files_and_what_is_rewritten_stay_below_their_ceilings(
    phases: list[Phase], amplification: float, live: float, first: int
) -> None:
    policy = Policy(amplification)
    world = World.of(groups(first, first + 32), live, policy)
    world.epoch(world.live)
    for phase in phases:
        for _ in live_through(world, phase, policy):
            measured = world.measured()
            assert world.own_bytes() <= policy.most_bytes(measured, world.largest_delta)
            assert world.base_bytes <= policy.pace * world.delta_bytes + policy.largest_slice(measured)
            assert len(world.files.files) <= policy.most_files(measured, len(world.files.range))


# --- histories that people have


def steady(live: float, delta: float, policy: Policy, *, epochs: int, restart_every: int = 10_000) -> World:
    """A state that is loaded in slices, and of which the same amount is updated in each epoch, in all groups."""
    world = World.of(groups(0, 128), live, policy)
    world.number = 1
    for first in range(0, 128, 4):
        world._consolidate(groups(first, first + 4))
    world.base_bytes = 0
    for number in range(epochs):
        if number % restart_every == restart_every - 1:
            world.planner = Planner(policy)
        world.epoch(world.even(delta))
        lost = policy.largest_slice(live) if restart_every < epochs else 0
        assert world.own_bytes() <= policy.space_amplification * live + delta + lost
    return world


def uploaded(world: World) -> int:
    return world.delta_bytes + world.base_bytes + world.merge_bytes


def test_one_per_cent_of_a_million_keys_per_epoch_uploads_little_more_than_itself() -> None:
    world = steady(67 * MB, 0.77 * MB, Policy(), epochs=400)
    assert uploaded(world) / 400 < 1.45 * MB
    assert world.merge_bytes == 0
    assert len(world.files.files) <= 145


def test_more_space_is_fewer_bytes_and_more_files() -> None:
    worlds = [steady(67 * MB, 2 * MB, Policy(setting), epochs=150) for setting in (1.5, 2.25, 4)]
    cost = [uploaded(world) for world in worlds]
    files = [len(world.files.files) for world in worlds]
    assert cost == sorted(cost, reverse=True)
    assert files == sorted(files)


def test_a_job_that_restarts_every_few_epochs_keeps_below_the_ceiling_at_the_same_cost() -> None:
    world = steady(67 * MB, 0.77 * MB, Policy(), epochs=250, restart_every=7)
    assert uploaded(world) / 250 < 1.5 * MB


def test_when_everything_changes_in_every_epoch_everything_is_rewritten_every_other_time() -> None:
    policy = Policy()
    world = World.of(groups(0, 128), 67 * MB, policy)
    for _ in range(20):
        world.epoch(world.even(67 * MB))
    assert world.base_bytes <= 0.501 * world.delta_bytes


def test_tiny_epochs_stay_cheap_and_their_files_few() -> None:
    policy = Policy()
    world = World.of(groups(0, 128), 67 * MB, policy)
    world.epoch(world.live)
    loaded = uploaded(world)
    for number in range(600):
        world.epoch({KeyGroup(number * 31 % 128): 500.0})
    assert len(world.files.files) <= 128 + 40
    assert uploaded(world) - loaded < 10 * 600 * 500 + world.base_bytes
    assert world.base_bytes <= 3 * MB


def test_a_state_loaded_by_one_huge_delta_is_replaced_little_by_little() -> None:
    world = World.of(groups(0, 128), 67 * MB, Policy(2.25))
    world.epoch(world.live)
    for _ in range(120):
        before = uploaded(world)
        world.epoch(world.even(0.77 * MB))
        assert uploaded(world) - before < 6 * MB
        assert world.own_bytes() <= 2.5 * 67 * MB
    assert world.count(FileKind.BASE) >= 30


def test_after_a_rescale_nothing_is_rewritten_at_once_and_the_others_files_leave_in_time() -> None:
    policy = Policy()
    whole = steady(67 * MB, 2 * MB, policy, epochs=60)
    for own in (groups(0, 32), groups(32, 64), groups(64, 128)):
        part = World(
            rescaled([whole.files], own), Planner(policy), {group: whole.live[group] for group in own}, whole.content
        )
        part.number = whole.number
        for _ in range(100):
            before = uploaded(part)
            part.epoch(part.even(len(own) * 2 * MB / 128))
            assert uploaded(part) - before < (1 + policy.pace) * len(own) * 2 * MB / 128 + 4 * MB
        assert sum(file.size for file in part.files.files) <= policy.most_bytes(sum(part.live.values()), 2 * MB)


def test_a_state_of_which_nothing_is_left_has_no_files_in_the_end() -> None:
    world = World.of(groups(0, 16), 5 * MB, Policy())
    world.epoch(world.live)
    world.live = dict.fromkeys(world.live, 0.0)
    for _ in range(40):
        world.epoch(world.even(0.2 * MB))
    assert world.own_bytes() < 2 * MB


# --- the rules one by one


def delta(number: int, size: int, *ranges: KeyGroupRange) -> FileRef:
    return FileRef(
        f"d{number}", ranges or (groups(0, 8),), Epoch(Generation(1), number), FileKind.DELTA, size, "none:0"
    )


def names(run: Iterable[FileRef]) -> list[str]:
    return [file.path for file in run]


def test_nothing_is_asked_for_while_an_answer_is_due_and_what_was_given_up_is_asked_for_again() -> None:
    planner = Planner(Policy())
    files = FileSet.of(groups(0, 8), [delta(number, 4 * MB) for number in range(1, 6)])
    planner.changed(files, 4 * MB, LATER)
    asked = planner.changed(files, 4 * MB, LATER)
    assert asked
    assert planner.changed(files, 4 * MB, LATER) == []
    planner.answered(0)
    assert planner.changed(files, 4 * MB, LATER)[0] == asked[0]


def test_while_a_merge_is_due_no_other_is_asked_for() -> None:
    planner = Planner(Policy())
    files = FileSet.of(groups(0, 8), [delta(number, 5) for number in range(1, 200)])
    [merge] = planner.changed(files, 5, LATER)
    assert isinstance(merge, Merge)
    assert planner.changed(files, 5, LATER) == []
    planner.answered(0)
    assert planner.changed(files, 5, LATER) == [merge]


def test_the_slice_with_the_oldest_changes_comes_first() -> None:
    old, new = delta(1, 4 * MB, groups(4, 6)), delta(2, 4 * MB, groups(0, 4), groups(6, 8))
    files = FileSet.of(groups(0, 8), [old, new, delta(3, 40 * MB)])
    planner = Planner(Policy())
    planner.changed(files, 40 * MB, LATER)
    first, *_ = planner.changed(files, 40 * MB, LATER)
    assert isinstance(first, Consolidate)
    assert first.groups.first == 4


def test_where_nothing_changed_since_the_base_nothing_is_rewritten() -> None:
    bases = [FileRef("b", (groups(0, 8),), Epoch(Generation(1), 1), FileKind.BASE, 9 * MB, "none:0")]
    planner = Planner(Policy())
    for _ in range(3):
        assert planner.changed(FileSet.of(groups(0, 8), bases), 9 * MB, LATER) == []


def test_few_deltas_are_left_alone_and_of_many_the_smallest_neighbours_are_merged() -> None:
    sizes = [100, 1, 100, 100, 2, 2, 2, 2, 2, 2, 2, 2, 100]
    files = FileSet.of(groups(0, 8), [delta(number, size) for number, size in enumerate(sizes, start=1)])
    assert cheapest_run(files, 13, LATER) == ()
    assert names(cheapest_run(files, 12, LATER)) == [f"d{number}" for number in range(5, 13)]


def test_of_equal_deltas_the_youngest_are_merged_as_they_stay_longest() -> None:
    files = FileSet.of(groups(0, 8), [delta(number, 5) for number in range(1, 21)])
    assert names(cheapest_run(files, 10, LATER)) == [f"d{number}" for number in range(13, 21)]


def test_what_is_merged_is_older_than_all_bases_to_come() -> None:
    files = FileSet.of(groups(0, 8), [delta(number, 5) for number in range(1, 21)])
    at = Epoch(Generation(1), 12)
    assert names(cheapest_run(files, 10, at)) == [f"d{number}" for number in range(4, 12)]
    assert cheapest_run(files, 11, at) == ()


def test_nothing_is_rewritten_before_a_base_would_be_younger_than_all_that_was_there_in_the_beginning() -> None:
    files = FileSet.of(groups(0, 8), [delta(number, 5 * MB) for number in range(1, 21)])
    began = files.files[-1].epoch
    planner = Planner(Policy(), began)
    assert planner.changed(files, 100 * MB, began) == planner.changed(files, 100 * MB, began) == []
    assert planner.changed(files, 100 * MB, LATER)


def test_no_merge_makes_a_huge_file_or_hides_what_another_says() -> None:
    huge = FileSet.of(groups(0, 8), [delta(number, 10 * MB) for number in range(1, 10)])
    assert cheapest_run(huge, 4, LATER) == ()
    parents = [delta(number, 1, groups(0, 4)) for number in range(1, 9)]
    split = [
        FileRef(f"e{part}", (groups(0, 4),), Epoch(Generation(1), 8), FileKind.DELTA, 1, "none:0") for part in "ab"
    ]
    whole_epochs = ["d3", "d4", "d5", "d6", "d7", "d8", "ea", "eb"]
    assert names(cheapest_run(FileSet.of(groups(0, 8), parents + split), 9, LATER)) == whole_epochs


@pytest.mark.parametrize("setting", [1.0, 0, float("nan"), 1000])
def test_a_space_amplification_that_cannot_be_kept_is_refused(setting: float) -> None:
    with pytest.raises(ValueError, match=r"out of bounds: 1.1 to 100"):
        Policy(setting)
