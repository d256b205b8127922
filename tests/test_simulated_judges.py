"""The judges of simulated programs accept what a sequential execution gives, and no row too few or too many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.driver.tree import owned
from recovery.testing.programs.aggregates import Totals, Windowed
from recovery.testing.programs.drawn import DrawnProgram, draw
from recovery.testing.programs.functions import window_end
from recovery.testing.programs.joined import Configured, Paired
from recovery.testing.programs.shape import Shape
from recovery.testing.programs.source import Item
from recovery.testing.programs.tallied import Tallied
from recovery.testing.programs.target import ShownRow
from recovery.testing.programs.truth import Terms
from recovery.testing.scale import small_scale
from snapshot.testing.history import Violation
from snapshot.testing.schedule import Schedule
from statebackend.snapshots import consolidation


@dataclass
class Numbered:
    """Numbers rows by key, as they come."""

    count: Counter[int] = field(default_factory=Counter)

    def row(self, key: int, *more: object) -> ShownRow:
        self.count[key] += 1
        return (key, self.count[key], *more)


def numbered(items: list[Item]) -> list[ShownRow]:
    numbers = Numbered()
    return [numbers.row(item.key, item.id) for item in items]


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)


def sequential(shape: Shape) -> dict[str, list[ShownRow]]:
    """Return what the shape gives if its rows come one after the other, split by split."""
    match shape:
        case Tallied(rows=source, window=size):
            rows, levels = numbered(source.items), Numbered()
            found = {"numbers": rows, "levels_out": [levels.row(n, id) for _, n, id in rows]}
            windows = Counter((item.key, window_end(item.at, size)) for item in source.items) if size else {}
            return found | {"windows": [(*window, n) for window, n in windows.items()]}
        case Totals(rows=source, per=per):
            numbers, sums = Numbered(), Counter[int]()
            out: list[ShownRow] = []
            for item in source.items:
                sums[item.key] += item.value
                out.append(numbers.row(item.key, sums[item.key]))
            out = out if shape.summed else [row[:2] for row in out]
            last = {row[0]: row for row in out}
            return {"out": list(last.values()) if per == "end" else out}
        case Windowed(window=size):
            counts, ids = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
            for item in shape.all_rows:
                counts[item.key, window_end(item.at, size)] += 1
                ids[item.key, window_end(item.at, size)] += item.id
            longer = Counter[tuple[int, int]]()
            for (key, end), n in counts.items():
                longer[key, window_end(end - 1, 2 * size)] += n
            return {
                "out": [(key, at(end - size), at(end), n, ids[key, end]) for (key, end), n in counts.items()],
                "late": [],
                "longer_out": [(key, at(end - 2 * size), at(end), n) for (key, end), n in longer.items()],
            }
        case Paired(firsts=one, seconds=other):
            pairs = [(a.key, a.id, b.id) for a in one.items for b in other.items if a.key == b.key]
            return {"out": pairs}
        case Configured(rows=source):
            return {"out": [(*row, 0) for row in numbered(source.items)]}
        case _:
            raise AssertionError(f"{shape} is unknown")


programs = st.binary(min_size=30, max_size=30).map(lambda data: draw(Schedule(data), "judged"))


@given(programs)
def test_what_a_sequential_execution_gives_is_right(drawn: DrawnProgram) -> None:
    for complete in (False, True):
        drawn.shape.check_output(sequential(drawn.shape), Terms(), complete=complete)
        drawn.shape.check_output(sequential(drawn.shape), Terms(exactly_once=False), complete=complete)


@given(programs, st.data())
def test_a_row_that_is_lost_or_there_twice_is_found(drawn: DrawnProgram, data: st.DataObject) -> None:
    output = sequential(drawn.shape)
    uid = data.draw(st.sampled_from([one.uid for one in drawn.program.outputs if output[one.uid]]))
    rows = output[uid]
    place = data.draw(st.integers(0, len(rows) - 1))
    twice = output | {uid: [*rows, rows[place]]}
    with pytest.raises(Violation):
        drawn.shape.check_output(twice, Terms(), complete=True)
    lost = output | {uid: rows[:place] + rows[place + 1 :]}
    if not (isinstance(drawn.shape, Totals) and drawn.shape.per == "batch" and rows[place][0] in _keys(rows, place)):
        with pytest.raises(Violation):
            drawn.shape.check_output(lost, Terms(), complete=True)


def _keys(rows: list[ShownRow], place: int) -> set[int]:
    """Return the keys of the rows behind this one: where rows stand for batches, the last of a key says all."""
    return {row[0] for row in rows[place + 1 :]}


@given(st.binary(max_size=60))
def test_the_same_bytes_give_the_same_program(data: bytes) -> None:
    assert draw(Schedule(data), "again").shape == draw(Schedule(data), "again").shape


def test_thresholds_are_small_for_a_while_and_then_as_before() -> None:
    before = consolidation.SMALLEST_SLICE, owned._INLINE
    with small_scale(slice_bytes=1):
        assert (consolidation.SMALLEST_SLICE, owned._INLINE) == (1, 64)
    assert before == (consolidation.SMALLEST_SLICE, owned._INLINE)
