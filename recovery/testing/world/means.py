"""The means of the simulated world: what `statebackend.means` names, for the threads of one `World`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from recovery.testing.world.kernel import SimProcess, World
from recovery.testing.world.network import Network
from recovery.testing.world.sockets import SimSelector, SimSocket, socketpair
from recovery.testing.world.threads import SimCondition, SimEvent, SimLock, SimQueue, SimRLock, SimThread
from statebackend import means

MAIN = 1
"""The number of the thread outside of all simulated ones."""

_MEMORY = 1 << 20


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return what tells a file from all others; None if the descriptor is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Maker:
    """Makes objects of a simulated class; its type arguments, as of `SimpleQueue[int]`, say nothing here."""

    def __init__(self, make: Callable[..., Any], *first: object) -> None:
        self._make = make
        self._first = first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._make(*self._first, *args, **kwargs)

    def __getitem__(self, _: object) -> _Maker:
        return self


class SimMeans:
    """See `statebackend.means`. Random names are drawn for each process from its own name."""

    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._locks: dict[tuple[int, int] | None, tuple[SimProcess, int]] = {}
        self._locked: list[tuple[tuple[int, int] | None, int]] = []
        """All that was ever locked."""
        self.own_disks = False
        """True if each machine has a disk of its own, and not all of them one together."""
        self.disk: Callable[[str], object] = lambda _: None
        """Called in the thread that is about to do this on the local disk."""
        self.Thread = _Maker(SimThread, world)
        self.Lock = _Maker(SimLock, world)
        self.RLock = _Maker(SimRLock, world)
        self.Condition = _Maker(SimCondition, world)
        self.Event = _Maker(SimEvent, world)
        self.SimpleQueue = _Maker(SimQueue, world)
        self.Queue = _Maker(SimQueue, world)
        self.selector = _Maker(SimSelector, world)
        self.socket = _Maker(SimSocket, network)
        self.socketpair = _Maker(socketpair, network)

    # --- clocks -------------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return the time of the process's steady clock."""
        return self._world.steady()

    def wall(self) -> float:
        """Return the process's time of day in seconds since 1970."""
        self._world.check()
        self._world.glance()
        return self._world.process.wall()

    def wall_ns(self) -> int:
        """Return the process's time of day in nanoseconds since 1970."""
        return int(self.wall() * 1e9)

    def process_time(self) -> float:
        """Return the seconds that the process has computed: none, as far as it knows."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Let so much time pass, and at least let the others run."""
        self._world.park(seconds)

    # --- names and chance ---------------------------------------------------------------------------------------------

    def token_bytes(self, size: int = 32) -> bytes:
        """Return so many bytes that no one guesses, but who knows the process's name."""
        return self._world.process.random.randbytes(size)

    def token_hex(self, size: int = 32) -> str:
        """Return so many bytes in hexadecimal."""
        return self.token_bytes(size).hex()

    def randbits(self, bits: int) -> int:
        """Return a number of so many bits."""
        return self._world.process.random.getrandbits(bits)

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return self._world.process.random.random()

    # --- processes ----------------------------------------------------------------------------------------------------

    def getpid(self) -> int:
        """Return the number of the process."""
        return self._world.process.pid

    def getppid(self) -> int:
        """Return the number of the first process: it has started all others."""
        return 1

    def flock(self, descriptor: int, operation: int) -> None:
        """Lock a file of the local disk as the kernel does: until the descriptor is closed, or its process is gone."""
        file = _file_of(descriptor)
        holder, held = self._locks.get(file, (None, -1))
        if holder is not None and not holder.alive and _file_of(held) == file:
            fcntl.flock(held, fcntl.LOCK_UN)  # which the kernel does at the end of a process
        fcntl.flock(descriptor, operation)
        self._locks[file] = self._world.process, descriptor
        self._locked.append((file, descriptor))

    def close(self) -> None:
        """Close locked files that processes which have crashed left open; to be called when the history is over."""
        for file, descriptor in self._locked:
            if file is not None and _file_of(descriptor) == file:
                os.close(descriptor)

    def use_disk(self, action: str) -> None:
        """Ask the world's disk, which may raise an `OSError`, or let time pass."""
        self.disk(action)

    def own_disk(self, folder: Path) -> Path:
        """Return where the folder is on the disk of the process's machine."""
        return self.disk_of(self._world.process, folder)

    def disk_of(self, process: SimProcess, folder: Path) -> Path:
        """Return where the folder is on the disk of a process's machine."""
        return folder / process.host if self.own_disks else folder

    def process_state(self) -> dict[object, object]:
        """Return what the process has once."""
        return self._world.process.local

    def memory_of_process(self) -> int:
        """Return the bytes that the process holds, which are the same for all."""
        return _MEMORY

    def get_ident(self) -> int:
        """Return the number of the thread."""
        return MAIN if self._world.current is None else self._world.current.ident

    get_native_id = get_ident

    def getpriority(self, _which: int, _who: int) -> int:
        """Return the usual one: all threads are equally important."""
        return 0

    def setpriority(self, _which: int, _who: int, _priority: int) -> None:
        """Do nothing: all threads are equally important."""

    def gethostname(self) -> str:
        """Return the address of the process's machine."""
        return self._world.process.host

    def exit_process(self, code: int) -> None:
        """End the process at once."""
        self._world.end(self._world.process, code)

    def kill(self, pid: int, signal: int) -> None:
        """End the process with this number, whatever the signal; with signal 0 see whether it is there."""
        found = next((process for process in self._world.processes if process.pid == pid and process.alive), None)
        if found is None:
            raise ProcessLookupError(pid)
        if signal:
            self._world.end(found, -signal)


class _MakerHere:
    """Makes simulated objects in one real thread, and real ones in all others."""

    def __init__(self, simulated: _Maker, real: Any) -> None:
        self._simulated, self._real = simulated, real
        self._thread = get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._simulated if get_ident() == self._thread else self._real)(*args, **kwargs)

    def __getitem__(self, _: object) -> _MakerHere:
        return self


def _here(simulated: Any, real: Any) -> Any:
    """Return the simulated one in this thread, and the real one in all others."""
    if isinstance(simulated, _Maker):
        return _MakerHere(simulated, real)
    thread = get_ident()

    def chosen(*args: Any) -> Any:
        return simulated(*args) if get_ident() == thread else real(*args)

    return chosen


def of_this_thread(simulated: SimMeans) -> SimpleNamespace:
    """Return the simulated means, for this thread alone: those of jobs that still end elsewhere keep the real ones."""
    return SimpleNamespace(**{name: _here(getattr(simulated, name), getattr(means, name)) for name in means.NAMES})
