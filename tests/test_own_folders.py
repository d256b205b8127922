"""What a job leaves on a host belongs to its user alone: no other one reads it, changes it, or is hindered by it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

import recovery
from recovery.command.exits import Exit, exit_of
from recovery.driver.attempts.requests import End, EndKind, of_no_use
from recovery.driver.tree.address import FILE, NotAllowed, home_of, read
from snapshot.host.partition.folders import (
    UnsafeFolder,
    job_folder,
    make_job_folder,
    open_in_folder,
    remove_state,
    user_folder,
)
from snapshot.ids import JobId
from statebackend.ids import Epoch, Generation, Partition, Uid
from statebackend.local_folder import lock_folder
from tests.shop_job import program

JOB = JobId("clicks-5f0c21aa")
NOT_OURS = 61009
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- two users of one host --------------------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[Path]:
    """A folder that other users come through."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    yield folder
    rmtree(folder)


def tried(trial: str, host: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.other_users", trial, str(host)], stdout=subprocess.PIPE, check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


@by_root
def test_two_users_of_a_host_both_have_jobs_and_neither_sees_or_hinders_the_other(host: Path) -> None:
    told = tried("both", host)
    assert set(told["modes"]) == {"0o700"}
    for user, ended in told["ended"].items():
        assert ended["counts"] == {f"k{key}": 10 for key in range(4)}
        own = ended["seen"].pop("own")
        assert own == "running", "each speaks to its own job"
        assert len(ended["seen"]) == 3
        assert set(ended["seen"].values()) == {"refused"}, ended["seen"]
        assert len(told["state"][user]) == 2, "both partitions had files of state there"
        assert ended["left"] == ["events.jsonl"], "which are removed when the job has finished"


@by_root
def test_a_user_whose_folder_another_one_has_made_is_told_and_has_a_way_out(host: Path) -> None:
    told = tried("squatted", host)
    for trial, why in (("open", "it belongs to user 61002, and this process runs as user 61001"), ("link", "a link")):
        assert told[trial].startswith("UnsafeFolder: "), told[trial]
        assert why in told[trial]
        assert "the option local names" in told[trial]
    assert told["alice"] == [], "nothing was put where the link led, and no tree is left"
    assert told["elsewhere"]["counts"] == {f"k{key}": 10 for key in range(4)}


# --- the folder itself ------------------------------------------------------------------------------------------------


def test_each_user_has_a_folder_that_is_closed_to_all_others(temporary: Path) -> None:
    old = os.umask(0)
    try:
        make_job_folder(home_of(JOB))
    finally:
        os.umask(old)
    assert home_of(JOB) == user_folder() / JOB == temporary / f"epochcut-{os.geteuid()}" / JOB
    assert mode(user_folder()) == mode(home_of(JOB)) == 0o700
    make_job_folder(home_of(JOB))


@pytest.mark.parametrize("level", [user_folder, lambda: home_of(JOB)], ids=["the user's", "the job's"])
@pytest.mark.parametrize("trap", ["link", "file", "open", "another's"])
def test_a_folder_that_somebody_else_may_have_made_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, level: Any, trap: str
) -> None:
    place: Path = level()
    user, home = user_folder(), home_of(JOB)
    place.parent.mkdir(0o700, exist_ok=True)
    (temporary / "elsewhere").mkdir(0o700)
    match trap:
        case "link":
            place.symlink_to(temporary / "elsewhere")
        case "file":
            place.write_text("")
        case "open":
            place.mkdir()
            place.chmod(0o710)
        case _:
            place.mkdir(0o700)
            monkeypatch.setattr(os, "geteuid", lambda: NOT_OURS)
            monkeypatch.setattr("snapshot.host.partition.folders.user_folder", lambda: user)
    with pytest.raises(UnsafeFolder, match="start the job with another one, which the option local names") as refused:
        make_job_folder(home)
    refused_one = user if trap == "another's" else place
    assert str(refused.value).startswith(f"{refused_one} cannot be the folder of a job's files on this host: ")
    assert exit_of(refused.value) is Exit.DECLINED
    assert list((temporary / "elsewhere").iterdir()) == []


def test_a_folder_that_was_given_may_be_read_by_others_and_changed_by_none(tmp_path: Path) -> None:
    given = tmp_path / "above" / "local"
    make_job_folder(given)
    assert mode(given) == mode(given.parent) == 0o700
    given.chmod(0o755)
    make_job_folder(given)
    given.chmod(0o775)
    with pytest.raises(UnsafeFolder, match=r"other users have access to it \(mode 0775; chmod 700 takes it away\)"):
        make_job_folder(given)


def test_state_lies_in_a_folder_that_is_closed_also_in_one_that_others_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    opened = open_in_folder(tmp_path, Uid("count"), Partition(0), lambda folder, _: folder)
    assert opened == tmp_path / "count" / "0"
    assert mode(tmp_path / "count") == 0o700
    (tmp_path / "count").chmod(0o701)
    with pytest.raises(UnsafeFolder):
        open_in_folder(tmp_path, Uid("count"), Partition(0), lambda folder, _: folder)


def test_processes_have_a_folder_of_their_own_user_on_their_own_host(temporary: Path) -> None:
    assert job_folder("", JOB) == home_of(JOB)
    assert job_folder(f"epochcut/{JOB}", JOB) == Path("epochcut") / JOB
    assert job_folder("/data/clicks", JOB) == Path("/data/clicks")


def test_a_file_with_the_drivers_address_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE, 0o600)
    with pytest.raises(NotAllowed, match="is not ours alone"):
        read(tmp_path)


# --- when a job has finished ------------------------------------------------------------------------------------------


def test_what_is_left_of_state_is_removed_but_for_what_is_held_and_for_links(tmp_path: Path) -> None:
    local, elsewhere = tmp_path / "local", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis").write_text("")
    for partition in range(3):
        open_in_folder(local, Uid("count"), Partition(partition), lambda folder, _: os.close(lock_folder(folder)))
        (local / "count" / str(partition) / "links").mkdir()
        (local / "count" / str(partition) / "links" / "file").write_text("")
    (local / "count" / "0" / "links" / "out").symlink_to(elsewhere)
    (local / "count" / "7").symlink_to(elsewhere)
    for others in ("thesis", "8"):
        (local / "count" / others).mkdir()
        (local / "count" / others / "chapter").write_text("")
    (local / "other").symlink_to(elsewhere)
    held = lock_folder(local / "count" / "1")
    remove_state(local, [Uid("count"), Uid("other"), Uid("absent")])
    assert sorted(path.name for path in (local / "count").iterdir()) == ["1", "7", "8", "thesis"]
    os.close(held)
    remove_state(local, [Uid("count")])
    assert sorted(path.name for path in (local / "count").iterdir()) == ["7", "8", "thesis"]
    assert (local / "count" / "8" / "chapter").exists()
    assert [path.name for path in elsewhere.iterdir()] == ["thesis"]
    assert local.exists(), "there is more in it"
    assert (elsewhere / "thesis").exists()


def test_only_a_job_that_has_finished_needs_no_local_state_any_more() -> None:
    plan, epoch = program().plan(128), Epoch(Generation(1), 7)
    assert sorted(of_no_use(End(EndKind.FINISHED, epoch, savepoint=False), plan)) == ["baskets", "totals"]
    assert of_no_use(End(EndKind.STOPPED, epoch, savepoint=True), plan) == ()
    assert of_no_use(recovery.JobFailed("for a reason"), plan) == ()
