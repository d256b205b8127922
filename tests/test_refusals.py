"""Who was turned away at a port is told of, and nobody fills the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from snapshot.host.net import listener
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.listener import Refusals

Told = tuple[str, str]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLoop]:
    monkeypatch.setattr(listener, "_SECONDS", 0.05)
    with closing(EventLoop()) as loop:
        yield loop


def test_the_first_twenty_in_a_second_are_told_one_by_one_and_the_others_counted(loop: EventLoop) -> None:
    told: list[Told] = []
    port = Refusals(loop, lambda peer, reason: told.append((peer, reason)))
    for number in range(27):
        port.add(f"peer {number}", "no proof")
    assert told == [(f"peer {number}", "no proof") for number in range(20)]
    assert loop.run(lambda: len(told) > 20, 10)
    assert told[20:] == [("", "7 more were turned away within a second")]
    port.add("later", "no proof")
    assert told[21:] == [("later", "no proof")]


def test_nothing_more_is_told_of_a_few(loop: EventLoop) -> None:
    told: list[Told] = []
    port = Refusals(loop, lambda peer, reason: told.append((peer, reason)))
    for number in range(20):
        port.add(f"peer {number}", "no proof")
    loop.run(lambda: False, 0.1)
    assert len(told) == 20
