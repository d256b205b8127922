"""The processes that there are for a job's partitions: they come to the driver's port, say what they are, and live.

Invariant: a process counts as there from its `Hello` until its connection is gone or it has not shown a sign of
life for too long; it is reported lost once, and what it says afterwards is refused: of one that wakes up late, that is
told, and it is sent away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from snapshot.host.net.connection_kinds import (
    ChannelOf,
    CommandOf,
    ConnectionKind,
    ControlOf,
    HeartbeatOf,
    LastWordsOf,
    PeerOf,
)
from snapshot.host.net.control import SILENCE, ControlConnection, OverLongMessage
from snapshot.host.net.event_loop import EventLoop, Timer
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener, Refusals
from snapshot.host.net.liveness import break_if_silent
from snapshot.host.net.tls import TlsSide
from snapshot.host.partition.last_words import WordsHeard
from snapshot.host.process.heartbeat import Beats
from snapshot.host.protocol.messages import Address, CannotHear, FromWorker, Hello, Leave, Stalled, ToWorker


@dataclass(frozen=True, slots=True)
class Appeared:
    """A process is there, and free. One that is too many is dismissed."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Lost:
    """A process is not there any more.

    `hello` is what it was, None if it has never said so. `silent` if it only has shown no sign of life for too long,
    `unusable` if it was given up for what came on the connection between it and the driver.
    """

    worker: str
    hello: Hello | None
    reason: str
    silent: bool
    unusable: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """A process has said something."""

    worker: str
    message: FromWorker


@dataclass(frozen=True, slots=True)
class Commanded:
    """A peer of this name has proved the secret, and wants to give the job commands on this connection."""

    proved: Proved
    name: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A peer was turned away at the driver's port, or several were (see `Refusals`)."""

    peer: str
    reason: str


WorkerEvent = Appeared | Lost | Reported | Commanded | Refused


@dataclass(slots=True)
class _Worker:
    name: str
    control: ControlConnection[ToWorker, FromWorker]
    heard_at: float
    hello: Hello | None = None
    turned_away: bool = False
    woke_up: bool = False
    """After it was taken for lost."""
    beats: Beats | None = None


