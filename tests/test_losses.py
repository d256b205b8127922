"""A tree that only crashed is never taken for one that lost entries of its journal; one that lost some is found out.

Real drivers' trees on a store in memory: epochs are published, committed, removed and compacted, by drivers that crash
at every step, are paused while others follow them, and whose writes fail though they arrive. After every step the tree
is examined as a start does it. Then the journal loses entries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from secrets import token_hex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.decisions.losses import Remains, Unreadable, proofs_of_loss
from recovery.decisions.mending import Mended, damage_of, mend
from recovery.driver.claim import claim_next
from recovery.driver.tree.evidence import DamagedTree, Examined, examine
from recovery.driver.tree.owned import FencedOff, PublicationDone, Tree, note_end
from recovery.savepoints.repairing import look
from snapshot import fail_points
from snapshot.host.protocol.messages import Acknowledgement
from snapshot.journal.entries import Completed
from snapshot.journal.entry_json import decode_entry
from snapshot.journal.state import JournalState
from snapshot.journal.store import StoredJournal
from snapshot.journal.writer import JournalWriter
from snapshot.tree.layout import JournalEntry, JournalSummary, ManifestFile, parse, path_of
from snapshot.tree.manifest import JournalEnd
from statebackend.fail_points import at
from statebackend.ids import Epoch, Generation, Partition
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobInfo, BlobStore, StoreUnavailable
from tests.test_driver_manifests import PART, acknowledged, manifest, publish

IMPATIENT = Patience(0)


class Crash(Exception):
    """The driver is gone."""


class Deceiving(MemoryStore):
    """It says that it does not write manifests that it writes, if so told."""

    def __init__(self) -> None:
        super().__init__(f"losses {token_hex(8)}")
        self.deceives = False

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data)
        if self.deceives and path.startswith("epochs/"):
            raise StoreUnavailable(f"no answer to writing {path}")


@dataclass
class World:
    """A tree, the drivers that have it or think so, and which epochs were truly complete."""

    store: Deceiving = field(default_factory=Deceiving)
    drivers: list[Tree] = field(default_factory=list)
    numbers: dict[Generation, Iterator[int]] = field(default_factory=dict)
    bases: dict[Generation, Epoch | None] = field(default_factory=dict)
    complete: list[Epoch] = field(default_factory=list)

    def examined(self) -> Examined:
        return examine(self.store, "tree", StoredJournal(self.store, IMPATIENT), IMPATIENT)

    def start(self) -> None:
        state = self.examined().state
        writer = JournalWriter(state)
        generation = claim_next(StoredJournal(self.store, IMPATIENT), writer, "here")
        self.drivers.append(Tree(self.store, writer, generation, {}, {}, IMPATIENT))
        self.numbers[generation] = count(state.newest_complete.number + 1)
        self.bases[generation] = state.usable[-1].epoch if state.usable else None

    def publish(self, tree: Tree, *, savepoint: bool = False, fails: bool = False) -> None:
        generation = tree.generation
        epoch = Epoch(generation, next(self.numbers[generation]))
        said = replace(publish(acknowledged(0), acknowledged(1), savepoint=savepoint), epoch=epoch)
        said = replace(said, base=self.bases[generation], contents=at_epoch(said.contents))
        self.store.deceives = fails
        try:
            done = tree.publish(said, PART)
        finally:
            self.store.deceives = False
        if isinstance(done, PublicationDone):
            self.completed(epoch)

    def completed(self, epoch: Epoch) -> None:
        if epoch not in self.complete:
            self.complete.append(epoch)
        self.bases[epoch.generation] = epoch


def at_epoch(contents: Mapping[Partition, Acknowledgement]) -> dict[Partition, Acknowledgement]:
    """Acknowledgements that fit the epoch of any generation: without the files and transactions of another one."""
    return {
        partition: replace(
            one, subtasks={uid: replace(sub, state=None, committables=()) for uid, sub in one.subtasks.items()}
        )
        for partition, one in contents.items()
    }


def _crash() -> None:
    raise Crash


STEPS: tuple[tuple[str, Callable[[World, Tree, int], object]], ...] = (
    ("publish", lambda world, tree, _: world.publish(tree)),
    ("publish", lambda world, tree, _: world.publish(tree)),
    ("savepoint", lambda world, tree, _: world.publish(tree, savepoint=True)),
    ("failing write that arrives", lambda world, tree, _: world.publish(tree, fails=True)),
    ("commit", lambda _, tree, __: tree.state.usable and tree.record_committed(tree.state.usable[-1].epoch)),
    ("remove", lambda _, tree, some: remove(tree, some)),
    ("compact", lambda _, tree, __: compact(tree)),
    ("end", lambda world, tree, _: note_end(world.store, tree.state)),
)
CRASHES = (
    "",
    fail_points.MANIFEST_WRITTEN,
    fail_points.EPOCH_ENTERED,
    fail_points.COMMITTED_ENTERED,
    fail_points.REMOVAL_ENTERED,
)


def compact(tree: Tree) -> None:
    """Let the journal begin where it ends."""
    tree.compact(tree.state, tree.state.number)


def remove(tree: Tree, some: int) -> None:
    """Let older epochs go; perhaps the driver dies before all is deleted."""
    planned = tree.plan_removal(tree.state, 1 + some % 2, None)
    if planned is not None:
        removal = tree.remove(planned).removal
        if removal is not None:
            tree.delete(removal.paths[: some % (len(removal.paths) + 1)])


def live(choices: Iterable[int], *, looks: bool = False) -> World:
    """One history without any loss; if it `looks`, no start is refused after any step."""
    world, choice = World(), iter(choices)
    for kind in choice:
        if kind % 8 == 7 or not world.drivers:
            world.start()
        else:
            late = kind % 8 == 6 and len(world.drivers) > 1
            tree = world.drivers[-2 if late else -1]
            _, act = STEPS[next(choice, 0) % len(STEPS)]
            crash = CRASHES[next(choice, 0) % 24 % len(CRASHES)] if next(choice, 0) % 3 == 0 else ""
            _step(world, tree, act, crash, next(choice, 0))
        if looks:
            world.examined()
    world.examined()
    return world


def _step(world: World, tree: Tree, act: Callable[[World, Tree, int], object], crash: str, some: int) -> None:
    try:
        if crash:
            with at(crash, _crash, fail_points.DRIVER_POINTS):
                act(world, tree, some)
        else:
            act(world, tree, some)
    except FencedOff:
        world.drivers.remove(tree)
    except Crash:
        world.drivers.remove(tree)
    truth = StoredJournal(world.store, IMPATIENT).read()
    for record in truth.epochs:
        world.completed(record.epoch)


def entries(store: BlobStore) -> list[int]:
    """Those that count."""
    places = [parse(info.path) for info in store.list("journal")]
    floor = max((place.number for place in places if isinstance(place, JournalSummary)), default=0)
    return sorted(place.number for place in places if isinstance(place, JournalEntry) and place.number > floor)


def lose(store: BlobStore, numbers: Iterable[int]) -> int:
    """Delete entries; how many of them were completions."""
    completions = 0
    for number in numbers:
        path = path_of(JournalEntry(number))
        completions += isinstance(decode_entry(number, store.read(path)).body, Completed)
        store.delete(path)
    return completions


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=5, max_size=60))
def test_whatever_crashes_is_paused_or_fails_no_start_is_refused(choices: list[int]) -> None:
    live(choices, looks=True)


def histories(many: int) -> Iterator[tuple[World, random.Random]]:
    for seed in range(many):
        drawn = random.Random(seed)
        world = live([drawn.randrange(256) for _ in range(60)])
        if len(entries(world.store)) > 1:
            yield world, drawn


def test_a_journal_that_has_lost_two_completions_is_always_refused() -> None:
    refused = alone = told = 0
    for world, drawn in histories(60):
        there = entries(world.store)
        gone = there[-drawn.randrange(1, len(there) + 1) :]
        lost = lose(world.store, gone)
        try:
            world.examined()
        except DamagedTree:
            refused, told = refused + 1, told + (lost == 1)
            continue
        assert lost < 2, f"{gone} were lost, with {lost} completions"
        alone += lost == 1
    assert refused > 30
    assert told > alone, "what cannot be told is the exception"


def test_any_hole_is_refused_and_named() -> None:
    for world, drawn in histories(40):
        there = entries(world.store)
        hole = drawn.choice(there[:-1])
        lose(world.store, [hole])
        with pytest.raises(DamagedTree, match=f"journal entry {hole} is missing, and entry {hole + 1} is there"):
            world.examined()


def test_what_is_mended_never_goes_on_from_before_an_epoch_that_was_complete() -> None:
    mended = 0
    for world, drawn in histories(60):
        there = entries(world.store)
        begin = drawn.randrange(len(there))
        lose(world.store, there[begin : begin + drawn.choice((1, 1, 2, 4, len(there)))])
        found = look(world.store)
        damage = damage_of(found, entries_lost=True)
        assert damage is not None
        result = mend(found, damage)
        if not world.complete:
            continue
        usable_before = max(world.complete)
        assert isinstance(result, Mended), result
        assert result.newest is not None
        assert result.newest >= usable_before
        assert result.state.generation > max((tree.generation for tree in world.drivers), default=Generation(0))
        assert result.number > max(there)
        mended += 1
    assert mended > 30


def test_a_manifest_proves_what_the_journal_had_when_it_was_written() -> None:
    made = manifest(acknowledged(0), acknowledged(1))
    item = ManifestFile(made.epoch, "abc")
    state = JournalState(number=5, generation=made.epoch.generation, newest_complete=made.parent)

    def proofs(journal: JournalEnd | None, parent: Epoch = made.parent) -> tuple[str, ...]:
        found = replace(made, journal=journal, parent=parent)
        return proofs_of_loss(state, Remains((path_of(item),), {item: found}))

    later = Epoch(Generation(2), 5)
    assert proofs(JournalEnd(5, made.parent)) == ()
    assert proofs(JournalEnd(6, later)) == (
        f"{path_of(item)} was written when the journal had 6 entries, with epoch 5-2 complete",
    )
    assert proofs(None) == (), "as older programs wrote it"
    assert proofs(None, later) == (f"{path_of(item)} is based on epoch 5-2, which was complete",)
    [torn] = proofs_of_loss(state, Remains((path_of(item),), {item: Unreadable("it is not JSON")}))
    assert torn.endswith("which the journal does not know, cannot be read: it is not JSON")


def test_an_epoch_that_was_removed_proves_that_a_later_one_was_complete() -> None:
    """Of a driver that was killed just after it had let the older epoch go, and whose newest entries are lost."""
    world = World()
    world.start()
    tree = world.drivers[0]
    for _ in range(2):
        world.publish(tree)
        tree.record_committed(tree.state.usable[-1].epoch)
    older, newest = tree.state.usable
    remove(tree, 2)
    world.store.delete(older.manifest)
    lose(world.store, entries(world.store)[3:])
    with pytest.raises(DamagedTree, match=f"epoch {older.epoch} has been removed, and {newest.manifest} is there"):
        world.examined()


def test_a_driver_that_publishes_while_its_tree_is_examined_has_lost_nothing() -> None:
    world = World()
    world.start()
    driver, asked = world.drivers[0], count()

    class Meanwhile(Deceiving):
        def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
            if driver not in busy and next(asked) < 40:
                busy.append(driver)
                world.publish(driver)
                busy.remove(driver)
            return super().list(folder)

    busy: list[Tree] = []
    world.store.__class__ = Meanwhile
    assert world.examined().state.number > 1


def test_a_start_lists_the_tree_twice_more_than_it_reads_the_journal() -> None:
    world = World()
    world.start()
    world.publish(world.drivers[0])
    asked: list[str] = []

    class Counting(Deceiving):
        def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
            asked.append(folder)
            return super().list(folder)

    world.store.__class__ = Counting
    world.examined()
    assert sorted(asked) == ["epochs", "journal", "journal", "shared"]
