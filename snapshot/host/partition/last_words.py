"""The last words of a process, over a connection that outlives it: they are read when the process is gone.

Invariant: nothing is ever sent to the process on it, so what was written last arrives, however it ends. A crash can
seal nothing, so without TLS an attacker on the path can change it, and have a wrong call blamed for deaths. Python
itself writes where it is when it crashes (`faulthandler`), but not through TLS, which a crash cannot speak: then that
is on the standard error. What a stage is at is written before each call, if its process is asked to: that takes as long
as the call itself may, so only those are asked whose predecessors died.
"""

from __future__ import annotations

import faulthandler
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import EVENT_WRITE
from typing import Final

import pyarrow as pa

from snapshot.host.net.event_loop import EventLoop, KeepingSocket, Watch
from snapshot.host.protocol.messages import AtWork
from snapshot.operators.row_class import shown, values_of
from snapshot.operators.rows import Rows
from statebackend import means
from statebackend.ids import Uid

_PATIENCE: Final = 5.0
"""Seconds for which a driver may not read; then nothing more is written."""
_KEPT: Final = 64 << 10
"""The last bytes hold the last call and the stack of a crash."""
_COUNTED: Final = 250_000
"""So many different calls are told apart by how often they came; what comes then is never the same as another."""
_STDERR: Final = 2
_NOISE: Final = "Extension modules:"


class LastWords:
    """The end of the process. In its own thread: the one that runs the functions."""

    def __init__(self) -> None:
        self._sock: means.socket | None = None
        self._of_crashes = False

    def connected(self, sock: means.socket) -> None:
        """Send all that is said to `sock` from now on; a crash as well, unless it is written elsewhere already."""
        self.close()
        self._sock = sock
        if not faulthandler.is_enabled():
            self._of_crashes = True
            faulthandler.enable(_STDERR if isinstance(sock, KeepingSocket) else sock.fileno(), all_threads=False)

    def say(self, at_work: AtWork | None) -> None:
        """Say that this call is about to be made, or with None has returned; do nothing without a connection."""
        said = {} if at_work is None else {"uid": at_work.uid, "what": at_work.what, "nth": at_work.nth}
        data = memoryview(json.dumps(said).encode() + b"\n")
        while self._sock is not None and data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                self._wait_for_room(self._sock)
            except OSError:
                self.close()
        while isinstance(self._sock, KeepingSocket) and self._sock.unsent:
            self._wait_for_room(self._sock)
            if self._sock is not None:
                self._sock.push()

    def close(self) -> None:
        """Say nothing more; may be called twice."""
        if self._of_crashes:
            faulthandler.disable()  # or a crash would be written into whatever has the same number by then
            self._of_crashes = False
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _wait_for_room(self, sock: means.socket) -> None:
        with means.selector() as selector:
            selector.register(sock, EVENT_WRITE)
            room = selector.select(_PATIENCE)
        if not room:
            self.close()


class Notes:
    """Say what one stage is at before each call of its functions.

    Rows come one by one, so that each can be named; but in `batches` if one of its functions is called for these: it
    would take as long for a row as for a batch, and may need them as they are.
    """

    def __init__(self, uid: Uid, words: LastWords, *, batches: bool = False) -> None:
        self._uid = uid
        self._words = words
        self._batches = batches
        self._seen: Counter[int] = Counter()

    def each(self, rows: Rows) -> Iterator[Rows]:
        """Yield each of the rows, or the batch, and say it when it is taken."""
        try:
            if self._batches and len(rows):
                first = shown(next(iter(_rows_of(rows.batch.slice(0, 1)))))
                self.at(f"a batch of {len(rows)} rows, the first of which is {first}")
                yield rows
                return
            for at, row in enumerate(_rows_of(rows.batch)):
                self.at(f"the row {shown(row)}")
                yield rows.slice(at, 1)
        finally:
            self._words.say(None)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Say, around the block, a call that no row is named for: two processes may die in it of different causes."""
        self._words.say(AtWork(self._uid, what, 0))
        try:
            yield
        finally:
            self._words.say(None)

    def at(self, what: str) -> None:
        """Say that a function is about to be called for this row, batch, timer or window."""
        alike = hash(what)
        if alike in self._seen or len(self._seen) < _COUNTED:
            self._seen[alike] += 1
        self._words.say(AtWork(self._uid, what, self._seen[alike]))


def _rows_of(batch: pa.RecordBatch) -> Iterator[object]:
    """Return the rows as they are shown, whatever the columns are called, even of values that Python does not have."""
    names = batch.schema.names
    try:
        columns = [values_of(column) for column in batch.columns]
    except (pa.ArrowException, ArithmeticError, ValueError):
        return (batch.slice(at, 1) for at in range(len(batch)))
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


class WordsHeard:
    """The driver's end: `sock` has passed the handshake, and is this object's from now on."""

    def __init__(self, loop: EventLoop, sock: means.socket) -> None:
        self._said = bytearray()
        self._sock = sock
        self._watch: Watch = loop.watch(sock, self._read)
        self._watch.reading(True)
        self.over = False
        """True if nothing more will come."""

    def close(self) -> None:
        """Listen no more; what was heard stays. May be called twice."""
        self._watch.close()
        self._sock.close()

    def _read(self) -> None:
        try:
            data = self._sock.recv(256 << 10)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._said += data
        if len(self._said) > 2 * _KEPT:
            del self._said[:-_KEPT]
        if not data:
            self.over = True
            self.close()

    @property
    def at_work(self) -> AtWork | None:
        """Return the call that had not returned; None if there was none, or nothing was said of any."""
        return self._last()[0]

    @property
    def stack(self) -> str:
        """Return the Python stack at the process's crash; empty if the process has not written it."""
        return self._last()[1]

    def _last(self) -> tuple[AtWork | None, str]:
        lines = self._said.decode(errors="replace").splitlines()
        stack: list[str] = []
        while lines:
            line = lines.pop()
            if line.startswith("{"):
                return _parsed(line), _cleaned(stack)
            stack.insert(0, line)
        return None, _cleaned(stack)


def _parsed(line: str) -> AtWork | None:
    try:
        said: object = json.loads(line)
    except (ValueError, RecursionError):  # the process was killed while it wrote it, or something else wrote there
        return None
    match said:
        case {"uid": str(uid), "what": str(what), "nth": int(nth)}:
            return AtWork(Uid(uid), what, nth)
        case _:
            return None


def _cleaned(stack: list[str]) -> str:
    return "\n".join(line for line in stack if not line.startswith(_NOISE)).strip()
