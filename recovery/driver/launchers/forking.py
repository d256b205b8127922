"""The fork server of a driver's process: one for all jobs that the process runs, one after the other or at once.

Invariant: a job shares a fork server only while one that was started now would be no other, with the same environment,
folder, outputs, limits and signals; else it has a new one. The server has loaded our modules and none of a program's,
so that a program may change between two jobs.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from snapshot.host.process.fork_server import Advice, Ended, Lines, Message, Ready, Started, Wanted
from snapshot.host.process.preload import loaded_modules
from statebackend.child_python import command_of, environment

_LISTEN: Final = 5.0
_ANSWERS: Final = 20.0
"""A server that has said nothing for the one, and has not started a process for the other time, hangs. In seconds."""
_IDLE: Final = 60.0
"""Seconds that the server stays, at least, when there is no job."""
_LOOK: Final = 0.1
_FAREWELL: Final = 1.0
_CURRENT_TEST: Final = "PYTEST_CURRENT_TEST"
"""The variable that pytest changes for each test; with it, no two tests would share a server."""
_PROCESS: Final = Path("/proc/thread-self")
_INHERITED: Final = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs",
                     "Seccomp", "Cpus_allowed", "Mems_allowed")  # fmt: skip


class Owner(Protocol):
    """A job whose processes are forked."""

    def said(self, message: Started | Ended | Ready) -> None:
        """Take what the server says, in its thread."""

    def server_ended(self, server: Share) -> Callable[[], bool]:
        """Take note that the server is gone, in its thread; the processes that it has forked live on.

        Return, at once, a function that looks after them, to be called now and then until it returns False.
        """


def share(owner: Owner) -> Share:
    """Return a job's share of this process's fork server, which is started if there is none that fits."""
    return _KEPT.share(owner)


class Share:
    """One job's part of a fork server, and the launches that it has asked for."""

    def __init__(self, server: _ForkServer, owner: Owner) -> None:
        self._server = server
        self.owner: Final = owner
        self.job: Final = next(_JOBS)
        self.launches: set[int] = set()
        self.was_ready = False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the server's process."""
        return self._server.process

    def ask(self, wanted: Wanted) -> None:
        """Have a process started. If that fails, the server is as good as gone."""
        self.launches.add(wanted.launch)
        self._server.ask(replace(wanted, job=self.job))

    def leave(self) -> None:
        """Hear no more of the server, which other jobs may use."""
        _KEPT.leave(self._server, self)


