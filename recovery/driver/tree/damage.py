"""Files of an epoch that a partition calls damaged or missing: the driver looks for itself before it believes that.

Invariant: nothing is written. A file counts as damaged only if the driver, too, reads it otherwise than it was
written: what is wrong with a machine or its network is no damage of the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from recovery.driver.tree.owned import checksum_of
from recovery.scratch import scratch_folder
from snapshot.tree.manifest import Manifest, StoredFile
from statebackend.backends.backend import BackendError, DamagedFile
from statebackend.files import FileRef
from statebackend.snapshots.transfer import MissingFile, download_all
from statebackend.stores.store import BlobNotFound, BlobStore

_OF_FILES: Final = {DamagedFile.__name__, MissingFile.__name__}
"""The names of these errors in the texts of partitions, of whose errors nothing else is known."""
_WORD: Final = re.compile(r"\w+")


def files_in_doubt(reason: str, manifest: Manifest | None) -> tuple[FileRef | StoredFile, ...]:
    """Return the files of an epoch that a partition that failed for this reason calls damaged or missing."""
    if manifest is None or not _OF_FILES & set(_WORD.findall(reason)):
        return ()
    return tuple({file.path: file for file in manifest.files() if file.path in reason}.values())


def faults_of(store: BlobStore, files: Iterable[FileRef | StoredFile]) -> dict[str, str]:
    """Return what is wrong with those of the files that are not as they were written, by their paths.

    It reads them all, and raises what the store raises if it cannot be reached.
    """
    with scratch_folder("verify") as folder:
        faults = {file.path: fault_of(store, file, folder) for file in files}
    return {path: fault for path, fault in faults.items() if fault is not None}


def fault_of(store: BlobStore, file: FileRef | StoredFile, folder: Path) -> str | None:
    """Return what is wrong with a file; None if it is as it was written. `folder` has room for it."""
    return _fault_of_state(store, file, folder) if isinstance(file, FileRef) else _fault_of_blob(store, file)


def _fault_of_state(store: BlobStore, file: FileRef, folder: Path) -> str | None:
    try:
        [local] = download_all(store, [file], folder, 1)
    except BackendError as error:
        return str(error)
    local.unlink()
    return None


def _fault_of_blob(store: BlobStore, file: StoredFile) -> str | None:
    try:
        data = store.read(file.path)
    except BlobNotFound:
        return "it is missing"
    if len(data) != file.size or checksum_of(data) != file.checksum:
        return f"it has {len(data)} bytes with {checksum_of(data)}; {file.size} with {file.checksum} were written"
    return None
