"""Pins of readers: an epoch is kept while it is read, and no trouble with a pin undoes what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.offline.job_tree import JobTree, NoSuchEpoch, open_tree
from recovery.offline.reading import pinned
from recovery.savepoints.disposal import dispose
from statebackend.ids import Epoch, Generation
from statebackend.stores.store import BlobInfo, BlobStore, Creation, StoreUnavailable
from tests.shop_job import tree_of
from tests.wrapped_store import WrappedStore


class Troubled(WrappedStore):
    """A store that can be away, and in whose next create somebody presses Ctrl-C, before or behind it."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.away = False
        self.interrupted: str | None = None

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        if self.away:
            raise StoreUnavailable("it is away, as it should be")
        return super().list(folder)

    def create(self, path: str, data: bytes) -> Creation:
        when, self.interrupted = self.interrupted, None
        if when == "before":
            raise KeyboardInterrupt
        created = super().create(path, data)
        if when == "behind":
            raise KeyboardInterrupt
        return created


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobTree:
    monkeypatch.setattr("recovery.offline.job_tree._PATIENCE", 0.0)
    return open_tree(str(tree_of(tmp_path)))


def troubled(tree: JobTree) -> tuple[JobTree, Troubled]:
    store = Troubled(tree.store)
    return JobTree(tree.uri, store, tree.birth, tree.state), store


def test_an_epoch_is_pinned_while_it_is_read_and_not_longer(tree: JobTree) -> None:
    epoch = tree.record().epoch
    with pinned(tree, epoch):
        [pin] = [pin for pin in tree.look_again().state.pins if pin not in tree.state.pins]
        assert pin.epoch == epoch
    assert tree.look_again().state.pins == tree.state.pins


def test_what_was_read_counts_also_if_the_store_is_away_at_the_end(tree: JobTree) -> None:
    reading, store = troubled(tree)
    with pinned(reading, tree.record().epoch):
        store.away = True
    assert len(tree.look_again().state.pins) == len(tree.state.pins) + 1, "somebody has to lift it"


def test_an_error_of_who_reads_is_not_replaced_by_one_of_the_pin(tree: JobTree) -> None:
    reading, store = troubled(tree)

    def fail() -> None:
        store.away = True
        raise ValueError("what went wrong")

    with pytest.raises(ValueError, match="what went wrong"), pinned(reading, tree.record().epoch):
        fail()


def test_a_pin_that_somebody_else_lifts_is_no_error(tree: JobTree) -> None:
    epoch = tree.record().epoch
    with pinned(tree, epoch):
        dispose(tree.look_again(), str(epoch), readers=True)
        assert tree.look_again().state.pins == tree.state.pins
    assert tree.look_again().state.pins == tree.state.pins


@pytest.mark.parametrize("when", ["before", "behind"])
def test_ctrl_c_while_an_epoch_is_being_pinned_leaves_no_pin(tree: JobTree, when: str) -> None:
    reading, store = troubled(tree)
    store.interrupted = when
    with pytest.raises(KeyboardInterrupt), pinned(reading, tree.record().epoch):
        raise AssertionError("it was interrupted")
    assert tree.look_again().state.pins == tree.state.pins


def test_an_epoch_that_is_not_there_is_named(tree: JobTree) -> None:
    with pytest.raises(NoSuchEpoch, match="epoch 99-9 cannot be had"), pinned(tree, Epoch(Generation(9), 99)):
        raise AssertionError("it is not there")
    assert tree.look_again().state.pins == tree.state.pins
