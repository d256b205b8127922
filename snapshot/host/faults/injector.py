"""Faults that a person asks for: this process is killed or hangs, or its connections are cut, broken or slow.

Invariant: nothing here runs, and no byte takes another way, before the first fault is asked for; what was asked
for a time is over after it, whatever else has happened to the process.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from snapshot.host.faults.fault_proxy import FaultProxy, Reroutable
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.executor import executor_process
from snapshot.host.protocol.messages import Address, BreakInside, Cut, Delay, Fault, Inject, Injected, Kill, Links, Stop
from statebackend import means
from statebackend.errors import OptionError


class NoSuchFault(OptionError):
    """The fault cannot be brought about here; the message says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One end of a connection of this process. `peer` is where the other partition listens; None: it is the driver."""

    peer: Address | None
    end: Reroutable


@dataclass(eq=False, slots=True)
class _LinkFault:
    """The faults that some connections have for a time."""

    links: Links
    delay: float | None
    """In seconds; None: nothing is carried."""


class Faults:
    """The faults of one process. `lines` gives its connections, `hush` keeps its heartbeat silent for so many seconds,
    and `on_clear` is called when some connections may be better than they were.
    """

    def __init__(
        self,
        loop: EventLoop,
        lines: Callable[[], Iterable[Line]],
        hush: Callable[[float], object],
        on_clear: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._lines = lines
        self._hush = hush
        self._on_clear = on_clear
        self._link_faults: list[_LinkFault] = []
        self._proxies: dict[FaultProxy, Line] = {}

    def inject(self, inject: Inject, tell: Callable[[Injected], object]) -> None:
        """Bring a fault about; `tell` hears of it before it begins, or why it cannot be."""
        try:
            happen = self._prepared(inject.fault)
        except NoSuchFault as error:
            tell(Injected(inject.number, str(error)))
            return
        tell(Injected(inject.number))
        happen()

    def connected(self, lines: Iterable[Line]) -> None:
        """Apply the faults of the moment to new connections."""
        if self._link_faults:
            for line in lines:
                if any(_covers(fault.links, line.peer) for fault in self._link_faults):
                    self._proxied(line)
            self._settle()

    def is_cut(self, peer: Address) -> bool:
        """True if nothing arrives from this peer now, not even a new connection."""
        return any(fault.delay is None and _covers(fault.links, peer) for fault in self._link_faults)

    def close(self) -> None:
        """Close all proxies, as the process ends."""
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        self._link_faults.clear()

    def _prepared(self, fault: Fault) -> Callable[[], object]:
        match fault:
            case Kill(executor):
                return partial(_signal, _pids(executor), signal.SIGKILL)
            case Stop(milliseconds, executor):
                return partial(_hang, _pids(executor), milliseconds / 1000)
            case Cut(links, milliseconds):
                return partial(self._begin, _LinkFault(links, None), milliseconds / 1000)
            case Delay(links, milliseconds, by):
                return partial(self._begin, _LinkFault(links, by / 1000), milliseconds / 1000)
            case BreakInside(links):
                if not any(_covers(links, line.peer) for line in self._lines()):
                    raise NoSuchFault("there is no such connection now")
                return partial(self._break, links)

    # --- connections --------------------------------------------------------------------------------------------------

    def _begin(self, fault: _LinkFault, seconds: float) -> None:
        self._link_faults.append(fault)
        self._loop.call_at(self._loop.now() + seconds, partial(self._end, fault))
        if fault.delay is None and fault.links.driver:
            self._hush(seconds)
        self.connected(self._lines())

    def _end(self, fault: _LinkFault) -> None:
        if fault in self._link_faults:
            self._link_faults.remove(fault)
            self._settle()
            self._on_clear()

    def _break(self, links: Links) -> None:
        for line in self._lines():
            proxy = self._proxied(line) if _covers(links, line.peer) else None
            if proxy is not None:
                proxy.break_inside()

    def _proxied(self, line: Line) -> FaultProxy | None:
        """Return the connection's proxy, made at the first call; None if the connection is closed."""
        known = next((proxy for proxy, one in self._proxies.items() if one.end is line.end), None)
        if known is None:
            line.end.reroute(partial(self._through, line))
        return next((proxy for proxy, one in self._proxies.items() if one.end is line.end), None)

    def _through(self, line: Line, sock: means.socket) -> means.socket:
        proxy = FaultProxy(self._loop, sock, self._over)
        self._proxies[proxy] = line
        return proxy.inner

    def _over(self, proxy: FaultProxy) -> None:
        self._proxies.pop(proxy, None)

    def _settle(self) -> None:
        """Set the delay and the hold of every proxy as the faults of the moment demand."""
        for proxy, line in list(self._proxies.items()):
            delays = [fault.delay for fault in self._link_faults if _covers(fault.links, line.peer)]
            proxy.delay(sum(delay for delay in delays if delay is not None))
            proxy.hold(None in delays)


def _covers(links: Links, peer: Address | None) -> bool:
    if peer is None:
        return links.driver
    return links.peers is None or peer in links.peers


# --- processes -------------------------------------------------------------------------------------------------------


def stop_for(seconds: float) -> None:
    """Stop this process, with all its threads, for so many seconds."""
    _hang([means.getpid()], seconds)


def _pids(executor: bool) -> list[int]:
    """Return the processes that a fault hits, in the order in which to signal them: this one is last."""
    if not executor:
        return [means.getpid()]
    return [_executor(), means.getpid()]


def _executor() -> int:
    try:
        pid = executor_process()
    except OSError as error:
        raise NoSuchFault(f"which processes this one descends from cannot be told here: {error}") from error
    if pid is None:
        raise NoSuchFault(
            "the process is not in a Spark executor of its own: there is none without Spark, and in a local session "
            "the executor is the driver's own Java process"
        )
    return pid


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        means.kill(pid, number)


def _hang(pids: list[int], seconds: float) -> None:
    """Stop the processes; a detached shell wakes them after so many seconds, and leaves no child to wait for."""
    wake = f"(sleep {seconds:.3f}; kill -CONT {' '.join(map(str, pids))}) >/dev/null 2>&1 &"
    subprocess.run(["/bin/sh", "-c", wake], check=True, stdin=subprocess.DEVNULL, start_new_session=True)
    _signal(pids, signal.SIGSTOP)
