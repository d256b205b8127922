"""How the output of a job differs from the truth, row by row.

Invariant: a row of the truth that is missing counts as lost, one that is there more often as twice, and one
that the truth does not have as wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of so many `rows`. `examples` are some that differ, in words."""

    rows: int
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    examples: tuple[str, ...] = field(default=())

    @property
    def exact(self) -> bool:
        return not (self.lost or self.twice or self.wrong)

    @property
    def complete(self) -> bool:
        """Whether there is nothing wrong with it but rows that came twice."""
        return not (self.lost or self.wrong)

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.rows + other.rows,
            self.lost + other.lost,
            self.twice + other.twice,
            self.wrong + other.wrong,
            (*self.examples, *other.examples)[:10],
        )


def compared(truth: Iterable[Row], output: Iterable[Row]) -> Comparison:
    """The rows as bags: their order does not count."""
    expected, found = Counter(truth), Counter(output)
    lost, more = expected - found, found - expected
    twice = {row: count for row, count in more.items() if row in expected}
    wrong = {row: count for row, count in more.items() if row not in expected}
    examples = [
        f"{what}: {row!r} ({count})"
        for what, rows in (("lost", lost), ("twice", twice), ("wrong", wrong))
        for row, count in sorted(rows.items(), key=repr)[:4]
    ]
    return Comparison(
        sum(expected.values()), sum(lost.values()), sum(twice.values()), sum(wrong.values()), tuple(examples)
    )


def compared_with_repeats(truth: Iterable[Row], output: Iterable[Row]) -> Comparison:
    """The rows as bags, where more of one is no error, but counted as twice."""
    expected, found = set(truth), Counter(output)
    lost, wrong = expected - found.keys(), found.keys() - expected
    examples = [
        f"{what}: {row!r}" for what, rows in (("lost", lost), ("wrong", wrong)) for row in sorted(rows, key=repr)[:4]
    ]
    twice = found.total() - len(found)
    return Comparison(len(expected), len(lost), twice, sum(found[row] for row in wrong), tuple(examples))


Ordered = dict[object, list[Mapping[str, object]]]


def by_sequence(rows: Sequence[Mapping[str, object]], key: str, sequence: str) -> Ordered:
    """The rows of each key in the order of their sequence numbers."""
    keys: Ordered = {}
    for row in rows:
        keys.setdefault(row[key], []).append(row)
    return {of: sorted(some, key=lambda row: _number(row[sequence])) for of, some in keys.items()}


def numbered(ordered: Mapping[object, Sequence[Mapping[str, object]]], sequence: str) -> Comparison:
    """Whether each key's sequence numbers are 1, 2, 3 ... without a gap, and none is there twice."""
    given = [(key, _number(row[sequence])) for key, rows in ordered.items() for row in rows]
    expected = [(key, number) for key, rows in ordered.items() for number in range(1, len(rows) + 1)]
    return compared(expected, given)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
