"""A folder of a remote file system that renames in one step, through fsspec; and one in memory, for tests.

What always holds: what is published is there as a whole, as it was renamed; a rename whose answer is not known is asked
for by looking for the final name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import fsspec
import pyarrow as pa

from snapshot.sinks.folder import Published, StagedFile
from snapshot.sinks.local_folder import STAGED


class RenamingFolder:
    """The folder at a path of a file system of fsspec."""

    def __init__(self, files: fsspec.AbstractFileSystem, root: str) -> None:
        self._files, self._root = files, root

    def problems(self) -> Sequence[str]:
        """See `Folder.problems`."""
        try:
            self._is_there(self._root)
        except Exception as error:
            return [f"files cannot be written to {self._root}: {error}"]
        return []

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """See `Folder.stage`."""
        path = self._staged(name)
        self._files.makedirs(f"{self._root}/{STAGED}", exist_ok=True)
        self._files.pipe_file(path, data.to_pybytes())
        if (size := self._files.info(path)["size"]) != len(data):
            raise OSError(f"{path} has {size} bytes, though {len(data)} were written")
        return StagedFile(name)

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """See `Folder.publish`."""
        already = all(self._is_there(f"{self._root}/{file.name}") for file in files)
        for folder in {file.name.rpartition("/")[0] for file in files} - {""}:
            self._files.makedirs(f"{self._root}/{folder}", exist_ok=True)
        return Published([file.name for file in files if not self._rename(file.name)], already)

    def _rename(self, name: str) -> bool:
        """Whether the file is visible now; raises if it is still staged."""
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
        """Unlike fsspec's `exists`, for which nothing is there when it cannot be asked."""
        try:
            self._files.info(path)
        except FileNotFoundError:
            return False
        return True

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """See `Folder.leftovers`."""
        try:
            found = self._files.ls(f"{self._root}/{STAGED}", detail=False)
        except FileNotFoundError:
            return []
        names = sorted(str(path).rpartition("/")[2] for path in found)
        return [StagedFile(name) for name in names if may_go(name)]

    def drop(self, file: StagedFile) -> None:
        """See `Folder.drop`."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._staged(file.name))

    def _staged(self, name: str) -> str:
        return f"{self._root}/{STAGED}/{name.rpartition('/')[2]}"
