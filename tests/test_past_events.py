"""Events come back from their file as they were, whatever else is in it."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import events as log
from recovery.driver.report.event_log import line_of
from recovery.driver.report.line_file import LineFile
from recovery.driver.report.past_events import MOST, PastEvents, Unreadable, event_of
from snapshot.ids import Member, Replica
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

KINDS = get_args(log.AnyEvent)
NUMBERS = st.integers(0, 2**40)
THOUSANDTHS = NUMBERS.map(lambda number: number / 1000)
"""Times of day have no more digits in the file, and neither have spans."""

st.register_type_strategy(Epoch, st.builds(Epoch, NUMBERS.map(lambda one: Generation(one + 1)), NUMBERS))
st.register_type_strategy(Incarnation, st.builds(Incarnation, NUMBERS.map(Generation), NUMBERS.map(Attempt)))
st.register_type_strategy(Member, st.builds(Member, NUMBERS.map(Partition), NUMBERS.map(Replica)))


def of_kind(kind: type[log.AnyEvent]) -> st.SearchStrategy[log.AnyEvent]:
    times = {"at": st.integers(0, 2**41).map(lambda ms: ms / 1000)}
    return st.builds(kind, **times)


@pytest.fixture(autouse=True, scope="module")
def _thousandths() -> Any:
    st.register_type_strategy(float, THOUSANDTHS)
    st.register_type_strategy(int, NUMBERS)
    yield
    st.register_type_strategy(float, st.floats())
    st.register_type_strategy(int, st.integers())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_event_comes_back_from_its_line(kind: type[log.AnyEvent], data: st.DataObject) -> None:
    event = data.draw(of_kind(kind))
    found = event_of(line_of(event))
    assert found.at == pytest.approx(event.at, abs=0.0011, rel=0), "times of day are cut off after the milliseconds"
    assert replace(found, at=event.at) == event


@given(
    st.text(string.printable, max_size=60) | st.sampled_from(KINDS).map(lambda one: f'{{"event": "{one.__name__}"}}')
)
def test_a_line_that_is_no_event_is_refused_and_nothing_else_happens(line: str) -> None:
    with pytest.raises(Unreadable):
        event_of(line)


def test_a_field_of_another_type_is_refused_and_one_that_is_not_known_is_left_out() -> None:
    line = line_of(log.EpochSkipped(at=1.0, reason="none"))
    assert event_of(line.replace("}", ', "later": 5}')) == log.EpochSkipped(at=1.0, reason="none")
    with pytest.raises(Unreadable):
        event_of(line.replace('"none"', "5"))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "-1e30", "1" * 5_000])
@pytest.mark.parametrize("field", ["since_trigger_ms", "state_bytes", "time"])
def test_a_number_that_is_none_or_endless_costs_its_line_alone(field: str, number: str, tmp_path: Path) -> None:
    line = line_of(
        log.EpochCompleted(
            at=1.0, epoch=Epoch(Generation(1), 1), savepoint=False, since_trigger_ms=17.0, alignment_ms=0.0,
            sync_ms=0.0, async_ms=0.0, state_bytes=17, channel_bytes=0,
        )
    )  # fmt: skip
    assert isinstance(event_of(line), log.EpochCompleted)
    before, after = ("01.", "000Z") if field == "time" else (f'"{field}": ', "17.0" if "ms" in field else "17")
    damaged = line.replace(before + after, before + number + "Z" * (field == "time"))
    assert damaged != line
    path = tmp_path / "events.jsonl"
    path.write_text(damaged + line_of(skipped(1)))
    past = PastEvents(path)
    assert list(past.more()) == [skipped(1)]
    assert past.unreadable == 1


def skipped(number: int) -> log.EpochSkipped:
    return log.EpochSkipped(at=float(number), reason="x" * 100)


def test_a_file_is_followed_through_damage_half_lines_and_being_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    past = PastEvents(path)
    assert list(past.more()) == []
    file = LineFile(path, largest=1_500)
    for number in range(3):
        file.write(line_of(skipped(number)))
    assert list(past.more()) == [skipped(0), skipped(1), skipped(2)]
    with path.open("a") as other:
        other.write("\x00damaged\n" + line_of(skipped(3))[:20])
    assert list(past.more()) == []
    assert past.unreadable == 1
    with path.open("a") as other:
        other.write(line_of(skipped(3))[20:])
    assert list(past.more()) == [skipped(3)]
    for number in range(4, 12):
        file.write(line_of(skipped(number)))
    file.close()
    assert path.with_name("events.jsonl.1").exists()
    assert list(past.more()) == [skipped(number) for number in range(4, 12)]
    assert list(PastEvents(path).more())[-8:] == [skipped(number) for number in range(4, 12)]


def test_a_file_that_is_put_aside_during_the_first_look_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    aside = path.with_name("events.jsonl.1")
    aside.write_text(line_of(skipped(0)))
    path.write_text(line_of(skipped(1)))
    past = PastEvents(path)
    first = past.more()
    found = [next(first)]
    path.replace(aside)
    path.write_text(line_of(skipped(2)))
    found += [*first, *past.more(), *past.more()]
    assert found == [skipped(0), skipped(1), skipped(2)]
    assert (past.unreadable, past.passed_over) == (0, 0)


def test_of_a_very_long_past_the_newest_part_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = line_of(log.EpochSkipped(at=1.0, reason="x" * 100_000))
    path.with_name("events.jsonl.1").write_text(line * (MOST // len(line)))
    path.write_text(line * 100 + line_of(skipped(5)))
    past = PastEvents(path)
    found = list(past.more())
    assert found[-1] == skipped(5)
    assert len(found) * len(line) <= MOST + 2 * len(line)
    assert past.passed_over > 0
    assert past.unreadable == 0
