"""The facts of a cut as a shape of program judges them, and the judgements that several shapes share.

Invariant: a judgement goes by the content of the sources alone. Where the order of rows decides what comes out, every
order that a sequential execution could have is right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from recovery.testing.programs.source import IDS_OF_A_SPLIT, Item, SimulatedSource
from recovery.testing.programs.target import ShownRow
from snapshot.testing.checkers import check_exactly_once
from snapshot.testing.history import Violation


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a job was run, and by which it is judged.

    If it is not `exactly_once`, rows may come again, and are never lost. If it ran `in_parts`, it was drained and went
    on: windows gave their results for the rows by then, and again for those after.
    """

    exactly_once: bool = True
    in_parts: bool = False


StateRow: TypeAlias = "Mapping[str, Any]"
"""An entry of a state, by the columns of its canonical table."""


class CutFacts(Protocol):
    """The content of a complete epoch."""

    @property
    def name(self) -> str:
        """Return the name of the epoch, for messages."""

    def positions(self, source: str) -> Mapping[int, int | None]:
        """Return how far each split that was given out is read; None is its end."""

    def unassigned(self, source: str) -> Sequence[int]:
        """Return the splits that were not given out."""

    def state(self, operator: str, state: str) -> Sequence[StateRow]:
        """Return the entries of an operator's state, of all partitions."""

    def in_flight(self, operator: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows on the operator's channels."""

    def partition_of(self, operator: str, key: int) -> int:
        """Return the operator's partition that has the key."""

    def watermark_of(self, operator: str, key: int) -> int | None:
        """Return how far event time was in the operator's partition that has the key."""

    def broadcast(self, operator: str, state: str) -> Mapping[Any, Any]:
        """Return the operator's broadcast state."""


def read_of(facts: CutFacts, uid: str, source: SimulatedSource) -> list[Item]:
    """Return the rows that were read before the cut; check that each split is read, or waits to be given out, once."""
    positions, waiting = facts.positions(uid), facts.unassigned(uid)
    splits = range(len(source.splits))
    check_exactly_once(splits, [*positions, *waiting], f"the splits of {uid} in {facts.name}")
    return list(source.read_up_to(positions))


def check_seen(facts: CutFacts, read: Iterable[Item], seen: Iterable[int], where: str, *, exactly_once: bool) -> None:
    """Check that these ids of rows, of state and in flight, are those of the rows that were read."""
    wanted, found = [item.id for item in read], list(seen)
    if exactly_once:
        check_exactly_once(wanted, found, f"{where} in {facts.name}")
    elif lost := Counter(wanted) - Counter(found):
        raise Violation(f"{where} in {facts.name} has lost {sorted(lost.elements())}")


def check_numbered(rows: Sequence[ShownRow], items: Sequence[Item], *, in_order: bool, complete: bool) -> None:
    """Check rows of a key, a number and an id: each row of the items once, numbered by key without a gap.

    A key's rows become visible in the order of their numbers. With `in_order` rows of one split keep their order.
    """
    key_of = {item.id: item.key for item in items}
    ids = [row[2] for row in rows]
    check_exactly_once(list(key_of) if complete else key_of.keys() & set(ids), ids, "the output")
    by_key: dict[int, list[ShownRow]] = defaultdict(list)
    for row in rows:
        if key_of.get(row[2]) != row[0]:
            raise Violation(f"the output has {row}, and row {row[2]} has the key {key_of.get(row[2])}")
        by_key[row[0]].append(row)
    for key, some in by_key.items():
        numbers = [row[1] for row in some]
        if numbers != list(range(1, len(numbers) + 1)):
            raise Violation(f"the rows of key {key} became visible with the numbers {numbers}")
        if in_order:
            _check_order(key, [row[2] for row in some])


def _check_order(key: int, ids: Sequence[int]) -> None:
    latest: dict[int, int] = {}
    for id in ids:
        split = id // IDS_OF_A_SPLIT
        if id < latest.get(split, -1):
            raise Violation(f"row {id} of key {key} comes after row {latest[split]} of the same split")
        latest[split] = id


def check_none_lost(rows: Sequence[ShownRow], place: int, items: Sequence[Item]) -> None:
    """Check that each row of the items is there at least once; its id is at this place of a row."""
    missing = {item.id for item in items} - {row[place] for row in rows}
    if missing:
        raise Violation(f"the output has lost {sorted(missing)}")
