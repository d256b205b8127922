"""Judge an exception in a partition: whose fault it is, and whether trying again may help."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Final

from snapshot.cut.aligner import FrameAfterEnd
from snapshot.cut.wire import WireError
from snapshot.host.net.rows_wire import MalformedBatch
from snapshot.host.partition.too_far_behind import TooFarBehind
from snapshot.host.protocol.messages import FailureKind
from snapshot.program.sink import SinkError, UnusableOutput, UnwritableRow
from snapshot.program.source import SourceError, WrongPosition, WrongRecord
from snapshot.tree.manifest import ManifestError
from statebackend.backends.backend import BackendError, DamagedFile
from statebackend.entries import BrokenEntry
from statebackend.keyed_state import ForkedState
from statebackend.keys.types import BrokenKey
from statebackend.snapshots.transfer import MissingFile, UnknownChecksum
from statebackend.states.schema import BrokenSchema, StateMismatch
from statebackend.stores.store import BlobStoreError

_UNUSABLE: Final = (
    StateMismatch, BrokenSchema, DamagedFile, MissingFile, UnknownChecksum, ManifestError, ForkedState,
    UnusableOutput, WrongPosition, BrokenEntry, BrokenKey,
)  # fmt: skip
_CHANNEL: Final = (WireError, FrameAfterEnd, MalformedBatch)
_RESOURCE: Final = (BackendError, BlobStoreError, SourceError, SinkError, OSError, TooFarBehind)

_STATE: Final = "statebackend."
_OURS: Final = ("snapshot", "statebackend", "recovery")
_OUR_FOLDERS: Final = tuple(f"{Path(__file__).parents[3] / package}{os.sep}" for package in _OURS)
_OUR_NAMES: Final = tuple(f"{package}." for package in _OURS)
_LIBRARY: Final = os.path.dirname(os.__file__)  # noqa: PTH120  # as frames name it


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of failure that the error is."""
    if isinstance(error, _UNUSABLE):
        return FailureKind.UNUSABLE
    if isinstance(error, _CHANNEL):
        return FailureKind.CHANNEL
    if isinstance(error, _RESOURCE) and not isinstance(error, WrongRecord | UnwritableRow):
        return FailureKind.RESOURCE
    return FailureKind.PROGRAM


def is_of_state(error: BaseException) -> bool:
    """True if the error, or a cause of it, came up while keyed state was at work, which may be left halfway."""
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
    """Return the exception in one line."""
    return "".join(traceback.format_exception_only(error)).splitlines()[0]


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it, with notes and causes, from the first line of the user's code on.

    An error that has a name of ours and comes from no code of the user's needs no traceback, and any other has all.
    """
    told = traceback.TracebackException.from_exception(error)
    links: list[traceback.TracebackException | None] = [told]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            _begin_with_the_user(link)
            links += [link.__cause__, link.__context__]
    return "".join(told.format())


def _begin_with_the_user(told: traceback.TracebackException) -> None:
    frames = list(told.stack)
    first = next((at for at, frame in enumerate(frames) if _is_users(frame.filename)), None)
    if first is not None:
        told.stack = traceback.StackSummary.from_list(frames[first:])
    elif next(told.format_exception_only()).startswith(_OUR_NAMES) and all(
        _is_ours(frame.filename) for frame in frames
    ):
        told.stack = traceback.StackSummary.from_list([])


def _is_ours(file: str) -> bool:
    return file.startswith(_OUR_FOLDERS)


def _is_users(file: str) -> bool:
    return not _is_ours(file) and not file.startswith((_LIBRARY, "<frozen")) and "site-packages" not in file
