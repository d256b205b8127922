"""The names that everything else is said with; small typed values, and no two of them interchangeable.

Invariant: a `Generation` is claimed once per start of a job and never again, an `Attempt` rises
with every rollback inside a generation, and an `Epoch` is never used twice, because it carries the
generation that triggered it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NewType

Uid = NewType("Uid", str)
"""The user's stable name of a source, stateful operator or sink. Nothing is ever matched by position."""

Partition = NewType("Partition", int)
"""The index of a partition of the running program, 0 up to the parallelism."""

KeyGroup = NewType("KeyGroup", int)
"""The unit in which keyed state moves: a number below the maximum parallelism, fixed when a job is born."""

Generation = NewType("Generation", int)
"""One start of a job's driver, claimed through the journal; a newer one fences all older ones."""

Attempt = NewType("Attempt", int)
"""One try inside a generation; every rollback begins the next, and older ones are refused everywhere."""

_EPOCH = re.compile(r"(0|[1-9][0-9]*)-([1-9][0-9]*)")


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One consistent cut, ordered as the job lived through them, also across restarts.

    `number` counts on from the newest complete epoch, so that it is unique among the complete epochs of a job
    and people can speak of "epoch 17"; together with the generation it is unique among all epochs that were
    ever triggered, those lost in a crash included.
    """

    generation: Generation
    number: int

    def __str__(self) -> str:
        return f"{self.number}-{self.generation}"

    @classmethod
    def parse(cls, text: str) -> Epoch:
        """Read what `str` wrote; `ValueError` for anything else."""
        match = _EPOCH.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an epoch; expected <number>-<generation>, such as 17-2")
        return cls(Generation(int(match[2])), int(match[1]))


NO_EPOCH = Epoch(Generation(0), 0)
"""Earlier than every epoch: where a job without a past begins."""


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """The sender of a message: a generation and its attempt. Anything older than the current one is refused."""

    generation: Generation
    attempt: Attempt

    def __str__(self) -> str:
        return f"{self.generation}.{self.attempt}"
