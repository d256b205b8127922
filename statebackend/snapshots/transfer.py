"""Files to and from the store, several at a time: what has arrived is what the reference says, bit by bit.

Invariant: when a call returns, all its files are there; when it raises, no thread of it runs any more, and of
a download no file is left. A file is checked by one thread while others still download theirs.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from statebackend import means
from statebackend.backends.backend import BackendError, DamagedFile, LocalDiskFull
from statebackend.files import FileRef
from statebackend.snapshots.local_files import is_full, local_disk
from statebackend.stores.store import BlobNotFound, BlobStore, BlobStoreError, StoreUnavailable

ALGORITHM: Final = "sha256"
"""The algorithm of all checksums that this program writes, and the only one that it can check."""

UPLOADS_AT_ONCE: Final = 4
DOWNLOADS_AT_ONCE: Final = 8

_Item = TypeVar("_Item")


class MissingFile(BackendError):
    """The store is there and has no such file, although a snapshot names it."""


class UnknownChecksum(BackendError):
    """A checksum of a kind that this program cannot check: a newer one has written the file."""


class Checked(Protocol):
    """A reference to a file that says what is in it. `checksum` is `<algorithm>:<hex digits>`."""

    @property
    def path(self) -> str:
        """Return where the file is in the store."""

    @property
    def size(self) -> int:
        """Return how many bytes it has."""

    @property
    def checksum(self) -> str:
        """Return the checksum of all of them."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file, and the path in the store that no other file has."""

    local: Path
    path: str


def checksum_of(file: Path) -> str:
    """Return the checksum that a reference to this file carries. Raise `LocalDiskError` if it cannot be read."""
    with local_disk(f"read {file}"), file.open("rb") as opened:
        return f"{ALGORITHM}:{hashlib.file_digest(opened, ALGORITHM).hexdigest()}"


def target_in(folder: Path, file: Checked) -> Path:
    """Return where in a folder a download puts the file: never the same for two paths, and readable."""
    distinct = hashlib.sha256(file.path.encode()).hexdigest()[:16]
    return folder / f"{distinct}-{file.path.rpartition('/')[2]}"


def upload_all(
    store: BlobStore,
    uploads: Iterable[Upload],
    threads: int = UPLOADS_AT_ONCE,
    on_done: Callable[[Upload], None] | None = None,
) -> None:
    """Put all these files into the store, so many at a time; `on_done` is called for each, in the caller's thread.

    The first error ends it: those under way are waited for, no other is begun, and a note on the error says which
    file it was. Then some may be in the store; doing it all again is harmless. After a crash likewise.
    """

    def upload(item: Upload) -> None:
        try:
            store.upload(item.local, item.path)
        except BlobStoreError as error:
            error.add_note(f"while uploading {item.local} as {item.path}")
            raise

    _all_at_once(upload, list(uploads), threads, on_done)


def download_all(
    store: BlobStore,
    files: Iterable[FileRef],
    folder: Path,
    threads: int = DOWNLOADS_AT_ONCE,
    on_done: Callable[[FileRef, Path], None] | None = None,
) -> tuple[Path, ...]:
    """Put all these files into the folder, each where `target_in` says; the caller owes that they differ in path.

    `on_done` is called in the caller's thread for each that has arrived and is as its reference says.

    Raises `DamagedFile` for a file of other size or content, `MissingFile` for one that the store does not have,
    `UnknownChecksum`, `LocalDiskFull`, and what the store raises, with a note that says for which file. The first
    error ends it, and removes what has arrived. A crash leaves files in the folder, whole ones and others.
    """
    wanted = list(files)
    targets = {file.path: target_in(folder, file) for file in wanted}

    def download(file: FileRef) -> None:
        _download(store, file, targets[file.path])

    def done(file: FileRef) -> None:
        if on_done is not None:
            on_done(file, targets[file.path])

    try:
        # The largest first, lest one of them begins when all others are done.
        _all_at_once(download, sorted(wanted, key=lambda file: -file.size), threads, done)
    except BaseException:
        for target in targets.values():
            target.unlink(missing_ok=True)
        raise
    return tuple(targets[file.path] for file in wanted)


