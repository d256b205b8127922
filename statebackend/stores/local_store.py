"""Blobs on a local disk (or a shared POSIX file system): a blob is linked into place whole, so half a one never shows.

A blob is first a temporary file in the same folder, whose name begins with a dot; only when it is on the disk does
it get its name, and only when the folder is on the disk too is it reported. A hard link fails if the name is taken,
which is what makes one creator of many.

A tree may have come from another user, so below the root no link is followed, and nothing is read but regular files:
what lies elsewhere is neither read, written nor deleted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO

from statebackend import fail_points, means
from statebackend.fail_points import reached
from statebackend.stores.store import (
    BadBlobPath,
    BlobInfo,
    BlobNotFound,
    Creation,
    StoreUnavailable,
    UnknownOutcome,
    UnsuitableStore,
    check_folder,
    check_path,
    could_be_ours,
)

_TEMPORARY = ".unfinished-"
_TRIES = 20
"""The number of tries to make a folder that others remove before a file is in it."""
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_NOT_LINKED = frozenset({errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT})


class LocalStore:
    """A `BlobStore` below a folder, which is made if it is absent."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._durable_folders: set[Path] = set()
        with self._unavailable("open the store"):
            self._make_folder(self.root)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def create(self, path: str, data: bytes) -> Creation:
        """Make the blob if the path is free. See `BlobStore.create`."""
        target = self._file(path)
        with self._unavailable(f"create {path}"), self._unfinished(target.parent, lambda f: f.write(data)) as new:
            return self._link(new, target, path)

    def _link(self, new: Path, target: Path, path: str) -> Creation:
        try:
            os.link(new, target)
            answer = Creation.CREATED
        except FileExistsError:
            if target.is_dir():
                raise BadBlobPath(f"{path} is a folder in {self}, and cannot be a blob as well") from None
            # A network file system may repeat a link whose answer was lost, and then find its own.
            ours = target.exists() and target.samefile(new)
            answer = Creation.CREATED if ours else Creation.EXISTED
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsuitableStore(
                    f"{self} has no hard links ({error}), without which two creators of one file cannot be told "
                    f"apart; use a folder on a POSIX file system, or an s3:// store"
                ) from error
            if error.errno in _NOT_LINKED:
                raise
            raise UnknownOutcome(f"whether {path} was linked into {self} is unknown: {error}") from error
        try:
            # Also where another create won: the caller acts on the entry, so it must not vanish with the machine.
            _flush_folder(target.parent)
        except OSError as error:
            raise UnknownOutcome(f"whether {path} is safe in {self} is unknown: {error}") from error
        return answer

    def write(self, path: str, data: bytes) -> None:
        """Make the blob under a path used for nothing else. See `BlobStore.write`."""
        self._put(path, lambda file: file.write(data))

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file into the store. See `BlobStore.upload`."""

        def copy(file: BinaryIO) -> None:
            with source.open("rb") as opened:
                shutil.copyfileobj(opened, file, 1 << 20)

        self._put(path, copy)

    def _put(self, path: str, fill: Callable[[BinaryIO], object]) -> None:
        target = self._file(path)
        with self._unavailable(f"write {path}"), self._unfinished(target.parent, fill) as new:
            new.replace(target)
            _flush_folder(target.parent)

    def read(self, path: str) -> bytes:
        """Return the whole content. See `BlobStore.read`."""
        with self._unavailable(f"read {path}"), self._found(path) as file:
            self._refuse_special(file, path)
            return file.read_bytes()

    def stat(self, path: str) -> BlobInfo:
        """Return the size. See `BlobStore.stat`."""
        with self._unavailable(f"stat {path}"), self._found(path) as file:
            if file.is_dir() and not file.is_symlink():
                raise BlobNotFound(f"{path} is a folder in {self}, not a blob")
            return BlobInfo(path, self._refuse_special(file, path))

    def download(self, path: str, target: Path) -> None:
        """Copy the blob into a local file. See `BlobStore.download`."""
        with self._unavailable(f"download {path} to {target}"), self._found(path) as file:
            self._refuse_special(file, path)
            new = target.with_name(f"{_TEMPORARY}{means.token_hex(8)}")
            try:
                shutil.copyfile(file, new)
                new.replace(target)
            finally:
                new.unlink(missing_ok=True)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        """Return all blobs below the folder, sorted by path. See `BlobStore.list`. Links, pipes and devices are not."""
        check_folder(folder)
        self._refuse_links(self.root / folder / "any", folder)
        with self._unavailable(f"list {folder or 'everything'}"):
            return tuple(sorted(self._walk(self.root / folder)))

    def _walk(self, top: Path) -> Iterator[BlobInfo]:
        for file in _files_below(top):
            path = file.relative_to(self.root).as_posix()
            if could_be_ours(path):
                with suppress(FileNotFoundError):  # deleted since the folder was read
                    about = file.lstat()
                    if S_ISREG(about.st_mode):
                        yield BlobInfo(path, about.st_size)

    def delete(self, path: str) -> None:
        """Make sure that there is no such blob. See `BlobStore.delete`. Folders go with the last blob in them."""
        file = self._file(path)
        with self._unavailable(f"delete {path}"), suppress(NotADirectoryError):
            file.unlink(missing_ok=True)
        self._remove_empty(file.parent)

    def _remove_empty(self, folder: Path) -> None:
        with suppress(OSError):  # it has something in it, or another process was quicker
            while folder != self.root:
                folder.rmdir()
                self._durable_folders.discard(folder)
                folder = folder.parent

    def remove_leftovers(self) -> int:
        """Remove the files of writers that died. See `BlobStore.remove_leftovers`.

        A living writer holds a lock on its unfinished file.
        """
        with self._unavailable("remove leftovers"):
            unfinished = (file for file in _files_below(self.root) if file.name.startswith(_TEMPORARY))
            return sum(_removed_if_abandoned(file) for file in unfinished)

    @contextmanager
    def _unfinished(self, folder: Path, fill: Callable[[BinaryIO], object]) -> Iterator[Path]:
        """Make a filled temporary file, on the disk, for as long as the context lasts."""
        with ExitStack() as stack:
            new, file = self._new_file(folder, stack)
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            reached(fail_points.BLOB_UNFINISHED)
            yield new

    def _new_file(self, folder: Path, stack: ExitStack) -> tuple[Path, BinaryIO]:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the last blob in the folder was deleted, and the folder with it
                self._make_folder(folder)
                return stack.enter_context(_locked_new_file(folder))
        raise FileNotFoundError(f"{folder} is removed again and again")

    def _make_folder(self, folder: Path) -> None:
        """Make the folder and see that it, and all above it, survive a crash of the machine.

        Also when the folders are there already: their maker may not have got as far as flushing.
        """
        if folder in self._durable_folders and folder.is_dir():
            return
        existing = next(above for above in (folder, *folder.parents) if above.exists())
        folder.mkdir(parents=True, exist_ok=True)
        for parent in folder.parents:
            if not (parent.is_relative_to(existing) or parent.is_relative_to(self.root)):
                break
            _flush_folder(parent)
        self._durable_folders.add(folder)

    def _file(self, path: str) -> Path:
        check_path(path)
        file = self.root / path
        self._refuse_links(file, path)
        return file

    def _refuse_links(self, file: Path, path: str) -> None:
        for folder in file.parents:
            if folder == self.root or len(folder.parts) < len(self.root.parts):
                return
            if os.path.islink(folder):  # noqa: PTH114 (it answers where `Path.is_symlink` raises)
                raise BadBlobPath(
                    f"{path} in {self}: {folder} is a link, and those are not followed below the root; put the folder "
                    f"itself there"
                )

    def _refuse_special(self, file: Path, path: str) -> int:
        """Return the size of a file; refuse links, pipes and devices, which may lead elsewhere or have no end.

        Folders are left to the caller.
        """
        about = file.lstat()
        if not S_ISREG(about.st_mode) and not S_ISDIR(about.st_mode):
            raise BadBlobPath(f"{path} in {self} is a link, a pipe or a device; put a file there")
        return about.st_size

    @contextmanager
    def _found(self, path: str) -> Iterator[Path]:
        file = self._file(path)
        try:
            yield file
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if str(error.filename) != str(file):  # it was the target of a download
                raise
            raise BlobNotFound(f"there is no {path} in {self}") from error

    @contextmanager
    def _unavailable(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"could not {action} in {self}: {error}") from error


@contextmanager
def _locked_new_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Make a temporary file whose lock shows that its writer lives; it is gone when the context ends."""
    while True:
        new = folder / f"{_TEMPORARY}{means.token_hex(8)}"
        with new.open("xb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Between making and locking it, a process that tidies up may have taken it for abandoned.
                if os.fstat(file.fileno()).st_nlink:
                    yield new, file
                    return
            finally:
                # What has its name by now must not be reported as failed because of a leftover.
                with suppress(OSError):
                    new.unlink()


def _files_below(top: Path) -> Iterator[Path]:
    """Yield all files, also while folders go and come."""
    for parent, _, names in os.walk(top, onerror=_raise_unless_absent):
        yield from (Path(parent, name) for name in names)


def _removed_if_abandoned(file: Path) -> bool:
    if file.is_symlink():
        return False
    with suppress(FileNotFoundError), file.open("r+b") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.unlink()
        return True
    return False


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
