"""From a URI to a store that keeps all that `BlobStore` promises, or to an error that says why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

from statebackend import means
from statebackend.stores.local_store import LocalStore
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import (
    BadBlobPath,
    BlobStore,
    BlobStoreError,
    Creation,
    StoreUnavailable,
    UnsuitableStore,
)

_TRIAL: Final = re.compile(r"probe-[0-9a-f]{32}")
_PASSWORD: Final = re.compile(r"://[^/]*:[^/]*@")


_ADDED: Final[dict[str, Callable[[str], BlobStore]]] = {}


def open_store(uri: str, **options: object) -> BlobStore:
    """Open the store that an fsspec URI names, and try out whether it keeps what it must.

    Known are a path or `file://` (made if absent), `memory://`, and `s3://bucket/prefix`, for which the options are
    those of `s3fs.S3FileSystem` (the bucket must be there). The trial creates a blob `probe-...` twice, and removes
    it; a crash in between leaves that one blob.

    Raises `UnsuitableStore` for a store that cannot tell racing creators apart, `StoreUnavailable` for one that
    cannot be reached or does not let us write, each with its cause; and `BadBlobPath` for one without a bucket.
    """
    store = _store_for(uri, options)
    _try_out(store)
    return store


@contextmanager
def known(protocol: str, store: Callable[[str], BlobStore]) -> Iterator[None]:
    """Open all URIs of this protocol in this process by `store`, given what follows the `://`, while the block runs.

    For stores that live in a test or a simulation.
    """
    if protocol in _ADDED:
        raise ValueError(f"stores of {protocol}:// are known already")
    _ADDED[protocol] = store
    try:
        yield
    finally:
        del _ADDED[protocol]


def find_store(uri: str, **options: object) -> BlobStore:
    """Open the store at a place where something is already: nothing is made, and nothing tried out.

    Raise `StoreUnavailable` if there is no such folder.
    """
    protocol, _ = split_protocol(uri)
    if protocol in (None, "file", "local"):
        folder = Path(LocalFileSystem._strip_protocol(uri))
        if not folder.is_dir():
            raise StoreUnavailable(f"{uri}: there is no such folder, or it may not be looked at")
    return _store_for(uri, options)


def is_trial(path: str) -> bool:
    """True if this is the blob of a trial that was interrupted: it says nothing, and may be deleted."""
    return _TRIAL.fullmatch(path) is not None


def has_password(uri: str) -> bool:
    """True if a URI names a user with a password, which would be written and told wherever the URI is."""
    return _PASSWORD.search(uri) is not None and not uri.startswith("github://")  # org:repo@branch


def without_password(uri: str) -> str:
    """Return the URI as people may see it."""
    return _PASSWORD.sub("://***@", uri) if has_password(uri) else uri


def absolute(uri: str) -> str:
    """Return a URI of the same place, also for processes that have another working directory."""
    return uri if "://" in uri else str(Path(uri).absolute())


def same_place(one: str, other: str) -> bool:
    """True if both URIs name the same folder, as far as their text tells; local ones also through links and mounts."""
    (here, path), (there, other_path) = (_place(uri) for uri in (one, other))
    if here != there or here:
        return (here, path) == (there, other_path)
    try:
        return Path(path).samefile(other_path)
    except OSError:  # one of them is not there
        return Path(path).resolve() == Path(other_path).resolve()


def _place(uri: str) -> tuple[str, str]:
    """Return the protocol, which is empty for local files, and the path."""
    protocol, rest = split_protocol(uri)
    match protocol:
        case None | "file" | "local":
            return "", LocalFileSystem._strip_protocol(uri)
        case "s3a":
            return "s3", rest.strip("/")
        case _:
            return protocol, rest.strip("/")


def _store_for(uri: str, options: dict[str, object]) -> BlobStore:
    if has_password(uri):
        raise UnsuitableStore(f"{without_password(uri)} has a password in it; give it as storage_options instead")
    protocol, rest = split_protocol(uri)
    match protocol:
        case "s3" | "s3a":
            return _s3_store(rest, options)
        case None | "file" | "local":
            _refuse_options(uri, options)
            return LocalStore(Path(LocalFileSystem._strip_protocol(uri)))
        case "memory":
            _refuse_options(uri, options)
            return MemoryStore(rest)
        case str() if protocol in _ADDED:
            _refuse_options(uri, options)
            return _ADDED[protocol](rest)
        case _:
            raise UnsuitableStore(
                f"{uri}: the store behind {protocol}:// is not known to make an object only if it is absent, "
                f"visible as a whole, and without that two drivers could both believe they own the job; "
                f"use a folder, file://, or s3:// (epochcut[s3])"
            )


def _refuse_options(uri: str, options: dict[str, object]) -> None:
    if options:
        raise ValueError(f"{uri} takes no options, but got {', '.join(sorted(options))}")


def _s3_store(root: str, options: dict[str, object]) -> BlobStore:
    if not root.strip("/"):
        raise BadBlobPath("s3:// names no bucket; expected s3://bucket/prefix")
    try:
        from statebackend.stores.s3_store import S3Store
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            f"s3://{root} needs the package {error.name}, which is not installed: pip install 'epochcut[s3]'"
        ) from error
    return S3Store(root, options)


def _try_out(store: BlobStore) -> None:
    path = f"probe-{means.token_hex(16)}"
    try:
        answers = [store.create(path, b"first")]
        try:
            answers.append(store.create(path, b"second"))
        finally:
            store.delete(path)
    except UnsuitableStore:
        raise
    except BlobStoreError as error:
        raise StoreUnavailable(f"could not open {store}: {error.__cause__ or error}") from error
    if answers != [Creation.CREATED, Creation.EXISTED]:
        raise UnsuitableStore(
            f"{store} lets a second creator overwrite the first: it ignores the condition If-None-Match; "
            f"use a server that keeps it, such as AWS S3, MinIO or Versity, or a folder on a POSIX file system"
        )
