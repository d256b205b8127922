"""Deal the splits of a source out to partitions: one by one on demand, or evenly as soon as they are known.

Invariant: a split is given to one partition in an attempt, whichever way; one that was ever known is never
given again, also when it was read to its end; and a partition that was told that there are no more gets no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from snapshot.epochs.splits import SplitEnumerator
from snapshot.tree.frozen_json import Json
from statebackend.errors import JobError
from statebackend.ids import Partition


class BadEnumerator(JobError, ValueError):
    """An epoch whose list of unassigned splits is none."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """The rule by which a source wants its splits dealt out; `grows` if it may ever have more than it has now."""

    on_demand: bool
    grows: bool


@dataclass(frozen=True, slots=True)
class Assignment:
    """Splits for one partition. If `last`, it gets no other in this attempt."""

    partition: Partition
    splits: tuple[str, ...]
    last: bool


class SplitDealer:
    """The splits of one source in one attempt.

    `reading` are the splits that each partition has from the epoch, `finished` those that are read to their end, and
    `unassigned` those that no partition has. The caller owes: an assignment is sent at once, on the partition's own
    connection, and `unassigned` is taken in the same step in which the triggers are sent. Of these, an epoch leaves out
    what a partition was given before its cut.
    """

    def __init__(
        self,
        rules: SplitRules,
        reading: Sequence[Iterable[str]],
        finished: Iterable[str] = (),
        unassigned: Iterable[str] = (),
    ) -> None:
        self._rules = rules
        held = [tuple(splits) for splits in reading]
        self._enumerator = SplitEnumerator([*finished, *(split for splits in held for split in splits)], unassigned)
        self._held = [len(splits) for splits in held]
        self._waiting: list[Partition] = []
        self._running = False

    @property
    def unassigned(self) -> tuple[str, ...]:
        """Return the splits that no partition reads yet: the source's own part of a cut."""
        return self._enumerator.unassigned

    @property
    def known(self) -> frozenset[str]:
        """Return all splits there have ever been."""
        return self._enumerator.known

    def started(self) -> list[Assignment]:
        """Return the splits that are dealt out without being asked for, now that all partitions are there."""
        self._running = True
        return [] if self._rules.on_demand else self._deal(everybody=not self._rules.grows)

    def wanted(self, partition: Partition) -> list[Assignment]:
        """Return a split for a partition that has nothing more to read.

        If there is nothing for the partition now, it waits for what is found.
        """
        if not self._rules.on_demand:
            return []
        if self._rules.grows and not self._enumerator.unassigned:
            if partition not in self._waiting:
                self._waiting.append(partition)
            return []
        split = self._enumerator.assign()
        return [Assignment(partition, () if split is None else (split,), last=self._is_last)]

    def discovered(self, splits: Iterable[str]) -> list[Assignment]:
        """Take in what a look at the source found, and deal it out; splits that are known already change nothing."""
        self._enumerator.discover(splits)
        if not self._running:
            return []
        if not self._rules.on_demand:
            return self._deal(everybody=False)
        waiting, self._waiting = self._waiting, []
        return [assignment for partition in waiting for assignment in self.wanted(partition)]

    @property
    def _is_last(self) -> bool:
        return not self._rules.grows and not self._enumerator.unassigned

    def _deal(self, *, everybody: bool) -> list[Assignment]:
        """Give each split to the partition that has the fewest; with `everybody`, also tell those that get none."""
        dealt: list[list[str]] = [[] for _ in self._held]
        while (split := self._enumerator.assign()) is not None:
            partition = min(range(len(self._held)), key=self._held.__getitem__)
            self._held[partition] += 1
            dealt[partition].append(split)
        return [
            Assignment(Partition(partition), tuple(splits), last=self._is_last)
            for partition, splits in enumerate(dealt)
            if splits or everybody
        ]


def enumerator_json(unassigned: Iterable[str]) -> Json:
    """Return the splits that no partition reads yet, in the form that the manifest has them in."""
    return Json.of(list(unassigned))


def enumerator_splits(enumerator: Json) -> tuple[str, ...]:
    """Return the splits that `enumerator_json` wrote; raise `BadEnumerator` for anything else."""
    value = enumerator.value()
    if not isinstance(value, list) or not all(isinstance(split, str) for split in value):
        raise BadEnumerator(f"a list of splits was expected, found {enumerator.text[:80]}")
    return tuple(str(split) for split in value)
