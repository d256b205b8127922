"""A trace of a coordinator is replayed to the same answers, and another answer is noticed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import MarkerMode
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.epochs.trace import NoTrace, TraceDiffers, TraceWriter, replay
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

GENERATION = Generation(3)
BOTH = frozenset({Partition(0), Partition(1)})
OPTIONS = CoordinatorOptions(interval=10, timeout=60, max_in_flight=3, mode=MarkerMode.UNALIGNED, retain=2)
STEPS = st.lists(st.tuples(st.sampled_from(range(10)), st.integers(0, 7)), max_size=60)


def epoch(number: int, generation: int = GENERATION) -> Epoch:
    return Epoch(Generation(generation), number)


def recorded(steps: list[tuple[int, int]]) -> list[str]:
    """What a coordinator is told and says in this many steps, each a kind of event and a number."""
    lines: list[str] = []
    trace = TraceWriter(lines.append)
    before = (epoch(4, 2), epoch(5, 2))
    coordinator: Coordinator[object] = Coordinator(
        OPTIONS, GENERATION, now=0, complete=before[-1], last_number=5, uncommitted=before
    )
    trace.begin(OPTIONS, GENERATION, 0, before[-1], 5, before)
    now, publishing = 0, None
    for kind, number in steps:
        incarnation, partition = coordinator.incarnation, Partition(number % 2)
        known = epoch(6 + number // 2)
        now += number
        event: events.CoordinatorEvent[object]
        match kind:
            case 0 | 1:
                event = events.Ticked(now)
            case 2:
                event = events.AttemptStarted(incarnation, BOTH)
            case 3 | 4:
                event = events.Acknowledged(known, incarnation, partition, object(), number > 3)
            case 5 if publishing is not None:
                event = events.Published(publishing) if number else events.PublishFailed(publishing, "no space")
            case 6:
                event = events.Committed(known, incarnation, partition)
            case 7:
                event = events.AttemptBroken(Incarnation(GENERATION, Attempt(incarnation.attempt - number % 2)), "lost")
            case 8:
                event = events.SavepointRequested() if number % 2 else events.EpochRequested()
            case _:
                event = events.Declined(known, incarnation, partition, "no")
        instructions = coordinator.handle(event)
        trace.add(event, instructions)
        if isinstance(event, events.Published | events.PublishFailed):
            publishing = None
        for one in instructions:
            publishing = one.epoch if isinstance(one, events.Publish) else publishing
    return lines


@given(STEPS)
def test_whatever_a_coordinator_was_told_a_replay_gives_the_same(steps: list[tuple[int, int]]) -> None:
    assert replay(recorded(steps)) == len(steps)


RUN = [(2, 0), (1, 7), (1, 7), (3, 0), (3, 1), (5, 1), (6, 0), (6, 1), (7, 0), (2, 0), (8, 1)]


def test_a_trace_of_a_run_has_publications_and_roll_backs() -> None:
    text = "".join(recorded(RUN))
    for name in ("Trigger", "Publish", "Complete", "RollBack", "Subsume"):  # names as they have always been stored
        assert f'"is":"{name}"' in text


def test_an_answer_that_is_not_the_recorded_one_is_shown_with_its_line_and_event() -> None:
    lines = recorded(RUN)
    (at,) = [number for number, line in enumerate(lines, start=1) if '"is":"RollBack"' in line]
    lines[at - 1] = lines[at - 1].replace('"confirm_first":false', '"confirm_first":true')
    with pytest.raises(TraceDiffers, match=rf"line {at}: at AttemptBroken\("):
        replay(lines)


def test_another_coordinator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = recorded(RUN)
    monkeypatch.setattr(Coordinator, "_publish_next", lambda _: [])
    with pytest.raises(TraceDiffers):
        replay(lines)


def test_an_event_that_the_coordinator_refuses_is_shown_with_its_line() -> None:
    lines = recorded(RUN)
    (at,) = [number for number, line in enumerate(lines, start=1) if '"is":"Published"' in line]
    published = lines[at - 1].replace('"epoch":"6-3"', '"epoch":"7-7"')
    with pytest.raises(TraceDiffers, match=rf"line {at}: at Published\(.* and is ValueError: epoch 7-7 is not the one"):
        replay([*lines[: at - 1], published, *lines[at:]])
    ticked = lines[2].replace('"now":7', '"now":"later"')
    with pytest.raises(TraceDiffers, match=r"line 3: at Ticked.* and is TypeError"):
        replay([*lines[:2], ticked])


def test_a_line_that_a_crash_cut_short_is_left_out() -> None:
    lines = recorded(RUN)
    assert replay([*lines[:-1], lines[-1][:20]]) == len(RUN) - 1


def test_a_file_of_several_runs_is_replayed_one_after_the_other() -> None:
    assert replay(recorded(RUN) * 2) == 2 * len(RUN)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "nothing in the trace"),
        (["x\n"], "line 1: it is not JSON"),
        (["[]\n"], "line 1: it is no object"),
        (['{"trace":"other","version":1}\n'], "expected a trace of epochcut.coordinator"),
        (['{"trace":"epochcut.coordinator","version":2}\n'], "in version 1"),
        ([*recorded([]), '{"event":{"is":"Nothing"},"instructions":[]}\n'], "is no event of a coordinator"),
        ([*recorded([]), '{"event":7,"instructions":[]}\n'], "is no event of a coordinator"),
        (
            [*recorded([]), '{"event":' + '{"a":' * 5000 + "1" + "}" * 5001 + "\n"],
            "line 2( is none of a trace: RecursionError|: .* is no event of a coordinator)",  # 3.13 reads it
        ),
    ],
)
def test_what_is_no_trace_is_refused(lines: list[str], complaint: str) -> None:
    with pytest.raises(NoTrace, match=complaint):
        replay(lines)


def test_a_complaint_about_a_line_is_one_sentence() -> None:
    header = recorded([])[0]
    for line, complaint in (
        (header.replace('"version":1', '"version":9'), "line 1: expected a trace of epochcut.coordinator in version 1"),
        (header.replace('"complete":"5-2"', '"complete":7'), "line 1: expected a text, found 7"),
    ):
        with pytest.raises(NoTrace) as caught:
            replay([line])
        assert str(caught.value).startswith(complaint)


def test_contents_are_not_in_the_trace() -> None:
    lines = recorded([(2, 0), (1, 7), (1, 7), (3, 0), (3, 1)])
    acknowledged = [json.loads(line) for line in lines if '"is":"Acknowledged"' in line]
    assert [one["event"]["content"] for one in acknowledged] == ["6-3/0", "6-3/1"]
