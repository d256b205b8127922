"""The Python that a process runs, as far as functions that are called in two processes may tell them apart.

Invariant: two interpreters with the same facts hash the same text alike, so they iterate over equal sets that were made
alike in the same order.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

_PROBE: Final = "epochcut"
_ALL: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The facts about a process's Python."""

    version: str
    """Such as "3.11.7"."""
    hashed: str
    """The hash of a text that is always the same: it tells of the seed, which Python draws unless it is given one."""

    def differs_from(self, other: Interpreter) -> str:
        """Return a sentence that says how this one differs from another, and what to do; "" if it does not."""
        if self.version != other.version:
            return (
                f"it runs Python {self.version}, and other processes of the job run {other.version}: have one version "
                f"on all hosts"
            )
        if self.hashed != other.hashed:
            return (
                "it hashes texts with another seed than other processes of the job, so a function that goes by the "
                "order of a set may give other results there: set PYTHONHASHSEED=0 for all Python processes (with "
                "Spark spark.executorEnv.PYTHONHASHSEED=0)"
            )
        return ""


def this_interpreter() -> Interpreter:
    """Return the facts about the Python of this process."""
    return Interpreter(".".join(map(str, sys.version_info[:3])), f"{hash(_PROBE) & _ALL:016x}")
