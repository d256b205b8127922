"""The contract of a blob store: whole objects under names, each created once, for journal, manifests and state.

Every store behind this interface has all of the properties that `BlobStore` states; one that cannot have them is
refused when it is opened. So the protocols above rely on them without asking which store it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from statebackend.errors import StoreError

LONGEST_PART = 200
LONGEST_PATH = 800
_PART = re.compile(rf"[A-Za-z0-9_=@+,~-][A-Za-z0-9_=@+,~.-]{{0,{LONGEST_PART - 1}}}")
_PATH = re.compile(rf"{_PART.pattern}(?:/{_PART.pattern})*")


class Creation(Enum):
    """The answer to a create: whether this call made the blob. There is no third answer; doubt is an error."""

    CREATED = "created"
    EXISTED = "existed"


@dataclass(frozen=True, slots=True, order=True)
class BlobInfo:
    """A blob that is there: its path below the root of the store, and its size in bytes."""

    path: str
    size: int


class BlobStoreError(StoreError):
    """Something that storage did not do; the message says to which blob of which store, and what to do."""


class BlobNotFound(BlobStoreError):
    """The store is there and answered that it has no such blob."""


class StoreUnavailable(BlobStoreError):
    """The store could not be reached, or would not do it; the cause says why. From `create`: nothing was made."""


class UnknownOutcome(BlobStoreError):
    """The answer to a create was lost: the blob may be there, may not, or may yet appear. Never a success.

    The creator asks again: a second `create` of the same blob, or a `read`, tells whose blob it is.
    """


class UnsuitableStore(BlobStoreError):
    """The store cannot keep what `BlobStore` promises, so it was refused; the message says what to use instead."""


class BadBlobPath(BlobStoreError, ValueError):
    """A path that not every store could hold, or that points outside of the store."""


class BlobStore(Protocol):
    """Named, immutable, whole objects below one root. All that protocols rely on is stated here.

    - *Read after write, list after write*: when a call that makes a blob has returned, every `read`, `stat` and
      `list` that begins afterwards, in any process on any machine that shares the store, sees the blob.
    - *Whole or absent*: no reader ever sees a blob that is empty or cut short because its writer is not yet ready or
      has died.
    - *One creator*: of any number of racing `create` calls for one path, in any processes, exactly one is told
      `CREATED`, and the blob has that one's content. All others are told `EXISTED`, or get `UnknownOutcome`.
    - *Durable*: what was reported as made survives a crash of the process and of the machine. A deletion may be
      undone by a crash of the machine.

    Paths are relative to the root, with `/` between their parts: see `check_path`. A path is never both a blob and
    the folder of others; the caller sees to that. Stores may be used by several threads at once, but not by a
    process forked after the store was opened; a new process opens its own.
    """

    def create(self, path: str, data: bytes) -> Creation:
        """Make the blob if the path is free; the only way to decide something between processes.

        For small blobs (it is one request). Raises `UnknownOutcome` when it cannot be told whether this call made
        the blob, `StoreUnavailable` when it certainly did not. A crash inside leaves the whole blob or none.
        """

    def write(self, path: str, data: bytes) -> None:
        """Make the blob under a path used for nothing else, now or ever; doing it again is harmless.

        After an error or a crash inside, the whole blob may be there or not.
        """

    def read(self, path: str) -> bytes:
        """Return the whole content; `BlobNotFound` if there is none."""

    def stat(self, path: str) -> BlobInfo:
        """Return the size without reading the content; `BlobNotFound` if there is none."""

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        """Return all blobs at any depth below the folder ("" is the root), sorted by path.

        Files in the same place that no store could have made (see `check_path`) are left out: they are not ours.
        """

    def delete(self, path: str) -> None:
        """Make sure that there is no such blob; nothing happens if there was none."""

    def remove_leftovers(self) -> int:
        """Remove unfinished things of writers that died, which no listing shows; return how many there were.

        May be called at any time, also while others write. A store whose leftovers are removed elsewhere does nothing.
        """

    def upload(self, source: Path, path: str) -> None:
        """Make the blob as `write` does, from a local file of any size, without holding it in memory."""

    def download(self, path: str, target: Path) -> None:
        """Copy the blob into a local file without holding it in memory; `BlobNotFound` if there is none.

        The local file appears whole, replaces what was there, and is not yet flushed to disk. A crash inside can
        leave a file beside it whose name begins with a dot.
        """


def exists(store: BlobStore, path: str) -> bool:
    """True if there is a blob at the path."""
    try:
        store.stat(path)
    except BlobNotFound:
        return False
    return True


def check_path(path: str) -> None:
    """Refuse a path that not every store could hold; `BadBlobPath` says why.

    A path is parts joined by `/`, each of ASCII letters, digits and `_=@+,~.-`, not beginning with a dot (those
    names are the stores' own). So no path is absolute, has an empty part, `..` or a scheme.
    """
    if not path:
        raise BadBlobPath("a blob has no empty path")
    if len(path) > LONGEST_PATH:
        raise BadBlobPath(f"the path {path[:60]!r}... has {len(path)} characters; at most {LONGEST_PATH} fit")
    for part in path.split("/"):
        reason = _fault_of(part)
        if reason:
            raise BadBlobPath(f"the path {path!r} cannot name a blob: {reason}")


def _fault_of(part: str) -> str | None:
    if not part:
        return "it is absolute or has an empty part; paths are relative to the root of the store, as in a/b"
    if part in (".", ".."):
        return f"it has {part!r} as a part, and may not point elsewhere"
    if part.startswith("."):
        return f"its part {part!r} begins with a dot, and such names are the store's own"
    if len(part) > LONGEST_PART:
        return f"its part {part[:60]!r}... has {len(part)} characters; at most {LONGEST_PART} fit"
    if _PART.fullmatch(part) is None:
        return f"its part {part!r} has characters other than ASCII letters, digits and _=@+,~.-"
    return None


def check_folder(folder: str) -> None:
    """Refuse a text that is neither the root ("") nor a folder below it; `BadBlobPath` says why."""
    if folder:
        check_path(folder)


def could_be_ours(path: str) -> bool:
    """True if `check_path` accepts the path; for listings, which leave out files that others put there."""
    return len(path) <= LONGEST_PATH and _PATH.fullmatch(path) is not None
