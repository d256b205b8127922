"""The blob store of the simulated world, as each process sees it: it may fail, hang, be slow, or lose an answer.

Invariant: a request takes effect once, wholly or not at all, at one moment; a call that hangs may take effect long
after its caller has given it up. Those who watch the store are told of a change just before it takes effect.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol, TypeVar

from recovery.testing.world.kernel import SimProcess, World
from statebackend.stores.store import (
    BlobInfo,
    BlobNotFound,
    Creation,
    StoreUnavailable,
    UnknownOutcome,
    check_folder,
    check_path,
)

QUICK: Final = 0.0005
"""Seconds that a call takes if nothing is wrong."""
SLOW: Final = 0.4
HANGS: Final = 15.0

_Answer = TypeVar("_Answer")


class StoreTrouble(Enum):
    """The trouble that befalls one call."""

    NONE = auto()
    SLOW = auto()
    FAILS = auto()
    """Nothing is done, and the caller is told so."""
    LOSES_ANSWER = auto()
    """It is done, and the caller is told that nothing is known."""
    IS_LOST = auto()
    """Nothing is done, and the caller is told that nothing is known."""
    HANGS = auto()
    """It is done when its caller has given it up."""


class StoreObserver(Protocol):
    """An observer that is told of every change, before it takes effect, and may object by raising a `Violation`."""

    def creating(self, path: str, data: bytes, *, by: str) -> None:
        """Observe that an object is about to be created."""

    def writing(self, path: str, data: bytes, existing: bytes | None, *, by: str) -> None:
        """Observe that an object is about to be written, over `existing` if there is one."""

    def deleting(self, path: str, *, by: str) -> None:
        """Observe that an existing object is about to be deleted."""


class StoreServer:
    """All that is stored. `trouble` says what befalls a call: of this process, of this kind, for this path."""

    def __init__(self, world: World, observer: StoreObserver | None = None) -> None:
        self.world = world
        self.observer = observer
        self.objects: dict[str, bytes] = {}
        self.trouble: Callable[[SimProcess, str, str], StoreTrouble] = lambda *_: StoreTrouble.NONE

    def put(self, path: str, data: bytes) -> None:
        """Store an object. Its size counts in the history's checksum; its bytes may have a time in them."""
        self.objects[path] = bytes(data)
        self.world.note(f"{path} {len(data)}")


class SimStore:
    """A `BlobStore` for the threads of one process."""

    def __init__(self, server: StoreServer, process: SimProcess) -> None:
        self._server = server
        self._process = process

    def __repr__(self) -> str:
        return "a store that fails as the simulation likes"

    def create(self, path: str, data: bytes) -> Creation:
        """Make the blob if the path is free. See `BlobStore.create`."""
        check_path(path)

        def act() -> Creation:
            if path in self._server.objects:
                return Creation.EXISTED
            if self._server.observer is not None:
                self._server.observer.creating(path, data, by=self._process.name)
            self._server.put(path, data)
            return Creation.CREATED

        return self._call("create", path, act)

    def write(self, path: str, data: bytes) -> None:
        """Make the blob under a path used for nothing else. See `BlobStore.write`."""
        check_path(path)

        def act() -> None:
            if self._server.observer is not None:
                self._server.observer.writing(path, data, self._server.objects.get(path), by=self._process.name)
            self._server.put(path, data)

        self._call("write", path, act)

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file into the store. See `BlobStore.upload`."""
        try:
            data = source.read_bytes()
        except OSError as error:
            raise StoreUnavailable(f"could not upload {source} to {self}: {error}") from error
        self.write(path, data)

    def read(self, path: str) -> bytes:
        """Return the whole content. See `BlobStore.read`."""
        return self._call("read", path, lambda: self._at(path))

    def stat(self, path: str) -> BlobInfo:
        """Return the size. See `BlobStore.stat`."""
        return self._call("stat", path, lambda: BlobInfo(path, len(self._at(path))))

    def download(self, path: str, target: Path) -> None:
        """Copy the blob into a local file. See `BlobStore.download`."""
        data = self.read(path)
        try:
            target.write_bytes(data)
        except OSError as error:
            raise StoreUnavailable(f"could not download {path} from {self} to {target}: {error}") from error

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        """Return all blobs below the folder, sorted by path. See `BlobStore.list`."""
        check_folder(folder)
        below = f"{folder}/" if folder else ""

        def act() -> tuple[BlobInfo, ...]:
            found = sorted(path for path in self._server.objects if path.startswith(below))
            return tuple(BlobInfo(path, len(self._server.objects[path])) for path in found)

        return self._call("list", folder, act)

    def delete(self, path: str) -> None:
        """Make sure that there is no such blob. See `BlobStore.delete`."""
        check_path(path)

        def act() -> None:
            if path in self._server.objects:
                if self._server.observer is not None:
                    self._server.observer.deleting(path, by=self._process.name)
                del self._server.objects[path]

        self._call("delete", path, act)

    def remove_leftovers(self) -> int:
        """Do nothing: there are none. See `BlobStore.remove_leftovers`."""
        return 0

    def _at(self, path: str) -> bytes:
        check_path(path)
        data = self._server.objects.get(path)
        if data is None:
            raise BlobNotFound(f"there is no {path} in {self}")
        return data

    def _call(self, action: str, path: str, act: Callable[[], _Answer]) -> _Answer:
        world = self._server.world
        trouble = self._server.trouble(self._process, action, path)
        slowly = {StoreTrouble.SLOW: SLOW, StoreTrouble.HANGS: HANGS}
        world.park(slowly.get(trouble, QUICK))
        if trouble is StoreTrouble.FAILS:
            raise StoreUnavailable(f"could not {action} {path} in {self}: it does not answer")
        lost = UnknownOutcome if action == "create" else StoreUnavailable
        if trouble is StoreTrouble.IS_LOST:
            raise lost(f"could not {action} {path} in {self}: the call is lost, or its answer")
        try:
            answer = act()
        except AssertionError as violation:
            world.fail(violation)
            raise
        world.note(f"{action} {path}")
        world.park(QUICK)
        if trouble is StoreTrouble.LOSES_ANSWER:
            raise lost(f"could not {action} {path} in {self}: the call is lost, or its answer")
        return answer
