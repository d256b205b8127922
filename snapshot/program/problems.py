"""The problems of a program, each with its place in it, and columns in words.

Invariant: a program's mistakes are reported together, so that one run of the check is enough to find them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from statebackend.errors import ProgramError


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the uid or the step where it is, and a sentence on what it is and what to do."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class InvalidProgram(ProgramError, ValueError):
    """A program that cannot run; the message lists all that is wrong with it. Nothing has been started."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"the program cannot run, {count}:{lines}")

    def __reduce__(self) -> tuple[type[InvalidProgram], tuple[Sequence[Problem]]]:
        return (InvalidProgram, (self.problems,))


def no_such_step(of: str, name: str, steps: type, others: Sequence[type], advice: str) -> AttributeError:
    """Return the error for a step that a stream does not have; the advice is for one that other streams have."""
    if not name.startswith("_") and any(hasattr(other, name) for other in others):
        return AttributeError(f"{name} {advice}")
    known = [step for step in vars(steps) if not step.startswith("_")]
    return AttributeError(f"a {of} has no {name!r}; {near_names(name, known)}")


def near_names(name: str, names: Sequence[str]) -> str:
    """Suggest names, as in `did you mean 'user'?`, or list which names there are."""
    near = [repr(one) for one in difflib.get_close_matches(name, names, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are: {', '.join(names) or 'none'}"


def columns_in_words(schema: pa.Schema) -> str:
    """Describe the columns, as in `user: string, cents: int64`, or say `no columns`."""
    columns = (f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return ", ".join(columns) or "no columns"


def unknown_column(column: str, schema: pa.Schema) -> str:
    """Return the sentence that a column is not there, with the names that may be meant."""
    if not isinstance(cast("object", column), str):
        return f"{column!r} is no name of a column; give names as texts, one after the other"
    return f"there is no column {column!r}; {near_names(column, schema.names)}"


def dictionaries(schema: pa.Schema) -> list[str]:
    """Return the columns with a dictionary-encoded type in them."""
    return [field.name for field in schema if _has(field.type, pa.types.is_dictionary)]


def views(schema: pa.Schema) -> list[str]:
    """Return the columns with views of texts or bytes in them, of which Arrow cannot take single rows."""
    return [field.name for field in schema if _has(field.type, _is_view)]


def _is_view(declared: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(declared) or pa.types.is_binary_view(declared))


def _has(declared: pa.DataType, kind: Callable[[pa.DataType], bool]) -> bool:
    return kind(declared) or any(_has(declared.field(index).type, kind) for index in range(declared.num_fields))
