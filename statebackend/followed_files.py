"""The files of a state that others write, kept on this machine: what a restore here finds without a download.

Invariant: a file that is kept is as its reference says; only the newest set is kept, and nothing when it is
closed. The state itself is not opened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Final

from statebackend import means
from statebackend.files import FileRef, FileSet
from statebackend.local_folder import WORK, lock_folder, remove_remains
from statebackend.snapshots.local_files import LINKS, LocalFiles
from statebackend.snapshots.transfer import download_all
from statebackend.stores.store import BlobStore

_AT_ONCE: Final = 2
"""Downloads: a standby must not take the network from the partitions that work."""


@dataclass(frozen=True, slots=True)
class Brought:
    """The files that arrived since the folder was opened: links to files of others on this machine, and downloads."""

    linked_bytes: int = 0
    downloaded_bytes: int = 0


class FollowedFiles:
    """The files of one state, in a folder of its own. One thread at a time uses it."""

    def __init__(self, folder: Path, beside: Path) -> None:
        """Open the folder, which has the form of a state's; raise `FolderInUse` if it is in use.

        Files in the folders `beside` it are linked. Files that its former users left in it count.
        """
        self._lock = lock_folder(folder)
        try:
            remove_remains(folder)
            self._folder = folder
            self._beside = beside
            self._local = LocalFiles(folder / LINKS)
        except BaseException:
            os.close(self._lock)
            raise
        self.brought = Brought()

    def follow(self, files: FileSet, store: BlobStore) -> None:
        """Have all files of the set, and no others.

        Raises what `download_all` and `LocalFiles` raise, `MissingFile` if a file is in the store no more; what has
        come by then is kept. A crash leaves sound links, which the next one to open the folder finds.
        """
        absent = [file for file in files.files if self._local.find(file) is None]
        if absent:
            self._local.adopt(absent, self._beside)
            self._download([file for file in absent if not self._linked(file)], store)
        self._local.keep(files.files)

    def close(self) -> None:
        """Keep nothing any more; the folder is free for others."""
        if self._lock < 0:
            return
        try:
            self._local.keep(())
        finally:
            os.close(self._lock)
            self._lock = -1

    def _linked(self, file: FileRef) -> bool:
        if self._local.find(file) is None:
            return False
        self.brought = replace(self.brought, linked_bytes=self.brought.linked_bytes + file.size)
        return True

    def _download(self, files: list[FileRef], store: BlobStore) -> None:
        if not files:
            return
        work = self._folder / f"{WORK}{means.token_hex(8)}"

        def arrived(file: FileRef, path: Path) -> None:
            self._local.add(file, path)
            self.brought = replace(self.brought, downloaded_bytes=self.brought.downloaded_bytes + file.size)

        try:
            work.mkdir()
            download_all(store, files, work, _AT_ONCE, arrived)
        finally:
            rmtree(work, ignore_errors=True)
