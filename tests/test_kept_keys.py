"""Tables of which nearly all keys change: cuts leave the keys out that an earlier one has stored, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Final, Literal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statebackend import entries
from statebackend.backends.sst import read_sst
from statebackend.files import FileKind, FileRef, FileSet, mergeable, rescaled
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import decode_keys
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots import consolidation
from statebackend.snapshots.consolidation import Policy, cheapest_run
from statebackend.state_reader import StateReader
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import ValueState
from statebackend.tables.values.aggregations import Count
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.testing.keyed_state import Hasty, Restless

TABLE: Final = AggregateTable(rows=Count())
COUNTS: Final = Operator("counts", str, {"counts": TABLE}, max_parallelism=4)
TWO_TABLES: Final = replace(COUNTS, states={"counts": TABLE, "others": TABLE})
BESIDE_ROWS: Final = replace(COUNTS, states={**COUNTS.states, "number": ValueState(int)})
KEYS: Final = [f"a key of some length, number {number}" for number in range(400)]
Counts = dict[object, int]
Place = tuple[str, bytes]
"""A table and a namespace."""

HERE: Final = ("counts", b"")


class Job:
    """One partition beside a dictionary, epoch by epoch."""

    def __init__(
        self, folder: Path, store: FaultyStore, options: Options, operator: Operator = COUNTS, behind: int = 0
    ) -> None:
        """So many epochs are not complete yet when the next one is cut."""
        self.store = store
        self._behind = behind
        self.places: dict[Place, Counts] = {HERE: {}}
        self.epoch = Epoch(Generation(1), 0)
        self.folder = folder
        self._numbers, self._options, self._operator = count(), options, operator
        self.files = FileSet(operator.all_groups)
        self.state = self.opened(self.files, "first")

    def opened(self, files: FileSet, folder: str, operator: Operator | None = None) -> KeyedState:
        return KeyedState(operator or self._operator, self.folder / folder, self.store, self.name, files, self._options)

    def name(self) -> str:
        return f"shared/{next(self._numbers)}.sst"

    @property
    def counts(self) -> Counts:
        return self.places[HERE]

    def count(self, keys: Sequence[str], place: Place = HERE) -> None:
        counts = self.places.setdefault(place, {})
        table, namespace = place
        self.state[table].update(self.state.keys(pa.array(keys, pa.string())), {}, namespace)
        for key in keys:
            counts[key] = counts.get(key, 0) + 1

    def remove(self, keys: Sequence[str], place: Place = HERE) -> None:
        table, namespace = place
        self.state[table].remove(self.state.keys(pa.array(keys, pa.string())), namespace)
        for key in keys:
            self.places[place].pop(key, None)

    def cut(self) -> FileSet:
        """The next epoch, complete; and all that is in it can be read from outside."""
        self.epoch = Epoch(self.epoch.generation, self.epoch.number + 1)
        self.files = self.state.snapshot(self.epoch)
        if self.epoch.number > self._behind:
            self.state.completed(Epoch(self.epoch.generation, self.epoch.number - self._behind))
        assert self.has_all(self.state)
        assert self.state.statistics().background.trouble is None
        return self.files

    def has_all(self, state: KeyedState) -> bool:
        return all(counts_of(state, place) == counts for place, counts in self.places.items())

    def reopened(self) -> Counts:
        with self.opened(self.files, f"again-{next(self._numbers)}") as state:
            assert self.has_all(state)
            return counts_of(state)


def counts_of(state: KeyedState, place: Place = HERE) -> Counts:
    table, namespace = place
    found = state[table].keys_and_results(namespace)
    return dict(
        zip(decode_keys(found.keys, state.key_type).to_pylist(), found.results["rows"].to_pylist(), strict=True)
    )


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    made = FaultyStore(token_hex(8))
    yield made
    made.clear()


@pytest.fixture(params=["heap", "rocksdb"])
def job(request: pytest.FixtureRequest, tmp_path: Path, store: FaultyStore) -> Iterator[Job]:
    backend: Literal["heap", "rocksdb"] = request.param
    made = Job(tmp_path, store, Options(backend=backend))
    made.count(KEYS)
    made.cut()
    yield made
    store.go_on()
    made.state.close()


def kinds(files: FileSet) -> list[FileKind]:
    return [file.kind for file in files.files]


BASE_ALONE: Final = [FileKind.BASE]
WITHOUT_KEYS: Final = [FileKind.BASE, FileKind.DELTA]


def test_a_cut_of_nearly_all_keys_leaves_them_out_and_takes_the_place_of_what_was_cut_in_between(job: Job) -> None:
    (base,) = job.files.files
    for _ in range(3):
        job.count(KEYS)
        _, delta = job.cut().files
        assert job.files.files[0] == base
        assert delta.size < base.size / 2
        job.count(KEYS[:10])
        assert len(job.cut().files) == 3
        assert job.reopened() == job.counts
    job.count(KEYS)
    assert kinds(job.cut()) == WITHOUT_KEYS
    assert job.reopened() == job.counts


def test_keys_that_come_later_are_in_it_until_there_are_many(job: Job) -> None:
    for number in range(4):
        job.count([*KEYS, *(f"new {other}" for other in range(10 * number))])
        assert kinds(job.cut()) == WITHOUT_KEYS
        assert job.reopened() == job.counts
    job.count([*KEYS, *(f"new {other}" for other in range(60))])
    assert kinds(job.cut()) == BASE_ALONE
    job.count(list(map(str, job.counts)))
    assert kinds(job.cut()) == WITHOUT_KEYS
    assert job.reopened() == job.counts


def test_once_a_key_was_removed_all_are_stored_anew(job: Job) -> None:
    job.count(KEYS)
    job.cut()
    job.remove(KEYS[:1])
    job.cut()
    assert job.reopened() == job.counts
    job.count(KEYS)
    assert kinds(job.cut()) == BASE_ALONE
    job.count(KEYS)
    assert kinds(job.cut()) == WITHOUT_KEYS
    assert job.reopened() == job.counts


def test_a_key_that_went_and_came_again_within_an_epoch_is_counted_from_the_beginning(job: Job) -> None:
    job.remove(KEYS[:1])
    job.count(KEYS)
    job.cut()
    assert job.reopened() == job.counts
    job.count(KEYS)
    job.cut()
    assert job.reopened() == job.counts


def test_after_going_back_in_place_nothing_refers_to_what_was_cut_since(job: Job) -> None:
    before, epoch, counts = job.files, job.epoch, dict(job.counts)
    job.remove(KEYS[:1])
    job.count(KEYS)
    job.state.cut(Epoch(epoch.generation, epoch.number + 1))
    job.count(KEYS)
    job.state.cut(Epoch(epoch.generation, epoch.number + 2))
    assert job.state.rewind(epoch, before, job.name)
    job.places[HERE], job.epoch = counts, Epoch(epoch.generation, epoch.number + 2)
    job.count(KEYS)
    assert kinds(job.cut()) == BASE_ALONE
    job.count(KEYS)
    assert kinds(job.cut()) == WITHOUT_KEYS
    assert job.reopened() == job.counts


def test_what_failed_to_be_uploaded_goes_before_what_refers_to_it(tmp_path: Path, store: FaultyStore) -> None:
    job = Job(tmp_path, store, Options(backend="heap"))
    job.count(KEYS)
    store.fault = Fault.REFUSED
    job.state.cut(Epoch(Generation(1), 1))
    while not job.state.poll(timeout=1.0):
        pass
    store.fault, job.epoch = Fault.NONE, Epoch(Generation(1), 1)
    job.count(KEYS)
    assert kinds(job.cut()) == WITHOUT_KEYS
    assert job.reopened() == job.counts
    job.state.close()


def test_the_parts_of_another_parallelism_find_the_keys(job: Job) -> None:
    job.count(KEYS)
    files = job.cut()
    found: Counts = {}
    for number, (first, end) in enumerate([(0, 1), (1, 4)]):
        part = rescaled([files], KeyGroupRange(KeyGroup(first), KeyGroup(end)))
        with job.opened(part, f"part-{number}") as state:
            found |= counts_of(state)
    assert found == job.counts


def test_what_is_opened_from_outside_has_the_keys(job: Job, tmp_path: Path) -> None:
    job.count(KEYS)
    job.count(KEYS[:5])
    with StateReader(job.cut(), job.store, tmp_path / "reader") as reader:
        rows = reader.table("counts").to_pylist()
    assert {row["key"]: row["rows.count"] for row in rows} == job.counts


def test_another_process_that_follows_has_what_each_epoch_says(job: Job) -> None:
    follower = job.opened(job.files, "follower")
    for number in range(4):
        job.count(KEYS if number != 2 else KEYS[:7])
        job.count([f"new {number}"])
        follower.load()
        assert follower.catch_up(job.cut(), job.name)
    assert counts_of(follower) == job.counts
    follower.close()


@pytest.mark.parametrize("narrow", [1, 3])
def test_files_that_are_rewritten_all_the_time_keep_the_keys_that_are_referred_to(
    tmp_path: Path, store: FaultyStore, narrow: int
) -> None:
    job = Job(tmp_path, store, Options(backend="heap", policy=Restless()))
    job.count(KEYS)
    job.cut()
    kept: set[bytes] = set()
    for number in range(12):
        job.count(KEYS if number % narrow == 0 else KEYS[number : number + 20])
        job.count([f"new {number % 5}"])
        job.cut()
        assert job.reopened() == job.counts
        kept |= {name for name in names_in(job) if entries.are_kept_keys(name)}
    assert len({entries.number_of(name) for name in kept}) == 1
    job.state.close()


BESIDE: Final[Sequence[tuple[Operator, Place]]] = [(COUNTS, ("counts", b"a window")), (TWO_TABLES, ("others", b""))]
"""Operators, and what they have besides."""


@pytest.mark.parametrize(("operator", "other"), BESIDE, ids=["namespace", "table"])
def test_kept_keys_stay_while_all_of_one_part_changes_and_none_of_another(
    tmp_path: Path, store: FaultyStore, operator: Operator, other: Place
) -> None:
    job = Job(tmp_path, store, Options(backend="heap", policy=Restless()), operator)
    for number in range(30):
        job.count(KEYS)
        if number % 10 == 0:
            job.count(KEYS, other)
        job.cut()
        assert job.reopened() == job.counts
    job.state.close()


def oldest_run(files: FileSet, most: int, end: Epoch) -> Sequence[FileRef]:
    """The first deltas that may be merged, however few there are."""
    deltas = [file for file in files.files if file.kind is FileKind.DELTA]
    for at in range(len(deltas) - 2):
        run = deltas[at : at + 3]
        if run[-1].epoch < end and mergeable(run, deltas[:at] + deltas[at + 3 :], run[-1].epoch):
            return run
    return ()


PARTS: Final = [HERE, *(place for _, place in BESIDE)]


@settings(max_examples=settings().max_examples // 5)
@example(phases=[("a..", 3), ("aaa", 1)], policy=Hasty(), every=1, behind=0, merge=cheapest_run)
@example(phases=[("r..", 1), ("s..", 5)], policy=Hasty(), every=1, behind=2, merge=oldest_run)
@given(
    phases=st.lists(
        st.tuples(st.sampled_from(["aaa", "a..", "r..", "s..", "..a"]), st.integers(1, 5)), min_size=2, max_size=5
    ),
    policy=st.sampled_from([Hasty(), Restless()]),
    every=st.integers(1, 5),
    behind=st.sampled_from([0, 2, 4]),
    merge=st.sampled_from([oldest_run, cheapest_run]),
)
def test_whichever_parts_change_as_a_whole_what_each_epoch_says_is_there_for_all_who_open_it_or_follow(
    tmp_path_factory: pytest.TempPathFactory,
    phases: list[tuple[str, int]],
    policy: Policy,
    every: int,
    behind: int,
    merge: Callable[[FileSet, int, Epoch], Sequence[FileRef]],
) -> None:
    """Of a part all keys are counted, some, or none; or some are removed. Epochs are complete a little later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consolidation, "cheapest_run", merge)
        cuts = [changes for changes, epochs in phases for _ in range(epochs)]
        live_through(tmp_path_factory.mktemp("job"), cuts, policy, every, behind)


