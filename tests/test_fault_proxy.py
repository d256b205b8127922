"""Connections that are held up, slow, or broken inside a frame by a proxy: what they carry stays what it is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.host.faults.fault_proxy import FaultProxy
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.tls import TlsSide
from tests.certificates import Authority
from tests.connections import plain, tcp_pair

PATIENCE = 10.0


class Ends:
    """Two control connections, the first of which can be given a proxy."""

    def __init__(self, loop: EventLoop, sockets: tuple[socket.socket, socket.socket]) -> None:
        self.loop = loop
        self.here_heard: list[object] = []
        self.there_heard: list[object] = []
        self.closed: list[str] = []
        self.over: list[FaultProxy] = []
        self.here: ControlConnection[object, object] = ControlConnection(
            loop, plain(sockets[0]), self.here_heard.append, self.closed.append
        )
        self.there: ControlConnection[object, object] = ControlConnection(
            loop, plain(sockets[1]), self.there_heard.append, self.closed.append
        )

    def proxy(self) -> FaultProxy:
        made: list[FaultProxy] = []

        def through(sock: socket.socket) -> socket.socket:
            made.append(FaultProxy(self.loop, sock, self.over.append))
            return made[0].inner

        self.here.reroute(through)
        return made[0]

    def until_heard(self, count: int) -> None:
        assert self.loop.run(lambda: len(self.here_heard) + len(self.there_heard) >= count, PATIENCE)

    def turns(self, count: int = 20) -> None:
        for _ in range(count):
            self.loop.run_once(0)


@contextmanager
def connected(tls: TlsSide | None = None) -> Iterator[Ends]:
    with ExitStack() as stack:
        loop = EventLoop()
        stack.callback(loop.close)
        one, other = tcp_pair()
        one.setblocking(False)
        other.setblocking(False)
        ends = Ends(loop, (one, other) if tls is None else (tls.call(one), tls.accept(other)))
        stack.callback(ends.here.close)
        stack.callback(ends.there.close)
        yield ends


def test_a_detour_in_the_middle_of_a_conversation_changes_nothing() -> None:
    with connected() as ends:
        ends.here.send("before" * 100_000)
        ends.there.send("also")
        ends.loop.run_once(0)
        proxy = ends.proxy()
        ends.here.send("after")
        ends.there.send("too")
        ends.until_heard(4)
        assert ends.there_heard == ["before" * 100_000, "after"]
        assert ends.here_heard == ["also", "too"]
        proxy.close()


def test_nothing_passes_while_it_is_held_not_even_an_end_and_all_in_order_afterwards() -> None:
    with connected() as ends:
        proxy = ends.proxy()
        proxy.hold(True)
        for number in range(100):
            ends.here.send(number)
            ends.there.send(-number)
        ends.there.close()
        ends.turns()
        assert (ends.here_heard, ends.there_heard, ends.closed) == ([], [], [])
        proxy.hold(False)
        assert ends.loop.run(lambda: bool(ends.closed), PATIENCE)
        assert ends.here_heard == [-number for number in range(100)]
        assert ends.over == [proxy]


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def tls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TlsSide | None:
    return None if request.param == "plain" else Authority(tmp_path_factory.mktemp("tls") / "ours").issue().load()


def test_what_was_said_last_arrives_through_a_detour_however_much_it_is(tls: TlsSide | None) -> None:
    words = [bytes([number]) * 300_000 for number in range(40)]
    with connected(tls) as ends:
        ends.proxy()
        for word in words:
            ends.here.send(word)
        assert ends.loop.run(lambda: not ends.here.queued_bytes, PATIENCE)
        ends.here.close()
        assert ends.loop.run(lambda: bool(ends.closed), PATIENCE)
        assert ends.there_heard == words


def test_a_process_that_closes_a_held_connection_is_not_heard_to_have_done_so_until_it_is_let_go(
    tls: TlsSide | None,
) -> None:
    with connected(tls) as ends:
        proxy = ends.proxy()
        proxy.hold(True)
        ends.here.send("last words")
        ends.here.close()
        ends.turns()
        assert (ends.there_heard, ends.closed) == ([], [])
        proxy.hold(False)
        assert ends.loop.run(lambda: bool(ends.closed), PATIENCE)
        assert ends.there_heard == ["last words"]


def test_what_is_delayed_comes_so_much_later_and_in_order() -> None:
    with connected() as ends:
        proxy = ends.proxy()
        proxy.delay(0.05)
        began = ends.loop.now()
        for number in range(10):
            ends.here.send(number)
        ends.until_heard(10)
        assert ends.loop.now() - began >= 0.05
        assert ends.there_heard == list(range(10))
        proxy.close()


@pytest.mark.parametrize("from_here", [True, False])
def test_a_break_inside_ends_the_connection_in_the_middle_of_the_next_message(from_here: bool) -> None:
    with connected() as ends:
        proxy = ends.proxy()
        proxy.break_inside()
        ends.turns()
        assert ends.closed == []
        (ends.here if from_here else ends.there).send("cut")
        assert ends.loop.run(lambda: len(ends.closed) == 2, PATIENCE)
        assert ends.here_heard == ends.there_heard == []
        assert any("inside a message" in reason for reason in ends.closed)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("here"), st.integers(0, 300_000)),
            st.tuples(st.just("there"), st.integers(0, 300_000)),
            st.tuples(st.just("hold"), st.booleans()),
            st.tuples(st.just("delay"), st.sampled_from([0, 1, 3])),
            st.tuples(st.just("turn"), st.integers(1, 5)),
        ),
        max_size=40,
    )
)
def test_whatever_the_weather_everything_arrives_once_and_in_order(steps: list[tuple[str, int | bool]]) -> None:
    with connected() as ends:
        proxy = ends.proxy()
        sent: dict[str, list[object]] = {"here": [], "there": []}
        for number, (what, value) in enumerate(steps):
            match what:
                case "here" | "there":
                    sent[what].append((number, b"x" * int(value)))
                    (ends.here if what == "here" else ends.there).send(sent[what][-1])
                case "hold":
                    proxy.hold(bool(value))
                case "delay":
                    proxy.delay(int(value) / 1000)
                case _:
                    ends.turns(int(value))
        proxy.hold(False)
        ends.until_heard(len(sent["here"]) + len(sent["there"]))
        assert ends.there_heard == sent["here"]
        assert ends.here_heard == sent["there"]
        proxy.close()
