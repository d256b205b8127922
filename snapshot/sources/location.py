"""Where files lie: a URI that means the same folder in every process of a job."""

from __future__ import annotations

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem


def protocol_of(uri: str) -> str:
    """The file system that a URI names: `file` for a path of this machine."""
    protocol = split_protocol(uri)[0]
    return "file" if protocol in (None, "local") else str(protocol)


def everywhere(uri: str) -> str:
    """The URI with a relative path of this machine made absolute: other processes may run in other folders."""
    return f"file://{LocalFileSystem._strip_protocol(uri)}" if protocol_of(uri) == "file" else uri
