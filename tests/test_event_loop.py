"""The event loop: who is called, in which order, from which thread, and what is left when something is raised."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from snapshot.host.net.event_loop import Background, EventLoop, Watch

LIMIT = 10.0
"""Seconds after which something that should happen has not happened."""


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_a_socket_is_read_when_there_is_something_and_the_loop_wants_it(loop: EventLoop, pair: Pair) -> None:
    ours, theirs = pair
    read: list[bytes] = []
    watch = loop.watch(ours, lambda: read.append(ours.recv(100)))
    theirs.send(b"one")
    loop.run_once(0)
    assert read == []
    watch.reading(True)
    loop.run_once(LIMIT)
    assert read == [b"one"]
    watch.reading(False)
    theirs.send(b"two")
    loop.run_once(0)
    assert read == [b"one"]


def test_reading_and_writing_are_wanted_independently(loop: EventLoop, pair: Pair) -> None:
    ours, theirs = pair
    calls: list[str] = []
    watch = loop.watch(ours, lambda: calls.append("read"), lambda: calls.append("write"))
    theirs.send(b"x")
    watch.reading(True)
    watch.writing(True)
    loop.run_once(LIMIT)
    assert calls == ["read", "write"]
    watch.reading(False)
    loop.run_once(LIMIT)
    assert calls == ["read", "write", "write"]
    watch.writing(False)
    watch.writing(False)
    loop.run_once(0)
    assert calls == ["read", "write", "write"]


def test_what_a_closed_watch_was_to_serve_in_this_turn_is_not_served(loop: EventLoop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    watches: list[Watch] = []
    served: list[int] = []

    def serve(which: int) -> None:
        served.append(which)
        for watch in watches:
            watch.close()

    for which, (ours, theirs) in enumerate(pairs):
        watches.append(loop.watch(ours, lambda which=which: serve(which)))  # type: ignore[misc]
        watches[-1].reading(True)
        theirs.send(b"x")
    loop.run_once(LIMIT)
    loop.run_once(0)
    assert len(served) == 1
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_timers_fire_in_the_order_of_their_times_and_of_their_making(loop: EventLoop) -> None:
    fired: list[str] = []
    now = loop.now()
    loop.call_at(now + 0.002, lambda: fired.append("late"))
    loop.call_at(now, lambda: fired.append("first"))
    loop.call_at(now, lambda: fired.append("second"))
    cancelled = loop.call_at(now + 0.001, lambda: fired.append("cancelled"))
    cancelled.cancel()
    assert loop.run(lambda: "late" in fired, LIMIT)
    assert fired == ["first", "second", "late"]
    assert loop.now() >= now + 0.002


def test_a_timer_does_not_end_an_endless_wait_too_early_or_never(loop: EventLoop) -> None:
    fired: list[float] = []
    due = loop.now() + 0.01
    loop.call_at(due, lambda: fired.append(loop.now()))
    loop.run(lambda: bool(fired), LIMIT)
    assert fired[0] >= due


def test_what_has_arrived_counts_before_a_time_limit_that_is_over_as_well(loop: EventLoop, pair: Pair) -> None:
    ours, theirs = pair
    calls: list[str] = []
    watch = loop.watch(ours, lambda: calls.append(ours.recv(1).decode()))
    watch.reading(True)
    loop.call_at(loop.now() - 1, lambda: calls.append("time is over"))
    theirs.send(b"x")
    loop.run_once(LIMIT)
    assert calls == ["x", "time is over"]


def test_what_is_to_be_called_soon_does_not_keep_sockets_waiting(loop: EventLoop, pair: Pair) -> None:
    ours, theirs = pair
    calls: list[str] = []

    def again() -> None:
        calls.append("soon")
        loop.call_soon(again)

    watch = loop.watch(ours, lambda: calls.append(ours.recv(1).decode()))
    watch.reading(True)
    again()
    theirs.send(b"x")
    loop.run_once()
    loop.run_once()
    assert calls == ["soon", "x", "soon", "soon"]


def test_nothing_is_called_inside_the_call_that_asks_for_it(loop: EventLoop) -> None:
    calls: list[str] = []
    loop.call_soon(lambda: calls.append("soon"))
    loop.call_at(0, lambda: calls.append("timer"))
    loop.wake(lambda: calls.append("wake"))
    assert calls == []
    loop.run(lambda: len(calls) == 3, LIMIT)
    assert calls == ["timer", "soon", "wake"]


def test_every_call_that_other_threads_ask_for_is_made_in_the_loop(loop: EventLoop) -> None:
    made: list[tuple[int, int]] = []
    here = threading.get_ident()
    calls = 500

    def ask(thread: int) -> None:
        for number in range(calls):
            loop.wake(lambda number=number: made.append((thread, number)) if threading.get_ident() == here else None)  # type: ignore[misc]

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(4)]
    for each in threads:
        each.start()
    assert loop.run(lambda: len(made) == 4 * calls, LIMIT)
    for each in threads:
        each.join()
    for thread in range(4):
        assert [number for of, number in made if of == thread] == list(range(calls))


def test_a_wait_without_end_is_ended_by_another_thread(loop: EventLoop) -> None:
    thread = threading.Thread(target=loop.wake)
    thread.start()
    loop.run_once(None)
    thread.join()


def test_what_a_callback_raises_comes_out_and_the_others_are_still_called(loop: EventLoop) -> None:
    calls: list[str] = []

    def fail() -> None:
        raise ValueError("of the user")

    loop.call_at(0, fail)
    loop.call_at(1, lambda: calls.append("timer"))
    loop.call_soon(fail)
    loop.call_soon(lambda: calls.append("soon"))
    for _ in range(2):
        with pytest.raises(ValueError, match="of the user"):
            loop.run_once(0)
    loop.run_once(0)
    assert calls == ["timer", "soon"]


def test_running_ends_when_the_time_is_over_or_what_it_waits_for_is_true(loop: EventLoop) -> None:
    assert not loop.run(lambda: False, 0.001)
    assert loop.run(lambda: True, 0)


def test_the_longest_turn_is_measured_since_it_was_last_asked_for(loop: EventLoop) -> None:
    loop.call_soon(lambda: sum(range(200_000)))
    loop.run_once(0)
    longest = loop.take_longest_gap_ms()
    assert longest > 0.5
    loop.run_once(0)
    assert loop.take_longest_gap_ms() < longest


def test_who_wakes_a_closed_loop_hears_nothing(loop: EventLoop) -> None:
    other = EventLoop()
    other.close()
    other.wake(lambda: pytest.fail("it was called"))


def test_the_result_of_work_is_told_in_the_loop_and_the_work_is_done_elsewhere(loop: EventLoop) -> None:
    background = Background(loop, 2)
    told: list[tuple[object, int]] = []
    background.submit(threading.get_ident, lambda outcome: told.append((outcome, threading.get_ident())))
    assert loop.run(lambda: bool(told), LIMIT)
    assert told[0][1] == threading.get_ident() != told[0][0]
    background.close()


def test_what_the_work_raises_is_its_outcome_and_the_thread_goes_on(loop: EventLoop) -> None:
    background = Background(loop, 1)
    told: list[object] = []

    def fail() -> int:
        raise SystemExit("of the user")

    background.submit(fail, told.append)
    background.submit(lambda: 7, told.append)
    assert loop.run(lambda: len(told) == 2, LIMIT)
    assert isinstance(told[0], SystemExit)
    assert told[1] == 7
    background.close()


def test_one_thread_does_the_work_in_order(loop: EventLoop) -> None:
    background = Background(loop, 1)
    done: list[int] = []
    told: list[object] = []
    for number in range(50):
        background.submit(lambda number=number: done.append(number), told.append)  # type: ignore[misc]
    assert loop.run(lambda: len(told) == 50, LIMIT)
    assert done == list(range(50))
    background.close()


def test_after_the_close_nothing_begins_and_nothing_is_told(loop: EventLoop) -> None:
    background = Background(loop, 1)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    told: list[object] = []

    def work() -> None:
        begun.set()
        assert may_end.wait(LIMIT)

    background.submit(work, told.append)
    background.submit(lambda: told.append("begun"), told.append)
    assert begun.wait(LIMIT)
    background.close()
    may_end.set()
    loop.call_at(loop.now() + 0.02, ended.set)
    loop.run(ended.is_set, LIMIT)
    assert told == []


def test_a_time_that_is_put_off_again_and_again_takes_no_more_and_more_memory(loop: EventLoop) -> None:
    calls: list[str] = []
    loop.call_at(loop.now() + 2 * LIMIT, lambda: calls.append("far"))
    soon = loop.call_at(loop.now(), lambda: calls.append("soon"))
    tracemalloc.start()
    for _ in range(20_000):
        loop.call_at(loop.now() + LIMIT, lambda: calls.append("put off")).cancel()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    loop.run_once(0)
    soon.cancel()
    assert calls == ["soon"]
    assert size < 1 << 20


def test_work_for_which_there_is_no_thread_is_told_as_failed_and_the_loop_goes_on(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background, told = Background(loop, 1), list[object]()
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", start)
        background.submit(lambda: "done", told.append)
    background.submit(lambda: "done later", told.append)
    assert loop.run(lambda: len(told) == 2, 10)
    assert [str(one) for one in told] == ["can't start new thread", "done later"]
    background.close()
