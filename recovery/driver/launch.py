"""How the processes for a job's partitions come to be: the contract, and processes on this machine.

What always holds: as long as a launcher is not stopped, a process that ends, or cannot be started, is started again in
its slot; the run's secret is never on a command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from snapshot.host.messages import Address

_QUICK: Final = 1.0
"""A process that lived for less than so many seconds is started again only after a pause."""
_PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 5.0)


class CannotLaunch(Exception):
    """The job's processes cannot be started as things are; the message says what to change. Nothing was started."""


class Launcher(Protocol):
    """Starts processes that run `snapshot.host.worker`, and keeps so many of them running."""

    @property
    def host(self) -> str:
        """At which of the driver's addresses the processes reach it."""

    @property
    def local(self) -> str | None:
        """The folder for jobs' files, if the processes have one of their own; relative to their working directory."""

    def check(self, processes: int) -> Sequence[str]:
        """What is unwise, in sentences; `CannotLaunch` if so many processes cannot run."""

    def start(self, driver: Address, secret: bytes, processes: int, trouble: Callable[[str], object]) -> None:
        """Start them. `trouble` is told, in any thread, why a process could not be started or ended."""

    def release(self) -> None:
        """Start none again: they have been told to end. Returns at once, as `start` does."""

    def stop(self, seconds: float) -> None:
        """After `release`: wait so long for them to end by themselves, and then end those that have not."""


class LocalProcesses:
    """Processes on this machine, for tests, for trials, and for jobs that fit one machine."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

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
        with self._lock:
            return {slot: process.pid for slot, process in self._processes.items() if process.poll() is None}

    def check(self, processes: int) -> Sequence[str]:  # noqa: ARG002
        """Any number can run."""
        return ()

    def start(self, driver: Address, secret: bytes, processes: int, trouble: Callable[[str], object]) -> None:
        """See `Launcher.start`."""
        for slot in range(processes):
            thread = threading.Thread(
                target=self._keep_running, args=(driver, secret, slot, trouble), name=f"slot-{slot}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def release(self) -> None:
        """See `Launcher.release`."""
        self._stopping.set()

    def stop(self, seconds: float) -> None:
        """See `Launcher.stop`."""
        self.release()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            left = [process for process in self._processes.values() if process.poll() is None]
        for process in left:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _keep_running(self, driver: Address, secret: bytes, slot: int, trouble: Callable[[str], object]) -> None:
        quick_deaths = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                what = f"ended with {_ending(self._run(driver, secret, slot))}, and is started again"
            except (OSError, MemoryError, subprocess.SubprocessError) as error:  # such as too many processes
                what = f"cannot be started, which is tried again: {type(error).__name__}: {error}"
            if self._stopping.is_set():
                return
            quick_deaths = quick_deaths + 1 if time.monotonic() - began < _QUICK else 0
            trouble(f"the process in slot {slot} {what}")
            if quick_deaths:
                self._stopping.wait(_PAUSES[min(quick_deaths, len(_PAUSES)) - 1])

    def _run(self, driver: Address, secret: bytes, slot: int) -> int:
        process = subprocess.Popen(
            [sys.executable, "-m", "snapshot.host.worker", driver.host, str(driver.port), str(slot)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # a Ctrl-C is for the driver, which tells the others
        )
        with self._lock:
            self._processes[slot] = process
        try:
            process.communicate(secret.hex().encode() + b"\n")
        except OSError:
            process.wait()
        return process.returncode


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
