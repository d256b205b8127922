"""Folders in which files appear by being renamed: of this machine, of HDFS, and in memory for tests.

Invariant: what is published is there as a whole, as it was renamed. In a local folder, what a method did
survives a crash of the machine when it returns; a folder that was there and is gone is not made anew, as it would lack
what was in it: until it is back, nothing is written. In a remote folder, a rename whose answer is not known is asked
for by looking for the final name. Every request to HDFS ends, as a name node or data node that does not answer fails it
after a while; there a rename refuses a target that exists.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

import fsspec
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
        folders = sorted({(self._root / file.name).parent for file in files})
        for folder in folders:
            if folder != self._root:
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


class RenamingFolder:
    """The folder at a path of a file system of fsspec."""

    def __init__(self, files: fsspec.AbstractFileSystem, root: str) -> None:
        self._files, self._root = files, root

    def problems(self) -> Sequence[str]:
        """Return why the file system cannot be asked for the folder."""
        try:
            self._is_there(self._root)
        except Exception as error:
            return [f"files cannot be written to {self._root}: {error}"]
        return []

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """Write the file to the folder `.staged`; `OSError` if its size is not that of the data."""
        path = self._staged(name)
        self._files.makedirs(f"{self._root}/{STAGED}", exist_ok=True)
        self._files.pipe_file(path, data.to_pybytes())
        if (size := self._files.info(path)["size"]) != len(data):
            raise OSError(f"{path} has {size} bytes, though {len(data)} were written")
        return StagedFile(name)

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """Rename the staged files to their final names."""
        already = all(self._is_there(f"{self._root}/{file.name}") for file in files)
        for folder in sorted({file.name.rpartition("/")[0] for file in files} - {""}):
            self._files.makedirs(f"{self._root}/{folder}", exist_ok=True)
        return Published([file.name for file in files if not self._rename(file.name)], already)

    def _rename(self, name: str) -> bool:
        """Rename a staged file; True if it is visible then.

        Raises `OSError` if it is still staged.
        """
        staged, final = self._staged(name), f"{self._root}/{name}"
        if self._is_there(final):
            return True
        with suppress(FileNotFoundError):
            self._files.mv(staged, final)
        if self._is_there(final):
            return True
        if self._is_there(staged):
            raise OSError(f"{staged} could not be renamed to {final}")
        return self._is_there(final)  # another committer may have been faster

    def _is_there(self, path: str) -> bool:
        """True if there is a file; unlike fsspec's `exists`, raises if the file system cannot be asked."""
        try:
            self._files.info(path)
        except FileNotFoundError:
            return False
        return True

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """Return the files in the folder `.staged` whose names may go."""
        try:
            found = self._files.ls(f"{self._root}/{STAGED}", detail=False)
        except FileNotFoundError:
            return []
        names = sorted(str(path).rpartition("/")[2] for path in found)
        return [StagedFile(name) for name in names if may_go(name)]

    def drop(self, file: StagedFile) -> None:
        """Delete a staged file, unless it is gone."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._staged(file.name))

    def _staged(self, name: str) -> str:
        return f"{self._root}/{STAGED}/{name.rpartition('/')[2]}"


_TIMEOUTS: Final = (3.0, 60.0)
"""Seconds to connect, and between two pieces of an answer."""


class HdfsFolder(RenamingFolder):
    """The folder at a URI `webhdfs://<user>@<name node>:<port>/<path>`."""

    def __init__(self, uri: str) -> None:
        files, root = fsspec.core.url_to_fs(uri, skip_instance_cache=True)
        files.session.request = partial(files.session.request, timeout=_TIMEOUTS)
        super().__init__(files, root)
        self._uri = uri

    def problems(self) -> Sequence[str]:
        """Return why this user may not write to the folder, or why HDFS cannot tell.

        If the folder does not exist, the first one above it that exists counts.
        """
        there = self._root
        try:
            while there.strip("/") and not self._is_there(there):
                there = there.rpartition("/")[0]
            self._files._call("CHECKACCESS", path=there or "/", fsaction="-wx")
        except PermissionError as error:
            return [f"files cannot be written to {self._uri}: this user may not write to {there or '/'}: {error}"]
        except Exception as error:
            return [f"files cannot be written to {self._uri}: HDFS does not answer as it should: {error}"]
        return []
