"""A folder of this machine's file systems, in which files appear by being renamed.

What always holds: when a method returns, what it did survives a crash of the machine; what was under way when a crash
came is not visible under a final name, or is there as a whole. A folder that was there and is gone is not made anew, as
it would lack what was in it: until it is back, nothing is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from snapshot.connectors.files.folder import Published, StagedFile

STAGED: Final = ".staged"
"""The folder of what is not visible yet: names that begin with a dot are ignored by those who read folders."""


class LocalFolder:
    """The folder at a path or `file://` URI."""

    def __init__(self, uri: str) -> None:
        self._root = Path(LocalFileSystem._strip_protocol(uri))
        self._staged = self._root / STAGED
        self._was_there = self._root.is_dir()

    def problems(self) -> Sequence[str]:
        """Return why the folder, or the first one above it that exists, cannot be written."""
        there = next(path for path in (self._root, *self._root.parents) if path.exists())
        if not there.is_dir():
            return [f"files cannot be written to {self._root}: {there} is no folder"]
        if not os.access(there, os.W_OK | os.X_OK):
            return [f"files cannot be written to {self._root}: this user may not write to {there}"]
        return []

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """Write the file to the folder `.staged` and sync it.

        A file that cannot be written as a whole, as on a full disk, leaves no part of it.
        """
        if self._was_there:
            self._refuse_if_gone()
        make_folder(self._staged)
        self._was_there = True
        path = self._staged / Path(name).name
        try:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        _sync(self._staged)
        return StagedFile(name)

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """Rename the staged files to their final names and sync their folders.

        Raises `FileNotFoundError` if the folder of the output is gone.
        """
        self._refuse_if_gone()
        already = all((self._root / file.name).exists() for file in files)
        folders = {(self._root / file.name).parent for file in files}
        for folder in folders - {self._root}:
            make_folder(folder)
        missing = [file.name for file in files if not self._rename(file.name)]
        for folder in folders:
            _sync(folder)
        return Published(missing, already)

    def _refuse_if_gone(self) -> None:
        if not self._root.exists():
            advice = "the folder of the output is gone; put it back, with what was in it"
            raise FileNotFoundError(errno.ENOENT, advice, str(self._root))

    def _rename(self, name: str) -> bool:
        final = self._root / name
        if not final.exists():
            try:
                (self._staged / final.name).rename(final)
            except FileNotFoundError:
                return final.exists()  # another committer may have been faster
        return True

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """Return the files in the folder `.staged` whose names may go."""
        try:
            return [StagedFile(path.name) for path in sorted(self._staged.iterdir()) if may_go(path.name)]
        except FileNotFoundError:
            return []

    def drop(self, file: StagedFile) -> None:
        """Delete a staged file, unless it is gone."""
        (self._staged / Path(file.name).name).unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if they are missing, so that they survive a crash of the machine."""
    missing = list(takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync(made.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
