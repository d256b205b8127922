"""A collection gives its rows, fails where it is told to, and goes on behind the end of a run."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from snapshot.connectors.memory.collection import ABORT, EOF, PAUSE, Aborted, Collection, CollectionReader
from snapshot.program.source import Batch, Exhausted, Later, Reading, Source, SplitContext
from snapshot.testing.sources import CHECKS
from statebackend.ids import Attempt, Partition

SCHEMA = pa.schema([("user", pa.string()), ("clicks", pa.int64())])
Click = namedtuple("Click", ["user", "clicks"])
A, B, C, D = ("a", 1), ("b", 2), ("c", 3), ("d", 4)


def opened(source: Collection, position: int | None = None, attempt: int = 1, split: int = 0) -> CollectionReader:
    return source.open(SplitContext("clicks", str(split), position, Partition(0), Attempt(attempt)))


def rows(reading: Reading) -> list[tuple[object, ...]]:
    assert isinstance(reading, Batch)
    return [tuple(row.values()) for row in reading.rows.to_pylist()]


@pytest.mark.parametrize(
    "source",
    [
        Collection([A, B, C, D] * 5, SCHEMA),
        Collection([A, B, C, D] * 5, SCHEMA, splits=3),
        Collection([A, PAUSE(0), B, C, D], SCHEMA),
        Collection([A, B, EOF(), C, D], SCHEMA),
        Collection([], SCHEMA),
    ],
)
@pytest.mark.parametrize("check", CHECKS)
def test_a_collection_passes_the_kit(check: Callable[[Source], None], source: Collection) -> None:
    check(source)


def test_rows_may_be_tuples_named_tuples_lists_and_mappings() -> None:
    source = Collection([A, Click("b", 2), ["c", 3], {"clicks": 4, "user": "d"}], SCHEMA)
    assert rows(opened(source).read(10)) == [A, B, C, D]


def test_the_kth_abort_fails_the_first_k_attempts() -> None:
    source = Collection([A, ABORT(), B, ABORT(), C], SCHEMA)
    for attempt in (1, 2):
        reader = opened(source, attempt=attempt)
        reached = [A] if attempt == 1 else [A, B]
        assert [row for _ in reached for row in rows(reader.read(1))] == reached
        with pytest.raises(Aborted, match=f"source clicks, split 0: item {2 * attempt - 1} .* number {attempt};"):
            reader.read(1)
    third = opened(source, attempt=3)
    assert [row for _ in range(3) for row in rows(third.read(5))] == [A, B, C]
    assert third.read(5) == Exhausted()


def test_aborts_are_counted_in_each_split() -> None:
    source = Collection([A, B, ABORT(), ABORT(), C, D], SCHEMA, splits=2)
    for split, row in enumerate((C, D)):
        assert rows(opened(source, position=2, attempt=2, split=split).read(5)) == [row]


def test_behind_an_eof_only_an_attempt_goes_on_that_starts_there() -> None:
    source = Collection([A, B, EOF(), C], SCHEMA)
    first = opened(source)
    reading = first.read(10)
    assert rows(reading) == [A, B]
    assert isinstance(first.read(10), Later)
    assert isinstance(first.read(10), Later)
    assert isinstance(reading, Batch)
    assert rows(opened(source, position=1).read(10)) == [B]
    following = opened(source, position=2, attempt=2)
    assert rows(following.read(10)) == [C]
    assert following.read(10) == Exhausted()


def test_an_eof_further_on_ends_the_next_run() -> None:
    source = Collection([A, EOF(), B, EOF(), C], SCHEMA)
    second = opened(source, position=1)
    assert rows(second.read(10)) == [B]
    assert isinstance(second.read(10), Later)
    assert rows(opened(source, position=3).read(10)) == [C]


def test_a_collection_with_an_eof_is_not_bounded() -> None:
    assert Collection([A, B], SCHEMA).bounded
    assert not Collection([A, EOF(), B], SCHEMA).bounded


def test_a_pause_lasts_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("statebackend.means.wall", lambda: now)
    reader = opened(Collection([A, PAUSE(2.5), B], SCHEMA))
    assert rows(reader.read(10)) == [A]
    assert reader.read(10) == Later(102.5)
    now = 102.0
    assert reader.read(10) == Later(102.5)
    now = 102.5
    assert rows(reader.read(10)) == [B]


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([A, ("b",)], "item 1 of the collection has 1 values; the schema has 2 columns"),
        ([A, {"user": "b"}], "item 1 of the collection has the columns user; the schema has user, clicks"),
        ([A, "bc"], "item 1 of the collection is 'bc', which is no tuple"),
        ([A, 7], "item 1 of the collection is 7"),
        ([A, ABORT(), ("b", "many")], "item 2 of the collection has 'many' in the column 'clicks' of int64"),
        ([A, ("b", 2**70)], "item 1 .* in the column 'clicks'"),
        ([EOF(), A], "item 0 of the collection is an EOF, and no row stands before it"),
    ],
)
def test_what_does_not_fit_is_found_by_check(items: list[object], problem: str) -> None:
    [found] = Collection(items, SCHEMA).check()  # type: ignore[arg-type]
    assert re.search(problem, found)


def test_an_eof_needs_a_row_before_it_in_its_own_split() -> None:
    assert Collection([A, EOF(), B], SCHEMA, splits=2).check() == [
        "item 1 of the collection is an EOF, and no row stands before it in its split"
    ]
    assert replace(Collection([A, EOF(), B], SCHEMA), splits=0).check() == [
        "a collection cannot have 0 splits; splits must be 1 or more"
    ]
