"""The contract of a source: splits that the driver finds and the partitions read, again from any position.

Invariant: the same split from the same position gives the same rows in the same order. Without that, no
rollback could make up for a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from snapshot.tree.frozen_json import JsonLike
from statebackend.errors import JobError
from statebackend.ids import Attempt, Partition


class SourceError(JobError):
    """A source that cannot be read, or is not what it says; the message names the source, the split and what to do."""


class WrongPosition(SourceError):
    """A split or position of an epoch that the source has not given; the message names it. No retry makes it right."""


class WrongRecord(SourceError):
    """A record, or a file, that is not what the source's schema and format say: it is the same when it is read again.

    It counts as a failure of the program: a job that always meets it ends after `poisoned_after` attempts.
    """


class SourceVanished(SourceError):
    """A split that was there, and is no more."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows, and the position behind the last of them: where reading goes on after a restore.

    Without rows it moves the position alone, over what will never be any. `bad` is how many records before the position
    do not fit and were left out, as the source was told to; `why` says which the last one is, and what is wrong.
    """

    rows: pa.RecordBatch
    position: JsonLike
    bad: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Later:
    """There is nothing to read now; ask again at this time (seconds since 1970), or whenever it suits.

    `why` is empty where nothing is wrong. Else it says what is waited for, such as a server that does not answer; when
    that has lasted long enough and nothing else has come of the source, it is reported as a stall.
    """

    at: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The split has been read to its end, and nothing will ever be added to it."""


Reading = Batch | Later | Exhausted


@dataclass(frozen=True, slots=True)
class SplitContext:
    """The split to be read: from `position` on, from its beginning if that is None.

    With `until`, a position that the source itself has said, it is read to there, and is `Exhausted` then.
    """

    uid: str
    split: str
    position: JsonLike
    partition: Partition
    attempt: Attempt
    until: JsonLike = None


class Reader(Protocol):
    """One split being read. One thread calls it, the event loop's unless the source is `blocking`."""

    def read(self, most: int) -> Reading:
        """Read the next rows, `most` of them at most. `SourceError` if it cannot go on: the attempt fails with it."""

    def close(self) -> None:
        """Give up what is held open."""


@runtime_checkable
class MayDiffer(Protocol):
    """A source that may break its promise: two readers of a split may give other rows from the same position on."""

    @property
    def why_it_may_differ(self) -> str:
        """Return why, and what to do about it; empty if they give the same."""


class Source(Protocol):
    """A source as it stands in a program: plain data that can be pickled, compared and printed.

    `blocking` sources are read by a thread of their own, ahead of the event loop. Where `on_demand` is set, a
    partition is given a split when it has read the one before to its end, else all splits are dealt out evenly, as
    soon as they are known. Splits are looked for at the start and, if `discover_every` is not None, every so many
    seconds; a source that is `bounded` has all its splits at the start.
    """

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows."""

    @property
    def bounded(self) -> bool:
        """True if every split ends, and none is added."""

    @property
    def blocking(self) -> bool:
        """True if `read` may wait for a disk or a network."""

    @property
    def on_demand(self) -> bool:
        """True if splits are given out one by one."""

    @property
    def discover_every(self) -> float | None:
        """Return the seconds between two looks for new splits."""

    def check(self) -> Sequence[str]:
        """Return what is wrong with it as far as can be told without reading; each problem is a sentence."""

    def discover(self, parallelism: int) -> Sequence[str]:
        """Return the names of all splits there are, in order; called in the driver.

        A name means the same split for ever. A source that can be divided at will makes `parallelism` of them; it is
        asked only when the job is born, or when it says `discover_every`.
        """

    def open(self, context: SplitContext) -> Reader:
        """Read a split; called in the partition that it was given to, by the thread that will call `read`."""


@runtime_checkable
class Resuming(Protocol):
    """A source whose splits' names have in them what it found when they were found, such as where each begins.

    So it needs to be told which splits the job has, to find those that are new: `discover` names the first ones, when
    the source is new to the job, and `discover_new` is asked instead of it from then on.
    """

    def discover_new(self, known: Collection[str]) -> Sequence[str]:
        """Return the names of the splits there are now, without those that the job has or ever had; in the driver."""


@dataclass(frozen=True, slots=True)
class Available:
    """New splits of a source, and where those end now that do not end by themselves."""

    new: tuple[str, ...] = ()
    ends: Mapping[str, JsonLike] = field(default_factory=dict)


@runtime_checkable
class AvailableNow(Protocol):
    """A source that can say what there is of it now, for jobs that read that and then end (option `available_now`).

    A source that is not one may be read by such a job if it is `bounded`: it is read to its end.
    """

    def unavailable(self) -> Sequence[str]:
        """Return why it could not say what there is now, as sentences, without asking a server."""

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:
        """Return what there is now; called in the driver, once for each start of the job.

        `known` are all splits that the job has or has ever had, `reading` how far those are read that are not at their
        end, None if nothing was read. A split that ends at `ends` goes on from there in a later run.
        """
