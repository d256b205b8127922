"""The rows that a replica holds for a sink: at a take-over it hands out what no complete epoch has, all of it, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.replication.held_output import HeldOutput, NotYetCut
from statebackend.ids import NO_EPOCH, Epoch, Generation


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def test_rows_are_held_until_the_epoch_that_has_them_is_complete() -> None:
    held = HeldOutput[str]()
    held.add("a", 3)
    held.cut(epoch(1))
    held.add("b", 4)
    assert held.size == 7
    held.completed(epoch(1))
    assert held.size == 4
    assert held.take_over() == ["b"]
    assert held.size == 0


def test_rows_of_an_epoch_that_was_given_up_go_with_the_next() -> None:
    held = HeldOutput[str]()
    held.add("a", 1)
    held.cut(epoch(1))
    held.add("b", 1)
    held.cut(epoch(2))
    held.add("c", 1)
    held.completed(epoch(2))
    assert held.take_over() == ["c"]


def test_an_epoch_may_be_complete_before_it_is_cut_here_and_a_take_over_waits_for_that() -> None:
    held = HeldOutput[str]()
    held.add("a", 1)
    held.completed(epoch(1))
    held.add("b", 1)
    with pytest.raises(NotYetCut, match="epoch 1-1 is complete"):
        held.take_over()
    held.cut(epoch(1))
    held.add("c", 1)
    assert held.take_over() == ["c"]


def test_an_epoch_of_before_the_attempt_is_no_news() -> None:
    held = HeldOutput[str](epoch(4))
    held.add("a", 1)
    held.completed(epoch(4))
    assert held.take_over() == ["a"]


class DropsAtTheCut(HeldOutput[int]):
    """Drops what belongs to an epoch when it is cut, and not when it is complete."""

    def cut(self, epoch: Epoch) -> None:
        super().cut(epoch)
        self._parts.clear()


def play(held: HeldOutput[int], steps: list[str]) -> None:
    """Do these things at a replica, which may be behind others: so an epoch may be complete before it is cut here."""
    rows = [number for number, step in enumerate(steps) if step == "row"]
    cuts = [number for number, step in enumerate(steps) if step == "cut"]
    complete = -1
    for number, step in enumerate(steps):
        match step:
            case "row":
                held.add(number, 1)
            case "cut":
                held.cut(epoch(cuts.index(number) + 1))
            case "complete":
                past = [cut for cut in cuts if complete < cut <= number]
                complete = max(past[:1], default=complete)
                held.completed(epoch(cuts.index(complete) + 1) if past else NO_EPOCH)
            case _:
                ahead = [cut for cut in cuts if cut > max(number, complete)]
                complete = max(ahead[:1], default=complete)
                held.completed(epoch(cuts.index(complete) + 1) if ahead else NO_EPOCH)
    assert held.take_over() == [row for row in rows if row > complete]


histories = st.lists(st.sampled_from(["row", "row", "cut", "complete", "complete before its cut here"]), max_size=40)


@given(histories)
def test_what_is_handed_out_is_what_no_complete_epoch_has(steps: list[str]) -> None:
    play(HeldOutput(), steps)


def test_rows_that_are_dropped_when_their_epoch_is_cut_are_missed() -> None:
    with pytest.raises(AssertionError):
        play(DropsAtTheCut(), ["row", "cut", "row"])
