"""Talking to a job that runs in another process of this host: how it stands, what happens in it, and what it is to do.

Invariant: only who may read the driver's file gets in; everything that is asked is answered, or an exception
says why it was not. A job that ends, or whose driver dies, ends the connection and nothing else.
"""

from __future__ import annotations

import getpass
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar, cast

import pyarrow as pa
import pyarrow.ipc as ipc

from recovery.driver.remote.command_messages import (
    Answered,
    AnyCommand,
    Asked,
    CancelJob,
    Command,
    Declined,
    DrainJob,
    FollowEvents,
    FromDriver,
    InjectFault,
    ReadLive,
    ShowStatus,
    StopJob,
    TakeSavepoint,
    Told,
)
from recovery.driver.report.event_log import KEPT
from recovery.driver.report.status import RunStatus
from recovery.driver.tree.address import FILE, DriverSilent, JobNotRunning, NotAllowed, Reach, home_of, read, read_for
from recovery.driver.tree.identity import find_birth
from recovery.events import AnyEvent, Finished, GaveUp, Stopped
from recovery.inject.report import Injected
from recovery.inject.targets import Order
from snapshot.host.net.connection_kinds import CommandOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.tls import TlsRefused, UnusableTls
from statebackend.errors import JobError
from statebackend.ids import Epoch, Partition, Uid
from statebackend.stores.limited_store import find_limited

_PATIENCE: Final = 10.0

Answer = TypeVar("Answer")


class CommandDeclined(JobError):
    """The job cannot do what was asked; the message is its reason."""


class ConnectionLost(JobError):
    """The job's driver has ended, or is gone, or does not answer; the message says what is known."""


@dataclass(frozen=True, slots=True)
class LiveState:
    """The content of a process's states for a key when it was asked: a table of canonical rows for each state."""

    uid: str
    partition: Partition
    tables: Mapping[str, pa.Table]


