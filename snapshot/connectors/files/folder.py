"""A folder in which files appear as a whole, at a URI that means the same in every process of a job.

Invariant: a file is staged, and no reader takes it for a file; then it is published, by any process that has the result
of its staging, any number of times, and is visible once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import fsspec
import pyarrow as pa
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

from snapshot.tree.frozen_json import NULL, Json
from statebackend.stores.fsspec_store import has_password, without_password


def protocol_of(uri: str) -> str:
    """Return the protocol of a URI; `file` for a path of this machine."""
    protocol = split_protocol(uri)[0]
    return "file" if protocol in (None, "local") else str(protocol)


def password_faults(uri: str) -> Sequence[str]:
    """Return why a URI with a password in it cannot be used, without the password."""
    if not has_password(uri):
        return []
    return [
        f"{without_password(uri)} has a password, which would be stored in every epoch and told in messages; leave it "
        f"out of the URI, and give storage_options={{{protocol_of(uri)!r}: {{'username': ..., 'password': ...}}}}"
    ]


def everywhere(uri: str) -> str:
    """Return the URI with a local relative path made absolute, as other processes may run in other folders."""
    return f"file://{LocalFileSystem._strip_protocol(uri)}" if protocol_of(uri) == "file" else uri


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that is not visible yet. `ticket` is what its storage needs to publish or drop it, beside the name."""

    name: str
    ticket: Json = NULL


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing files: those that are `missing` are neither staged nor visible, all
    others are visible; `already` says that they were before.
    """

    missing: Sequence[str] = ()
    already: bool = False


class Folder(Protocol):
    """Names are paths below the folder. No two files that are staged have the same last part, by which a staged file
    may be known alone. Every method raises what the storage raises; threads may share it.
    """

    def problems(self) -> Sequence[str]:
        """Return why nothing can be written here now, in sentences; makes nothing."""

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """Write a file that survives a crash and is not visible, in place of what a failure has left."""

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """Make all files of a transaction visible, if they are not; after an error it is unknown which ones are."""

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """Return the staged files that are not visible and whose names may go."""

    def drop(self, file: StagedFile) -> None:
        """Delete a staged file, unless it is gone."""


def unwritable(uri: str, listed: bool) -> Sequence[str]:
    """Return why no folder can be opened at a URI, in sentences, whatever state the storage is in."""
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
    """Return the folder at a URI that is not `unwritable`; it is made when something is staged."""
    match "listed" if listed else protocol_of(uri):
        case "listed":
            from snapshot.connectors.files.listed_folder import ListedFolder

            return ListedFolder(uri)
        case "file":
            from snapshot.connectors.files.renaming_folder import LocalFolder

            return LocalFolder(uri)
        case "s3":
            from snapshot.connectors.files.s3_folder import S3Folder

            return S3Folder(uri)
        case "webhdfs":
            from snapshot.connectors.files.renaming_folder import HdfsFolder

            return HdfsFolder(uri)
        case _:
            from snapshot.connectors.files.renaming_folder import RenamingFolder

            return RenamingFolder(*fsspec.core.url_to_fs(uri))


_EXTRA_OF: Final[Mapping[str, str | None]] = {"file": None, "memory": None, "s3": "s3", "webhdfs": "hdfs"}
"""The kinds of storage in which a file can appear in one step, and the extra that brings their library."""
