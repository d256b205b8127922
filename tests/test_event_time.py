"""Times come from timestamps and integers; the watermark follows the slowest split, and never goes back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import EARLIEST, LATEST, Watermark
from snapshot.host.partition.source_times import EventTimes, NoEventTime
from snapshot.program.plan import EventTime

AT = EventTime("at", out_of_order="10ms")
IDLING = EventTime("at", out_of_order="10ms", idle_after="100ms")


def batch(times: Sequence[int | None], type: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(len(times))), "at": pa.array(times, type or pa.int64())})


def reading(*splits: str, event_time: EventTime = AT, restored: Watermark | None = None) -> EventTimes:
    times = EventTimes(event_time, restored)
    times.reading(splits)
    return times


@pytest.mark.parametrize(
    ("type", "per_second"),
    [
        (pa.timestamp("s"), 1),
        (pa.timestamp("ms", "UTC"), 1_000),
        (pa.timestamp("us", "Europe/Berlin"), 10**6),
        (pa.timestamp("ns"), 10**9),
        (pa.int32(), 1_000),
        (pa.uint64(), 1_000),
    ],
)
def test_times_of_every_type_are_milliseconds(type: pa.DataType, per_second: int) -> None:
    assert EventTimes(AT).observe("a", batch([0, per_second, 3 * per_second], type), 0).tolist() == [0, 1000, 3000]


def test_a_zone_changes_nothing_about_the_moment() -> None:
    moment = datetime(2026, 7, 1, 12, 0, 0, 250_000, UTC)
    column = pa.array([moment], pa.timestamp("us", "America/New_York"))
    times = EventTimes(AT).observe("a", pa.RecordBatch.from_pydict({"at": column}), 0)
    assert times.tolist() == [moment.timestamp() * 1000]


@given(st.lists(st.integers(-(10**17), 10**17)))
def test_finer_units_are_rounded_down_also_before_1970(micros: list[int]) -> None:
    times = EventTimes(AT).observe("a", batch(micros, pa.timestamp("us")), 0)
    assert times.dtype == np.int64
    assert times.tolist() == [value // 1000 for value in micros]


def test_a_slice_has_the_times_of_its_own_rows() -> None:
    rows = batch([1, 2, 3, 4], pa.timestamp("ms")).slice(1, 2)
    assert EventTimes(AT).observe("a", rows, 0).tolist() == [2, 3]


def test_a_null_is_an_error_that_shows_the_row() -> None:
    with pytest.raises(NoEventTime, match=r"split 'part-7': .* 'at' is null; the row has \{'n': 1\}"):
        EventTimes(AT).observe("part-7", batch([5, None, 7]), 0)


@pytest.mark.parametrize(("value", "type"), [(2**63, pa.uint64()), (2**60, pa.timestamp("s"))])
def test_a_time_that_does_not_fit_is_an_error(value: int, type: pa.DataType) -> None:
    with pytest.raises(NoEventTime, match="cannot be said in milliseconds"):
        EventTimes(AT).observe("a", batch([value], type), 0)


def test_the_watermark_stays_behind_the_latest_time() -> None:
    times = reading("a")
    assert times.watermark(0) is None
    times.observe("a", batch([100, 130, 120]), 0)
    assert times.watermark(1) == Watermark(120)
    assert times.watermark(2) is None
    assert times.current == Watermark(120)


def test_the_slowest_split_holds_the_others_back() -> None:
    times = reading("a", "b")
    times.observe("a", batch([1000]), 0)
    assert times.watermark(0) is None
    times.observe("b", batch([50]), 0)
    assert times.watermark(0) == Watermark(40)
    times.observe("b", batch([2000]), 0)
    assert times.watermark(0) == Watermark(990)


def test_a_split_that_is_added_holds_the_watermark_until_it_has_rows() -> None:
    times = reading("a")
    times.observe("a", batch([1000]), 0)
    assert times.watermark(0) == Watermark(990)
    times.reading(["a", "b"])
    times.observe("a", batch([2000]), 0)
    assert times.watermark(0) is None
    times.observe("b", batch([1500]), 0)
    assert times.watermark(0) == Watermark(1490)


def test_a_split_that_has_ended_no_longer_holds_the_others_back() -> None:
    times = reading("a", "b")
    times.observe("a", batch([1000]), 0)
    times.observe("b", batch([50]), 0)
    times.reading(["a"])
    assert times.watermark(0) == Watermark(990)


def test_the_last_rows_of_the_last_split_count_although_it_has_ended_before_anybody_asked() -> None:
    times = reading("a", "b")
    times.observe("a", batch([1000]), 0)
    times.observe("b", batch([50]), 0)
    times.reading(["b"])
    times.reading([])
    assert times.watermark(0) == Watermark(990)


def test_a_restored_watermark_is_where_it_goes_on() -> None:
    times = reading("a", restored=Watermark(500))
    assert times.current == Watermark(500)
    assert times.watermark(0) is None
    times.observe("a", batch([100]), 0)
    assert times.watermark(0) is None
    times.observe("a", batch([600]), 0)
    assert times.watermark(0) == Watermark(590)


def test_a_split_without_rows_for_long_enough_no_longer_holds_the_others_back() -> None:
    times = reading("a", "b", event_time=IDLING)
    times.observe("b", batch([50]), 0)
    announced = []
    for now in range(0, 300, 40):
        times.observe("a", batch([1000 + now]), now)
        announced.append(times.watermark(now))
    assert announced[:4] == [Watermark(40), None, None, Watermark(1110)]
    times.observe("b", batch([1200]), 300)
    times.observe("a", batch([1400]), 300)
    assert times.watermark(300) is None
    times.observe("b", batch([1350]), 310)
    assert times.watermark(310) == Watermark(1340)


def test_a_partition_whose_splits_are_all_idle_says_so_and_comes_back() -> None:
    times = reading("a", "b", event_time=IDLING)
    times.observe("a", batch([1000]), 0)
    times.observe("b", batch([2000]), 0)
    assert times.watermark(0) == Watermark(990)
    assert times.watermark(60) is None
    assert times.watermark(120) == Watermark(1990, idle=True)
    times.observe("a", batch([1500]), 130)
    assert times.watermark(130) == Watermark(1990)
    times.observe("a", batch([3000]), 140)
    assert times.watermark(140) == Watermark(2990)


@pytest.mark.parametrize("restored", [None, Watermark(70)])
def test_a_partition_without_a_split_is_idle_after_a_while(restored: Watermark | None) -> None:
    times = EventTimes(IDLING, restored)
    assert [times.watermark(now) for now in (0, 50)] == [None, None]
    assert times.watermark(100) == Watermark(EARLIEST if restored is None else 70, idle=True)
    times.reading(["a"])
    assert times.watermark(101) == Watermark(EARLIEST if restored is None else 70)


def test_without_idle_after_nothing_is_ever_idle() -> None:
    times = reading("a")
    assert [times.watermark(now) for now in range(0, 10**9, 10**7)] == [None] * 100


def test_time_in_which_nobody_read_does_not_make_a_split_idle() -> None:
    times = reading("a", event_time=IDLING)
    times.observe("a", batch([1000]), 0)
    times.watermark(0)
    assert times.watermark(1_000_000) is None
    times.observe("a", batch([1001]), 1_000_001)
    assert times.watermark(1_000_020) == Watermark(991)


def test_a_clock_that_is_set_back_makes_nothing_idle() -> None:
    times = reading("a", event_time=IDLING)
    times.observe("a", batch([1000]), 5000)
    times.watermark(5000)
    assert [times.watermark(now) for now in (40, 80)] == [None, None]


def test_no_row_moves_event_time_to_its_end() -> None:
    times = reading("a", event_time=EventTime("at"))
    times.observe("a", batch([LATEST]), 0)
    assert times.watermark(0) == Watermark(LATEST - 1)
    earliest = reading("a")
    earliest.observe("a", batch([EARLIEST + 1]), 0)
    assert earliest.watermark(0) == Watermark(EARLIEST)


SPLITS = st.sampled_from(["a", "b", "c"])
ROWS = st.tuples(SPLITS, st.lists(st.integers(-1000, 1000), min_size=1, max_size=3))
STEPS = st.lists(ROWS | st.sets(SPLITS) | st.integers(0, 150), max_size=40)


@given(steps=STEPS, restored=st.none() | st.integers(-500, 500), idle_after=st.none() | st.integers(1, 100))
def test_the_watermark_never_goes_back_nor_past_what_a_split_allows(
    steps: list[tuple[str, list[int]] | set[str] | int], restored: int | None, idle_after: int | None
) -> None:
    event_time = EventTime("at", "10ms", None if idle_after is None else f"{idle_after}ms")
    times = EventTimes(event_time, None if restored is None else Watermark(restored))
    latest: dict[str, int] = {}
    splits: set[str] = set()
    now, last = 0, EARLIEST if restored is None else restored
    for step in steps:
        match step:
            case set():
                times.reading(step)
                latest = {split: time for split, time in latest.items() if split in step}
                splits = step
            case (split, rows) if split in splits:
                assert times.observe(split, batch(rows), now).tolist() == rows
                latest[split] = max(latest.get(split, EARLIEST), *rows)
            case int():
                now += step
            case _:
                continue
        watermark = times.watermark(now)
        if watermark is None:
            assert idle_after is not None or not splits or splits - latest.keys() or min(latest.values()) - 10 <= last
            continue
        assert watermark.timestamp >= last
        assert watermark == times.current
        if idle_after is None:
            assert not watermark.idle
            if splits:
                assert watermark.timestamp in (last, min(latest[split] for split in splits) - 10)
        last = watermark.timestamp


@given(data=st.data(), late=st.integers(0, 50))
def test_no_row_is_late_whose_split_keeps_its_promise(data: st.DataObject, late: int) -> None:
    times = reading("a", "b", "c", event_time=EventTime("at", out_of_order=f"{late}ms"))
    latest = dict.fromkeys("abc", 0)
    for now in range(30):
        split = data.draw(SPLITS)
        rows = data.draw(st.lists(st.integers(latest[split] - late, latest[split] + 40), min_size=1, max_size=4))
        rows = [max(row, max(rows[:place], default=latest[split]) - late) for place, row in enumerate(rows)]
        current = times.current
        assert current is None or min(rows) >= current.timestamp
        times.observe(split, batch(rows), now)
        latest[split] = max(latest[split], *rows)
        times.watermark(now)
