"""The contract of a backend: the sorted entries in which rows of keyed state come to rest.

Invariant: a backend changes only by taking whole files, in the order of their epochs; so it is always exactly
the state at some epoch. What is newer lives in layers above it.

Floors are compared as bytes: a value is visible exactly if the bytes that it begins with are not less than those of its
key group's floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from statebackend.entries import META_KEY, STAMP, group_of
from statebackend.errors import StoreError
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange


class BackendError(StoreError):
    """Something that a backend cannot do; the message says with which file or folder, and what to do."""


class DamagedFile(BackendError):
    """A file that is no file of entries, or not any more: cut short, changed, or of another program."""


class LocalDiskError(BackendError):
    """The local disk did not do it. Nothing is lost: what is on it can be made again from the store."""


class LocalDiskFull(LocalDiskError):
    """There is no room left on the local disk."""


class Floors(Protocol):
    """Per key group, the number of the epoch below which entries are hidden, as a younger base has replaced them."""

    def of(self, group: KeyGroup) -> int:
        """Return the floor of a key group; 0 hides nothing."""


class Backend(Protocol):
    """Sorted entries, by name. May be read by several threads at once, also while it takes a file.

    A value is what was put into a file for the name; an entry that is older than the floor of its key group is
    hidden. One thread at a time takes files.
    """

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under these names, None where there is none. Raise `DamagedFile` if it cannot be known."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return names and values from `start` up to, not including, `end`, in order, as they are when this is called.

        The iteration raises `DamagedFile` rather than end too early.
        """

    def ingest(self, files: Sequence[Path]) -> None:
        """Take these files, each on top of the one before and all on top of what is there.

        The files are consumed: the caller gives hard links that it does not need any longer. All are taken or none;
        a crash inside leaves a folder that must not be opened again.
        """

    def rebase(self, groups: Sequence[KeyGroupRange], base: Path | None) -> None:
        """Replace all entries of these groups by a base, at once; None if the base would be empty.

        The caller owes that the base says what there is of these groups, and nothing of others, and that no file was
        taken since it was made. Entries that the base does not repeat are gone, from the disk as well, sooner or later.
        The file is consumed.
        """

    def disk_bytes(self) -> int:
        """Return how much local disk it occupies."""

    def memory_bytes(self) -> int:
        """Return how much memory it occupies, about."""

    def close(self) -> None:
        """Give up the files and the memory. Files that a snapshot needs were linked elsewhere."""


class FloorStamps(dict[bytes, bytes]):
    """Asked for with the first two bytes of a name, a floor is looked up once."""

    def __init__(self, floors: Floors) -> None:
        super().__init__({META_KEY[:2]: b""})
        self._floors = floors

    def __missing__(self, group: bytes) -> bytes:
        stamp = self[group] = STAMP.pack(self._floors.of(group_of(group)))
        return stamp
