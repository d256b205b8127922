"""Which launches there are, and when another one is due: by a clock that the tests turn."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from recovery.driver.launchers.launch_rules import Cancel, Launch, Slots

AGAIN = 0.1


def running(count: int = 1) -> Slots:
    """Every slot has the process w1, w2 ..., brought by the launch of that number."""
    slots = Slots(count, AGAIN, 0.0)
    assert slots.step(0.0) == [Launch(slot, slot + 1) for slot in range(count)]
    assert all(slots.appeared(number, f"w{number}") for number in range(1, count + 1))
    return slots


def test_a_launch_that_ends_is_followed_by_another_one_at_once() -> None:
    slots = running(2)
    slots.lost("w2", 50.0, silent=False)
    assert slots.ended(2, 50.0)
    assert slots.step(50.0) == [Launch(1, 3)]
    assert slots.step(60.0) == []


def test_what_ends_soon_after_its_launch_again_and_again_is_launched_after_longer_and_longer_pauses() -> None:
    slots, now, pauses = Slots(1, AGAIN, 0.0), 0.0, []
    for number in range(1, 9):
        due = slots.next_step
        assert due is not None
        pauses.append(round(due - now, 3))
        now = due
        assert slots.step(now) == [Launch(0, number)]
        assert slots.ended(number, now)
    assert pauses == [0.0, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 5.0]


def test_a_launch_brings_another_process_by_itself_if_it_does_so_in_time() -> None:
    slots = running()
    slots.lost("w1", 50.0, silent=False)
    assert slots.step(50.05) == []
    assert slots.appeared(1, "another")
    assert slots.next_step is None


def test_of_two_launches_the_one_whose_process_comes_first_counts_and_the_other_is_cancelled() -> None:
    for first, other in ((1, 2), (2, 1)):
        slots = running()
        slots.lost("w1", 50.0, silent=False)
        assert slots.step(50.0 + AGAIN) == [Launch(0, 2)]
        assert slots.appeared(first, "another")
        assert slots.step(50.2) == [Cancel(other)]
        assert not slots.appeared(other, "late")
        assert not slots.ended(other, 50.3)
        assert slots.next_step is None


def test_the_launch_of_a_process_that_hangs_is_cancelled_before_the_next_one_begins() -> None:
    slots = running()
    slots.lost("w1", 50.0, silent=True)
    assert slots.step(50.0) == [Cancel(1), Launch(0, 2)]
    assert not slots.appeared(1, "it woke up and came again")
    assert slots.appeared(2, "another")


def test_a_launch_that_brings_nothing_gives_way_as_its_task_may_hold_the_place_that_the_next_one_needs() -> None:
    slots = running()
    slots.lost("w1", 50.0, silent=False)
    assert slots.step(51.0) == [Launch(0, 2)]
    assert slots.step(55.9) == []
    assert slots.step(56.0) == [Cancel(1)]
    assert slots.next_step is None


def test_a_second_process_of_one_launch_replaces_the_first_and_its_loss_is_old_news() -> None:
    slots = running()
    assert slots.appeared(1, "another")
    slots.lost("w1", 50.0, silent=True)
    assert slots.next_step is None


def test_a_process_of_a_launch_that_has_ended_does_not_count() -> None:
    slots = running()
    assert slots.ended(1, 50.0)
    assert not slots.appeared(1, "another")
    assert not slots.appeared(77, "of another job")


happenings = st.lists(
    st.tuples(
        st.sampled_from(["appears", "ends", "is lost", "is silent", "nothing"]),
        st.integers(0, 10),
        st.sampled_from([0.0, 0.05, 0.2, 3.0, 10.0]),
    )
)


@given(happenings)
def test_whatever_happens_an_empty_slot_has_a_launch_under_way_or_due(
    happened: Sequence[tuple[str, int, float]],
) -> None:
    slots, now, under_way, there = Slots(1, AGAIN, 0.0), 0.0, list[int](), dict[str, int]()
    for number, (what, choice, pause) in enumerate(happened):
        now += pause
        for done in slots.step(now):
            match done:
                case Launch(number=launch):
                    under_way.append(launch)
                case Cancel(launch):
                    under_way.remove(launch)
                    there = {worker: by for worker, by in there.items() if by != launch}
        chosen = under_way[choice % len(under_way)] if under_way else 0
        if what == "appears" and chosen and slots.appeared(chosen, f"w{number}"):
            there = {f"w{number}": chosen}
        elif what == "ends" and chosen:
            assert slots.ended(chosen, now)
            under_way.remove(chosen)
            there = {worker: by for worker, by in there.items() if by != chosen}
        elif what in ("is lost", "is silent") and there:
            slots.lost(there.popitem()[0], now, silent=what == "is silent")
        assert len(under_way) <= 3
        assert there or under_way or slots.next_step is not None
        if not there and slots.next_step is not None:
            assert slots.next_step <= now + 5.0


# --- scouts, and slots that come and go


def with_one_kept() -> tuple[Slots, Launch]:
    slots = running(2)
    scouts = slots.scouts()
    assert scouts == Launch(2, 3)
    assert slots.step(10.0) == [], "who asks for scouts begins them"
    slots.keep(scouts, "scout", 10.0)
    return slots, scouts


def test_scouts_do_not_count_unless_one_is_kept() -> None:
    slots = running(2)
    scouts = slots.scouts()
    assert not slots.appeared(scouts.number, "scout")
    assert not slots.ended(scouts.number, 11.0)
    assert slots.next_step is None


def test_of_scouts_one_is_kept_and_has_a_slot_that_is_filled_again_as_all_are() -> None:
    slots, scouts = with_one_kept()
    assert not slots.appeared(scouts.number, "its like, which came later")
    slots.lost("scout", 50.0, silent=False)
    assert slots.appeared(scouts.number, "started again")
    slots.lost("started again", 60.0, silent=False)
    assert slots.ended(scouts.number, 60.0)
    assert slots.step(60.0) == [Launch(2, 4)]
    assert slots.appeared(4, "another")


def test_a_slot_that_is_not_needed_any_more_is_filled_no_more() -> None:
    slots, _ = with_one_kept()
    slots.retire(0, 20.0)
    slots.lost("w1", 20.1, silent=False)
    assert not slots.appeared(1, "started again by Spark")
    assert not slots.ended(1, 20.2)
    assert slots.next_step is None
    slots.lost("scout", 30.0, silent=False)
    assert slots.step(30.0 + AGAIN) == [Launch(2, 4)]


def test_a_process_that_does_not_leave_its_slot_is_ended() -> None:
    slots = running(2)
    slots.retire(1, 20.0)
    assert slots.step(24.9) == []
    assert slots.next_step == 25.0
    assert slots.step(25.0) == [Cancel(2)]
    assert slots.next_step is None


def test_launches_of_a_slot_without_a_process_are_cancelled_at_once_when_it_is_not_needed() -> None:
    slots = running(2)
    slots.lost("w2", 20.0, silent=False)
    slots.retire(1, 20.0)
    assert slots.step(20.0) == [Cancel(2)]
    assert slots.next_step is None
