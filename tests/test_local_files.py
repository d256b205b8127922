"""Local links: found only while they are sound, and never more on the disk than is kept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebackend.backends.backend import LocalDiskError, LocalDiskFull
from statebackend.files import FileKind, FileRef
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots import local_files
from statebackend.snapshots.local_files import LocalFiles

CONTENT = b"sorted entries"


def ref(name: str = "1-0-0-1.sst", *, size: int = len(CONTENT), checksum: str = "sha256:ab") -> FileRef:
    groups = KeyGroupRange(KeyGroup(0), KeyGroup(8))
    return FileRef(f"shared/{name}", (groups,), Epoch(Generation(1), 1), FileKind.DELTA, size, checksum)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    file = tmp_path / "written.sst"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "links"


@pytest.fixture
def other_file_system(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The folder of links cannot be linked into or out of."""
    link = os.link

    def refuse(source: Path, target: Path) -> None:
        if (Path(source).parent == folder) != (Path(target).parent == folder):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)


def test_what_was_added_is_found_after_its_writer_has_removed_it(folder: Path, written: Path) -> None:
    local = LocalFiles(folder)
    inode = written.stat().st_ino
    local.add(ref(), written)
    written.unlink()
    found = local.find(ref())
    assert found is not None
    assert found.read_bytes() == CONTENT
    assert found.stat().st_ino == inode


def test_links_outlive_the_process(folder: Path, written: Path) -> None:
    LocalFiles(folder).add(ref(), written)
    assert LocalFiles(folder).find(ref()) is not None


def test_a_file_of_another_user_is_not_taken_though_all_else_is_right(
    folder: Path, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalFiles(folder).add(ref(), written)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert LocalFiles(folder).find(ref()) is None


def test_what_was_never_added_is_not_found(folder: Path, written: Path) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    assert local.find(ref("1-0-0-2.sst")) is None
    assert not local.link_into(ref("1-0-0-2.sst"), written)
    assert written.exists()


def test_the_same_path_in_another_job_is_another_file(folder: Path, written: Path) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    assert local.find(ref(checksum="sha256:cd")) is None


@pytest.mark.parametrize("damage", ["shorter", "longer", "replaced", "gone", "a symbolic link"])
def test_an_unsound_link_is_not_found_and_is_removed(folder: Path, written: Path, damage: str) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    (link,) = folder.iterdir()
    match damage:
        case "shorter":
            link.write_bytes(CONTENT[:-1])
        case "longer":
            link.write_bytes(CONTENT + b"!")
        case "replaced":
            shutil.copyfile(link, folder / "copy")
            (folder / "copy").replace(link)
        case "gone":
            link.unlink()
        case _:
            link.unlink()
            link.symlink_to(written)
    assert LocalFiles(folder).find(ref()) is None
    assert local.find(ref()) is None
    assert list(folder.iterdir()) == []


def test_an_unsound_link_can_be_added_anew(folder: Path, written: Path, tmp_path: Path) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    again = tmp_path / "again"
    again.write_bytes(CONTENT)
    local.add(ref(), again)
    found = local.find(ref())
    assert found is not None
    assert found.samefile(again)
    assert len(list(folder.iterdir())) == 1


def test_adding_a_file_twice_keeps_one_link(folder: Path, written: Path) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    local.add(ref(), written)
    assert len(local) == len(list(folder.iterdir())) == 1
    assert local.find(ref()) is not None


def test_a_link_that_is_handed_out_may_be_consumed(folder: Path, written: Path, tmp_path: Path) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    target = tmp_path / "to-ingest.sst"
    target.write_bytes(b"from an attempt before")
    assert local.link_into(ref(), target)
    assert target.samefile(written)
    target.unlink()
    assert local.link_into(ref(), target)
    assert target.read_bytes() == CONTENT


def test_only_what_is_kept_stays_and_what_a_crash_left_goes(folder: Path, written: Path) -> None:
    local = LocalFiles(folder)
    for number in range(3):
        local.add(ref(f"{number}.sst"), written)
    (folder / ".unfinished-00").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"somebody else's")
    local.keep([ref("1.sst"), ref("9.sst")])
    assert [local.find(ref(f"{number}.sst")) is not None for number in range(3)] == [False, True, False]
    assert len(local) == 1
    assert len(list(folder.iterdir())) == 2
    assert (folder / "notes.txt").exists()


