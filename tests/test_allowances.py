"""How many rows senders may have under way: as many as take a fraction of a second, whatever the rows take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.host.flow.allowances import FIRST, UNLIMITED, Allowance, Allowances
from snapshot.ids import ChannelId
from statebackend.ids import Partition, Uid

CHANNELS = [ChannelId(Uid("a"), Uid("b"), Partition(sender), Partition(0)) for sender in range(4)]


class Flow:
    """A stage whose senders always send what they may, and one batch more; it works off a piece at a time."""

    def __init__(self, channels: int, batch: int = 1) -> None:
        self.channels = CHANNELS[:channels]
        self.allowances = Allowances(self.channels)
        self.allowed: dict[ChannelId, Allowance] = dict.fromkeys(self.channels, FIRST)
        self.put = dict.fromkeys(self.channels, 0)
        self.done = dict.fromkeys(self.channels, 0)
        self.told = 0
        self.batch = batch

    @property
    def under_way(self) -> int:
        return sum(self.put.values()) - sum(self.done.values())

    def send(self) -> None:
        for channel, allowed in self.allowed.items():
            while allowed.room(self.put[channel]) > 0:
                self.put[channel] += self.batch

    def work(self, piece: int, per_row: float) -> None:
        for channel in self.channels:
            rows = min(piece, self.put[channel] - self.done[channel])
            self.done[channel] += rows
            self.allowances.processed(channel, rows)
            self.allowances.worked(rows * per_row)
        news = self.allowances.news()
        self.told += len(news)
        self.allowed.update(news)


@pytest.mark.parametrize("per_row", [0.00006, 0.0004, 0.002])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_what_is_under_way_is_worked_off_in_a_fraction_of_a_second(per_row: float, channels: int) -> None:
    flow = Flow(channels)
    seconds = []
    for _ in range(400):
        flow.send()
        seconds.append(flow.under_way * per_row)
        flow.work(max(1, int(0.01 / per_row)), per_row)
    assert max(seconds[50:]) <= 0.26
    assert min(seconds[50:]) >= 0.1, "so much that the stage always has something to do"


def test_quick_rows_are_allowed_a_second_of_work_so_that_they_come_in_full_batches() -> None:
    flow = Flow(2)
    seconds = []
    for _ in range(1000):
        flow.send()
        seconds.append(flow.under_way * 0.00004)
        flow.work(250, 0.00004)
    assert max(seconds[200:]) <= 1.01
    assert min(seconds[200:]) >= 0.5


def test_rows_that_take_longer_than_that_come_one_by_one() -> None:
    flow = Flow(2)
    for _ in range(200):
        flow.send()
        flow.work(1, 3.0)
    assert flow.under_way == 0
    flow.send()
    assert flow.under_way == 2


def test_a_stage_that_is_quick_soon_limits_nobody_and_says_so_once() -> None:
    flow = Flow(2, batch=10)
    rounds = 0
    while flow.allowed[CHANNELS[0]] != UNLIMITED:
        flow.send()
        flow.work(4096, 1e-7)
        rounds += 1
    told = flow.told
    assert rounds <= 6
    for _ in range(100):
        flow.put = {channel: put + 10_000 for channel, put in flow.put.items()}
        flow.work(10_000, 1e-7)
    assert flow.told == told


def test_a_stage_that_becomes_slow_takes_back_what_it_allowed_and_gives_it_again() -> None:
    flow = Flow(2, batch=10)
    while flow.allowed[CHANNELS[0]] != UNLIMITED:
        flow.send()
        flow.work(4096, 1e-7)
    flow.put = {channel: put + 100_000 for channel, put in flow.put.items()}
    while flow.under_way:
        flow.work(10, 0.001)
    assert all(allowed.window <= 150 for allowed in flow.allowed.values())
    for _ in range(400):
        flow.send()
        flow.work(4096, 1e-7)
        if flow.allowed[CHANNELS[0]] == UNLIMITED:
            break
    assert flow.allowed == dict.fromkeys(flow.channels, UNLIMITED)


def test_while_its_state_is_opened_more_may_come_than_at_first() -> None:
    allowances = Allowances(CHANNELS[:2])
    allowances.opening()
    assert set(allowances.news().values()) == {Allowance(512, 512)}


@pytest.mark.parametrize(("per_row", "expected"), [(1e-7, UNLIMITED), (4e-4, Allowance(1248, 1248))])
def test_while_its_state_is_opened_again_a_second_of_work_may_come_by_the_pace_of_the_last_attempt(
    per_row: float, expected: Allowance
) -> None:
    flow = Flow(2)
    assert flow.allowances.window == 0
    for _ in range(400):
        if UNLIMITED not in flow.allowed.values():
            flow.send()
        flow.work(4096, per_row)
    again = Allowances(CHANNELS[:2])
    again.opening(flow.allowances.window)
    assert set(again.news().values()) == {expected}


@given(
    st.integers(1, 4),
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(1, 500), st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 0.1, 5.0])), max_size=40),
)
def test_whoever_has_nothing_under_way_may_always_send(
    channels: int, batch: int, pieces: list[tuple[int, float]]
) -> None:
    flow = Flow(channels, batch)
    for piece, per_row in pieces:
        if UNLIMITED not in flow.allowed.values():
            flow.send()
        flow.work(piece, per_row)
        for channel in flow.channels:
            if flow.put[channel] == flow.done[channel]:
                assert flow.allowed[channel].room(flow.put[channel]) > 0


def test_a_sender_waits_for_more_room_than_a_few_rows() -> None:
    allowed = Allowance(1000, 400)
    assert [allowed.room(put) for put in (600, 899, 900, 901, 1000, 1200)] == [400, 101, 100, 0, 0, 0]
    assert [Allowance(10, 1).room(put) for put in (9, 10)] == [1, 0]
