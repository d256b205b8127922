"""A folder in which files appear as a whole: what the sink asks of it, whatever kind of storage it is in.

What always holds: a file is staged, and no reader takes it for a file; then it is published, by whoever has what
staging it gave, as often as anybody likes, and is visible once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import fsspec
import pyarrow as pa

from snapshot.frozen_json import NULL, Json
from snapshot.sources.location import protocol_of


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that is not visible yet. `ticket` is what its storage needs to publish or drop it, beside the name."""

    name: str
    ticket: Json = NULL


@dataclass(frozen=True, slots=True)
class Published:
    """What became of files that were to be published: those that are `missing` are neither staged nor visible, all
    others are visible; `already` says that they were before.
    """

    missing: Sequence[str] = ()
    already: bool = False


class Folder(Protocol):
    """Names are paths below the folder. No two files that are staged have the same last part, by which a staged file
    may be known alone. Every method raises what the storage raises; threads may share it.
    """

    def problems(self) -> Sequence[str]:
        """Why nothing can be written here now, as sentences. Makes nothing."""

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """Write a file that survives a crash and is not visible, in place of what a failure has left."""

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """Make all the files of a transaction visible, those that are not; what it raises leaves it unknown."""

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """The staged files that are not visible and whose names may go."""

    def drop(self, file: StagedFile) -> None:
        """Delete a staged file; nothing is done if it is gone."""


def unwritable(uri: str, listed: bool) -> Sequence[str]:
    """Why no folder can be opened there, whatever state the storage is in; sentences."""
    protocol = protocol_of(uri)
    if not listed and protocol not in _EXTRA_OF:
        return [
            f"files at {uri} could not appear as a whole: {protocol}:// has no rename in one step; use a folder of a "
            f"local or mounted file system, s3://, webhdfs://, or listed=True"
        ]
    if protocol not in fsspec.available_protocols():
        return [f"files at {uri} cannot be written: fsspec knows no {protocol}://"]
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        extra = _EXTRA_OF.get(protocol)
        advice = f"pip install 'epochcut[{extra}]'" if extra else str(error)
        return [f"files at {uri} cannot be written: {advice}"]
    return []


def open_folder(uri: str, listed: bool = False) -> Folder:
    """The folder that a URI names; it is made when something is staged. Of those that are not `unwritable`."""
    match "listed" if listed else protocol_of(uri):
        case "listed":
            from snapshot.sinks.listed_folder import ListedFolder

            return ListedFolder(uri)
        case "file":
            from snapshot.sinks.local_folder import LocalFolder

            return LocalFolder(uri)
        case "s3":
            from snapshot.sinks.s3_folder import S3Folder

            return S3Folder(uri)
        case "webhdfs":
            from snapshot.sinks.hdfs_folder import HdfsFolder

            return HdfsFolder(uri)
        case _:
            from snapshot.sinks.renaming_folder import RenamingFolder

            return RenamingFolder(*fsspec.core.url_to_fs(uri))


_EXTRA_OF: Final[Mapping[str, str | None]] = {"file": None, "memory": None, "s3": "s3", "webhdfs": "hdfs"}
"""The kinds of storage in which a file can appear in one step, and the extra that brings their library."""
