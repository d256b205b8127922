"""A program whose function remembers all rows: numbers by key, windows by timers, and a second operator after it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery.testing.programs.functions import WINDOWS, Tally, window_end
from recovery.testing.programs.shape import Output, milliseconds, sink_of
from recovery.testing.programs.sink import Keeping
from recovery.testing.programs.source import Item, SimulatedSource
from recovery.testing.programs.target import ShownRow
from recovery.testing.programs.truth import CutFacts, Terms, check_none_lost, check_numbered, check_seen, read_of
from snapshot.program.plan import EventTime
from snapshot.program.program import Program
from snapshot.program.stream import Stream
from snapshot.testing.checkers import check_exactly_once
from snapshot.testing.history import Violation
from statebackend.tables.values.aggregations import Count, Sum


@dataclass(frozen=True, slots=True)
class Tallied:
    """Rows numbered by key, with windows counted by timers; the numbers go to a second operator, if it is `chained`."""

    rows: SimulatedSource
    window: int
    every: int
    out_of_order: int
    idle_after: int | None
    rebalanced: bool
    chained: bool
    takes: float = 0.0
    """Seconds that the function takes for each row."""

    @property
    def sources(self) -> Mapping[str, SimulatedSource]:
        """Return its one source."""
        return {"rows": self.rows}

    def program(self, name: str, keepings: Sequence[Keeping]) -> Program:
        """Return the program."""
        idle = None if self.idle_after is None else milliseconds(self.idle_after)
        timed = EventTime("at", milliseconds(self.out_of_order), idle) if self.window else None
        rows = Stream.read(self.rows, uid="rows", event_time=timed)
        if self.rebalanced:
            rows = rows.rebalance(uid="spread")
        tally = rows.key_by("k").process(
            Tally(name, self.window, every=self.every, takes=self.takes),
            uid="tally",
            schema={"k": int, "n": int, "id": int},
            sides={WINDOWS: {"k": int, "end": int, "n": int}},
        )
        program = tally.write(sink_of(name, keepings, 0), uid="numbers")
        if self.window:
            program += tally.side(WINDOWS).write(sink_of(name, keepings, 1), uid="windows")
        if self.chained:
            counts = tally.key_by("n").aggregate(uid="levels", rows=Count(), ids=Sum("id"))
            program += counts.write(sink_of(name, keepings, 2), uid="levels_out")
        return program

    def check_output(self, output: Output, terms: Terms, *, complete: bool) -> None:
        """Check numbers, windows and levels."""
        items = self.rows.items
        if not terms.exactly_once:
            if complete:
                check_none_lost(output["numbers"], 2, items)
            return
        check_numbered(output["numbers"], items, in_order=not self.rebalanced, complete=complete)
        if self.window:
            in_parts = terms.in_parts or self.idle_after is not None
            self._check_windows(output["windows"], items, in_parts=in_parts, complete=complete)
        if self.chained:
            self._check_levels(output["levels_out"], items, complete=complete)

    def _check_windows(
        self, rows: Sequence[ShownRow], items: Sequence[Item], *, in_parts: bool, complete: bool
    ) -> None:
        expected = Counter((item.key, window_end(item.at, self.window)) for item in items)
        if not in_parts:  # no row is late
            wanted = [(*window, count) for window, count in expected.items()]
            check_exactly_once(wanted if complete else set(wanted) & set(rows), rows, "the output of windows")
            return
        found: Counter[tuple[int, int]] = Counter()
        for key, end, count in rows:
            found[key, end] += count
        if (found != expected) if complete else (found - expected):
            raise Violation(f"windows counted {sorted(found.items())}, and there are {sorted(expected.items())}")

    def _check_levels(self, rows: Sequence[ShownRow], items: Sequence[Item], *, complete: bool) -> None:
        """Check that so many rows have each number as keys have so many rows."""
        per_key = Counter(item.key for item in items)
        levels = Counter(number for count in per_key.values() for number in range(1, count + 1))
        found: dict[int, list[int]] = defaultdict(list)
        for level, count, _ in rows:
            found[level].append(count)
        for level, counts in found.items():
            if counts != list(range(1, len(counts) + 1)) or len(counts) > levels[level]:
                raise Violation(f"the rows with number {level} were counted {counts}, and there are {levels[level]}")
        if complete and {level: len(counts) for level, counts in found.items()} != dict(levels):
            raise Violation(f"the numbers were counted {dict(found)}, and there are {dict(levels)}")

    def check_cut(self, facts: CutFacts, terms: Terms) -> None:
        """Check that the tally has seen just what was read, and has the windows and timers that follow."""
        read, flying = read_of(facts, "rows", self.rows), [row["id"] for row in facts.in_flight("tally")]
        if self.rebalanced:
            flying += [row["id"] for row in facts.in_flight("spread")]
        seen = [(row["key"], row["value"]) for row in facts.state("tally", "seen")]
        check_seen(facts, read, [*(id for _, id in seen), *flying], "the tally", exactly_once=terms.exactly_once)
        if not terms.exactly_once:
            return
        numbers = {row["key"]: row["value"] for row in facts.state("tally", "number")}
        if numbers != Counter(key for key, _ in seen):
            raise Violation(f"{facts.name} has numbers {numbers} and rows {sorted(seen)}")
        self._check_timers(facts)
        if self.window:
            in_parts = terms.in_parts or self.idle_after is not None
            self._check_windows_in(facts, {item.id: item for item in read}, [id for _, id in seen], in_parts=in_parts)
        if self.chained:
            self._check_chain(facts, numbers)

    def _check_timers(self, facts: CutFacts) -> None:
        timers = {(row["key"], row["time"]) for row in facts.state("tally", "timers in processing time")}
        due = {(row["key"], row["value"]) for row in facts.state("tally", "due")}
        if timers != due:
            raise Violation(f"{facts.name} has keys that are due {sorted(due)}, and timers {sorted(timers)}")

    def _check_windows_in(
        self, facts: CutFacts, items: Mapping[int, Item], seen: Sequence[int], *, in_parts: bool
    ) -> None:
        """Check that each row is counted in its window, which waits for its timer or has given its count."""
        expected = Counter((items[id].key, window_end(items[id].at, self.window)) for id in seen)
        waiting, given = (
            {(row["key"], row["map_key"]): int(row["value"]) for row in facts.state("tally", state)}
            for state in ("waiting", "given")
        )
        timers = {(row["key"], row["time"]) for row in facts.state("tally", "timers in event time")}
        if Counter(waiting) + Counter(given) != expected or timers != waiting.keys():
            raise Violation(
                f"{facts.name} has the windows {sorted(waiting.items())} and timers {sorted(timers)}, and has given "
                f"{sorted(given.items())}; a sequential execution comes to {sorted(expected.items())}"
            )
        for key, end in waiting if not in_parts else ():
            watermark = facts.watermark_of("tally", key)
            if watermark is not None and end <= watermark:
                raise Violation(f"{facts.name}: the window of key {key} to {end} waits, and the time is {watermark}")

    def _check_chain(self, facts: CutFacts, numbers: Mapping[int, int]) -> None:
        found = Counter({row["key"]: row["rows.count"] for row in facts.state("levels", "totals")})
        found.update(row["n"] for row in facts.in_flight("levels"))
        expected = Counter(level for count in numbers.values() for level in range(1, count + 1))
        if +found != expected:
            raise Violation(f"{facts.name} has counted numbers {dict(+found)}; the tally gave {dict(expected)}")
