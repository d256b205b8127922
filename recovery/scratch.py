"""Folders for what a command reads or makes on the way, in the system's temporary folder or in one that it is given.

Invariant: a folder is locked as long as its process lives, and the next command deletes those that are not: a
command that is killed leaves nothing for longer than until then.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import Final

_PREFIX: Final = "epochcut-"
_PURPOSES: Final = ("reading", "editing", "bootstrap", "upgrade", "verify", "copy")
_LOCK: Final = ".in-use"
_YOUNG: Final = 60.0
"""Seconds in which a folder may not be locked yet by the process that has made it."""


@contextmanager
def scratch_folder(purpose: str, root: Path | None = None) -> Iterator[Path]:
    """Make a folder for one of `_PURPOSES`, and delete it at the end of the block.

    Folders that killed commands have left are deleted first. All are in `root`, or in the system's temporary folder.
    """
    if purpose not in _PURPOSES:
        raise ValueError(
            f"{purpose!r} is none of {', '.join(_PURPOSES)}, whose folders are deleted when their command is gone"
        )
    root = root or Path(gettempdir())
    _delete_abandoned(root)
    folder = Path(mkdtemp(prefix=f"{_PREFIX}{purpose}-", dir=root))
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(lock)
    finally:
        rmtree(folder, ignore_errors=True)


def _delete_abandoned(root: Path) -> None:
    """Delete the folders that dead processes of this user have left, except those that cannot be deleted."""
    for purpose in _PURPOSES:
        for folder in root.glob(f"{_PREFIX}{purpose}-*"):
            with suppress(OSError):
                found = folder.lstat()
                own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
                if own and time.time() - found.st_mtime >= _YOUNG:
                    _delete_if_abandoned(folder)


def _delete_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # its process was killed before it locked it; what has files in it is somebody else's
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