class _Kept:
    """The fork server that the next job of this process uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: _ForkServer | None = None
        self._living: set[_ForkServer] = set()
        self._not_ours: list[_ForkServer] = []
        """Never let go of, as Python would warn of a process that nobody waits for."""

    def share(self, owner: Owner) -> Share:
        surroundings = _surroundings()
        with self._lock:
            server = self._server
            if server is None or server.is_over or surroundings is None or server.surroundings != surroundings:
                if server is not None and not server.shares:
                    server.kill()
                self._server = server = _ForkServer(surroundings)
                self._living.add(server)
                if _surroundings() != surroundings:  # another thread has changed them meanwhile
                    server.surroundings = None
            made = Share(server, owner)
            server.shares[made.job] = made
        try:
            server.advise(made)
        except BaseException:
            self.leave(server, made)
            raise
        return made

    def leave(self, server: _ForkServer, left: Share) -> None:
        with self._lock:
            server.shares.pop(left.job, None)
            server.left_at = time.monotonic()
            if not server.shares and server is not self._server:
                server.kill()

    def is_over(self, server: _ForkServer, *, if_idle: bool) -> bool:
        """End the sharing of a server, of one that works only if nobody has used it for long."""
        with self._lock:
            if if_idle and (server.shares or time.monotonic() - server.left_at < _IDLE):
                return False
            server.is_over = True
            self._living.discard(server)
            return True

    def close(self) -> None:
        """End the server as the program ends, and its jobs with it: they are not told, or would start another one."""
        with self._lock:
            server, self._server = self._server, None
            if server is not None:
                server.shares.clear()
        if server is not None:
            server.close()

    def forget(self) -> None:
        """Begin anew in a process that was forked from the one whose server it is."""
        self._lock = threading.Lock()
        for server in self._living:
            server.lines.close()
        self._not_ours += self._living
        self._living, self._server = set(), None


_KEPT: Final = _Kept()
_JOBS: Final = count(1)
os.register_at_fork(after_in_child=_KEPT.forget)
atexit.register(_KEPT.close)


class _ForkServer:
    """A fork server, and the thread that hears what it says."""

    def __init__(self, surroundings: Hashable) -> None:
        self.surroundings = surroundings
        self.shares: dict[int, Share] = {}
        """By the numbers of their jobs."""
        self.left_at = time.monotonic()
        self.is_over = False
        self._asked: dict[tuple[int, int], float] = {}
        """The requests that it has not answered yet, with their times."""
        self._sending = threading.Lock()
        ours, its = socket.socketpair()
        self.lines = Lines(ours)
        try:
            self.process = subprocess.Popen(
                command_of("snapshot.host.process.fork_server"),
                stdin=its.fileno(),
                env=environment(),
                start_new_session=True,  # a Ctrl-C is for the driver, which tells the others
            )
        except BaseException:
            ours.close()
            raise
        finally:
            its.close()
        ours.settimeout(_LISTEN)
        self._thread = threading.Thread(target=self._listen, name="fork-server", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # too many threads
            self._end()
            raise

    def advise(self, share: Share) -> None:
        """Have the modules loaded that this job needs."""
        self._send(Advice(loaded_modules(), share.job))

    def ask(self, wanted: Wanted) -> None:
        """Have a process started."""
        self._asked[wanted.job, wanted.launch] = time.monotonic()
        self._send(wanted)

    def close(self) -> None:
        """End the server, whatever it is at; its processes live on."""
        self.kill()
        self._thread.join(_FAREWELL)

    def kill(self) -> None:
        """End the server; one that is another user's by now ends by itself as nobody is there any more."""
        try:
            self.process.kill()
        except PermissionError:
            with suppress(OSError):
                self.lines.sock.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Message) -> None:
        with self._sending:  # jobs do it in threads of their own
            self.lines.send(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):  # it is gone
            while True:
                try:
                    for message in self.lines.receive():
                        self._heard(message)
                except TimeoutError:
                    if any(time.monotonic() - since > _ANSWERS for since in list(self._asked.values())):
                        break
                    if _KEPT.is_over(self, if_idle=True):
                        break
        _KEPT.is_over(self, if_idle=False)
        self._end()
        looks = [share.owner.server_ended(share) for share in list(self.shares.values())]
        while looks := [look for look in looks if look()]:
            time.sleep(_LOOK)  # nothing tells of the end of somebody else's child

    def _end(self) -> None:
        self.kill()
        self.process.wait()
        self.lines.close()

    def _heard(self, message: Message) -> None:
        if isinstance(message, Advice | Wanted):
            raise TypeError("a fork server asks for nothing")
        if isinstance(message, Started):
            self._asked.pop((message.job, message.launch), None)
        share = self.shares.get(message.job)
        if share is None:
            return  # the job is over
        share.was_ready |= isinstance(message, Ready)
        share.owner.said(message)
        if isinstance(message, Ended):
            share.launches.discard(message.launch)


def _surroundings() -> Hashable:
    """Return what a process that is started now has from this one; None where that cannot be told."""
    try:
        lines = (_PROCESS / "status").read_text("latin-1").split("\n")  # with a name that may be no text
        limits, group = (_PROCESS / "limits").read_bytes(), (_PROCESS / "cgroup").read_bytes()
    except OSError:
        return None
    variables = tuple(sorted((name, value) for name, value in environment().items() if name != _CURRENT_TEST))
    inherited = tuple(line for line in lines if line.partition(":")[0] in _INHERITED)
    folder = Path().stat()
    places = (folder.st_dev, folder.st_ino), _opened(1), _opened(2)
    return sys.executable, variables, inherited, limits, group, os.getpriority(os.PRIO_PROCESS, 0), places


def _opened(descriptor: int) -> Hashable:
    """Return which file a descriptor is of; None if it is closed."""
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino
