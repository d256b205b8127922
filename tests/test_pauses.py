"""When sources stand still: for as long as an epoch that holds them is under way, and no longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.pauses import Pauses, Then
from statebackend.ids import Epoch, Generation

ONE, TWO = (Epoch(Generation(1), number) for number in (1, 2))


def held(*triggers: tuple[Epoch, Then]) -> Pauses:
    pauses = Pauses()
    for epoch, then in triggers:
        pauses.triggered(epoch, then)
    return pauses


def test_a_source_that_reads_on_never_stands_still() -> None:
    assert not held((ONE, Then.READ_ON)).stands_still


def test_a_source_stands_still_until_the_epoch_is_complete() -> None:
    pauses = held((ONE, Then.PAUSE))
    assert pauses.stands_still
    pauses.over(ONE, complete=True)
    assert not pauses.stands_still


def test_a_source_that_stops_does_not_go_on_when_the_epoch_is_complete() -> None:
    pauses = held((ONE, Then.STOP))
    pauses.over(ONE, complete=True)
    assert pauses.stands_still


def test_an_epoch_that_is_given_up_holds_no_source() -> None:
    for then in Then:
        pauses = held((ONE, then))
        pauses.over(ONE, complete=False)
        assert not pauses.stands_still


def test_a_source_that_two_epochs_hold_goes_on_when_both_are_over() -> None:
    pauses = held((ONE, Then.PAUSE), (TWO, Then.PAUSE))
    pauses.over(TWO, complete=True)
    assert pauses.stands_still
    pauses.over(ONE, complete=False)
    assert not pauses.stands_still


EPOCHS = st.integers(1, 6).map(lambda number: Epoch(Generation(1), number))


@given(
    st.lists(st.tuples(EPOCHS, st.sampled_from(Then), st.sampled_from([None, True, False])), unique_by=lambda s: s[0])
)
def test_whatever_the_order_a_source_reads_if_and_only_if_no_epoch_holds_it(
    epochs: list[tuple[Epoch, Then, bool | None]],
) -> None:
    pauses = held(*((epoch, then) for epoch, then, _ in epochs))
    for epoch, _, complete in sorted(epochs, key=lambda each: -each[0].number):
        if complete is not None:
            pauses.over(epoch, complete=complete)
    holding = [
        epoch
        for epoch, then, complete in epochs
        if (then is Then.PAUSE and complete is None) or (then is Then.STOP and complete is not False)
    ]
    assert pauses.stands_still == bool(holding)