def live_through(folder: Path, cuts: list[str], policy: Policy, every: int, behind: int) -> None:
    store = FaultyStore(token_hex(8))
    job = Job(folder, store, Options(backend="heap", policy=policy), TWO_TABLES, behind)
    for _ in range(2):
        for place in PARTS:
            job.count(KEYS, place)
        job.cut()
    follower = job.opened(job.files, "follower")
    for number, changes in enumerate(cuts):
        for place, change in zip(PARTS, changes, strict=True):
            keys = {"a": KEYS, "s": KEYS[:20], "r": KEYS[number : number + 5], ".": []}[change]
            (job.remove if change == "r" else job.count)(keys, place)
        job.cut()
        if number % every == 0:
            job.reopened()
            follower.load()
            assert follower.catch_up(job.files, job.name)
    job.reopened()
    assert follower.catch_up(job.files, job.name)
    assert job.has_all(follower)
    follower.close()
    job.state.close()
    store.clear()


def test_deltas_that_are_merged_bring_back_no_accumulators_of_keys_that_a_base_has_not_kept(
    tmp_path: Path, store: FaultyStore
) -> None:
    job = Job(tmp_path, store, Options(backend="heap", policy=Restless()), behind=7)
    for _ in range(2):
        job.count(KEYS)
        job.cut()
    for number in range(8):
        job.remove(KEYS[number : number + 1])
        if number == 7:  # those before are cheap to merge, and bases are paid for
            job.count([token_hex(16) for _ in range(3000)])
        job.cut()
    follower = job.opened(job.files, "follower")
    for number in range(24):
        job.count(KEYS[number + 10 : number + 30])
        job.cut()
        job.reopened()
        assert follower.catch_up(job.files, job.name)
    assert job.has_all(follower)
    follower.close()
    background = job.state.statistics().background
    assert background.bases
    assert background.merges
    job.state.close()


