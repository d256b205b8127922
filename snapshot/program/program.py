"""A program: streams that were read, changed and written, as one value that can be printed, checked and run.

Invariant: a program never changes; what is wrong with it is found by looking at it, before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.program.check import checked
from snapshot.program.compile import compiled
from snapshot.program.explain import explained
from snapshot.program.nodes import Written
from snapshot.program.plan import Plan
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """A program: its outputs, and all steps that lead to them. `Stream.write` makes one."""

    outputs: tuple[Written, ...]

    @classmethod
    def of(cls, *programs: Program) -> Program:
        """Return one program that writes all that these write; an output that several have is written once."""
        return cls(tuple(dict.fromkeys(output for program in programs for output in program.outputs)))

    def __add__(self, other: Program) -> Program:
        return Program.of(self, other)

    def plan(self, max_parallelism: int = DEFAULT_MAX_PARALLELISM) -> Plan:
        """Return the stages that it runs as, equal for equal programs. `InvalidProgram` lists all that is wrong."""
        return compiled(self.outputs, checked(self.outputs, max_parallelism), max_parallelism)

    def check(self, max_parallelism: int = DEFAULT_MAX_PARALLELISM) -> None:
        """Find every mistake that can be found without running; `InvalidProgram` lists them all."""
        checked(self.outputs, max_parallelism)

    def explain(self) -> str:
        """Describe its graph: stages, chains, exchanges, uids, schemas and keys. `InvalidProgram` if it cannot run."""
        return explained(self.plan())

    def __repr__(self) -> str:
        return f"Program(writes {', '.join(output.uid or '?' for output in self.outputs) or 'nothing'})"
