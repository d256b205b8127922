"""The conformance kit for sources: what a rollback relies on, as checks that a source without it fails.

Invariant: a check reads splits as a partition does, and closes every reader. `check_source(source)` runs all of
`CHECKS`; with pytest, parametrize over `CHECKS` to have one test for each. A check that fails raises a `Violation` that
names the promise. A split is read until it is exhausted or has nothing to read now; give the kit a source that has
something to read at once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snapshot.program.source import AvailableNow, Batch, Exhausted, Source, SplitContext
from snapshot.testing.history import Violation
from snapshot.tree.frozen_json import Json, JsonLike
from statebackend.ids import Attempt, Partition

MOST = 7
"""Rows that are read at once, so that positions lie inside of what a source reads at once itself."""
_AT_MOST = 100_000
"""Rows of a split that the kit reads; for one with more there is no telling whether it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadThrough:
    """The result of reading a split: its batches, and whether that is all that will ever come."""

    batches: Sequence[Batch]
    exhausted: bool

    @property
    def rows(self) -> list[dict[str, object]]:
        """Return all rows, as mappings."""
        return [row for batch in self.batches for row in batch.rows.to_pylist()]


def read_through(
    source: Source, split: str, position: JsonLike = None, most: int = MOST, until: JsonLike = None
) -> ReadThrough:
    """Read a split from a position on, until it ends, as it does at `until`, or has nothing to read now.

    Raises `Violation` for a split with more than 100,000 rows, whether or not it would end.
    """
    reader = source.open(SplitContext("kit", split, position, Partition(0), Attempt(1), until))
    batches: list[Batch] = []
    try:
        while sum(batch.rows.num_rows for batch in batches) <= _AT_MOST:
            match reader.read(most):
                case Batch() as batch:
                    batches.append(batch)
                case reading:
                    return ReadThrough(batches, isinstance(reading, Exhausted))
        raise Violation(
            f"split {split} has more than {_AT_MOST} rows, the most that the kit reads, or does not end; give the "
            f"kit a source with fewer"
        )
    finally:
        reader.close()


def check_source(source: Source) -> None:
    """Check every promise; raise `Violation` that names the first broken one."""
    for check in CHECKS:
        check(source)


def it_is_plain_data_without_a_fault(source: Source) -> None:
    """Check that a source can be pickled, and that its own check finds nothing."""
    problems = pickle.loads(pickle.dumps(source)).check()
    if problems:
        raise Violation(f"a source that is read has no problems; but it says {problems}")


def splits_have_names_of_their_own(source: Source) -> None:
    """Check that no two splits have the same name, also when the source is asked again."""
    for splits in (source.discover(1), source.discover(3)):
        if len(set(splits)) != len(splits):
            raise Violation(f"each split has a name of its own; but there are {sorted(splits)}")


def batches_keep_to_the_schema_and_the_limit(source: Source) -> None:
    """Check that a batch has at most as many rows as were asked for, and the source's schema."""
    for split in source.discover(2):
        for batch in read_through(source, split).batches:
            if batch.rows.num_rows > MOST:
                raise Violation(f"{MOST} rows at most were asked for; but split {split} gave {batch.rows.num_rows}")
            if not batch.rows.schema.equals(source.schema):
                raise Violation(f"rows are of the schema {source.schema}; but split {split} gave {batch.rows.schema}")


def a_bounded_source_ends(source: Source) -> None:
    """Check that every split of a bounded source is exhausted in the end."""
    for split in source.discover(2):
        if source.bounded and not read_through(source, split, most=_AT_MOST).exhausted:
            raise Violation(f"every split of a bounded source ends; but {split} does not")


def how_much_is_read_at_once_changes_nothing(source: Source) -> None:
    """Check that the same rows come in the same order, in whatever pieces they are read."""
    for split in source.discover(2):
        expected = read_through(source, split, most=_AT_MOST).rows
        for most in (1, 2, MOST):
            _expect(read_through(source, split, most=most).rows, expected, f"split {split}, read {most} at once")


def from_every_position_the_rest_follows(source: Source) -> None:
    """Check that a reader opened at the position after a batch gives what came after that batch, and no more."""
    for split in source.discover(2):
        through = read_through(source, split)
        expected = through.rows
        done = 0
        for batch in through.batches:
            done += batch.rows.num_rows
            position = Json.of(batch.position).value()
            rest = read_through(pickle.loads(pickle.dumps(source)), split, position)
            # A split that has not ended may have more to read by now.
            until = None if through.exhausted else len(expected) - done
            _expect(rest.rows[:until], expected[done:], f"split {split}, from {position} on")


def what_there_is_now_ends_and_the_rest_follows(source: Source) -> None:
    """Check that splits read as far as the source says are exhausted there, and that the rest follows from there."""
    if not isinstance(source, AvailableNow) or source.unavailable():
        return
    splits = source.discover(2)
    there = source.available(splits, dict.fromkeys(splits))
    if again := set(there.new) & set(splits):
        raise Violation(f"what is new is not known already; but {sorted(again)} are")
    for split in splits:
        until = there.ends.get(split)
        now = read_through(source, split, until=until)
        if not now.exhausted:
            raise Violation(f"what there is now ends; but split {split}, read until {until}, is not exhausted")
        position = Json.of(now.batches[-1].position).value() if now.batches else None
        through, rest = read_through(source, split), read_through(source, split, position)
        rows = now.rows if until is None else [*now.rows, *rest.rows]
        _expect(rows[: len(through.rows)], through.rows, f"split {split}, until {until} and then on from {position}")


def _expect(rows: Sequence[object], expected: Sequence[object], where: str) -> None:
    if rows == expected:
        return
    first = next((n for n, (a, b) in enumerate(zip(rows, expected, strict=False)) if a != b), None)
    place = min(len(rows), len(expected)) if first is None else first
    raise Violation(
        f"the same rows come in the same order; but {where}: {len(rows)} rows instead of {len(expected)}, the first "
        f"difference at row {place}: {rows[place : place + 1]} instead of {expected[place : place + 1]}"
    )


CHECKS: tuple[Callable[[Source], None], ...] = (
    it_is_plain_data_without_a_fault,
    splits_have_names_of_their_own,
    batches_keep_to_the_schema_and_the_limit,
    a_bounded_source_ends,
    how_much_is_read_at_once_changes_nothing,
    from_every_position_the_rest_follows,
    what_there_is_now_ends_and_the_rest_follows,
)
"""Every promise of a source, in the order in which it helps to know that it is broken."""