def test_what_is_stored_whole_beside_kept_keys_does_not_pile_up_where_somebody_follows(
    tmp_path: Path, store: FaultyStore
) -> None:
    job = Job(tmp_path, store, Options(backend="heap", policy=Hasty()), TWO_TABLES)
    few = ("others", b"")
    memory: list[int] = []
    follower = None
    for _ in range(40):
        job.count(KEYS)
        job.count(KEYS[:40], few)
        job.cut()
        follower = follower or job.opened(job.files, "follower")
        assert follower.catch_up(job.files, job.name)
        memory.append(follower.statistics().memory_bytes)
    assert kinds(job.files)[-1] == FileKind.DELTA
    assert max(memory) < 1.5 * max(memory[:10])
    assert follower is not None
    assert job.has_all(follower)
    follower.close()
    job.state.close()


def test_what_refers_to_kept_keys_alone_never_makes_a_base(tmp_path: Path, store: FaultyStore) -> None:
    job = Job(tmp_path, store, Options(backend="heap", policy=Hasty()))
    for number in range(20):
        job.count(KEYS)
        job.count([f"new {number}"])
        job.cut()
    assert job.state.statistics().background.bases == 0
    job.state.close()


def names_in(job: Job) -> list[bytes]:
    found: list[bytes] = []
    for file in job.files.files:
        path = job.folder / "read.sst"
        path.write_bytes(job.store.read(file.path))
        with read_sst(path, job.folder / "scratch") as content:
            found += [name for name, _ in content.entries]
        path.unlink()
    return found


def test_where_there_are_rows_as_well_or_space_is_dear_keys_stay_with_their_accumulators(
    tmp_path: Path, store: FaultyStore
) -> None:
    dear = Options(backend="heap", policy=Policy(space_amplification=1.2))
    for number, (options, operator) in enumerate([(Options(backend="heap"), BESIDE_ROWS), (dear, COUNTS)]):
        job = Job(tmp_path / str(number), store, options, operator)
        for _ in range(3):
            job.count(KEYS)
            job.cut()
            assert job.reopened() == job.counts
        blocks = [name for name in names_in(job) if entries.parse_head(name)[2] == entries.BLOCK]
        assert blocks
        assert not any(map(entries.are_values, blocks))
        job.state.close()
