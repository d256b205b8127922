"""Blobs in fsspec's memory file system: shared by all that this process opens, gone with it; for tests and trials.

One lock for the whole process makes every call atomic, because the file system itself is not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

from statebackend.stores.store import (
    BlobInfo,
    BlobNotFound,
    Creation,
    StoreUnavailable,
    check_folder,
    check_path,
    could_be_ours,
)

_LOCK = threading.RLock()


class MemoryStore:
    """A `BlobStore` below a folder of `memory://`. Durable it is as far as the process lives."""

    def __init__(self, root: str) -> None:
        self.root = root.strip("/")
        self._files = MemoryFileSystem()

    def __repr__(self) -> str:
        return f"MemoryStore({'memory://' + self.root!r})"

    def create(self, path: str, data: bytes) -> Creation:
        """Make the blob if the path is free. See `BlobStore.create`."""
        with self._at(path) as file:
            if self._files.isfile(file):
                return Creation.EXISTED
            self.write(path, data)
            return Creation.CREATED

    def write(self, path: str, data: bytes) -> None:
        """Make the blob under a path used for nothing else. See `BlobStore.write`."""
        with self._at(path) as file:
            self._files.pipe_file(file, data)

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file into the store; here it is in memory, of course. See `BlobStore.upload`."""
        try:
            data = source.read_bytes()
        except OSError as error:
            raise StoreUnavailable(f"could not upload {source} to {self}: {error}") from error
        self.write(path, data)

    def read(self, path: str) -> bytes:
        """Return the whole content. See `BlobStore.read`."""
        with self._at(path) as file:
            return bytes(self._files.cat_file(file))

    def stat(self, path: str) -> BlobInfo:
        """Return the size. See `BlobStore.stat`."""
        with self._at(path) as file:
            if not self._files.isfile(file):
                raise FileNotFoundError(file)
            return BlobInfo(path, int(self._files.size(file)))

    def download(self, path: str, target: Path) -> None:
        """Copy the blob into a local file. See `BlobStore.download`."""
        data = self.read(path)
        new = target.with_name(f".{target.name}.unfinished")
        try:
            new.write_bytes(data)
            new.replace(target)
        except OSError as error:
            raise StoreUnavailable(f"could not download {path} from {self} to {target}: {error}") from error

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        """Return all blobs below the folder, sorted by path. See `BlobStore.list`."""
        check_folder(folder)
        top = f"/{self.root}/" if self.root else "/"
        with _LOCK:
            found: dict[str, dict[str, int]] = self._files.find(f"{top}{folder}", detail=True)
            infos = [BlobInfo(name.removeprefix(top), info["size"]) for name, info in found.items()]
        below = f"{folder}/" if folder else ""
        return tuple(sorted(i for i in infos if i.path.startswith(below) and could_be_ours(i.path)))

    def delete(self, path: str) -> None:
        """Make sure that there is no such blob. See `BlobStore.delete`."""
        with self._at(path) as file:
            if self._files.isfile(file):
                self._files.rm_file(file)

    def remove_leftovers(self) -> int:
        """Do nothing: there are none. See `BlobStore.remove_leftovers`."""
        return 0

    @contextmanager
    def _at(self, path: str) -> Iterator[str]:
        check_path(path)
        with _LOCK:
            try:
                yield f"/{self.root}/{path}" if self.root else f"/{path}"
            except FileNotFoundError as error:
                raise BlobNotFound(f"there is no {path} in {self}") from error
            except OSError as error:
                raise StoreUnavailable(f"could not use {path} in {self}: {error!r}") from error
