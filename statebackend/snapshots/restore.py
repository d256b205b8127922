"""From a file set to local files that a backend can take: linked where they are on this machine, else downloaded.

Invariant: every file that is returned is as its reference says, and what lies outside of the set is never
read. A projected set names only what its range needs, so a narrower range fetches fewer files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from statebackend import fail_points
from statebackend.fail_points import reached
from statebackend.files import FileRef, FileSet
from statebackend.snapshots.local_files import LocalFiles, local_disk
from statebackend.snapshots.transfer import DOWNLOADS_AT_ONCE, download_all, target_in
from statebackend.stores.store import BlobStore


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The cost of a restore so far."""

    linked_files: int = 0
    linked_bytes: int = 0
    downloaded_files: int = 0
    downloaded_bytes: int = 0

    def linked(self, file: FileRef) -> RestoreReport:
        """Return the report with one more file that was on this machine."""
        return replace(self, linked_files=self.linked_files + 1, linked_bytes=self.linked_bytes + file.size)

    def downloaded(self, file: FileRef) -> RestoreReport:
        """Return the report with one more file that came from the store."""
        files, size = self.downloaded_files + 1, self.downloaded_bytes + file.size
        return replace(self, downloaded_files=files, downloaded_bytes=size)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The files of a set, in restore order, each a link that a backend may consume; and what that has cost."""

    paths: tuple[Path, ...]
    report: RestoreReport


def fetch(
    files: FileSet,
    store: BlobStore,
    local: LocalFiles | None,
    folder: Path,
    on_progress: Callable[[RestoreReport], None] | None = None,
    *,
    threads: int = DOWNLOADS_AT_ONCE,
) -> Fetched:
    """Put all files of the set into the folder, which is made if absent and used for nothing else.

    Downloaded files are kept in `local` as soon as they were checked, so a restore that was killed goes on where it
    was. `on_progress` is called in the caller's thread, after all links and then after every download.

    Raises what `download_all` and `LocalFiles` raise; then no file of the set is left in the folder. A crash leaves
    files there: the owner of the folder removes it and fetches anew.
    """
    report, missing = RestoreReport(), list[FileRef]()
    targets = tuple(target_in(folder, file) for file in files.files)

    def arrived(file: FileRef, path: Path) -> None:
        nonlocal report
        if local is not None:
            local.add(file, path)
        report = report.downloaded(file)
        reached(fail_points.RESTORE_DOWNLOADED)
        if on_progress is not None:
            on_progress(report)

    with local_disk(f"make the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for file, target in zip(files.files, targets, strict=True):
            if local is not None and local.link_into(file, target):
                report = report.linked(file)
            else:
                missing.append(file)
        if on_progress is not None:
            on_progress(report)
        download_all(store, missing, folder, threads, arrived)
    except BaseException:
        for target in targets:
            target.unlink(missing_ok=True)
        raise
    return Fetched(targets, report)
