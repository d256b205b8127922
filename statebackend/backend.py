"""Where the rows of keyed state come to rest: what the layers above ask of a store of sorted entries.

What always holds: a backend changes only by taking whole files, in the order of their epochs; so it is always exactly
the state at some epoch. What is newer lives in layers above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class BackendError(Exception):
    """Something that a backend cannot do; the message says with which file or folder, and what to do."""


class Backend(Protocol):
    """Sorted entries, by name. May be read by several threads at once, also while it takes a file.

    A value is what was put into a file for the name; an entry that is older than the floor of its key group (see
    `files.floors`) is hidden, as a younger base has replaced it.
    """

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """The values under these names, None where there is none."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Names and values from `start` up to, not including, `end`, in order, as they were when the scan began."""

    def ingest(self, files: Sequence[Path]) -> None:
        """Take these files, each on top of the one before and all on top of what is there.

        The files are consumed: the caller gives hard links that it does not need any longer. All are taken or none;
        a crash inside leaves a folder that must not be opened again.
        """

    def disk_bytes(self) -> int:
        """How much local disk it occupies."""

    def memory_bytes(self) -> int:
        """How much memory it occupies, about."""

    def close(self) -> None:
        """Give up the files and the memory. Whatever a snapshot needs was linked elsewhere."""
