"""The folders in which a process keeps files of a job, and among them the state of one operator and partition.

Invariant: no other user of the host can change what lies there, nor take the folder away, and unless it was
given by name none can read it. So what was left there is what a process of this user left: its files are believed by
name, owner, inode and size, which takes microseconds. Their checksums would prove no more, as a file is read long after
it was opened, and would take as long as reading all of the state.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir
from typing import Final, TypeVar
from urllib.parse import quote

from snapshot.ids import JobId
from statebackend import means
from statebackend.backends.backend import LocalDiskError
from statebackend.ids import Partition, Uid
from statebackend.local_folder import LOCK, FolderInUse, lock_folder
from statebackend.snapshots.local_files import local_disk

_FOLDERS: Final = 16
_CLOSED: Final = 0o700
_OF_PARTITION: Final = re.compile(r"[0-9]+(\.[0-9]+)?")

Opened = TypeVar("Opened")


class UnsafeFolder(LocalDiskError):
    """A folder for a job's files that others could change, or read; the message says what to do."""


def user_folder() -> Path:
    """Return the folder for files of all jobs that this user runs on this host without the option `local`."""
    return Path(gettempdir()) / f"epochcut-{os.geteuid()}"


def job_folder(local: str, job: JobId) -> Path:
    """Return the folder of a job's files on this host: `local`, or if that is empty the job's own in the user's."""
    return means.own_disk(Path(local) if local else user_folder() / job)


def make_job_folder(folder: Path) -> None:
    """Make the folder if it is absent; raise `UnsafeFolder` if another user made it or could change what is in it."""
    if folder.parent == user_folder():
        _make_own(folder.parent, forbidden=0o077)
        _make_own(folder, forbidden=0o077)
    else:
        _make_own(folder, forbidden=0o022)


def folder_of(local: Path, uid: Uid) -> Path:
    """Return the folder in which all partitions of an operator have theirs."""
    return local / quote(uid, safe="")


def open_in_folder(local: Path, uid: Uid, partition: Partition, open_: Callable[[Path, Path], Opened]) -> Opened:
    """Call `open_` with the partition's own folder, or another if a process holds that, and with what they lie in.

    A process that follows a partition holds a folder of it, and so does one that does not react any more.
    `FolderInUse` if so many are held that something must be wrong, `UnsafeFolder` if one is not this user's alone.
    """
    place = folder_of(local, uid)
    make_job_folder(local)
    _make_own(place, forbidden=0o077)
    other = 0
    while True:
        try:
            return open_(place / (f"{partition}" if other == 0 else f"{partition}.{other}"), place)
        except FolderInUse:
            other += 1
            if other == _FOLDERS:
                raise


def remove_state(local: Path, uids: Iterable[Uid]) -> None:
    """Remove what partitions of these operators have left there, but for what a process holds, which does it itself.

    Nothing is raised: the rest is in nothing's way.
    """
    for place in (folder_of(local, uid) for uid in uids):
        with suppress(OSError, LocalDiskError):
            _check_own(place, forbidden=0o077)
            for folder in place.iterdir():
                if not _OF_PARTITION.fullmatch(folder.name) or not (folder / LOCK).is_file():
                    continue  # of somebody who keeps other things in the folder that was given
                with suppress(FolderInUse):
                    lock = lock_folder(folder)
                    rmtree(folder, ignore_errors=True)
                    os.close(lock)
            place.rmdir()
    with suppress(OSError):
        local.rmdir()  # unless there is more in it, such as the driver's log


def _make_own(folder: Path, *, forbidden: int) -> None:
    with local_disk(f"make the folder {folder}"):
        for missing in reversed([one for one in (folder, *folder.parents) if not os.path.lexists(one)]):
            with suppress(FileExistsError):  # another process was faster
                missing.mkdir(_CLOSED)
    _check_own(folder, forbidden=forbidden)


def _check_own(folder: Path, *, forbidden: int) -> None:
    with local_disk(f"look at the folder {folder}"):
        found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        why = "it is a link, which another user may have made"
    elif not stat.S_ISDIR(found.st_mode):
        why = "it is no folder"
    elif found.st_uid != os.geteuid():
        why = f"it belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
    elif found.st_mode & forbidden:
        why = f"other users have access to it (mode {stat.S_IMODE(found.st_mode):04o}; chmod 700 takes it away)"
    else:
        return
    raise UnsafeFolder(
        f"{folder} cannot be the folder of a job's files on this host: {why}; remove it, or start the job with another "
        "one, which the option local names"
    )
