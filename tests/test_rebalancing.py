"""When a partition moves to another executor: the rule, by a clock that the tests turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from recovery.driver.attempts.moves import (
    BETWEEN_MOVES,
    CALM,
    FIRST_CALM,
    LOOKING,
    PREPARING,
    Crew,
    HandOver,
    Look,
    Prepare,
    Rebalancing,
    Recall,
)
from statebackend.ids import Partition


def crew(placed: str, free: str = "") -> Crew:
    """Partition 0 is on the executor of the first letter, and so on; the processes are p0, p1 ... and f0, f1 ..."""
    roles = {Partition(index): f"p{index}" for index in range(len(placed))}
    idle = [f"f{index}" for index in range(len(free))]
    executors = {f"p{index}": name for index, name in enumerate(placed)}
    return Crew(roles, idle, executors | dict(zip(idle, free, strict=True)))


def looking(placed: str) -> tuple[Rebalancing, float]:
    """A rule that has asked for scouts, and when."""
    rule = Rebalancing()
    rule.runs(0.0)
    assert rule.next_step == FIRST_CALM
    assert isinstance(rule.step(FIRST_CALM, crew(placed), []), Look)
    return rule, FIRST_CALM


def test_nothing_is_done_where_every_executor_has_one_partition() -> None:
    rule = Rebalancing()
    rule.runs(0.0)
    for free in ("", "a", "c"):
        assert rule.step(100.0, crew("ab", free), []) is None
    assert rule.next_step is not None
    assert not isfinite(rule.next_step)


def test_a_crowded_executor_is_reason_to_look_for_one_more_than_there_are() -> None:
    for placed, tasks in (("aa", 2), ("aab", 3), ("aaaa", 2)):
        rule = Rebalancing()
        rule.runs(0.0)
        assert rule.step(FIRST_CALM - 0.01, crew(placed), []) is None
        assert rule.step(FIRST_CALM, crew(placed), []) == Look(tasks)
        assert rule.step(FIRST_CALM, crew(placed), []) is None


def test_who_comes_stays_if_its_executor_has_two_partitions_less_than_the_fullest() -> None:
    for placed, executor, stays in (
        ("aa", "b", True),
        ("aa", "a", False),
        ("aab", "b", False),
        ("aab", "c", True),
        ("aaab", "b", True),
    ):
        rule, now = looking(placed)
        assert rule.came(now, executor, "f0", crew(placed, executor)) is stays
        assert rule.idle is False


def test_a_partition_is_handed_over_when_its_state_is_open_there_and_not_before() -> None:
    rule, now = looking("aa")
    assert rule.came(now, "b", "f0", crew("aa", "b"))
    assert rule.step(now, crew("aa", "b"), []) == Prepare("f0", Partition(1))
    assert rule.step(now + 50, crew("aa", "b"), ["another"]) is None
    assert rule.step(now + 60, crew("aa", "b"), ["f0"]) == HandOver("f0", Partition(1))
    assert rule.idle
    assert rule.step(now + 60, crew("aa", "b"), ["f0"]) is None


def test_a_process_that_stands_by_on_another_executor_is_taken_before_anybody_is_launched() -> None:
    rule = Rebalancing()
    rule.runs(0.0)
    assert rule.step(FIRST_CALM, crew("aa", "ab"), []) == Prepare("f1", Partition(1))
    assert rule.step(FIRST_CALM, crew("aa", "ab"), ["f1"]) == HandOver("f1", Partition(1))


def test_if_nobody_comes_it_is_looked_again_after_longer_and_longer_pauses() -> None:
    rule, now = looking("aa")
    pauses = []
    for _ in range(7):
        rule.nobody_else(now)
        due = rule.next_step
        assert due is not None
        pauses.append(due - now)
        now = due
        assert rule.step(now, crew("aa"), []) == Look(2)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0, 20.0]
    rule.broken()
    rule.runs(now)
    assert rule.next_step == now + CALM


def test_who_does_not_come_in_time_is_waited_for_no_more() -> None:
    rule, now = looking("aa")
    assert rule.next_step == now + LOOKING
    assert rule.step(now + LOOKING, crew("aa"), []) == Recall()
    assert not rule.came(now + LOOKING, "b", "f0", crew("aa", "b"))


def test_a_move_is_given_up_if_the_process_is_gone_or_does_not_get_ready() -> None:
    for lost in (True, False):
        rule, now = looking("aa")
        assert rule.came(now, "b", "f0", crew("aa", "b"))
        rule.step(now, crew("aa", "b"), [])
        if lost:
            rule.lost(now, "f0")
        else:
            assert rule.step(now + PREPARING, crew("aa", "b"), []) is None
        assert rule.idle


def test_a_failure_ends_what_is_under_way_and_nothing_is_done_until_it_is_made_up_for() -> None:
    rule, now = looking("aa")
    assert rule.came(now, "b", "f0", crew("aa", "b"))
    rule.broken()
    assert rule.idle
    assert rule.next_step is None
    assert rule.step(now + 1000, crew("aa", "b"), ["f0"]) is None


EXECUTORS = st.sampled_from("abcd")
HAPPENS = st.one_of(
    st.tuples(st.just("time"), st.floats(0.1, 30.0)),
    st.tuples(st.just("comes"), EXECUTORS),
    st.tuples(st.just("ready"), st.just("")),
    st.tuples(st.just("nobody"), st.just("")),
    st.tuples(st.just("breaks"), st.lists(EXECUTORS, min_size=4, max_size=4)),
)


@given(st.lists(EXECUTORS, min_size=4, max_size=4), st.lists(HAPPENS, max_size=60))
def test_whatever_happens_moves_lessen_the_crowd_one_at_a_time_and_never_soon_after_a_failure(
    start: Sequence[str], happens: Sequence[tuple[str, object]]
) -> None:
    rule, now, placed, free = Rebalancing(), 0.0, list(start), ""
    ready: list[str] = []
    ran, moved, looks = now, float("-inf"), 0
    rule.runs(now)
    for kind, what in happens:
        match kind, what:
            case "time", float(seconds):
                now += seconds
            case "comes", str(executor):
                if rule.came(now, executor, "f0", crew("".join(placed), executor)):
                    free, ready = executor, []
            case "ready", _:
                ready = ["f0"] if free else []
            case "nobody", _:
                rule.nobody_else(now)
            case "breaks", list(places):
                rule.broken()
                placed, free, ready, ran = list(places), "", [], now
                rule.runs(now)
            case _:
                raise AssertionError(kind)
        before = Counter(placed)
        said = rule.step(now, crew("".join(placed), free), ready)
        if said is not None:
            assert now >= ran + FIRST_CALM
        if isinstance(said, Look):
            looks += 1
            assert max(before.values()) > 1
        if isinstance(said, HandOver):
            assert now - moved >= BETWEEN_MOVES
            assert said.worker in ready
            left, taken = placed[said.partition], free
            assert before[left] - before[taken] >= 2
            placed[said.partition], free, ready, ran, moved = taken, left, [], now, now
            rule.runs(now)
        if rule.idle:
            free = free if isinstance(said, HandOver) else ""
    assert looks <= 1 + len(happens)


@given(st.lists(EXECUTORS, min_size=1, max_size=12))
def test_with_room_everywhere_all_executors_are_about_equally_full_in_the_end(start: Sequence[str]) -> None:
    rule, placed, now = Rebalancing(), list(start), 0.0
    rule.runs(now)
    for _ in range(200):
        now += BETWEEN_MOVES
        said = rule.step(now, crew("".join(placed)), [])
        if not isinstance(said, Look):
            break
        least = min("abcd", key=lambda name: placed.count(name))
        if not rule.came(now, least, "f0", crew("".join(placed), least)):
            break
        rule.step(now, crew("".join(placed), least), [])
        over = rule.step(now, crew("".join(placed), least), ["f0"])
        assert isinstance(over, HandOver)
        placed[over.partition] = least
        rule.runs(now)
    crowds = [placed.count(name) for name in "abcd"]
    assert max(crowds) - min(crowds) <= 1 or max(crowds) == 1