def copy_all(
    source: BlobStore,
    target: BlobStore,
    files: Iterable[Checked],
    folder: Path,
    on_done: Callable[[Checked], None] | None = None,
) -> None:
    """Put all these files into another store under the same names, each checked on its way through the folder.

    `on_done` is called in the caller's thread for each that is there. The folder needs room for as many of the largest
    as are copied at once. Raises what `download_all` and `upload_all` raise; then some may be in the target, and doing
    it all again is harmless. A crash leaves files in the folder as well.
    """

    def copy(file: Checked) -> None:
        local = target_in(folder, file)
        try:
            _download(source, file, local)
            try:
                target.upload(local, file.path)
            except BlobStoreError as error:
                error.add_note(f"while copying {_named(file)}")
                raise
        finally:
            local.unlink(missing_ok=True)

    _all_at_once(copy, sorted(files, key=lambda file: -file.size), DOWNLOADS_AT_ONCE, on_done)


def _download(store: BlobStore, file: Checked, target: Path) -> None:
    if not file.checksum.startswith(f"{ALGORITHM}:"):
        raise UnknownChecksum(
            f"{_named(file)} has the checksum {file.checksum!r}, and this program can check {ALGORITHM} only; "
            f"use a release of epochcut at least as new as the one that wrote it"
        )
    try:
        store.download(file.path, target)
    except BlobNotFound as error:
        raise MissingFile(
            f"{_named(file)} is not in {store}: it was deleted, or the tree was copied without it; restore an epoch "
            f"that does not name it, or bring it back"
        ) from error
    except BlobStoreError as error:
        if isinstance(error, StoreUnavailable) and is_full(error):
            raise LocalDiskFull(
                f"no room for {_named(file)} of {file.size} bytes in {target.parent}; make room or use a larger disk"
            ) from error
        error.add_note(f"while downloading {_named(file)}")
        raise
    with local_disk(f"look at {target}"):
        size = target.stat().st_size
    if size != file.size:
        raise DamagedFile(_damage(store, file, f"it has {size} bytes, and {file.size} were written"))
    checksum = checksum_of(target)
    if checksum != file.checksum:
        raise DamagedFile(_damage(store, file, f"its content has {checksum}, and {file.checksum} was written"))


def _named(file: Checked) -> str:
    return f"{file.path} ({file.kind.value} of epoch {file.epoch})" if isinstance(file, FileRef) else file.path


def _damage(store: BlobStore, file: Checked, fault: str) -> str:
    return f"{_named(file)} in {store} is damaged: {fault}; restore an epoch that does not name it, or bring it back"


def _all_at_once(
    do: Callable[[_Item], None], items: Sequence[_Item], threads: int, on_done: Callable[[_Item], None] | None
) -> None:
    """Do it for all. After the first error, here or in a thread, no more is begun and running ones are waited for."""
    waiting = deque(items)
    ended: means.SimpleQueue[tuple[_Item, BaseException | None]] = means.SimpleQueue()

    def work() -> None:
        with suppress(IndexError):
            while True:
                item = waiting.popleft()
                try:
                    do(item)
                except BaseException as error:
                    waiting.clear()
                    ended.put((item, error))
                else:
                    ended.put((item, None))

    # No pool of the library: an interrupt that finds this thread in one of the pool's locks leaves it locked for ever.
    workers = [means.Thread(target=work, name=f"transfer-{number}") for number in range(min(threads, len(items)))]
    try:
        for worker in workers:
            worker.start()
        for _ in items:
            item, error = ended.get()
            if error is not None:
                raise error
            if on_done is not None:
                on_done(item)
    finally:
        waiting.clear()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