class Workers:
    """Listens at a port, from now until `close`. `lost_after` is in seconds.

    `tell` hears of the processes, in the loop's thread.
    """

    def __init__(
        self,
        loop: EventLoop,
        host: str,
        secret: bytes,
        lost_after: float,
        tell: Callable[[WorkerEvent], object],
        ports: Sequence[int] = (0,),
        tls: TlsSide | None = None,
    ) -> None:
        self._loop = loop
        self._lost_after = lost_after
        self._tell = tell
        self._workers: dict[str, _Worker] = {}
        self._early_beats: dict[str, Beats] = {}
        self._words: dict[str, WordsHeard] = {}
        self._late: dict[str, _Worker] = {}
        """Those that are lost, and whose connection still stands: they may wake up."""
        self._refusals = Refusals(loop, lambda peer, reason: tell(Refused(peer, reason)))
        self._listener = Listener(
            loop,
            host,
            secret,
            judge=self._judge,
            on_connection=self._connected,
            on_refused=self._refusals.add,
            ports=ports,
            tls=tls,
        )
        self._timer: Timer = loop.call_at(loop.now() + lost_after / 4, self._look_for_signs_of_life)

    @property
    def address(self) -> Address:
        """Return the address of the port."""
        return self._listener.address

    @property
    def there(self) -> Mapping[str, Hello]:
        """Return the processes that are there, in the order in which they came."""
        return {name: worker.hello for name, worker in self._workers.items() if worker.hello is not None}

    def send(self, worker: str, message: ToWorker) -> None:
        """Tell a process something; nothing happens if it is not there any more."""
        known = self._workers.get(worker)
        if known is None:
            return
        try:
            known.control.send(message)
        except OverLongMessage as error:
            reason = str(error)
            self._loop.call_soon(lambda: self._lose(known, reason))

    def send_all(self, message: ToWorker, to: Iterable[str] | None = None) -> None:
        """Send the message to every process that is there, or to these."""
        for name in list(self._workers if to is None else to):
            self.send(name, message)

    def dismiss(self, worker: str, reason: str) -> None:
        """Let a process go that is not needed any more: it is not there from now on, and not reported lost."""
        known = self._workers.get(worker)
        if known is not None:
            known.hello, known.turned_away = None, True
            self.send(worker, Leave(reason))

    def take_words(self, worker: str) -> WordsHeard | None:
        """Return what a process that is being reported lost says, or said, of its death; the caller owns it now."""
        return self._words.pop(worker, None)

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes have been sent and not been taken by the network yet."""
        return sum(worker.control.queued_bytes for worker in self._workers.values())

    def close(self) -> None:
        """Listen no more and close all connections; nothing is reported any more."""
        self._timer.cancel()
        self._listener.close()
        for worker in (*self._workers.values(), *self._late.values()):
            self._close(worker)
        self._workers.clear()
        self._late.clear()
        for words in self._words.values():
            words.close()
        self._words.clear()
        for beats in self._early_beats.values():
            beats.close()
        self._early_beats.clear()

    def _judge(self, kind: ConnectionKind) -> str:
        match kind:
            case ControlOf(worker) if worker in self._workers:
                return "there is a process of that name"
            case ControlOf(worker) | HeartbeatOf(worker) if worker in self._late:
                return f"process {worker} was taken for lost, and is not heard any more"
            case LastWordsOf(worker) if worker not in self._workers or worker in self._words:
                return "there is no such process, or it has said where it writes"
            case ControlOf() | HeartbeatOf() | LastWordsOf() | CommandOf():
                return ""
            case ChannelOf() | PeerOf():
                return "the driver has no channels"

    def _connected(self, proved: Proved, kind: ConnectionKind, peer: str) -> None:
        match kind:
            case ControlOf(name):
                break_if_silent(proved.sock, SILENCE)
                worker = _Worker(
                    name,
                    ControlConnection(
                        self._loop,
                        proved,
                        lambda message: self._heard(worker, message),
                        lambda reason: self._lose(worker, reason, unusable=worker.control.was_unusable),
                    ),
                    self._loop.now(),
                    beats=self._early_beats.pop(name, None),
                )
                self._workers[name] = worker
            case HeartbeatOf(name):
                beats = Beats(
                    self._loop,
                    proved,
                    lambda: self._beat(name),
                    lambda why: self._silent(name, peer, why),
                    lambda stalled: self._stalled(name, stalled),
                )
                self._take_beats(name, beats)
            case LastWordsOf(name):
                self._words[name] = WordsHeard(self._loop, proved.sock)
            case CommandOf(name):
                self._tell(Commanded(proved, name))
            case ChannelOf() | PeerOf():
                proved.sock.close()

    def _take_beats(self, name: str, beats: Beats) -> None:
        """Keep the connection of a process's heartbeat, which may be there before the process's own one is."""
        worker = self._workers.get(name)
        known = self._early_beats.pop(name, None) if worker is None else worker.beats
        if known is not None:
            known.close()
        if worker is None:
            self._early_beats[name] = beats
        else:
            worker.beats = beats

    def _beat(self, name: str) -> None:
        worker, late = self._workers.get(name), self._late.get(name)
        if worker is not None:
            worker.heard_at = self._loop.now()
        elif late is not None and not late.woke_up:
            late.woke_up = True
            self._refusals.add(name, "signs of life: it was taken for lost, and is told to leave")

    def _stalled(self, name: str, stalled: Stalled) -> None:
        if name in self._workers:
            self._tell(Reported(name, stalled))

    def _silent(self, name: str, peer: str, why: str) -> None:
        """Forget a heartbeat's connection that is gone, and may come back: only silence counts as loss."""
        self._early_beats.pop(name, None)
        if why:
            self._refusals.add(peer, f"{HeartbeatOf(name)}: {why}")

    def _heard(self, worker: _Worker, message: FromWorker) -> None:
        if self._workers.get(worker.name) is not worker:
            self._refuse(worker, message)
            return
        worker.heard_at = self._loop.now()
        if isinstance(message, CannotHear):
            self._lose(worker, f"what came to it from the driver cannot be used: {message.reason}", unusable=True)
        elif isinstance(message, Hello):
            worker.hello = message
            self._tell(Appeared(message))
        else:
            self._tell(Reported(worker.name, message))

    def _look_for_signs_of_life(self) -> None:
        now = self._loop.now()
        for worker in list(self._workers.values()):
            silence = now - worker.heard_at
            if silence > self._lost_after:
                self._lose(worker, f"it has shown no sign of life for {silence:.1f} s", silent=True)
        self._timer = self._loop.call_at(now + self._lost_after / 4, self._look_for_signs_of_life)

    def _lose(self, worker: _Worker, reason: str, *, silent: bool = False, unusable: bool = False) -> None:
        if self._workers.get(worker.name) is not worker:
            self._forget(worker)
            return
        del self._workers[worker.name]
        if silent:
            self._late[worker.name] = worker
            worker.control.send(Leave("it was taken for lost, and another has its place"))
        else:
            self._close(worker)
        if not worker.turned_away:
            self._tell(Lost(worker.name, worker.hello, reason, silent, unusable))
        unheard = self.take_words(worker.name)
        if unheard is not None:
            unheard.close()

    def _refuse(self, worker: _Worker, message: FromWorker) -> None:
        about = getattr(message, "incarnation", None)
        of = "" if about is None else f" of {about}"
        self._refusals.add(
            worker.name, f"{type(message).__name__}{of}: it was taken for lost, and is not heard any more"
        )

    def _forget(self, worker: _Worker) -> None:
        if self._late.get(worker.name) is worker:
            del self._late[worker.name]
            self._close(worker)
            self._refusals.add(worker.name, "it was taken for lost, and has gone now")

    def _close(self, worker: _Worker) -> None:
        worker.control.close()
        if worker.beats is not None:
            worker.beats.close()
