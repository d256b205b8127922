"""What is on its way over a slow link arrives when it is due, and in order; no network is needed."""

from __future__ import annotations

from tests.servers.slow_link import Way


def test_a_frame_arrives_when_its_delay_is_over_and_not_before() -> None:
    way = Way()
    way.delay = 2.0
    way.put(b"first", 10.0)
    way.put(b"second", 11.0)
    assert way.next_due == 12.0
    assert way.take(11.9) == []
    assert way.take(12.0) == [b"first"]
    assert way.take(99.0) == [b"second"]
    assert way.next_due is None


def test_frames_keep_their_order_though_the_link_becomes_quicker_and_though_chance_would_have_it_otherwise() -> None:
    chances = iter((1.0, 0.0, 0.5))
    way = Way(lambda: next(chances))
    way.delay, way.jitter = 2.0, 4.0
    way.put(b"first", 0.0)
    way.put(b"second", 1.0)
    way.delay = way.jitter = 0.0
    way.put(b"third", 2.0)
    assert way.take(5.9) == []
    assert way.take(6.0) == [b"first", b"second", b"third"]
