"""The event time of a subtask, over inputs that are behind, idle, ended or restored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import LATEST, Watermark
from snapshot.cut.watermarks import Watermarks
from snapshot.ids import ChannelId
from statebackend.ids import Partition, Uid


def channel(sender: int) -> ChannelId:
    return ChannelId(Uid("up"), Uid("down"), Partition(sender), Partition(0))


A, B, C = channel(0), channel(1), channel(2)


def at(timestamp: int) -> Watermark:
    return Watermark(timestamp)


def idle(timestamp: int) -> Watermark:
    return Watermark(timestamp, idle=True)


def test_nothing_is_known_until_every_input_has_spoken() -> None:
    watermarks = Watermarks([A, B])
    assert watermarks.current is None
    assert watermarks.advance(A, at(5)) is None
    assert watermarks.current is None
    assert watermarks.advance(B, at(7)) == at(5)
    assert watermarks.current == at(5)


def test_the_slowest_input_decides_and_nothing_is_said_twice() -> None:
    watermarks = Watermarks([A, B])
    watermarks.advance(A, at(5))
    watermarks.advance(B, at(5))
    assert watermarks.advance(B, at(9)) is None
    assert watermarks.advance(A, at(7)) == at(7)
    assert watermarks.advance(A, at(12)) == at(9)


def test_time_never_goes_back() -> None:
    watermarks = Watermarks([A])
    assert watermarks.advance(A, at(5)) == at(5)
    assert watermarks.advance(A, at(3)) is None
    assert watermarks.current == at(5)
    assert watermarks.advance(A, at(6)) == at(6)


def test_an_idle_input_holds_nobody_back() -> None:
    watermarks = Watermarks([A, B])
    watermarks.advance(A, at(5))
    assert watermarks.advance(B, idle(0)) == at(5)
    assert watermarks.advance(A, at(8)) == at(8)
    assert watermarks.advance(B, at(2)) is None
    assert watermarks.advance(B, at(9)) is None
    assert watermarks.advance(A, at(10)) == at(9)


def test_when_all_are_idle_so_is_the_subtask_at_the_latest_of_them() -> None:
    watermarks = Watermarks([A, B])
    watermarks.advance(A, at(5))
    assert watermarks.advance(B, at(9)) == at(5)
    assert watermarks.advance(A, idle(5)) == at(9)
    assert watermarks.advance(B, idle(9)) == idle(9)
    assert watermarks.advance(A, at(6)) == at(9)


def test_an_idle_input_that_was_ahead_counts_when_the_others_become_idle() -> None:
    watermarks = Watermarks([A, B])
    watermarks.advance(A, at(5))
    assert watermarks.advance(B, idle(9)) == at(5)
    assert watermarks.advance(A, idle(5)) == idle(9)


def test_an_ended_input_no_longer_counts() -> None:
    watermarks = Watermarks([A, B, C])
    watermarks.advance(A, at(5))
    watermarks.advance(B, at(9))
    assert watermarks.end(C) == at(5)
    assert watermarks.end(A) == at(9)
    assert watermarks.end(B) is None
    assert watermarks.current == at(9)


def test_event_time_does_not_end_with_one_input_while_another_is_idle() -> None:
    watermarks = Watermarks([A, B])
    watermarks.advance(A, at(5))
    assert watermarks.advance(B, idle(3)) == at(5)
    assert watermarks.advance(A, at(LATEST)) == idle(5)
    assert watermarks.end(A) is None
    assert watermarks.advance(B, at(7)) == at(7)
    assert watermarks.advance(B, at(LATEST)) == at(LATEST)


def test_an_input_at_its_end_holds_nobody_back_and_event_time_ends_with_the_last() -> None:
    watermarks = Watermarks([A, B, C])
    assert watermarks.advance(A, at(LATEST)) is None
    assert watermarks.advance(B, at(LATEST)) is None
    assert watermarks.advance(C, at(4)) == at(4)
    assert watermarks.end(A) is None
    assert watermarks.advance(C, at(LATEST)) == at(LATEST)
    assert watermarks.end(B) is None


def test_a_restored_subtask_stays_where_it_was_until_all_inputs_are_beyond() -> None:
    watermarks = Watermarks([A, B], at(10))
    assert watermarks.current == at(10)
    assert watermarks.advance(A, at(20)) is None
    assert watermarks.advance(B, at(4)) is None
    assert watermarks.current == at(10)
    assert watermarks.advance(B, at(15)) == at(15)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(st.none(), st.just(at(LATEST)), st.builds(Watermark, st.integers(0, 20), st.booleans())),
    )
)


@given(STEPS)
def test_a_new_watermark_is_at_most_what_every_input_that_counts_has_announced(
    steps: list[tuple[int, Watermark | None]],
) -> None:
    watermarks = Watermarks([A, B, C])
    announced: dict[ChannelId, list[Watermark]] = {A: [], B: [], C: []}
    for sender, said in steps:
        of = channel(sender)
        if of not in announced:
            continue
        before = watermarks.current
        if said is None:
            del announced[of]
            new = watermarks.end(of)
        else:
            announced[of].append(said)
            new = watermarks.advance(of, said)
        assert new is None or (new == watermarks.current and new != before)
        if new is None:
            assert watermarks.current == before
            continue
        assert all(announced.values()), "not before all inputs have spoken"
        assert before is None or new.timestamp >= before.timestamp
        last = [words[-1] for words in announced.values()]
        last = [word for word in last if word.timestamp < LATEST] or last
        assert new.idle == all(word.idle for word in last)
        if before is None or new.timestamp > before.timestamp:
            assert all(new.timestamp <= word.timestamp for word in last if not word.idle)
            counting = [word.timestamp for word in last if not word.idle]
            assert new.timestamp == (min(counting) if counting else max(word.timestamp for word in last))