class Attached:
    """A job that runs elsewhere. One thread uses it; as a context manager it is closed at the end of the block."""

    def __init__(self, folder: Path, reach: Reach, timeout: float) -> None:
        self.folder = folder
        self.job = reach.job
        self.pid = reach.pid
        self._timeout = timeout
        self._loop = EventLoop()
        self._proved: Proved | None = None
        self._lost = ""
        self._last = 0
        self._answers: dict[int, Answered | Declined] = {}
        self._events: deque[AnyEvent] = deque(maxlen=KEPT)
        self._unread: deque[AnyEvent] = deque()
        self._following = False
        self._over: AnyEvent | None = None
        self._connection: ControlConnection[Asked, FromDriver] | None = None
        try:
            self._connect(reach)
        except BaseException:
            self._loop.close()
            raise

    def status(self) -> RunStatus:
        """Return the current status of the job."""
        return self.ask(ShowStatus())

    def inject(self, order: Order) -> Injected:
        """Cause a fault now, and return which process it hit, and when. `CommandDeclined` if it cannot happen."""
        return self.ask(InjectFault(order))

    def read(self, uid: str, key: str, state: str | None = None) -> LiveState:
        """Return the current state of a key, as its operator would find it: not from an epoch, so it may be undone.

        `key` is what a user would type: text, a number, hex digits for bytes, a JSON list. `CommandDeclined` if there
        is no such operator, state or key, or if its partition is just going back to an epoch.
        """
        found = self.ask(ReadLive(Uid(uid), key, state))
        tables = {name: ipc.open_stream(data).read_all() for name, data in found.tables}
        return LiveState(uid, found.partition, tables)

    def savepoint(self, timeout: float | None = None) -> Epoch:
        """Take a savepoint while the job runs; it is complete and pinned when this returns.

        `CommandDeclined` if the job is over first. If `timeout` passes first, the savepoint may still be taken.
        """
        return self.ask(TakeSavepoint(), timeout)

    def stop(self, *, savepoint: bool = False, timeout: float | None = None) -> Epoch | None:
        """Stop the job after one more epoch, which is complete and committed when this returns.

        With `savepoint` the epoch is pinned, and returned. `ConnectionLost` if the job fails before that, if another
        caller cancels it, or if it finishes, or another caller stops it, without the savepoint. It is also raised if
        `timeout` seconds pass first; the job goes on stopping then.
        """
        over = self._end(StopJob(savepoint), timeout)
        if isinstance(over, Stopped) and over.cancelled:
            raise ConnectionLost(f"job {self.job} was cancelled by another caller before it had stopped")
        epoch = over.savepoint if isinstance(over, Stopped) else None
        if savepoint and epoch is None:
            how = "had finished" if isinstance(over, Finished) else "was stopped by another caller"
            raise ConnectionLost(f"job {self.job} {how} before a savepoint was taken")
        return epoch

    def drain(self) -> None:
        """End all sources where they are, and wait until the job has done all that follows from it and is over.

        `ConnectionLost` if the job fails before that, or if another caller stops or cancels it.
        """
        over = self._end(DrainJob())
        if isinstance(over, Stopped):
            how = "cancelled" if over.cancelled else "stopped"
            raise ConnectionLost(f"job {self.job} was {how} by another caller before it was drained")

    def cancel(self) -> None:
        """End the job at once; started again, it goes on from its last complete epoch."""
        self._end(CancelJob())

    def _end(self, command: Command[None], timeout: float | None = None) -> AnyEvent | None:
        """Give a command that ends the job, and return how it ended; `ConnectionLost` if it failed, or takes longer."""
        self.follow()
        self.ask(command)
        self._wait_for_end(timeout)
        if isinstance(self._over, GaveUp):
            raise ConnectionLost(f"job {self.job} failed before it had stopped: {self._over.reason}")
        return self._over

    def _wait_for_end(self, timeout: float | None) -> None:
        """Wait until the driver has told how the job ended; `ConnectionLost` if it has not."""

        def ended() -> bool:
            self._unread.clear()  # else they are kept for as long as the job takes
            return bool(self._lost)

        if not self._loop.run(ended, timeout):
            raise ConnectionLost(f"job {self.job} has not ended in {timeout:g} s; it was told to, and still may")
        if self._over is None:
            raise ConnectionLost(self._lost)

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """Return the newest ten thousand events that have come since `follow`, oldest first."""
        return tuple(self._events)

    def follow(self) -> Iterator[AnyEvent]:
        """Begin to receive events, unless that was done before; return an iterator over them.

        It yields each event that `next_event` has not returned, as it happens, until the job ends; `ConnectionLost` if
        the driver died.
        """
        if not self._following:
            self.ask(FollowEvents())
            self._following = True
        return self._each_event()

    def next_event(self, timeout: float | None = None) -> AnyEvent | None:
        """Return the next event since `follow`; None after `timeout` seconds, `ConnectionLost` after the last one."""
        self.follow()
        self._loop.run(lambda: bool(self._unread or self._lost), timeout)
        if self._unread:
            return self._unread.popleft()
        if self._lost:
            raise ConnectionLost(self._lost)
        return None

    def _each_event(self) -> Iterator[AnyEvent]:
        while True:
            try:
                event = self.next_event()
            except ConnectionLost:
                if self._over is None:
                    raise
                return
            if event is not None:
                yield event

    def ask(self, command: Command[Answer], timeout: float | None = 0.0) -> Answer:
        """Send a command, and return its answer. `CommandDeclined` or `ConnectionLost` if there is none.

        The answer may take `timeout` seconds, or for ever if that is None; by default, the `timeout` of `attach`.
        """
        seconds = self._timeout if timeout == 0.0 else timeout
        if self._connection is None or self._lost:
            raise ConnectionLost(self._lost or "it is closed")
        self._last += 1
        number = self._last
        self._connection.send(Asked(number, cast("AnyCommand", command)))
        if not self._loop.run(lambda: number in self._answers or bool(self._lost), seconds):
            raise ConnectionLost(f"the driver of {self.job} (process {self.pid}) gave no answer in {seconds:g} s")
        match self._answers.pop(number, None):
            case Answered(_, answer):
                return cast("Answer", answer)
            case Declined(_, reason):
                raise CommandDeclined(reason)
            case None:
                raise ConnectionLost(self._lost)

    def close(self) -> None:
        """Close the connection; the job runs on. May be called twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._loop.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, reach: Reach) -> None:
        def connected(proved: Proved) -> None:
            self._proved = proved

        def failed(reason: str) -> None:
            self._lost = reason

        purpose = CommandOf(f"{_user()} (process {os.getpid()})")
        if not _is_alive(reach.pid):
            raise JobNotRunning(_gone(self.folder, reach, "there is no such process any more"))
        try:
            tls = None if reach.tls is None else reach.tls.load()
        except UnusableTls as error:
            raise NotAllowed(f"the connections of job {reach.job} are encrypted, and {error}") from error
        connecting = Connector(
            self._loop, reach.address, reach.secret, purpose, connected, failed, seconds=self._timeout, tls=tls
        )
        try:
            self._loop.run(lambda: self._proved is not None or bool(self._lost))
        finally:
            connecting.cancel()
        if self._proved is None:
            if TlsRefused.__name__ in self._lost:
                raise NotAllowed(self._lost)
            if "secret" in self._lost:
                raise NotAllowed(f"{self._lost}: the process that listens there is not the driver that wrote {FILE}")
            if "does not answer" in self._lost:
                raise DriverSilent(
                    f"the driver of job {reach.job} (process {reach.pid}) is there and does not answer; {self._lost}"
                )
            raise JobNotRunning(_gone(self.folder, reach, self._lost))
        self._connection = ControlConnection(self._loop, self._proved, self._heard, self._closed)

    def _heard(self, message: FromDriver) -> None:
        match message:
            case Told(event):
                self._events.append(event)
                self._unread.append(event)
                if isinstance(event, Finished | Stopped | GaveUp):
                    self._over = event
            case Answered() | Declined():
                self._answers[message.number] = message

    def _closed(self, reason: str) -> None:
        over = "" if self._over is None else ": the job is over"
        self._lost = f"the driver of {self.job} (process {self.pid}) has ended{over}; {reason}"


def attach(
    checkpoints: str | Path | None = None, *, job_folder: str | Path | None = None, timeout: float = _PATIENCE
) -> Attached:
    """Connect to the job of this host that has its tree at `checkpoints`, or its files in `job_folder`.

    `checkpoints` is a folder or URI. `job_folder` is the option `local` of `recovery.run`, and is needed only if that
    was given. With both, the job in that folder has to be the one of the checkpoints. A copy of a tree never leads to
    the job that it was copied from. A request may take `timeout` seconds, unless it has a timeout of its own.

    `JobNotRunning` if there is no such job, or it does not run (`DriverSilent` if its process is there); `NotAllowed`
    if this user may not speak to it; `WrongJob` if there is no job at the checkpoints; errors of the store, which is
    only read.
    """
    if checkpoints is not None:
        uri = str(checkpoints)
        folder = Path(job_folder) if job_folder else home_of(find_birth(find_limited(uri, timeout), uri).job)
        return Attached(folder, read_for(folder, uri), timeout)
    if job_folder is None:
        raise ValueError("which job? give its checkpoints, or the folder for its files")
    folder = Path(job_folder)
    return Attached(folder, read(folder), timeout)


def _gone(folder: Path, reach: Reach, why: str) -> str:
    return (
        f"job {reach.job} does not run on this host: the driver (process {reach.pid}) that left {folder / FILE} is "
        f"gone; {why}"
    )


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "somebody"
