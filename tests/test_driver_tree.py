"""What a driver writes: an epoch is complete with its entry, or certainly not, or nobody knows and the driver ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recovery.driver.tree.owned import (
    DamagedBroadcast,
    FencedOff,
    JournalInDoubt,
    PublicationDone,
    PublicationFailed,
    Tree,
    read_broadcast,
)
from snapshot.epochs.coordinator_events import Publish
from snapshot.fail_points import EPOCH_ENTERED, POINTS
from snapshot.host.protocol.messages import Acknowledgement
from snapshot.journal.entries import Claimed
from snapshot.journal.store import StoredJournal, fresh_nonce
from snapshot.journal.writer import JournalWriter, Won
from snapshot.tree.manifest import Inline
from statebackend.fail_points import at
from statebackend.ids import Epoch, Generation
from statebackend.stores.local_store import LocalStore
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobStore, Creation, StoreUnavailable, UnknownOutcome
from tests.test_driver_manifests import COUNT, EPOCH, PART, acknowledged, publish

BIG = b"rules" * (64 << 10)


class Failing(LocalStore):
    """A store that does not do what begins with a path."""

    failing = "nothing"
    error: type[Exception] = StoreUnavailable

    def write(self, path: str, data: bytes) -> None:
        self._fail(path)
        super().write(path, data)

    def create(self, path: str, data: bytes) -> Creation:
        self._fail(path)
        return super().create(path, data)

    def _fail(self, path: str) -> None:
        if path.startswith(self.failing):
            raise self.error(f"no {path}")


@pytest.fixture
def store(tmp_path: Path) -> Failing:
    return Failing(tmp_path)


@pytest.fixture
def tree(store: Failing) -> Tree:
    """Of generation 2, as generation 1 was before; its journal does not wait between two tries."""
    writer = claimed(store, 1)
    return Tree(store, claimed(store, 2, writer), Generation(2), {}, {}, Patience(sleep=lambda _: None))


def claimed(store: BlobStore, generation: int, writer: JournalWriter | None = None) -> JournalWriter:
    journal = StoredJournal(store)
    writer = writer or JournalWriter(journal.read())
    assert isinstance(journal.propose(writer, fresh_nonce(), Claimed(Generation(generation), "here")), Won)
    return writer


def epoch(number: int, broadcast: bytes = b"", *, savepoint: bool = False) -> Publish[Acknowledgement]:
    said = publish(acknowledged(0, broadcast=broadcast), acknowledged(1, broadcast=broadcast), savepoint=savepoint)
    return replace(said, epoch=Epoch(EPOCH.generation, number), base=None)


def done(outcome: PublicationDone | PublicationFailed) -> PublicationDone:
    assert isinstance(outcome, PublicationDone)
    return outcome


def test_a_published_epoch_is_in_the_journal_with_its_manifest_and_its_pin(tree: Tree) -> None:
    said = done(tree.publish(epoch(8, savepoint=True), PART))
    assert said.pinned
    assert [record.epoch for record in said.state.usable] == [said.epoch]
    assert said.state.pinned == {said.epoch}
    manifest = tree.manifest(said.epoch)
    assert manifest is not None
    assert manifest.epoch == said.epoch
    assert tree.manifest(None) is None


def test_large_broadcast_state_has_a_file_which_later_epochs_refer_to_while_it_stays_the_same(
    tree: Tree, store: Failing
) -> None:
    for number, broadcast in ((8, BIG), (9, BIG), (10, BIG + b"!"), (11, b"small")):
        done(tree.publish(epoch(number, broadcast), PART))
    kept = [
        next(one.broadcast for one in manifest.operators if one.uid == COUNT)
        for number in (8, 9, 10, 11)
        if (manifest := tree.manifest(Epoch(EPOCH.generation, number))) is not None
    ]
    assert kept[0] == kept[1] != kept[2]
    assert kept[3] == Inline(b"small")
    assert len(list((store.root / "shared").iterdir())) == 2
    newest = Epoch(EPOCH.generation, 11)
    assert tree.broadcast(newest) == {COUNT: b"small"}
    assert tree.broadcast(None) == {}


def test_broadcast_state_is_read_back_and_its_damage_is_noticed(tree: Tree, store: Failing) -> None:
    done(tree.publish(epoch(8, BIG), PART))
    manifest = tree.manifest(Epoch(EPOCH.generation, 8))
    assert manifest is not None
    assert read_broadcast(store, manifest) == {COUNT: BIG}
    (file,) = (store.root / "shared").iterdir()
    file.write_bytes(BIG[:-1] + b"?")
    with pytest.raises(DamagedBroadcast, match=r"its content has sha256:.* was written"):
        read_broadcast(store, manifest)
    file.unlink()
    with pytest.raises(DamagedBroadcast, match="it is not there"):
        read_broadcast(store, manifest)


@pytest.mark.parametrize("failing", ["epochs/", "shared/"])
def test_an_epoch_whose_files_cannot_be_written_is_certainly_not_complete(
    tree: Tree, store: Failing, failing: str
) -> None:
    store.failing = failing
    said = tree.publish(epoch(8, BIG), PART)
    assert isinstance(said, PublicationFailed)
    assert "could not be written" in said.reason
    store.failing = "nothing"
    assert done(tree.publish(epoch(9, BIG), PART)).epoch.number == 9


@pytest.mark.parametrize("error", [StoreUnavailable, UnknownOutcome])
def test_a_driver_that_cannot_find_out_what_became_of_its_entry_ends(
    tree: Tree, store: Failing, error: type[Exception]
) -> None:
    store.failing, store.error = "journal/", error
    with pytest.raises(JournalInDoubt, match=r"(?s)did not say whether Completed.*start the job again"):
        tree.publish(epoch(8), PART)


def refused(act: Callable[[], Any]) -> None:
    with pytest.raises(FencedOff, match="generation 3 has claimed the job: another driver was started") as error:
        act()
    assert error.value.by == 3


def test_a_driver_that_was_followed_by_another_writes_nothing_more(tree: Tree, store: Failing) -> None:
    done(tree.publish(epoch(8), PART))
    claimed(store, 3)
    refused(lambda: tree.publish(epoch(9), PART))
    refused(lambda: tree.record_committed(Epoch(EPOCH.generation, 8)))
    assert StoredJournal(store).read().newest_complete == Epoch(EPOCH.generation, 8)
    assert tree.newest_claim() == 3


def test_an_epoch_that_another_one_is_based_on_is_not_planned_to_go(tree: Tree) -> None:
    committed = [tree.state]
    for number in (8, 9, 10):
        done(tree.publish(epoch(number), PART))
        committed.append(tree.record_committed(Epoch(EPOCH.generation, number)).state)
    base = Epoch(EPOCH.generation, 9)
    planned = tree.plan_removal(tree.state, 1, base)
    assert planned is not None
    assert planned.epochs == (Epoch(EPOCH.generation, 8),)
    assert tree.plan_removal(committed[1], 1, None) is None, "what is complete since then is not known"
    removal = tree.remove(planned).removal
    assert removal is not None
    tree.delete(removal.paths)
    tree.forget(removal.epochs)
    again = tree.remove(planned)
    assert again.removal is None
    assert tree.plan_removal(again.state, 1, base) is None


def test_a_driver_that_pins_its_savepoint_after_another_one_has_claimed_the_job_is_over(
    tree: Tree, store: Failing
) -> None:
    """Found by the simulation of whole jobs: it waited for ever for a commit that the other driver had entered."""

    def claim_again() -> None:
        claimed(store, 3, JournalWriter(StoredJournal(store).read()))

    with at(EPOCH_ENTERED, claim_again, POINTS), pytest.raises(FencedOff):
        tree.publish(epoch(8, savepoint=True), PART)