def test_links_from_before_the_machine_started_are_not_trusted(
    folder: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalFiles(folder).add(ref(), written)
    boot = tmp_path / "boot_id"
    boot.write_text("00000000-1111-2222-3333-444444444444\n")
    monkeypatch.setattr(local_files, "_BOOT_ID", boot)
    local = LocalFiles(folder)
    assert local.find(ref()) is None
    local.keep([ref()])
    assert list(folder.iterdir()) == []


def test_where_the_start_of_the_machine_is_unknown_no_link_outlives_the_process(
    folder: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "_BOOT_ID", tmp_path / "absent")
    local = LocalFiles(folder)
    local.add(ref(), written)
    assert local.find(ref()) is not None
    assert LocalFiles(folder).find(ref()) is None


@pytest.mark.usefixtures("other_file_system")
def test_across_file_systems_files_are_copied(folder: Path, written: Path, tmp_path: Path) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)
    found = local.find(ref())
    assert found is not None
    assert not found.samefile(written)
    written.unlink()
    assert LocalFiles(folder).link_into(ref(), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("other_file_system")
def test_a_full_disk_is_named_and_leaves_nothing(
    folder: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalFiles(folder)
    local.add(ref(), written)

    def fill_the_disk(_: Path, target: Path) -> None:
        target.write_bytes(CONTENT[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", fill_the_disk)
    with pytest.raises(LocalDiskFull, match=r"link to shared/2.sst in .* the local disk is full"):
        local.add(ref("2.sst"), written)
    with pytest.raises(LocalDiskFull, match=r"link shared/1-0-0-1.sst to .*target"):
        local.link_into(ref(), tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert len(list(folder.iterdir())) == 1


def test_what_the_disk_refuses_is_named(folder: Path, written: Path, tmp_path: Path) -> None:
    local = LocalFiles(folder)
    with pytest.raises(LocalDiskError, match=r"keep a link to shared/1-0-0-1.sst .* No such file"):
        local.add(ref(), tmp_path / "absent")
    local.add(ref(), written)
    with pytest.raises(LocalDiskError, match="No such file"):
        local.link_into(ref(), tmp_path / "no-folder" / "target")


_DIE = """
import os, shutil, sys
from pathlib import Path
from statebackend.snapshots.local_files import LocalFiles
from tests.test_local_files import ref
folder, written, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def link(source, target, link=os.link):
    if Path(source).parent != folder:
        raise OSError(18, "another file system")
    if step == 1:
        os._exit(7)
    link(source, target)
    if step == 2:
        os._exit(7)
def copy(source, target):
    Path(target).write_bytes(Path(source).read_bytes()[:5])
    os._exit(7)
os.link = link
if step == 0:
    shutil.copyfile = copy
LocalFiles(folder).add(ref(), written)
"""


@pytest.mark.parametrize(("step", "kept"), [(0, 0), (1, 0), (2, 1)])
def test_a_crash_while_adding_leaves_a_sound_link_or_what_the_next_keep_removes(
    folder: Path, written: Path, step: int, kept: int
) -> None:
    died = subprocess.run([sys.executable, "-c", _DIE, str(folder), str(written), str(step)], check=False)
    assert died.returncode == 7
    local = LocalFiles(folder)
    assert (local.find(ref()) is not None) == bool(kept)
    local.keep([ref()])
    assert len(list(folder.iterdir())) == kept


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["add", "keep", "open"]), st.sets(st.integers(0, 3)))))
def test_links_are_as_a_set_of_references(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, set[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("links")
    local, model = LocalFiles(folder / "all"), set[int]()
    for action, numbers in steps:
        match action:
            case "add":
                for number in numbers:
                    (folder / "new").write_bytes(CONTENT)
                    local.add(ref(f"{number}.sst"), folder / "new")
                    (folder / "new").unlink()
                model |= numbers
            case "keep":
                local.keep(ref(f"{number}.sst") for number in numbers)
                model &= numbers
            case _:
                local = LocalFiles(folder / "all")
        assert {number for number in range(4) if local.find(ref(f"{number}.sst"))} == model
        assert len(list((folder / "all").iterdir())) == len(model)
