"""Entries become files of a state: written into a scratch folder, named for the store, linked locally.

Invariant: a reference that is returned stands for a local link with that content; what a file says stays valid
for those key groups only that have entries in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from heapq import merge
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from statebackend import entries as naming
from statebackend import fail_points
from statebackend.backends.backend import BackendError
from statebackend.backends.sst import Compression, Entry, read_sst, write_sst
from statebackend.backends.sst_process import SstProcess
from statebackend.fail_points import reached
from statebackend.files import FileKind, FileRef
from statebackend.ids import Epoch, KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots.local_files import LocalFiles

BY_PROCESS: Final = 4 << 20
"""Files of more bytes than that are written in another process: the writing of others is not noticed."""

LARGE: Final = 32 << 20
"""The size of the files into which the changes of an epoch are divided, about."""


class NotLinked(BackendError):
    """A file that ought to be linked locally and is not (any more)."""


class StateFiles:
    """Writes and merges the files of one partition's state, in one thread. A crash leaves files in the folder."""

    def __init__(self, folder: Path, local: LocalFiles, name: Callable[[], str], meta: bytes) -> None:
        self._folder = folder
        self._local = local
        self._name = name
        self._meta = meta
        self._numbers = count()
        self._process = SstProcess()

    def close(self) -> None:
        """Give up the process that writes large files. Only when no file is being written."""
        self._process.close()

    def call_by(self, name: Callable[[], str]) -> None:
        """Take the names of files from `name` from now on."""
        self._name = name

    def write(self, entries: Iterable[Entry], epoch: Epoch, kind: FileKind, size: int) -> FileRef | None:
        """Make a file of sorted entries, of about this size; None if there are none."""
        path = self._scratch()
        write = self._process.write if size > BY_PROCESS else write_sst
        info = write(path, entries, epoch.number, self._meta, compression=Compression.for_size(size))
        if info is None:
            return None
        reached(fail_points.FILE_WRITTEN)
        file = FileRef(self._name(), info.groups, epoch, kind, info.size, info.checksum)
        try:
            self._local.add(file, path)
        finally:
            path.unlink(missing_ok=True)
        return file

    def write_all(
        self, entries: Iterable[Entry], groups: KeyGroupRange, epoch: Epoch, kind: FileKind, size: int
    ) -> tuple[FileRef, ...]:
        """Make files of entries of these groups, each for some neighbouring ones: so many that none is very large.

        Then several can travel at once, and a narrower range need not read all.
        """
        parts = min(-(-size // LARGE), len(groups))
        if parts <= 1:
            file = self.write(entries, epoch, kind, size)
            return () if file is None else (file,)
        edges = [naming.bounds(part)[0] for part in groups.divided(parts)]
        split = groupby(entries, key=lambda entry: bisect_right(edges, entry[0]))
        made = (self.write(part, epoch, kind, size // parts) for _, part in split)
        return tuple(file for file in made if file is not None)

    def merged(self, run: Sequence[FileRef]) -> FileRef | None:
        """Write one delta that says what these say where they are valid; see `FileSet.merged`."""
        with ExitStack() as stack:
            sources = []
            links = stack.enter_context(self.links(run))
            for age, (file, link) in enumerate(zip(reversed(run), reversed(links), strict=True)):
                content = stack.enter_context(read_sst(link, self._folder))
                sources.append(_valid(content.entries, file.ranges, age))
            newest = _first_of_each(merge(*sources, key=itemgetter(0, 1)))
            return self.write(newest, run[-1].epoch, FileKind.DELTA, sum(file.size for file in run))

    def link(self, file: FileRef) -> Path:
        """Make a link to the file that may be consumed. Raise `NotLinked` if there is none to copy."""
        target = self._scratch()
        if not self._local.link_into(file, target):
            raise NotLinked(f"the local copy of {file.path} of epoch {file.epoch} has gone from {self._local.folder}")
        return target

    @contextmanager
    def links(self, files: Sequence[FileRef]) -> Iterator[list[Path]]:
        """Make links to the files that may be consumed; those that were not are removed in the end."""
        made: list[Path] = []
        try:
            for file in files:
                made.append(self.link(file))
            yield made
        finally:
            for link in made:
                link.unlink(missing_ok=True)

    def _scratch(self) -> Path:
        return self._folder / f"{next(self._numbers)}.sst"


_Aged = tuple[bytes, int, bytes | None]


def _valid(entries: Iterator[Entry], ranges: tuple[KeyGroupRange, ...], age: int) -> Iterator[_Aged]:
    valid: dict[KeyGroup, bool] = {}
    for name, payload in entries:
        group = naming.group_of(name)
        if group not in valid:
            valid[group] = any(group in part for part in ranges)
        if valid[group]:
            yield name, age, payload


def _first_of_each(entries: Iterable[_Aged]) -> Iterator[Entry]:
    last: bytes | None = None
    for name, _, payload in entries:
        if name != last:
            last = name
            yield name, payload
