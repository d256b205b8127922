"""One file of a source: opened, and known to be the one that was read before, by its size and what its file system says
of its version.

Invariant: a position in a file carries what the file was when it was read; a file that is another by now is
refused, since rows from such a position on would be others than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from fsspec import AbstractFileSystem

from snapshot.program.source import SourceError, SourceVanished, SplitContext, WrongPosition, WrongRecord
from snapshot.tree.frozen_json import JsonLike

_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created", "modificationTime")
"""The entries by which file systems tell versions of a file apart, the surest first."""


class SourceChanged(SourceError):
    """A file that was read in part has been changed, cut off or replaced since."""


class UnreadableFile(WrongRecord):
    """A file that is not of its format, or lacks columns of the schema."""


class UnreadableRow(WrongRecord):
    """A row that does not fit the schema; the message names file and line, or row."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The identity of a file when it was opened. `version` is empty if its file system says nothing of that."""

    size: int
    version: str


class StoredFile:
    """A file as a split. `SourceVanished` if it is not there, `SourceChanged` if it is not what the position says."""

    def __init__(self, files: AbstractFileSystem, path: str, context: SplitContext) -> None:
        self._files = files
        self._path = path
        self.where = f"source {context.uid}, file {context.split}"
        """The beginning of errors."""
        self.position: Mapping[str, JsonLike] = {}
        """The position to go on from; empty at the beginning."""
        self._seen = self._look()
        if context.position is not None:
            if not isinstance(context.position, Mapping):
                raise WrongPosition(
                    f"{self.where}: {context.position!r} is no position in a file; give the source a new uid"
                )
            self.position = context.position
            self._check(Seen(self.number("size"), str(self.position.get("version"))), self._seen)

    def open(self, compression: str | None = None) -> IO[bytes]:
        """Open the file; its bytes are decompressed if a compression is named, or inferred from the file's name."""
        try:
            opened: IO[bytes] = self._files.open(self._path, "rb", compression=compression)
        except FileNotFoundError as error:
            raise self._vanished() from error
        except OSError as error:
            raise SourceError(f"{self.where}: {self._path} cannot be opened: {error}") from error
        return opened

    def number(self, name: str) -> int:
        """Return one of the numbers of the position, 0 if there is none; `WrongPosition` for anything but a number."""
        value = self.position.get(name, 0)
        if not isinstance(value, int):
            raise WrongPosition(
                f"{self.where}: {dict(self.position)} is no position in such a file; give the source a new uid"
            )
        return value

    def at(self, **numbers: int) -> JsonLike:
        """Return the position in this file with these numbers."""
        return {"size": self._seen.size, "version": self._seen.version, **numbers}

    def check_unchanged(self) -> None:
        """Raise `SourceChanged` if the file is not what it was when it was opened, `SourceVanished` if it is gone."""
        self._check(self._seen, self._look())

    def _look(self) -> Seen:
        try:
            self._files.invalidate_cache(self._path)
            found = self._files.info(self._path)
        except FileNotFoundError as error:
            raise self._vanished() from error
        except OSError as error:
            raise SourceError(f"{self.where}: {self._path} cannot be looked at: {error}") from error
        version = next((str(found[name]) for name in _VERSIONS if found.get(name) is not None), "")
        return Seen(int(found["size"]), version)

    def _check(self, then: Seen, now: Seen) -> None:
        if then.size == now.size and then.version in ("", now.version):
            return
        what = f"it had {then.size} bytes and has {now.size}" if then.size != now.size else "it was written again"
        raise SourceChanged(
            f"{self.where}: the file has changed while it was being read: {what} (version {then.version}, now "
            f"{now.version}). Files must appear as a whole, by a rename, and not change afterwards. Put the file back "
            f"as it was, or start the job from a savepoint in which this file is not begun"
        )

    def _vanished(self) -> SourceVanished:
        return SourceVanished(
            f"{self.where}: there is no {self._path} any more, and it has not been read to its end. Put the file back; "
            f"files may only be taken away when an epoch is complete in which they are finished"
        )
