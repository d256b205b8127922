"""Programs of two sources: rows that are paired by key, and rows that a control stream configures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery.testing.programs.functions import Controlled, Pairs
from recovery.testing.programs.shape import Output, sink_of
from recovery.testing.programs.sink import Keeping
from recovery.testing.programs.source import SimulatedSource
from recovery.testing.programs.truth import CutFacts, Terms, check_none_lost, check_numbered, check_seen, read_of
from snapshot.program.program import Program
from snapshot.program.stream import Stream
from snapshot.testing.checkers import check_exactly_once
from snapshot.testing.history import Violation


@dataclass(frozen=True, slots=True)
class Paired:
    """The rows of two sources, paired by key."""

    firsts: SimulatedSource
    seconds: SimulatedSource
    takes: float = 0.0
    """Seconds that the function takes for each row."""

    @property
    def sources(self) -> Mapping[str, SimulatedSource]:
        """Return both sources."""
        return {"firsts": self.firsts, "seconds": self.seconds}

    def program(self, name: str, keepings: Sequence[Keeping]) -> Program:
        """Return the program."""
        first, second = (Stream.read(source, uid=uid).key_by("k") for uid, source in self.sources.items())
        pairs = first.connect(second).process(
            Pairs(name, self.takes), uid="pairs", schema={"k": int, "first": int, "second": int}
        )
        return pairs.write(sink_of(name, keepings, 0), uid="out")

    def check_output(self, output: Output, terms: Terms, *, complete: bool) -> None:
        """Check that each pair is there, once."""
        expected = [
            (one.key, one.id, other.id)
            for one in self.firsts.items
            for other in self.seconds.items
            if one.key == other.key
        ]
        found = output["out"]
        if terms.exactly_once:
            check_exactly_once(expected if complete else set(expected) & set(found), found, "the output of pairs")
        elif complete and (lost := set(expected) - set(found)):
            raise Violation(f"the output has lost the pairs {sorted(lost)}")

    def check_cut(self, facts: CutFacts, terms: Terms) -> None:
        """Check that each side has what was read of its source."""
        flying = [row["id"] for row in facts.in_flight("pairs")]
        seen = [row["value"] for state in ("firsts", "seconds") for row in facts.state("pairs", state)]
        read = [item for uid, source in self.sources.items() for item in read_of(facts, uid, source)]
        check_seen(facts, read, [*seen, *flying], "the pairs", exactly_once=terms.exactly_once)


@dataclass(frozen=True, slots=True)
class Configured:
    """Rows numbered by key, each with how much of a control stream had come before it."""

    rows: SimulatedSource
    control: SimulatedSource
    takes: float = 0.0
    """Seconds that the function takes for each row."""

    @property
    def sources(self) -> Mapping[str, SimulatedSource]:
        """Return the rows and the control stream."""
        return {"rows": self.rows, "control": self.control}

    def program(self, name: str, keepings: Sequence[Keeping]) -> Program:
        """Return the program."""
        rows = Stream.read(self.rows, uid="rows").key_by("k")
        control = Stream.read(self.control, uid="control").broadcast()
        controlled = rows.connect(control).process(
            Controlled(name, self.takes), uid="controlled", schema={"k": int, "n": int, "id": int, "rules": int}
        )
        return controlled.write(sink_of(name, keepings, 0), uid="out")

    def check_output(self, output: Output, terms: Terms, *, complete: bool) -> None:
        """Check the numbers, and that no key's rules become fewer."""
        items = self.rows.items
        if not terms.exactly_once:
            if complete:
                check_none_lost(output["out"], 2, items)
            return
        check_numbered(output["out"], items, in_order=True, complete=complete)
        by_key: dict[int, list[int]] = defaultdict(list)
        for key, _, _, rules in output["out"]:
            by_key[key].append(rules)
        for key, rules in by_key.items():
            if rules != sorted(rules):
                raise Violation(f"the rows of key {key} went by so many rules, one after the other: {rules}")

    def check_cut(self, facts: CutFacts, terms: Terms) -> None:
        """Check that the rows were seen, and that the broadcast state is what was read of the control stream."""
        flying = [row["id"] for row in facts.in_flight("controlled")]
        seen = [row["value"] for row in facts.state("controlled", "seen")]
        read = read_of(facts, "rows", self.rows)
        check_seen(facts, read, [*seen, *flying], "the function", exactly_once=terms.exactly_once)
        rules = facts.broadcast("controlled", "rules")
        expected = {item.id: item.value for item in read_of(facts, "control", self.control)}
        if rules != expected if terms.exactly_once else expected.items() - rules.items():
            raise Violation(f"{facts.name} has the rules {rules}; what was read of them comes to {expected}")
