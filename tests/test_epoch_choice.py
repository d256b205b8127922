"""Which epoch is meant while the job runs, and removes what is looked at."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from recovery.offline.epoch_choice import choose
from recovery.offline.job_tree import JobTree, NoSuchEpoch, open_tree
from recovery.offline.reading import pinned
from recovery.offline.stopped_job import take_over
from recovery.savepoints import copying
from recovery.savepoints.copying import fork
from recovery.savepoints.gc import clean_up, let_go, plan_cleanup
from snapshot.journal.entries import Pinner, Unpinned
from statebackend.ids import Epoch
from tests.shop_job import tree_of


def completed(folder: Path, *, savepoints: bool) -> Epoch:
    """One more epoch, which is no savepoint, as a running job would complete it that retains one. It is the newest.

    With `savepoints` those that there are stay.
    """
    tree = open_tree(str(folder))
    job = take_over(tree, "test")
    made = job.publish(job.remade(choose(tree).manifest, "test"))
    for pin in job.tree.state.pins:
        if pin.epoch == made or not (savepoints and pin.pinner is Pinner.SAVEPOINT):
            job.propose(Unpinned(pin.pin))
    let_go(job)
    clean_up(job.tree, plan_cleanup(job.tree))
    return made


@pytest.mark.parametrize("savepoints", [True, False])
def test_an_epoch_that_is_removed_while_it_is_looked_at_gives_way_to_the_newest(
    tmp_path: Path, savepoints: bool
) -> None:
    folder, into = tree_of(tmp_path), str(tmp_path / "new")
    completed(folder, savepoints=savepoints)
    tree = open_tree(str(folder))
    newest = completed(folder, savepoints=savepoints)
    chosen = choose(tree)
    assert (chosen.found.record.epoch, chosen.found.passed_over, chosen.gives_up) == (newest, (), ())
    made = fork(tree, "newest", into)
    assert (made.plan.epoch, made.passed_over) == (newest, ())
    assert open_tree(into).state.generation > open_tree(str(folder)).state.generation


def test_an_epoch_that_is_damaged_is_still_passed_over_beside_a_running_job(tmp_path: Path) -> None:
    folder = tree_of(tmp_path)
    savepoint = open_tree(str(folder)).record().epoch
    completed(folder, savepoints=True)
    tree = open_tree(str(folder))
    newest = completed(folder, savepoints=True)
    (folder / open_tree(str(folder)).record().manifest).write_bytes(b"{}")
    chosen = choose(tree)
    assert chosen.found.record.epoch == savepoint
    assert [error.epoch for error in chosen.found.passed_over] == [newest]


def test_an_epoch_that_was_asked_for_by_its_number_is_not_replaced(tmp_path: Path) -> None:
    folder = tree_of(tmp_path)
    gone = completed(folder, savepoints=True)
    tree = open_tree(str(folder))
    completed(folder, savepoints=True)
    with pytest.raises(NoSuchEpoch, match=f"epoch {gone} was removed just now"):
        choose(tree, str(gone))


def test_the_newest_epoch_that_is_removed_before_it_is_kept_gives_way_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree_of(tmp_path)
    completed(folder, savepoints=True)
    newest: list[Epoch] = []

    def late(tree: JobTree, epoch: Epoch) -> AbstractContextManager[None]:
        if not newest:
            newest.append(completed(folder, savepoints=True))
        return pinned(tree, epoch)

    monkeypatch.setattr(copying, "pinned", late)
    made = copying.copy(open_tree(str(folder)), "newest", str(tmp_path / "new"))
    assert (made.plan.epoch, made.passed_over) == (newest[0], ())
    assert open_tree(str(tmp_path / "new")).record().epoch == newest[0]
    assert not [pin for pin in open_tree(str(folder)).state.pins if pin.pinner is Pinner.READER]
