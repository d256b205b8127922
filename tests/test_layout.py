"""The tree: every path that is built is read back as what it was built from, and every other path is foreign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.tree.layout import (
    Content,
    JournalEntry,
    JournalSummary,
    ManifestFile,
    SharedFile,
    TreeItem,
    parse,
    path_of,
)
from statebackend.files import check_path
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

numbers = st.integers(0, 10**10 - 1)
items: st.SearchStrategy[TreeItem] = (
    st.builds(JournalEntry, numbers)
    | st.builds(JournalSummary, numbers)
    | st.builds(
        ManifestFile,
        st.builds(Epoch, st.integers(1).map(Generation), st.integers(0)),
        st.from_regex(r"[0-9a-z]{1,64}", fullmatch=True),
    )
    | st.builds(
        SharedFile,
        st.builds(Incarnation, st.integers(0).map(Generation), st.integers(0).map(Attempt)),
        st.integers(0).map(Partition),
        st.integers(0),
        st.sampled_from(Content),
    )
)


@given(items)
def test_a_path_is_read_back_as_what_it_was_built_from(item: TreeItem) -> None:
    path = path_of(item)
    assert parse(path) == item
    check_path(path)


@given(items, st.data())
def test_a_path_with_something_else_in_it_is_foreign_or_the_path_of_something_else(
    item: TreeItem, data: st.DataObject
) -> None:
    path = path_of(item)
    at = data.draw(st.integers(0, len(path)))
    changed = path[:at] + data.draw(st.text(min_size=1, max_size=3)) + path[at:]
    found = parse(changed)
    assert found is None or (found != item and path_of(found) == changed)


@given(st.text())
def test_arbitrary_text_is_foreign(path: str) -> None:
    assert parse(path) is None


def test_the_paths_are_those_of_the_documented_layout() -> None:
    shared = SharedFile(Incarnation(Generation(3), Attempt(1)), Partition(7), 12, Content.STATE)
    assert path_of(JournalEntry(42)) == "journal/0000000042.json"
    assert path_of(JournalSummary(40)) == "journal/summary-0000000040.json"
    assert path_of(ManifestFile(Epoch(Generation(2), 17), "a1b2")) == "epochs/17-2-a1b2/manifest.json"
    assert path_of(shared) == "shared/3-7-1-12.sst"


@given(numbers, numbers)
def test_journal_entries_sort_by_name_as_by_number(one: int, other: int) -> None:
    assert (path_of(JournalEntry(one)) < path_of(JournalEntry(other))) == (one < other)


@pytest.mark.parametrize(
    "path",
    [
        "journal/42.json",
        "journal/00000000042.json",
        "journal/0000000042.json.tmp",
        "journal/0000000042.json\n",
        "/journal/0000000042.json",
        "journal/٠٠٠٠٠٠٠٠٤٢.json",
        "epochs/17-2/manifest.json",
        "epochs/17-0-a/manifest.json",
        "epochs/017-2-a/manifest.json",
        "epochs/17-2-A/manifest.json",
        "epochs/17-2-a/other.json",
        "shared/3-7-1-12.txt",
        "shared/3-7-1-012.sst",
        "shared/3-7-12.sst",
        "shared/../journal/0000000042.json",
    ],
)
def test_what_the_layout_would_not_build_is_foreign(path: str) -> None:
    assert parse(path) is None


def test_names_that_could_not_be_read_back_are_not_built() -> None:
    with pytest.raises(ValueError, match="10000000000 is out of bounds"):
        JournalEntry(10**10)
    with pytest.raises(ValueError, match="-1 is out of bounds"):
        JournalSummary(-1)
    with pytest.raises(ValueError, match="'a-b'"):
        ManifestFile(Epoch(Generation(1), 1), "a-b")
    with pytest.raises(ValueError, match="no epoch that was ever triggered"):
        ManifestFile(Epoch(Generation(0), 0), "a")
    with pytest.raises(ValueError, match="negative"):
        SharedFile(Incarnation(Generation(1), Attempt(1)), Partition(-1), 0, Content.STATE)
