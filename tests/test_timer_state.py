"""Timers as a program uses them: they fire in order, with their key set, and survive a snapshot and a rescale."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from statebackend import Epoch, Generation, KeyedState, Operator, Timers, ValueState, Window, open_store
from statebackend.files import FileSet
from statebackend.ids import Partition
from statebackend.keygroups import range_of

OPERATOR = Operator(
    "reminders",
    key=str,
    states={"seen": ValueState(int, default=0), "event": Timers("event"), "clock": Timers("processing")},
)
WINDOW = Window(0, 10).namespace


def opened(folder: Path, place: str, files: FileSet | None = None) -> KeyedState:
    numbers = count()
    names = lambda: f"shared/1-0-0-{place}-{next(numbers)}.sst"  # noqa: E731
    return KeyedState(OPERATOR, folder / place, open_store((folder / "store").as_uri()), names, files)


def fired(state: KeyedState, name: str = "event") -> list[tuple[int, object, bytes]]:
    found = []
    for timer in state[name].due():
        state["seen"].set(state["seen"].get() + 1)
        found.append((timer.time, timer.key, timer.namespace))
    return found


def test_timers_fire_in_the_order_of_their_times_with_their_key_and_namespace_set(tmp_path: Path) -> None:
    with opened(tmp_path, "a") as state:
        for key, time in (("late", 30), ("early", 10), ("never", 99), ("middle", 20)):
            state.set_key(key)
            state["event"].register(time)
        state.set_key("early")
        state.set_namespace(WINDOW)
        state["event"].register(15)
        state.advance(watermark=30)
        assert fired(state) == [(10, "early", b""), (15, "early", WINDOW), (20, "middle", b""), (30, "late", b"")]
        assert fired(state) == []
        assert state["event"].next_time() == 99
        state.set_key("early")
        state.set_namespace(b"")
        assert state["seen"].get() == 1
        state.set_namespace(WINDOW)
        assert state["seen"].get() == 1


def test_event_time_and_processing_time_do_not_wake_each_other(tmp_path: Path) -> None:
    with opened(tmp_path, "a") as state:
        state.set_key("k")
        state["clock"].register(5)
        state.advance(watermark=100)
        assert fired(state, "clock") == []
        state.advance(processing_time=5)
        assert fired(state, "clock") == [(5, "k", b"")]


def test_timers_fire_up_to_a_time_that_has_not_come_if_that_is_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path, "a") as state:
        state.set_key("k")
        for time in (5, 6, 7):
            state["clock"].register(time)
        assert [one.time for one in state["clock"].due(6)] == [5, 6]
        assert fired(state, "clock") == []


def test_a_fired_timer_stays_fired_and_a_waiting_one_waits_on_after_a_restore_at_another_parallelism(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, "a") as state:
        for number in range(50):
            state.set_key(f"key{number}")
            state["event"].register(number)
        state.advance(watermark=19)
        assert len(fired(state)) == 20
        files = state.snapshot(Epoch(Generation(1), 1))
    waiting = []
    for partition in range(3):
        part = files.projected(range_of(Partition(partition), 3, OPERATOR.max_parallelism))
        with opened(tmp_path, f"b{partition}", part) as state:
            state.advance(watermark=100)
            times = [time for time, _, _ in fired(state)]
            assert times == sorted(times)
            waiting += times
    assert sorted(waiting) == list(range(20, 50))


def test_timers_are_in_one_of_two_times() -> None:
    with pytest.raises(ValueError, match="expected 'event' or 'processing'"):
        Timers("evnt")  # type: ignore[arg-type]
