"""What an exception says about a partition: whose fault it is, and whether trying again may help."""

from __future__ import annotations

import traceback
from typing import Final

from snapshot.aligner import FrameAfterEnd
from snapshot.host.messages import FailureKind
from snapshot.host.rows_wire import MalformedBatch
from snapshot.manifest import ManifestError
from snapshot.program.sink import SinkError
from snapshot.program.source import SourceError
from snapshot.wire import WireError
from statebackend.backends.backend import BackendError, DamagedFile
from statebackend.keyed_state import ForkedState
from statebackend.snapshots.transfer import MissingFile, UnknownChecksum
from statebackend.states.schema import BrokenSchema, StateMismatch
from statebackend.stores.store import StoreError

_UNUSABLE: Final = (StateMismatch, BrokenSchema, DamagedFile, MissingFile, UnknownChecksum, ManifestError, ForkedState)
_CHANNEL: Final = (WireError, FrameAfterEnd, MalformedBatch)
_RESOURCE: Final = (BackendError, StoreError, SourceError, SinkError, OSError)

_STATE: Final = "statebackend."


def kind_of(error: BaseException) -> FailureKind:
    """Whose fault it is."""
    if isinstance(error, _UNUSABLE):
        return FailureKind.UNUSABLE
    if isinstance(error, _CHANNEL):
        return FailureKind.CHANNEL
    if isinstance(error, _RESOURCE):
        return FailureKind.RESOURCE
    return FailureKind.PROGRAM


def is_of_state(error: BaseException) -> bool:
    """Whether it came up while keyed state was at work, which may have been left halfway; also as the cause of it."""
    links: list[BaseException | None] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if str(frame.f_globals.get("__name__", "")).startswith(_STATE):
                return True
        links += [link.__cause__, link.__context__]
    return False


def text_of(error: BaseException) -> str:
    """The exception in one line."""
    return "".join(traceback.format_exception_only(error)).splitlines()[0]


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, with its notes and causes."""
    return "".join(traceback.format_exception(error))
