"""A process that has loaded what a partition's process needs, and forks one whenever it is asked to.

Invariant: it has one thread when it forks, or it starts a new process instead of forking; every process that it has
started is reported when it ends. It ends when the process that started it is gone, and its processes live on: they end
by themselves when their driver is gone.

    python -m snapshot.host.process.fork_server      with a socket as the standard input

One message is one line, and about one job; several jobs may use the server, in turn or at once. The first message of a
job is an `Advice`, which the server answers with `Ready`, all others are `Wanted`, which it answers with `Started` and,
some time, `Ended`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from snapshot.host.process.preload import preload, threads
from statebackend.child_python import command_of, environment, outlive_sigterm

_WORKER: Final = "snapshot.host.process.worker"
_READ: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Advice:
    """These modules will be needed, beside those that every partition's process needs."""

    modules: Sequence[str]
    job: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Start a process for this launch; it reaches the driver at this address. `secret` is in hexadecimal.

    `tls` are the certificate, the key and the authorities, if connections are encrypted.
    """

    launch: int
    slot: int
    host: str
    port: int
    secret: str
    tls: Sequence[str] = ()
    job: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """All is loaded; `threads` is 1, or processes cannot be forked and start slowly."""

    threads: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """There is a process for this launch, or there is none because of this `problem`."""

    launch: int
    pid: int = 0
    problem: str = ""
    job: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The process of this launch has ended; a negative code is a signal's number."""

    launch: int
    code: int
    job: int = 0


Message = Advice | Wanted | Ready | Started | Ended
_KINDS: Final = {kind.__name__: kind for kind in (Advice, Wanted, Ready, Started, Ended)}


class Lines:
    """Messages over a stream socket, which `close` closes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._incoming = b""

    def send(self, message: Message) -> None:
        """Send a message; raise `OSError` if the other side is gone."""
        self.sock.sendall(json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n")

    def receive(self) -> Iterator[Message]:
        """Wait for input and yield the messages that have come whole; raise `EOFError` if the other side is gone."""
        data = self.sock.recv(_READ)
        if not data:
            raise EOFError
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        for line in lines:
            kind, fields = json.loads(line)
            yield _KINDS[kind](**fields)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


class _Server:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._launches: dict[int, tuple[int, int]] = {}
        """Job and launch by process id; not the request, whose secret is for no process that is forked later."""
        self._loaded: set[str] | None = None
        self._selector = selectors.DefaultSelector()
        self._bell, ring = socket.socketpair()
        for end in (self._bell, ring):
            end.setblocking(False)
        self._ring = ring
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the other side is gone, which raises `EOFError` or `OSError`."""
        self._selector.register(self._lines.sock, selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._bell:
                    with suppress(BlockingIOError):
                        self._bell.recv(_READ)
                    self._report_ended()
                else:
                    for message in self._lines.receive():
                        self._told(message)

    def _told(self, message: Message) -> None:
        match message:
            case Advice(modules, job):
                if self._loaded is None or not self._loaded.issuperset(modules):
                    preload(modules)
                    self._loaded = {*(self._loaded or ()), *modules}
                self._lines.send(Ready(threads(), job))
            case Wanted():
                self._start(message)
            case Ready() | Started() | Ended():
                raise TypeError("a fork server is not told what it has done")

    def _start(self, wanted: Wanted) -> None:
        try:
            pid = _spawn(wanted) if threads() != 1 else os.fork()
        except (OSError, MemoryError) as error:  # such as too many processes
            self._lines.send(Started(wanted.launch, problem=f"{type(error).__name__}: {error}", job=wanted.job))
            return
        if pid == 0:
            self._be_a_worker(wanted)
        self._launches[pid] = wanted.job, wanted.launch
        self._lines.send(Started(wanted.launch, pid, job=wanted.job))

    def _report_ended(self) -> None:
        for pid, (job, launch) in list(self._launches.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._launches[pid]
                self._lines.send(Ended(launch, os.waitstatus_to_exitcode(status), job))

    def _be_a_worker(self, wanted: Wanted) -> NoReturn:
        """Run the worker in the new process, which keeps only what is loaded, and exit as any other process does."""
        try:
            os.setsid()  # a Ctrl-C is for the driver, which tells the others
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for sock in (self._lines.sock, self._bell, self._ring):
                sock.close()
            code = import_module(_WORKER).main(_arguments(wanted), lambda: wanted.secret)
        except BaseException:
            traceback.print_exc()
            code = 1
        raise SystemExit(code)


def _arguments(wanted: Wanted) -> list[str]:
    return [wanted.host, str(wanted.port), str(wanted.slot), str(wanted.launch), *wanted.tls]


def _spawn(wanted: Wanted) -> int:
    """Start a new process instead of a fork, which might find locks held for ever by a thread that was started here."""
    reading, writing = os.pipe()
    try:
        os.write(writing, wanted.secret.encode() + b"\n")
        return os.posix_spawn(
            sys.executable,
            command_of(_WORKER, _arguments(wanted)),
            environment(),
            file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
            setsid=True,
        )
    finally:
        os.close(reading)
        os.close(writing)


def main() -> int:
    """Run the fork server's command, and return its exit code."""
    outlive_sigterm()
    lines = Lines(socket.socket(fileno=os.dup(0)))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)  # which its processes inherit
    with suppress(EOFError, OSError):  # nobody is there any more
        _Server(lines).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
