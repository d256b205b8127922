"""Processes on this machine, forked by a process that has loaded all that they need.

What always holds: the run's secret is never on a command line; that process may die, and is started again when it is
needed, and those that it has forked live on.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.driver.keeper import Keeper
from recovery.driver.slots import Launch
from snapshot.host.fork_server import Advice, Ended, Lines, Message, Ready, Started, Wanted
from snapshot.host.messages import Address
from snapshot.host.preload import loaded_modules
from snapshot.host.tls import Tls
from statebackend.child_python import command_of, environment

_LISTEN: Final = 30.0
_ANSWERS: Final = 20.0
"""A server that has said nothing for the one, and has not started a process for the other time, hangs. In seconds."""
_FAREWELL: Final = 5.0
_CODES: Final = 1_000
_LOOK: Final = 0.1


@dataclass(slots=True)
class _Running:
    launch: Launch
    pid: int = 0
    cancelled: bool = False


class LocalProcesses:
    """Processes on this machine, for tests, for trials, and for jobs that fit one machine."""

    def __init__(self) -> None:
        self._keeper: Keeper | None = None
        self._where: tuple[Address, str] | None = None
        self._tls: Sequence[str] = ()
        self._trouble: Callable[[str], object] = print
        self._changed = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._codes: dict[int, int] = {}
        self._server: _ForkServer | None = None
        self._stopped = False

    @property
    def host(self) -> str:
        """This machine only."""
        return "127.0.0.1"

    @property
    def local(self) -> str | None:
        """None of its own."""
        return None

    @property
    def pids(self) -> dict[int, int]:
        """The process that is running in each slot, for tests that kill it."""
        with self._changed:
            return {each.launch.slot: each.pid for each in self._running.values() if each.pid and not each.cancelled}

    @property
    def server_pid(self) -> int | None:
        """The process that forks the others, for tests that kill it."""
        server = self._server
        return None if server is None else server.process.pid

    def check(self, processes: int) -> Sequence[str]:  # noqa: ARG002
        """Any number can run."""
        return ()

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str], object],
        tls: Tls | None = None,
    ) -> None:
        """See `Launcher.start`."""
        self._where, self._trouble = (driver, secret.hex()), trouble
        self._tls = () if tls is None else tls.absolute().paths
        self._keeper = Keeper(self, processes, 0.0, trouble, "process")
        self._keeper.begin()

    def appeared(self, launch: int, worker: str) -> bool:
        """See `Launcher.appeared`."""
        return self._the_keeper.appeared(launch, worker)

    def lost(self, worker: str, *, silent: bool) -> None:
        """See `Launcher.lost`."""
        self._the_keeper.lost(worker, silent=silent)

    def exit_code(self, launch: int) -> int | None:
        """See `launch.TellsExitCodes`. The newest are kept."""
        with self._changed:
            return self._codes.get(launch)

    def release(self) -> None:
        """See `Launcher.release`."""
        if self._keeper is not None:
            self._keeper.release()

    def stop(self, seconds: float) -> None:
        """See `Launcher.stop`."""
        self.release()
        if self._keeper is not None:
            self._keeper.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, seconds)
            left = [each.launch.number for each in self._running.values()]
        for number in left:
            self.cancel(number)
        with self._changed:
            self._changed.wait_for(lambda: not self._running, _FAREWELL)
            server, self._server, self._stopped = self._server, None, True
        if server is not None:
            server.close()

    # --- what the keeper asks for -------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        """See `keeper.Launching`."""
        assert self._where is not None
        driver, secret = self._where
        with self._changed:
            self._running[launch.number] = _Running(launch)
        wanted = Wanted(launch.number, launch.slot, driver.host, driver.port, secret, self._tls)
        try:
            self._the_server().ask(wanted)
        except Exception:
            self._forget(launch.number)
            raise

    def cancel(self, number: int) -> None:
        """See `keeper.Launching`."""
        with self._changed:
            each = self._running.get(number)
            if each is not None:
                each.cancelled = True
                self._kill_if_cancelled(each)

    # --- what the server says -----------------------------------------------------------------------------------------

    def said(self, message: Started | Ended | Ready) -> None:
        """The server says this, in its thread."""
        match message:
            case Started(launch, pid, problem):
                if problem:
                    self._cannot_start(launch, problem)
                    return
                with self._changed:
                    each = self._running[launch]
                    each.pid = pid
                    self._kill_if_cancelled(each)
            case Ended(launch, code):
                with self._changed:
                    self._codes[launch] = code
                    self._codes.pop(launch - _CODES, None)
                self._ended(launch, f"ended with {_ending(code)}, and is started again")
            case Ready(threads):
                if threads != 1:
                    self._trouble(
                        f"processes start slowly, as they cannot be forked: something that Python loads at its start "
                        f"has {threads - 1} threads of its own"
                    )

    def server_ended(self, server: _ForkServer) -> None:
        """The server is gone, in its thread: its processes live on, and somebody has to see when they end."""
        with self._changed:
            self._server = None
            left = [self._running[launch] for launch in server.launches if launch in self._running]
        for each in left:
            if not each.pid:
                self._cannot_start(each.launch.number, "the process that forks the others has ended")
        if server.was_ready and not self._the_keeper.released:
            with suppress(Exception):  # what hinders it hinders the next launch too, and is told then
                self._the_server()  # or the next process would have to wait for it
        orphans = [each for each in left if each.pid]
        while orphans and not self._stopped:
            time.sleep(_LOOK)  # nothing tells of the end of somebody else's child
            for each in [each for each in orphans if not _is_alive(each.pid)]:
                orphans.remove(each)
                self._ended(each.launch.number, "ended, and is started again")

    def _cannot_start(self, number: int, why: str) -> None:
        self._ended(number, f"cannot be started, which is tried again: {why}")

    def _ended(self, number: int, how: str) -> None:
        each = self._forget(number)
        if each is not None:
            self._the_keeper.ended(each.launch, how)

    def _forget(self, number: int) -> _Running | None:
        with self._changed:
            self._changed.notify_all()
            return self._running.pop(number, None)

    def _kill_if_cancelled(self, each: _Running) -> None:
        if each.cancelled and each.pid:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)

    def _the_server(self) -> _ForkServer:
        """Start one if there is none."""
        with self._changed:
            if self._server is None and not self._stopped:
                self._server = _ForkServer(self)
            if self._server is None:
                raise OSError(errno.ESRCH, "the launcher is stopped")
            return self._server

    @property
    def _the_keeper(self) -> Keeper:
        assert self._keeper is not None, "the launcher is not started"
        return self._keeper


class _ForkServer:
    """A fork server, and the thread that hears what it says."""

    def __init__(self, owner: LocalProcesses) -> None:
        self._owner = owner
        self.launches: set[int] = set()
        self.was_ready = False
        self._asked: dict[int, float] = {}
        """What it has not answered yet, and since when."""
        ours, its = socket.socketpair()
        self._lines = Lines(ours)
        try:
            self.process = subprocess.Popen(
                command_of("snapshot.host.fork_server"),
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
        self._lines.send(Advice(tuple(loaded_modules())))

    def ask(self, wanted: Wanted) -> None:
        """Have a process started. If that fails, the server is as good as gone."""
        self._asked[wanted.launch] = time.monotonic()
        self.launches.add(wanted.launch)
        self._lines.send(wanted)

    def close(self) -> None:
        """End the server, whatever it is at; its processes live on."""
        self.process.kill()
        self._thread.join()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):  # it is gone
            while True:
                try:
                    for message in self._lines.receive():
                        self._heard(message)
                except TimeoutError:
                    if any(time.monotonic() - since > _ANSWERS for since in list(self._asked.values())):
                        break
        self._end()
        self._owner.server_ended(self)

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._lines.close()

    def _heard(self, message: Message) -> None:
        match message:
            case Started(launch):
                self._asked.pop(launch, None)
                self._owner.said(message)
            case Ended(launch):
                self._owner.said(message)
                self.launches.discard(launch)
            case Ready():
                self.was_ready = True
                self._owner.said(message)
            case Advice() | Wanted():
                raise TypeError("a fork server asks for nothing")


def _is_alive(pid: int) -> bool:
    """Not if it has ended, though nobody has asked for its exit code."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.parent.exists() or status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
