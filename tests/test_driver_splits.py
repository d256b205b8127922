"""Splits are dealt out evenly or on demand, each once, and nothing is forgotten over a cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.driver.tree.splits import (
    Assignment,
    BadEnumerator,
    SplitDealer,
    SplitRules,
    enumerator_json,
    enumerator_splits,
)
from snapshot.tree.frozen_json import Json
from statebackend.ids import Partition

EVENLY = SplitRules(on_demand=False, grows=False)
ON_DEMAND = SplitRules(on_demand=True, grows=False)
GROWING = SplitRules(on_demand=False, grows=True)
GROWING_ON_DEMAND = SplitRules(on_demand=True, grows=True)


def to(partition: int, *splits: str, last: bool) -> Assignment:
    return Assignment(Partition(partition), splits, last)


def test_splits_are_dealt_out_evenly_when_all_are_there_and_everybody_hears_that_no_more_come() -> None:
    dealer = SplitDealer(EVENLY, [(), (), ()], unassigned="abcd")
    assert list(dealer.unassigned) == ["a", "b", "c", "d"]
    assert dealer.started() == [to(0, "a", "d", last=True), to(1, "b", last=True), to(2, "c", last=True)]
    assert not dealer.unassigned


def test_who_gets_no_split_hears_that_none_will_come() -> None:
    assert SplitDealer(EVENLY, [(), ()], unassigned="a").started() == [to(0, "a", last=True), to(1, last=True)]


def test_who_reads_least_gets_the_next_split() -> None:
    dealer = SplitDealer(GROWING, [("a", "b"), ()], finished=["c"])
    assert dealer.started() == []
    assert dealer.discovered(["a", "c", "d", "e", "f"]) == [to(0, "f", last=False), to(1, "d", "e", last=False)]


def test_what_was_found_before_the_start_is_dealt_out_at_the_start() -> None:
    dealer = SplitDealer(GROWING, [(), ()])
    assert dealer.discovered(["a"]) == []
    assert dealer.unassigned == ("a",)
    assert dealer.started() == [to(0, "a", last=False)]


def test_on_demand_a_partition_gets_one_split_for_each_that_it_asks_for() -> None:
    dealer = SplitDealer(ON_DEMAND, [(), ()], unassigned="ab")
    assert dealer.started() == []
    assert dealer.wanted(Partition(1)) == [to(1, "a", last=False)]
    assert dealer.unassigned == ("b",)
    assert dealer.wanted(Partition(1)) == [to(1, "b", last=True)]
    assert dealer.wanted(Partition(0)) == [to(0, last=True)]


def test_who_asks_a_growing_source_for_what_it_does_not_have_waits_until_it_is_found() -> None:
    dealer = SplitDealer(GROWING_ON_DEMAND, [(), ()])
    dealer.started()
    assert dealer.wanted(Partition(1)) == []
    assert dealer.wanted(Partition(1)) == []
    assert dealer.discovered(["a", "b"]) == [to(1, "a", last=False)]
    assert dealer.wanted(Partition(0)) == [to(0, "b", last=False)]


def test_a_wish_for_what_is_dealt_out_anyway_changes_nothing() -> None:
    dealer = SplitDealer(EVENLY, [()], unassigned="a")
    assert dealer.wanted(Partition(0)) == []
    assert dealer.unassigned == ("a",)


def test_a_split_that_was_read_to_its_end_is_not_found_again() -> None:
    dealer = SplitDealer(GROWING, [("a",)], finished=["b"], unassigned=["c"])
    dealer.started()
    assert dealer.discovered(["a", "b", "c"]) == []


@given(
    st.builds(SplitRules, st.booleans(), st.booleans()),
    st.integers(1, 4),
    st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True),
    st.lists(st.integers(0, 3) | st.frozensets(st.sampled_from("abcdefghij"), max_size=4) | st.just("start")),
)
def test_whatever_happens_every_split_is_in_one_place(
    rules: SplitRules, parallelism: int, splits: list[str], steps: list[int | frozenset[str] | str]
) -> None:
    dealer = SplitDealer(rules, [()] * parallelism, unassigned=splits)
    given_out: list[str] = []
    known = set(splits)
    told_last: set[Partition] = set()
    for step in steps:
        match step:
            case int():
                done = dealer.wanted(Partition(step % parallelism))
            case frozenset():
                known |= step if rules.grows else set()
                done = dealer.discovered(sorted(step)) if rules.grows else []
            case _:
                done = dealer.started()
        for one in done:
            assert one.partition not in told_last or not one.splits
            given_out += one.splits
            told_last |= {one.partition} if one.last else set()
        assert sorted([*given_out, *dealer.unassigned]) == sorted(known)
    assert not (rules.grows and told_last)


def test_what_nobody_reads_is_kept_as_a_list() -> None:
    assert enumerator_splits(enumerator_json(("b", "a"))) == ("b", "a")


@pytest.mark.parametrize("text", ["null", '{"a":1}', '["a",1]', '"a"'])
def test_what_is_no_list_of_splits_is_refused(text: str) -> None:
    with pytest.raises(BadEnumerator, match="a list of splits was expected"):
        enumerator_splits(Json(text))
