"""Programs of built-in aggregates: running ones, and those of windows, with idle inputs and branches of a source."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recovery.testing.programs.functions import window_end
from recovery.testing.programs.shape import Output, milliseconds, sink_of
from recovery.testing.programs.sink import Keeping
from recovery.testing.programs.source import Item, SimulatedSource
from recovery.testing.programs.target import ShownRow
from recovery.testing.programs.truth import CutFacts, Terms, read_of
from snapshot.operators.operator import Per
from snapshot.operators.windows.kinds import Tumbling
from snapshot.program.program import Program
from snapshot.program.stream import Stream
from snapshot.testing.checkers import check_exactly_once
from snapshot.testing.history import Violation
from statebackend.tables.values.aggregations import Aggregation, Count, Sum


@dataclass(frozen=True, slots=True)
class Totals:
    """Running aggregates by key."""

    rows: SimulatedSource
    per: Per
    rebalanced: bool
    summed: bool = True
    """True if the values are summed up as well; counts alone are stored without their keys where that pays."""

    @property
    def sources(self) -> Mapping[str, SimulatedSource]:
        """Return its one source."""
        return {"rows": self.rows}

    def program(self, name: str, keepings: Sequence[Keeping]) -> Program:
        """Return the program."""
        rows = Stream.read(self.rows, uid="rows")
        if self.rebalanced:
            rows = rows.rebalance(uid="spread")
        outputs: dict[str, Aggregation] = {"rows": Count()} | ({"total": Sum("v")} if self.summed else {})
        totals = rows.key_by("k").aggregate(uid="totals", per=self.per, **outputs)
        return totals.write(sink_of(name, keepings, 0), uid="out")

    def check_output(self, output: Output, terms: Terms, *, complete: bool) -> None:
        """Check that the counts of a key rise, one by one if there is a row for each, and end with all."""
        counts, totals = self._expected
        found: dict[int, list[ShownRow]] = defaultdict(list)
        for row in output["out"]:
            found[row[0]].append(row)
        for key, rows in found.items() if terms.exactly_once else ():
            numbers = [row[1] for row in rows]
            rising = numbers == sorted(set(numbers)) and numbers[-1] <= counts[key]
            gapless = self.per != "record" or numbers == list(range(1, len(numbers) + 1))
            if not rising or not gapless or (self.per == "end" and len(rows) > 1 and not terms.in_parts):
                raise Violation(f"key {key} has {counts[key]} rows, and was counted {numbers}")
        if complete:
            last = {key: max(rows, key=lambda row: int(row[1])) for key, rows in found.items()}
            expected = {key: (key, counts[key], totals[key])[: 3 if self.summed else 2] for key in counts}
            fewer = any(key not in last or last[key][1:] < row[1:] for key, row in expected.items())
            if last != expected if terms.exactly_once else fewer:
                raise Violation(f"the last totals are {last}, and should be {expected}")

    @property
    def _expected(self) -> tuple[Counter[int], Counter[int]]:
        counts, totals = Counter[int](), Counter[int]()
        for item in self.rows.items:
            counts[item.key] += 1
            totals[item.key] += item.value
        return counts, totals

    def check_cut(self, facts: CutFacts, terms: Terms) -> None:
        """Check that the totals are those of what was read."""
        counts, totals = Counter[int](), Counter[int]()
        for item in read_of(facts, "rows", self.rows):
            counts[item.key] += 1
            totals[item.key] += item.value
        stages = ("totals", "spread") if self.rebalanced else ("totals",)
        for row in (row for uid in stages for row in facts.in_flight(uid)):
            counts[row["k"]] -= 1
            totals[row["k"]] -= row["v"]
        found = facts.state("totals", "totals")
        sums = [("sums", "total.value", totals)] if self.summed else []
        for name, column, expected in (("counts", "rows.count", counts), *sums):
            values = {row["key"]: row[column] for row in found if row[column]}
            wrong = values != {key: value for key, value in expected.items() if value}
            if wrong if terms.exactly_once else any(values.get(key, 0) < value for key, value in expected.items()):
                raise Violation(f"{facts.name} has the {name} {values}; what was read comes to {dict(+expected)}")


@dataclass(frozen=True, slots=True)
class Windowed:
    """Counts by key and window; where inputs may be idle, late rows come to a second sink.

    It is `nested` if the counts are summed up in windows of twice the length, to a third sink; it is `branched` if
    every second row comes by another branch, with a time of its own far ahead, which declares its event time alike.
    """

    rows: SimulatedSource
    window: int
    out_of_order: int
    idle_after: int | None
    branched: bool
    nested: bool = False

    @property
    def sources(self) -> Mapping[str, SimulatedSource]:
        """Return its one source."""
        return {"rows": self.rows}

    def program(self, name: str, keepings: Sequence[Keeping]) -> Program:
        """Return the program."""
        rows = Stream.read(self.rows, uid="rows")
        delay = milliseconds(self.out_of_order)
        if self.branched:
            ahead = rows.filter(_is_odd).map(_ahead).with_event_time("at", out_of_order=milliseconds(self.out_of_order))
            behind = (
                rows.filter(_is_even).map(_same).with_event_time("at", out_of_order=milliseconds(self.out_of_order))
            )
            timed = ahead.union(behind)
        else:
            idle = None if self.idle_after is None else milliseconds(self.idle_after)
            timed = rows.with_event_time("at", out_of_order=delay, idle_after=idle)
        counted = (
            timed.key_by("k")
            .window(Tumbling(milliseconds(self.window)), late=True)
            .aggregate(uid="windows", rows=Count(), ids=Sum("id"))
        )
        late = counted.side("late").write(sink_of(name, keepings, 1), uid="late")
        program = counted.write(sink_of(name, keepings, 0), uid="out") + late
        if self.nested:
            longer = counted.key_by("k").window(Tumbling(milliseconds(2 * self.window)))
            sums = longer.aggregate(uid="longer", rows=Sum("rows"))
            program += sums.write(sink_of(name, keepings, 2), uid="longer_out")
        return program

    @property
    def all_rows(self) -> list[Item]:
        """Return all rows, with the event times that they are given."""
        return [self._timed(item) for item in self.rows.items]

    def _timed(self, item: Item) -> Item:
        return Item(item.key, item.id, item.at + AHEAD, item.value) if self.branched and item.id % 2 else item

    def check_output(self, output: Output, terms: Terms, *, complete: bool) -> None:
        """Check that each row is counted in its window, or is late; none is late where no input is idle."""
        counts, ids = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for item in self.all_rows:
            window = item.key, window_end(item.at, self.window)
            counts[window] += 1
            ids[window] += item.id
        late = output["late"]
        if late and terms.exactly_once and self.idle_after is None:
            raise Violation(f"rows are late where none can be: {late}")
        for row in late:
            window = row[0], window_end(row[2], self.window)
            counts[window] -= 1
            ids[window] -= row[1]
        expected = [(key, end - self.window, end, n, ids[key, end]) for (key, end), n in counts.items() if n > 0]
        found = [(key, _since_1970(start), _since_1970(end), n, ids) for key, start, end, n, ids in output["out"]]
        if terms.in_parts and terms.exactly_once:
            found = _summed(found)
        if terms.exactly_once and complete:
            check_exactly_once(expected, found, "the output of windows")
            if self.nested:
                self._check_longer(output)
        elif terms.exactly_once and len({row[:3] for row in found}) < len(found):
            raise Violation(f"a window gave its results twice: {sorted(found)}")
        elif complete and (missing := {row[:3] for row in expected} - {row[:3] for row in found}):
            raise Violation(f"windows {sorted(missing)} gave no results")

    def _check_longer(self, output: Output) -> None:
        """Check that each count is in the sum of its longer window: results come before the time that made them due."""
        expected, found = Counter[tuple[int, datetime]](), Counter[tuple[int, datetime]]()
        length = timedelta(milliseconds=2 * self.window)
        for key, start, _, count, _ in output["out"]:
            expected[key, start - (start - datetime(1970, 1, 1)) % length + length] += count
        for key, _, end, count in output["longer_out"]:
            found[key, end] += count
        if found != expected:
            raise Violation(f"the longer windows have the sums {sorted(found.items())}, not {sorted(expected.items())}")

    def check_cut(self, facts: CutFacts, terms: Terms) -> None:
        """Check that the windows that are open have what was read for them, and that none is that should be over."""
        if not terms.exactly_once or terms.in_parts or self.idle_after is not None:
            return
        flying = {row["id"] for row in facts.in_flight("windows")}
        read = [self._timed(item) for item in read_of(facts, "rows", self.rows) if item.id not in flying]
        expected = Counter((item.key, window_end(item.at, self.window)) for item in read)
        found = Counter[tuple[int, int]]()
        for row in facts.state("windows", "totals"):
            if row["namespace"]["end"] is not None and row["rows.count"]:
                found[row["key"], row["namespace"]["end"]] += row["rows.count"]
        over, gone = set[tuple[int, int]](), dict[int, int]()
        for key, end in expected:
            watermark, partition = facts.watermark_of("windows", key), facts.partition_of("windows", key)
            if watermark is not None and end <= watermark:
                over.add((key, end))
            elif (key, end) not in found:  # time is on its way there: windows give their results one by one
                gone[partition] = max(end, gone.get(partition, end))
        for (key, end), count in found.items():
            passed = (key, end) in over or end <= gone.get(facts.partition_of("windows", key), end - 1)
            if passed or count != expected[key, end]:
                raise Violation(
                    f"{facts.name} has {count} rows in the window of key {key} to {end}; of the {expected[key, end]} "
                    f"that were read, {'the results were given' if passed else 'some are lost, or there twice'}"
                )


AHEAD = 1_000_000
"""Milliseconds by which one branch is ahead of the other."""


def _summed(rows: Sequence[tuple[int, int, int, int, int]]) -> list[tuple[int, int, int, int, int]]:
    """Return one row for each window, with all that its results have come to."""
    counts, ids = Counter[tuple[int, int, int]](), Counter[tuple[int, int, int]]()
    for key, start, end, count, id in rows:
        counts[key, start, end] += count
        ids[key, start, end] += id
    return [(*window, count, ids[window]) for window, count in counts.items()]


def _since_1970(time: datetime) -> int:
    return (time - datetime(1970, 1, 1)) // timedelta(milliseconds=1)


def _is_odd(row: Any) -> bool:
    return bool(row.id % 2)


def _is_even(row: Any) -> bool:
    return not row.id % 2


def _ahead(row: Any) -> Any:
    return (row.k, row.id, row.at + AHEAD, row.v)


def _same(row: Any) -> Any:
    return (row.k, row.id, row.at, row.v)
