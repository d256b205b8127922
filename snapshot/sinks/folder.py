"""A folder in which a file appears as a whole, by being renamed: of this machine's file systems, or in memory.

What always holds: when a method returns, what it did survives a crash of the machine; what was under way when a crash
came is not visible under a final name, or is there as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from snapshot.sources.location import protocol_of

STAGED = ".staged"
"""The folder of what is not visible yet: names that begin with a dot are ignored by those who read folders."""
KNOWN = ("file", "memory")


class Folder(Protocol):
    """Names are those of files: without a slash."""

    def stage(self, name: str, data: pa.Buffer) -> None:
        """Write a staged file, in place of one of this name that a failure has left."""

    def publish(self, name: str) -> bool:
        """Give a staged file its final name; whether it has it by now, because of this call or of an earlier one.
        True says so for sure, False that there is neither.
        """

    def is_published(self, name: str) -> bool:
        """Whether the final name is there."""

    def staged(self) -> Sequence[str]:
        """The names of all staged files, anybody's."""

    def drop(self, name: str) -> None:
        """Delete a staged file; nothing is done if it is gone."""


def open_folder(uri: str) -> Folder:
    """The folder that a URI names; it is made when something is staged. `ValueError` for unknown kinds."""
    match protocol_of(uri):
        case "file":
            return _LocalFolder(Path(LocalFileSystem._strip_protocol(uri)))
        case "memory":
            return _MemoryFolder(uri)
        case other:
            raise ValueError(f"{uri}: a file of {other}:// cannot be renamed in one step; known are {', '.join(KNOWN)}")


class _LocalFolder:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._staged = root / STAGED

    def stage(self, name: str, data: pa.Buffer) -> None:
        if not self._staged.is_dir():
            self._staged.mkdir(parents=True, exist_ok=True)
            for folder in (self._root, *self._root.parents[:1]):
                _sync(folder)
        with (self._staged / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync(self._staged)

    def publish(self, name: str) -> bool:
        final = self._root / name
        if not final.exists():
            try:
                (self._staged / name).rename(final)
            except FileNotFoundError:
                if not final.exists():  # another committer may have been faster
                    return False
        _sync(self._root)
        return True

    def is_published(self, name: str) -> bool:
        return (self._root / name).exists()

    def staged(self) -> Sequence[str]:
        try:
            return sorted(path.name for path in self._staged.iterdir())
        except FileNotFoundError:
            return []

    def drop(self, name: str) -> None:
        (self._staged / name).unlink(missing_ok=True)


class _MemoryFolder:
    def __init__(self, uri: str) -> None:
        self._files, self._root = fsspec.core.url_to_fs(uri)

    def stage(self, name: str, data: pa.Buffer) -> None:
        self._files.pipe_file(f"{self._root}/{STAGED}/{name}", data.to_pybytes())

    def publish(self, name: str) -> bool:
        if not self.is_published(name):
            try:
                self._files.mv(f"{self._root}/{STAGED}/{name}", f"{self._root}/{name}")
            except FileNotFoundError:
                return self.is_published(name)
        return True

    def is_published(self, name: str) -> bool:
        return bool(self._files.exists(f"{self._root}/{name}"))

    def staged(self) -> Sequence[str]:
        try:
            return sorted(path.rpartition("/")[2] for path in self._files.ls(f"{self._root}/{STAGED}", detail=False))
        except FileNotFoundError:
            return []

    def drop(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{STAGED}/{name}")


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
