"""The simulated blob store: reads see all writes, a name is created once, and answers may be lost on their way.

Invariant: a request takes effect when it arrives, wholly or not at all. The store says what is done to it to an
observer, which knows the truth and speaks up when a promise is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from recovery.testing.requests import Answer, Request
from snapshot.testing.process import Acted, Action, Effect, Event, Received, Send


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object if it is absent; answered by a `Creation`."""

    path: str
    data: object

    def __str__(self) -> str:
        return f"create {self.path}"


class Creation(Enum):
    """The result of a `Create`."""

    CREATED = auto()
    EXISTED = auto()


@dataclass(frozen=True, slots=True)
class Write:
    """Write an object whose name was never used; answered by `Written`, or `Unavailable`."""

    path: str
    data: object

    def __str__(self) -> str:
        return f"write {self.path}"


class Written(Enum):
    """The result of a `Write`."""

    WRITTEN = auto()
    UNAVAILABLE = auto()


@dataclass(frozen=True, slots=True)
class Read:
    """Read an object; answered by `Content`."""

    path: str

    def __str__(self) -> str:
        return f"read {self.path}"


@dataclass(frozen=True, slots=True)
class Content:
    """The content of an object; None if it does not exist."""

    data: object | None

    def __str__(self) -> str:
        return "content" if self.data is not None else "nothing there"


@dataclass(frozen=True, slots=True)
class Listing:
    """All names that begin with a prefix: the question without `paths`, the answer with them."""

    prefix: str
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"list {self.prefix}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object, if it exists; answered by the same."""

    path: str

    def __str__(self) -> str:
        return f"delete {self.path}"


class StoreObserver(Protocol):
    """An observer that is told of every change, before it takes effect, and may object by raising a `Violation`."""

    def creating(self, path: str, data: object) -> None:
        """Observe that an object is about to be created."""

    def writing(self, path: str, data: object, existing: object | None) -> None:
        """Observe that an object is about to be written, over `existing` if there is one."""

    def deleting(self, path: str) -> None:
        """Observe that an existing object is about to be deleted."""


class SimulatedStore:
    """The store as a process. `refusals` writes may fail, one for each time the schedule says so."""

    def __init__(self, objects: dict[str, object], observer: StoreObserver, refusals: int) -> None:
        self._objects = objects
        self._observer = observer
        self._refusals = refusals
        self._refusing = False

    def handle(self, event: Event) -> Iterable[Effect]:
        """Serve a request."""
        match event:
            case Received(sender, Request(id, body)):
                return [Send(sender, Answer(id, self._serve(body)))]
            case Acted():
                self._refusing = True
            case _:
                pass
        return []

    def actions(self) -> Sequence[Action]:
        """Return the refusal of the next write, if any refusal is left."""
        return [Action("refuse a write", drain=False)] if self._refusals and not self._refusing else []

    def _serve(self, body: object) -> object:
        match body:
            case Create(path, data):
                if path in self._objects:
                    return Creation.EXISTED
                self._observer.creating(path, data)
                self._objects[path] = data
                return Creation.CREATED
            case Write(path, data):
                return self._write(path, data)
            case Read(path):
                return Content(self._objects.get(path))
            case Listing(prefix):
                return Listing(prefix, tuple(sorted(path for path in self._objects if path.startswith(prefix))))
            case Delete(path):
                if path in self._objects:
                    self._observer.deleting(path)
                    del self._objects[path]
                return body
            case _:
                raise TypeError(f"{body} is no request to a store")

    def _write(self, path: str, data: object) -> Written:
        if self._refusing:
            self._refusing = False
            self._refusals -= 1
            return Written.UNAVAILABLE
        self._observer.writing(path, data, self._objects.get(path))
        self._objects[path] = data
        return Written.WRITTEN
