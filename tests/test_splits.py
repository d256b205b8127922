"""Who reads which split: every split is in exactly one place, at every cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.epochs.splits import SplitEnumerator


def test_splits_are_assigned_in_the_order_in_which_they_were_found() -> None:
    splits = SplitEnumerator((), ["a", "b"])
    splits.discover(["c"])
    assert [splits.assign() for _ in range(4)] == ["a", "b", "c", None]
    assert splits.unassigned == ()


def test_a_split_that_is_found_again_changes_nothing() -> None:
    splits: SplitEnumerator[str] = SplitEnumerator((), [])
    splits.discover(["a", "b", "a"])
    assert splits.assign() == "a"
    splits.discover(["a", "b", "c"])
    assert splits.unassigned == ("b", "c")


def test_a_restored_enumerator_assigns_no_split_that_has_a_reader() -> None:
    splits = SplitEnumerator(["a", "b"], ["b"])
    splits.discover(["a", "b", "c"])
    assert [splits.assign(), splits.assign(), splits.assign()] == ["b", "c", None]


def test_an_unassigned_split_that_is_found_again_is_not_there_twice() -> None:
    splits = SplitEnumerator(["a"], ["b"])
    splits.discover(["b"])
    assert splits.unassigned == ("b",)


def test_what_is_unassigned_at_a_cut_stays_as_it_was() -> None:
    splits = SplitEnumerator((), ["a", "b"])
    cut = splits.unassigned
    splits.assign()
    assert cut == ("a", "b")


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=4), st.just("restore"))))
def test_every_split_is_in_one_place_across_cuts_and_restores(steps: list[list[int] | str | None]) -> None:
    """`None` assigns a split, a list is what a look at the source finds, and a restore goes back to the last cut."""
    splits: SplitEnumerator[int] = SplitEnumerator((), ())
    assigned: list[int] = []
    found: set[int] = set()
    for step in steps:
        if step is None:
            split = splits.assign()
            assigned += [] if split is None else [split]
        elif isinstance(step, list):
            splits.discover(step)
            found |= set(step)
        else:
            splits = SplitEnumerator(assigned, splits.unassigned)
        assert sorted([*assigned, *splits.unassigned]) == sorted(found)
