"""The splits of one source that a partition reads in one attempt, and how far each has been read.

What always holds: a position is noted in the same step in which its rows are handed out, so a cut between two batches
has exactly what was handed out before it; a split that was read to its end stays known, with no position, and one that
was read as far as this run reads it keeps its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from time import time
from typing import Final

import pyarrow as pa

from snapshot.frozen_json import NULL, Json, JsonLike
from snapshot.host.read_ahead import NEVER, ReadAhead
from snapshot.manifest import SplitPosition
from snapshot.program.source import Batch, Exhausted, Later, Reader, Source, SplitContext, WrongPosition
from statebackend.ids import Attempt, Partition, Uid

_AT: Final = "at"
"""A split of which nothing was read yet has no position, either; so what a reader says is kept under a name."""

NO_ENDS: Final[Mapping[str, JsonLike]] = {}
"""All splits are read to their end."""


class SourceRun:
    """What one partition reads of a source.

    `restored` are the splits that the epoch gave to the partition, null for those read to their end. `wake` is called,
    in any thread, when a reader that was waited for has something. `ends` is how far splits are read that are not read
    to their end.
    """

    def __init__(
        self,
        uid: Uid,
        source: Source,
        partition: Partition,
        attempt: Attempt,
        restored: Mapping[str, Json],
        most: int,
        wake: Callable[[], None],
        ends: Mapping[str, JsonLike] = NO_ENDS,
    ) -> None:
        self._uid = uid
        self._source = source
        self._partition = partition
        self._attempt = attempt
        self._most = most
        self._wake = wake
        self._ends = ends
        self._readers: dict[str, Reader] = {}
        self._turns: deque[str] = deque()
        self._waiting: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._positions: dict[str, JsonLike] = {}
        self._finished: set[str] = set()
        self._last = False
        self._drained = False
        self._asked = False
        try:
            for split, position in restored.items():
                if position == NULL:
                    self._finished.add(split)
                else:
                    self._open(split, read_to(position))
        except BaseException:
            with suppress(BaseException):  # why it could not be opened says more
                self.close()
            raise

    # --- splits come and go -------------------------------------------------------------------------------------------

    def assign(self, splits: Iterable[str], *, last: bool) -> None:
        """Read these splits as well, from their beginning."""
        self._last = self._last or last
        self._asked = False
        for split in splits:
            if split not in self._positions and split not in self._finished:
                self._open(split, None)

    def wants_split(self) -> bool:
        """Whether the driver should be asked for a split now; true once, until it has answered."""
        wants = self._source.on_demand and not (self._readers or self._last or self._drained or self._asked)
        self._asked = self._asked or wants
        return wants

    @property
    def splits(self) -> tuple[str, ...]:
        """What is being read."""
        return tuple(self._readers)

    @property
    def ended(self) -> bool:
        """Whether nothing will ever be read any more."""
        return self._drained or (self._last and not self._readers)

    def drain(self) -> None:
        """Read nothing more; the splits stay where they are."""
        self._drained = True

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, most: int) -> tuple[str, pa.RecordBatch] | None:
        """The next rows, not more than `most`, and the split that they are of; None if there are none now.

        What was read ahead before may be more.

        Splits take turns. `SourceError` and whatever else a reader raises goes through, with a note on the split.
        """
        for _ in range(len(self._turns)):
            split = self._turns[0]
            self._turns.rotate(-1)
            if split in self._waiting and self._waiting[split] > time():
                continue
            batch = self._read(split, most)
            if batch is not None:
                return split, batch
        return None

    @property
    def next_at(self) -> float:
        """When, in seconds since 1970, reading may give something; `NEVER` if `wake` will say so."""
        if self.ended or not self._turns:
            return NEVER
        return min(self._waiting.get(split, 0.0) for split in self._turns)

    @property
    def lag(self) -> float:
        """For how many seconds the longest overdue split has waited to be read."""
        overdue = [at for at in self._waiting.values() if at != NEVER]
        return max(0.0, time() - min(overdue)) if overdue else 0.0

    @property
    def waits_for(self) -> str:
        """What a split waits for, if something is wrong; empty if not."""
        return next((f"{why} (split {split!r})" for split, why in sorted(self._troubles.items())), "")

    def positions(self) -> tuple[SplitPosition, ...]:
        """How far each split was read: this source's part of a cut."""
        read = {split: Json.of({_AT: position}) for split, position in self._positions.items()}
        read.update(dict.fromkeys(self._finished, NULL))
        return tuple(SplitPosition(split, position) for split, position in sorted(read.items()))

    def woken(self) -> None:
        """A reader that was waited for has something: look at all again."""
        self._waiting = {split: at for split, at in self._waiting.items() if at != NEVER}

    def close(self) -> None:
        """Close all readers, whatever one of them raises; that comes out in the end."""
        with ExitStack() as closing:
            for reader in self._readers.values():
                closing.callback(reader.close)
            self._readers.clear()
            self._turns.clear()

    def _open(self, split: str, position: JsonLike) -> None:
        context = SplitContext(self._uid, split, position, self._partition, self._attempt, self._ends.get(split))
        self._positions[split] = position
        if self._source.blocking:
            name = f"{self._uid}: {split}"
            reader: Reader = ReadAhead(name, lambda: self._source.open(context), self._most, self._wake)
        else:
            reader = self._source.open(context)
        self._readers[split] = reader
        self._turns.append(split)

    def _read(self, split: str, most: int) -> pa.RecordBatch | None:
        try:
            reading = self._readers[split].read(min(most, self._most))
        except BaseException as error:
            error.add_note(f"while reading split {split!r} of {self._uid} from position {self._positions[split]!r}")
            raise
        self._troubles.pop(split, None)
        match reading:
            case Batch(rows, position):
                self._waiting.pop(split, None)
                self._positions[split] = position
                return rows
            case Later(at, why):
                self._waiting[split] = at
                if why:
                    self._troubles[split] = why
            case Exhausted():
                self._readers.pop(split).close()
                self._turns.remove(split)
                self._waiting.pop(split, None)
                if split not in self._ends:
                    del self._positions[split]
                    self._finished.add(split)
        return None


def read_to(position: Json) -> JsonLike:
    """How far a split was read, as its source says it in a cut."""
    value = position.value()
    if not isinstance(value, Mapping) or _AT not in value:
        raise WrongPosition(f"{position.text[:100]} is no position of a source, as an epoch has it")
    return value[_AT]
