"""The batches of a source: they begin at a trigger, end by themselves, and nothing is read in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.batches import Batches
from snapshot.cut.pauses import Then
from statebackend.ids import Epoch, Generation

ONE, TWO, THREE = (Epoch(Generation(1), number) for number in (1, 2, 3))


def begun(at_most: int | None = 10, longest: float = 1.0) -> Batches:
    batches = Batches(at_most, longest)
    batches.triggered(ONE, Then.PAUSE, 0.0)
    return batches


def reads(batches: Batches) -> bool:
    return batches.is_read


def stands_still(batches: Batches) -> bool:
    return batches.stands_still


def test_nothing_is_read_before_the_first_trigger() -> None:
    batches = Batches(None, 1.0)
    assert not reads(batches)
    assert not stands_still(batches)


def test_a_batch_is_read_until_there_is_nothing_more() -> None:
    batches = begun()
    assert reads(batches)
    batches.took(3, 0.1)
    assert reads(batches)
    batches.found_nothing()
    assert not reads(batches)
    assert stands_still(batches)
    assert batches.may_end


def test_a_batch_has_no_more_rows_than_it_may_have() -> None:
    batches = begun(at_most=10)
    assert batches.left(100) == 10
    batches.took(7, 0.1)
    assert batches.left(100) == 3
    assert batches.left(2) == 2
    batches.took(3, 0.1)
    assert not reads(batches)


def test_a_batch_of_a_source_that_never_runs_dry_ends_after_a_time() -> None:
    batches = begun(at_most=None, longest=1.0)
    batches.took(1_000_000, 0.9)
    assert reads(batches)
    assert 0.09 < batches.next_due(0.9) < 0.11
    batches.took(1, 1.0)
    assert not reads(batches)


def test_a_batch_that_waits_for_its_first_row_ends_after_a_time() -> None:
    batches = begun()
    batches.took(0, 1.0)
    assert not reads(batches)


def test_each_batch_may_have_as_many_rows_as_the_one_before() -> None:
    batches = begun(at_most=10)
    batches.took(10, 0.1)
    batches.over(ONE, complete=True)
    assert not reads(batches)
    batches.triggered(TWO, Then.PAUSE, 5.0)
    assert reads(batches)
    assert batches.left(100) == 10
    assert batches.next_due(5.0) == 1.0


def test_an_epoch_that_is_triggered_while_another_is_under_way_has_no_rows_of_its_own() -> None:
    batches = begun()
    batches.found_nothing()
    batches.triggered(TWO, Then.PAUSE, 0.2)
    assert not reads(batches)


def test_rows_are_read_on_for_the_next_epoch_if_the_one_that_they_were_for_is_given_up() -> None:
    batches = begun()
    batches.triggered(TWO, Then.PAUSE, 0.1)
    batches.over(ONE, complete=False)
    assert reads(batches)
    batches.over(TWO, complete=False)
    assert not reads(batches)
    assert not stands_still(batches)


def test_behind_the_last_epoch_no_batch_begins() -> None:
    batches = Batches(None, 1.0)
    batches.triggered(ONE, Then.STOP, 0.0)
    assert reads(batches)
    batches.found_nothing()
    batches.over(ONE, complete=True)
    assert stands_still(batches)
    assert not batches.may_end
    batches.triggered(TWO, Then.PAUSE, 1.0)
    assert not reads(batches)


STEPS = st.lists(
    st.tuples(st.sampled_from(["trigger", "took", "nothing", "complete", "given up"]), st.integers(0, 7)), max_size=60
)


@given(st.none() | st.integers(1, 9), STEPS)
def test_whatever_happens_rows_are_read_only_for_an_epoch_that_is_under_way_and_has_not_all_of_its_batch(
    at_most: int | None, steps: list[tuple[str, int]]
) -> None:
    batches, now, number = Batches(at_most, 5.0), 0.0, 0
    under_way: list[Epoch] = []
    reading, rows, began = False, 0, 0.0
    for step, amount in steps:
        now += 0.5
        match step:
            case "trigger":
                number += 1
                if not under_way:
                    reading, rows, began = True, 0, now
                under_way.append(Epoch(Generation(1), number))
                batches.triggered(under_way[-1], Then.PAUSE, now)
            case "took" if reading:
                rows += amount
                batches.took(amount, now)
                reading = now < began + 5.0 and (at_most is None or rows < at_most)
            case "nothing" if reading:
                batches.found_nothing()
                reading = False
            case "complete" | "given up" if under_way:
                batches.over(under_way.pop(amount % len(under_way)), complete=step == "complete")
                reading = reading and bool(under_way)
            case _:
                pass
        assert reads(batches) == reading
        assert stands_still(batches) == bool(under_way)
        assert not reads(batches) or batches.left(4) > 0
