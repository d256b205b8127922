"""Processes on this machine, forked by a process that has loaded all that they need.

Invariant: the run's secret is never on a command line; that process may die, and is started again when it is
needed, and those that it has forked live on.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from recovery.driver.launchers.forking import Share, share
from recovery.driver.launchers.launch_rules import Launch
from recovery.driver.launchers.supervisor import Keeper
from snapshot.host.net.tls import Tls
from snapshot.host.process.fork_server import Ended, Ready, Started, Wanted
from snapshot.host.protocol.messages import Address

_FAREWELL: Final = 5.0
_CODES: Final = 1_000


@dataclass(slots=True)
class _Running:
    launch: Launch
    pid: int = 0
    cancelled: bool = False


class LocalProcesses:
    """Processes on this machine, for tests, for trials, and for jobs that fit one machine.

    They are forked from one that has loaded everything. It serves all jobs of this process, and ends when there was no
    job for a minute.
    """

    def __init__(self) -> None:
        self._keeper: Keeper | None = None
        self._where: tuple[Address, str] | None = None
        self._tls: Sequence[str] = ()
        self._trouble: Callable[[str], object] = print
        self._changed = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._codes: dict[int, int] = {}
        self._server: Share | None = None
        self._stopped = False

    @property
    def host(self) -> str:
        """Return the address at which only this machine reaches the driver."""
        return "127.0.0.1"

    @property
    def local(self) -> str | None:
        """Return None: the processes have no folder of their own."""
        return None

    @property
    def pids(self) -> dict[int, int]:
        """Return the process that is running in each slot, for tests that kill it."""
        with self._changed:
            return {each.launch.slot: each.pid for each in self._running.values() if each.pid and not each.cancelled}

    @property
    def server_pid(self) -> int | None:
        """Return the process that forks the others, for tests that kill it."""
        server = self._server
        return None if server is None else server.process.pid

    def check(self, processes: int) -> Sequence[str]:  # noqa: ARG002
        """Return nothing, as any number of processes can run."""
        return ()

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str], object],
        tls: Tls | None = None,
    ) -> None:
        """Begin to fork so many processes from a server, and to replace those that end."""
        self._where, self._trouble = (driver, secret.hex()), trouble
        self._tls = () if tls is None else tls.absolute().paths
        self._keeper = Keeper(self, processes, 0.0, trouble, "process")
        self._keeper.begin()

    def appeared(self, launch: int, worker: str) -> bool:
        """Count the process of this launch; return False if it is one too many."""
        return self._the_keeper.appeared(launch, worker)

    def lost(self, worker: str, *, silent: bool) -> None:
        """Have another process forked for a lost one."""
        self._the_keeper.lost(worker, silent=silent)

    def exit_code(self, launch: int) -> int | None:
        """Return the exit code that the fork server has told, of the newest launches only."""
        with self._changed:
            return self._codes.get(launch)

    def release(self) -> None:
        """Have no process forked any more."""
        if self._keeper is not None:
            self._keeper.release()

    def stop(self, seconds: float) -> None:
        """Wait so long for the processes to end, kill those that have not, and leave the fork server to later jobs."""
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
            server.leave()

    # --- what the keeper asks for -------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        """Ask the fork server for a process, and start the server first if there is none."""
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
        """Kill the process of this launch, as soon as there is one."""
        with self._changed:
            each = self._running.get(number)
            if each is not None:
                each.cancelled = True
                self._kill_if_cancelled(each)

    # --- what the server says -----------------------------------------------------------------------------------------

    def said(self, message: Started | Ended | Ready) -> None:
        """Take a message of the server, in its thread."""
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

    def server_ended(self, server: Share) -> Callable[[], bool]:
        """Return a look at the processes that the server, now gone, has forked; runs in the server's thread.

        They live on, and nothing else tells of their end.
        """
        with self._changed:
            if self._server is server:
                self._server = None
            # The keeper's thread may just be adding a launch; it fails there, as the server's socket is closed.
            left = [self._running[launch] for launch in list(server.launches) if launch in self._running]
        for each in left:
            if not each.pid:
                self._cannot_start(each.launch.number, "the process that forks the others has ended")
        if server.was_ready and not self._the_keeper.released:
            with suppress(Exception):  # what hinders it hinders the next launch too, and is told then
                self._the_server()  # or the next process would have to wait for it
        orphans = [each for each in left if each.pid]
        return partial(self._look_after, orphans)

    def _look_after(self, orphans: list[_Running]) -> bool:
        for each in [each for each in orphans if not _is_alive(each.pid)]:
            orphans.remove(each)
            self._ended(each.launch.number, "ended, and is started again")
        return bool(orphans) and not self._stopped

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

    def _the_server(self) -> Share:
        """Return this job's share of the server, and start one if there is none."""
        with self._changed:
            if self._server is None and not self._stopped:
                self._server = share(self)
            if self._server is None:
                raise OSError(errno.ESRCH, "the launcher is stopped")
            return self._server

    @property
    def _the_keeper(self) -> Keeper:
        assert self._keeper is not None, "the launcher is not started"
        return self._keeper


def _is_alive(pid: int) -> bool:
    """True if the process has not ended; one whose exit code is still to be asked for has."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.parent.exists() or status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
