"""Where on its host a process keeps the state of one operator and partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from statebackend.ids import Partition, Uid
from statebackend.keyed_state import FolderInUse

_FOLDERS: Final = 16

Opened = TypeVar("Opened")


def folder_of(local: Path, uid: Uid) -> Path:
    """In which all partitions of an operator have their folders."""
    return local / quote(uid, safe="")


def open_in_folder(local: Path, uid: Uid, partition: Partition, open_: Callable[[Path, Path], Opened]) -> Opened:
    """Call this with the partition's own folder, or another one if a process holds that, and with what they lie in.

    A process that follows a partition holds a folder of it, and so does one that does not react any more.
    `FolderInUse` if so many are held that something must be wrong.
    """
    place = folder_of(local, uid)
    other = 0
    while True:
        try:
            return open_(place / (f"{partition}" if other == 0 else f"{partition}.{other}"), place)
        except FolderInUse:
            other += 1
            if other == _FOLDERS:
                raise
