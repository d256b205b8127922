"""Storage that fails, hangs or is slow while a file says so, in every process that has loaded a program with it.

Invariant: without the file everything works; what fails was either not done, or was done and not said.

The file says `fail`, `hang` or `slow`; `fail create`, for entries of the journal alone, none of which is made; or
`deaf`, for channels on which nothing arrives any more.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from snapshot import ToFiles
from snapshot.connectors.files.renaming_folder import LocalFolder
from statebackend.stores.local_store import LocalStore
from statebackend.stores.store import StoreUnavailable, UnknownOutcome
from tests.silence import deafen_channels

_STORE: Final = ("create", "write", "read", "stat", "list", "delete", "upload", "download")
_FOLDER: Final = ("stage", "publish", "leftovers", "drop")
_TICK: Final = 0.02
_SLOW: Final = 0.2
_installed: dict[str, object] = {}
_deaf: list[int] = []
"""How many channels have been deafened, once that was done."""


@dataclass(frozen=True, slots=True)
class TroubledFiles(ToFiles):
    """Files in a folder; who loads it from a pickle has troubled storage from then on."""

    switch: str = ""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _loaded, (self.uri, self.format, self.switch)


def _loaded(uri: str, format: Any, switch: str) -> TroubledFiles:
    install(Path(switch))
    return TroubledFiles(uri, format, switch=switch)


def install(switch: Path) -> Callable[[], None]:
    """From now on the file says how storage is in this process. What it returns takes that back."""
    if _installed:
        return lambda: None
    calls: list[tuple[type, str]] = [(LocalStore, name) for name in _STORE]
    calls += [(LocalFolder, name) for name in _FOLDER]
    for kind, name in calls:
        _installed[name] = getattr(kind, name)
        setattr(kind, name, _troubled(getattr(kind, name), name, switch, counts=threading.Lock()))

    def take_back() -> None:
        for kind, name in calls:
            setattr(kind, name, _installed.pop(name))

    return take_back


def _troubled(call: Callable[..., Any], name: str, switch: Path, counts: threading.Lock) -> Callable[..., Any]:
    def troubled(self: object, *given: Any) -> Any:
        try:
            trouble = switch.read_text()
        except FileNotFoundError:
            trouble = ""
        if trouble in ("fail", f"fail {name}"):
            return fail(trouble, self, *given)
        if trouble == "deaf" and not _deaf:
            _deaf.append(deafen_channels())
        while trouble == "hang" and switch.exists():
            time.sleep(_TICK)
        if trouble == "slow":
            time.sleep(_SLOW)
        return call(self, *given)

    fails = [0]

    def fail(trouble: str, self: object, *given: Any) -> Any:
        with counts:
            fails[0] += 1
            in_doubt = fails[0] % 2 == 0 and name in ("create", "write", "upload", "stage", "publish")
        if in_doubt and trouble == "fail":
            call(self, *given)
        if name == "create" and in_doubt:
            raise UnknownOutcome(f"the answer to {name} of {given[0]} was lost, as the test wants")
        if isinstance(self, LocalStore):
            raise StoreUnavailable(f"no {name}, as the test wants")
        raise OSError(errno.EIO, f"no {name}, as the test wants")

    return troubled
