"""Where files lie: a URI that means the same folder in every process of a job."""

from __future__ import annotations

from collections.abc import Sequence

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

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
