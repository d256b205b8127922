"""The folder of one state on the local disk: one user at a time, and nothing left over from those that were killed.

Invariant: as long as a descriptor of `lock_folder` is open, no other process or state has the folder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from shutil import rmtree
from typing import Final

from statebackend import means
from statebackend.backends.backend import BackendError, LocalDiskError
from statebackend.snapshots.local_files import local_disk

LOCK: Final = "lock"
"""The file in the folder of a state that is locked while the state is open."""
WORK: Final = "work-"
"""The beginning of the names of scratch folders, in the folder of a state."""


class FolderInUse(BackendError):
    """Another process, or another state in this one, works in the local folder."""


def lock_folder(folder: Path) -> int:
    """Make the folder and keep others out of it until the descriptor is closed, or the process dies.

    Raises `FolderInUse` if another process or state works in it.
    """
    with local_disk(f"use the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        means.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise LocalDiskError(
                f"could not lock the folder {folder}: {error}; use a folder on a local disk"
            ) from error
        raise FolderInUse(f"{folder} is in use by another process or state; give each a folder of its own") from error
    return lock


def remove_remains(folder: Path) -> None:
    """Delete the scratch of processes that were killed."""
    for entry in folder.glob(f"{WORK}*"):
        rmtree(entry, ignore_errors=True)
