"""A process says that it lives, from a thread of its own, so that a slow function in Python does not make it seem dead.

Invariant: beats travel on their own connection and mean nothing but that the process ran at that time. Between
them travels what is to be told while the process's event loop is held up, as JSON: nothing is unpickled, and what makes
no sense ends the connection and no more than that. Both are records (`snapshot.cut.seals`), a beat one without a body.
While one call in C keeps the interpreter to itself, as a regular expression that backtracks may, no thread runs, and
there is no beat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from snapshot.cut.seals import RecordReader, RecordWriter, UnusableRecord
from snapshot.host.net.connection_kinds import HeartbeatOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.event_loop import EventLoop, Timer, Watch
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.liveness import break_if_silent
from snapshot.host.net.tls import TlsSide
from snapshot.host.partition.stalls import MalformedWord, parse_stalled, stalled_bytes
from snapshot.host.protocol.messages import Address, Stalled
from statebackend import means

_MOST: Final = 1 << 20
"""No word between beats has more bytes."""
_PATIENCE: Final = 5.0
_CLOSED: Final = 1.5
"""Seconds in which a driver has to be reached again that has closed the connection itself: it ends, or was killed."""
_IN_ORDER: Final = 1.5
"""Seconds that a process has to end in order after it has lost its driver."""


class Heartbeat:
    """Beats every `seconds` from now on until `stop`; a connection that breaks is made again with the next beat."""

    def __init__(
        self,
        address: Address,
        secret: bytes,
        worker: str,
        seconds: float,
        tls: TlsSide | None = None,
        watch: Callable[[], Stalled | None] = lambda: None,
        on_lost: Callable[[str], object] = lambda _: None,
        patience: float = _PATIENCE,
        on_overdue: Callable[[str], object] = lambda _: None,
        in_order: float = _IN_ORDER,
    ) -> None:
        """`watch` is asked with each beat, and `on_lost` told when the driver has not been there for so many seconds
        after a connection broke, or its machine did not react for as long; sooner if the driver's end was closed, as it
        is when it is killed. `on_overdue` is told if the heart still beats `in_order` seconds after that. All of them
        are called in the thread of the heart.
        """
        self._watch = watch
        self._on_lost = on_lost
        self._on_overdue = on_overdue
        self._in_order = in_order
        self._patience = self._most_patience = patience
        self._without_since: float | None = None
        self._address = address
        self._secret = secret
        self._tls = tls
        self._purpose = HeartbeatOf(worker)
        self._seconds = seconds
        self._loop = EventLoop()
        self._sock: means.socket | None = None
        self._writer = RecordWriter(None)
        self._unsaid = b""  # a record that the kernel has not taken
        self._line: Watch | None = None
        self._connecting: Connector | None = None
        self._next: Timer | None = None
        self._stopped = False
        self._leaving = False
        self._hushed_until = 0.0
        self._thread = means.Thread(target=self._run, name=f"heartbeat-{worker}", daemon=True)
        self._thread.start()

    def beat_every(self, seconds: float) -> None:
        """Beat at once, and from now on every `seconds`."""
        self._seconds = seconds
        self._loop.wake(self._beat)

    def hush(self, seconds: float) -> None:
        """Beat no more for so long; for faults that a person asks for."""
        self._hushed_until = self._loop.now() + seconds

    def leave(self) -> None:
        """Expect the driver to close the connection, as it has let the process go."""
        self._leaving = True

    def stop(self) -> None:
        """Beat no more; return when the connection is closed."""
        self._stopped = True
        self._loop.wake()
        self._thread.join()

    def _run(self) -> None:
        self._beat()
        self._loop.run(lambda: self._stopped)
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop()
        self._loop.close()

    def _beat(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._loop.now() >= self._hushed_until:
            self._send()
        self._next = self._loop.call_at(self._loop.now() + self._seconds, self._beat)

    def _send(self) -> None:
        if self._sock is not None:
            try:
                if not self._unsaid:
                    stalled = self._watch()
                    self._unsaid = self._writer.record(b"" if stalled is None else stalled_bytes(stalled))
                if self._sock.send(self._unsaid) < len(self._unsaid):
                    raise OSError("the driver has not heard for long")
                self._unsaid = b""
            except BlockingIOError:
                pass  # those that were sent have not been read yet, and say as much
            except OSError as error:
                self._broke(error)
        if self._sock is None:
            self._connect()

    def _connect(self) -> None:
        if self._connecting is None and not self._leaving:
            self._connecting = Connector(
                self._loop,
                self._address,
                self._secret,
                self._purpose,
                self._connected,
                self._failed,
                seconds=self._patience,  # far more than a beat: over a slow link the handshake takes long
                tls=self._tls,
            )

    def _connected(self, proved: Proved) -> None:
        self._connecting, self._sock, self._without_since = None, proved.sock, None
        self._writer, self._unsaid = RecordWriter(proved.seals), b""
        self._patience = self._most_patience
        break_if_silent(proved.sock, int(self._patience * 1000))
        self._line = self._loop.watch(proved.sock, self._hear)
        self._line.reading(True)

    def _hear(self) -> None:
        """Take the connection as ended if there is something to read, as the driver says nothing here."""
        assert self._sock is not None
        try:
            said = self._sock.recv(16)
        except BlockingIOError:
            return
        except OSError as error:
            self._broke(error)
        else:
            self._broke(OSError("the driver spoke") if said else ConnectionResetError())
        self._connect()

    def _broke(self, error: OSError) -> None:
        self._drop()
        self._without_since = self._loop.now()
        if isinstance(error, ConnectionError):
            self._patience = min(_CLOSED, self._most_patience)

    def _drop(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._sock is not None:
            self._sock.close()
        self._sock = self._line = None

    def _failed(self, reason: str) -> None:
        self._connecting = None
        if self._without_since is not None and self._loop.now() - self._without_since >= self._patience:
            self._without_since = None
            self._on_lost(reason)
            self._loop.call_at(self._loop.now() + self._in_order, lambda: self._on_overdue(reason))


class Beats:
    """The driver's end of a connection, which is this object's from now on.

    `on_beat` is called when beats have arrived, `on_closed` once when the connection has ended, and not after `close`:
    with a reason if that is what came on it, else with "". An event loop reads before its timers fire, so a driver that
    was held up itself hears all beats before it judges.
    """

    def __init__(
        self,
        loop: EventLoop,
        proved: Proved,
        on_beat: Callable[[], object],
        on_closed: Callable[[str], object],
        on_stalled: Callable[[Stalled], object] = lambda _: None,
    ) -> None:
        self._records = RecordReader(proved.seals, _MOST)
        self._on_stalled = on_stalled
        self._sock = proved.sock
        self._on_beat = on_beat
        self._on_closed = on_closed
        self._watch: Watch = loop.watch(self._sock, self._read)
        self._watch.reading(True)

    def close(self) -> None:
        """Listen no more; may be called twice."""
        self._watch.close()
        self._sock.close()

    def _read(self) -> None:
        try:
            said = self._sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._end("")
            return
        try:
            heard = [parse_stalled(body) if body else None for body in self._records.feed(said)]
        except (UnusableRecord, MalformedWord) as error:
            self._end(f"{type(error).__name__}: {error}")
            return
        if heard:
            self._on_beat()
        for stalled in heard:
            if stalled is not None:
                self._on_stalled(stalled)

    def _end(self, why: str) -> None:
        self.close()
        self._on_closed(why)
