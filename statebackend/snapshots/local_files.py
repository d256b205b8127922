"""Local links to stored files, so that a restore on the same machine needs no download.

Invariant: a link that is found is the file that was added under this reference, as far as owner, inode, size
and the machine's start can tell, which takes microseconds; the blocks in it have checksums of their own. A file that
another user has put there is never found. No restore depends on a link: what is missing here is downloaded.

A link's name holds all that is known of it, so there is no index to be damaged:

    <start of the machine>-<digest of path, size and checksum>-<inode>

The start counts because links are not flushed: after a crash of the machine a file may have its size and not its
content. The digest tells apart files of two jobs that have the same path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from statebackend import means
from statebackend.backends.backend import LocalDiskError, LocalDiskFull
from statebackend.files import FileRef

LINKS = "links"
"""The name of the folder of links in the local folder of a state."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAME = re.compile(r"([0-9a-f]{12})-([0-9a-f]{32})-([0-9]+)")
_UNFINISHED = ".unfinished-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
"""Another file system, a file of another user, too many links, or a file system without links."""


class LocalFiles:
    """The links in a folder, which is made if it is absent. May be shared by threads; not by processes at once.

    A crash at any point leaves only links that are sound and files that the next `keep` removes. Every call raises
    `LocalDiskFull` or another `LocalDiskError` for what the disk does not do.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start = _start_of_machine()
        self._lock = means.Lock()
        with local_disk(f"open the folder of local links {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            names = [match for entry in folder.iterdir() if (match := _NAME.fullmatch(entry.name))]
        self._names = {match[2]: match[0] for match in names if match[1] == self._start}

    def __len__(self) -> int:
        return len(self._names)

    def add(self, file: FileRef, local: Path) -> None:
        """Keep the content of the local file, which the caller knows to be that of the reference, and may remove.

        It must not be written to any more. Where the folder is on another file system, it is copied.
        """
        digest = _digest(file)
        with local_disk(f"keep a link to {file.path} in {self.folder}"), self._lock:
            inode = local.stat().st_ino
            try:
                self._name(digest, inode, local)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._copy(digest, local)

    def find(self, file: FileRef) -> Path | None:
        """Return the link to this file; None if there is none, or none that is sound, which is removed.

        The link is only to be read, and only until `keep` is called without it.
        """
        digest = _digest(file)
        name = self._names.get(digest)
        if name is None:
            return None
        link = self.folder / name
        with local_disk(f"look at the local link to {file.path}"):
            if _is_sound(link, file.size, int(name.rpartition("-")[2])):
                return link
            with self._lock:
                if self._names.get(digest) == name:
                    del self._names[digest]
                    link.unlink(missing_ok=True)
        return None

    def link_into(self, file: FileRef, target: Path) -> bool:
        """Put a hard link to this file there, which the caller may consume; False if there is no sound one.

        Where `target` is on another file system, it is a copy. What was at `target` is replaced.
        """
        link = self.find(file)
        if link is None:
            return False
        with local_disk(f"link {file.path} to {target}"):
            target.unlink(missing_ok=True)
            try:
                os.link(link, target)
            except FileNotFoundError:
                if link.exists():
                    raise
                return False  # it was pruned since
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                with _removed_unless_done(target):
                    shutil.copyfile(link, target)
        return True

    def adopt(self, files: Iterable[FileRef], beside: Path) -> None:
        """Link those of the files that are not here and are in one of the folders of links beside this one.

        These are `links` in the folders in `beside`, whichever process works there: they are looked at, and nothing
        more. Links that vanish there meanwhile, or cannot be made here, are just not adopted.
        """
        missing = {digest for file in files if (digest := _digest(file)) not in self._names}
        if not missing:
            return
        with local_disk(f"look for links in {beside}"):
            folders = [folder for folder in sorted(beside.glob(f"*/{LINKS}")) if folder != self.folder]
        for folder in folders:
            with suppress(OSError), self._lock:
                for entry in os.scandir(folder):
                    match = _NAME.fullmatch(entry.name)
                    if match is None or match[1] != self._start or match[2] not in missing:
                        continue
                    with suppress(OSError):
                        os.link(entry.path, self.folder / entry.name)
                        self._names[match[2]] = entry.name
                        missing.discard(match[2])

    def keep(self, files: Iterable[FileRef]) -> None:
        """Remove the links to all other files, those of an earlier start of the machine, and leftovers of a crash."""
        wanted = {_digest(file) for file in files}
        with local_disk(f"prune local links in {self.folder}"), self._lock:
            self._names = {digest: name for digest, name in self._names.items() if digest in wanted}
            kept = set(self._names.values())
            for entry in list(self.folder.iterdir()):
                if entry.name not in kept and (_NAME.fullmatch(entry.name) or entry.name.startswith(_UNFINISHED)):
                    entry.unlink(missing_ok=True)

    def _copy(self, digest: str, local: Path) -> None:
        new = self.folder / f"{_UNFINISHED}{means.token_hex(8)}"
        try:
            shutil.copyfile(local, new)
            self._name(digest, new.stat().st_ino, new)
        finally:
            new.unlink(missing_ok=True)

    def _name(self, digest: str, inode: int, source: Path) -> None:
        """Link a file under its name, and remove what had been kept for the same reference."""
        name = f"{self._start}-{digest}-{inode}"
        former = self._names.get(digest)
        if former != name or not (self.folder / name).exists():
            (self.folder / name).unlink(missing_ok=True)
            os.link(source, self.folder / name)
        self._names[digest] = name
        if former not in (None, name):
            (self.folder / str(former)).unlink(missing_ok=True)


@contextmanager
def local_disk(action: str) -> Iterator[None]:
    """Turn errors of the operating system into a named error that says what was tried."""
    try:
        means.use_disk(action)
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise LocalDiskFull(f"could not {action}: the local disk is full; make room or use a larger one") from error
        raise LocalDiskError(f"could not {action}: {error}") from error


def is_full(error: BaseException | None) -> bool:
    """True if a full disk is at the bottom of this error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


@contextmanager
def _removed_unless_done(target: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _is_sound(link: Path, size: int, inode: int) -> bool:
    try:
        status = link.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = status.st_uid == os.geteuid()
    return S_ISREG(status.st_mode) and own and status.st_size == size and status.st_ino == inode


def _digest(file: FileRef) -> str:
    return hashlib.sha256(f"{file.path} {file.size} {file.checksum}".encode()).hexdigest()[:32]


def _start_of_machine() -> str:
    """Return the same text in all processes until the machine starts again; where it is not known, a new one."""
    try:
        return _BOOT_ID.read_text().replace("-", "")[:12]
    except OSError:
        return means.token_hex(6)
