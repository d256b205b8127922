"""The splits of one source that a partition reads in one attempt, and how far each has been read.

Invariant: a position is noted in the same step in which its rows are handed out, so a cut between two batches
has exactly what was handed out before it; a split that was read to its end stays known, with no position, and one that
was read as far as this run reads it keeps its own.

A reader that may wait for a disk or a network is read by a thread of its own, ahead of the event loop: its readings
come in their order, each once, no more than a few are ahead, and what it raises is raised where they are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from queue import Empty, Full
from typing import Final

import pyarrow as pa

from snapshot.host.flow.pace import FIRST
from snapshot.program.source import Batch, Exhausted, Later, Reader, Reading, Source, SplitContext, WrongPosition
from snapshot.tree.frozen_json import NULL, Json, JsonLike
from snapshot.tree.manifest import SplitPosition
from statebackend import means
from statebackend.ids import Attempt, Partition, Uid

_AHEAD: Final = 2
_ANSWER: Final = 0.05
"""Seconds in which the driver has answered that there is a split, if there is one."""
_LOOK: Final = 0.1
"""Seconds between two looks of a waiting thread whether its readings are still wanted."""

NEVER: Final = float("inf")
"""The time at which a reading comes by a call and not by the clock."""


class ReadAhead:
    """A `Reader` for the event loop. `wake` is called in the thread whenever there is something to take, or what is
    waited for has changed.
    """

    def __init__(self, name: str, open_reader: Callable[[], Reader], most: int, wake: Callable[[], None]) -> None:
        self._open = open_reader
        self._most = most
        self._wake = wake
        self._ready: means.Queue[Reading | BaseException] = means.Queue(_AHEAD)
        self._closed = means.Event()
        self._why = ""  # what the thread waits for, if something is wrong
        self.is_caught_up = False
        """True if the reader had nothing more when it was asked last; the thread alone changes it."""
        means.Thread(target=self._run, name=f"reading {name}", daemon=True).start()

    def read(self, most: int) -> Reading:
        """Return what was read ahead, `Later` without a time if nothing was; read at most `most` from now on."""
        self._most = most
        try:
            reading = self._ready.get_nowait()
        except Empty:
            return Later(NEVER, self._why)
        if isinstance(reading, BaseException):
            raise reading
        return reading

    def close(self) -> None:
        """Let the thread end; it closes its reader when what it waits for has come."""
        self._closed.set()

    def _run(self) -> None:
        try:
            reader = self._open()
            try:
                self._read_all(reader)
            finally:
                reader.close()
        except BaseException as error:
            self._hand_over(error)

    def _read_all(self, reader: Reader) -> None:
        while not self._closed.is_set():
            reading = reader.read(self._most)
            if isinstance(reading, Later):
                self._wait_for(reading.why)
                self._closed.wait(min(max(reading.at - means.wall(), 0.001), 1.0))
                continue
            self._why = ""
            self.is_caught_up = False
            self._hand_over(reading)
            if isinstance(reading, Exhausted):
                return

    def _wait_for(self, why: str) -> None:
        known = self.is_caught_up and why == self._why
        self._why, self.is_caught_up = why, True
        if not known:
            self._wake()

    def _hand_over(self, reading: Reading | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(reading, timeout=_LOOK)
            except Full:
                continue
            self._wake()
            return


_AT: Final = "at"
"""A split of which nothing was read yet has no position, either; so what a reader says is kept under a name."""

NO_ENDS: Final[Mapping[str, JsonLike]] = {}
"""All splits are read to their end."""


class SourceRun:
    """The part of a source that one partition reads.

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
        self._asked_for = min(FIRST, most)  # of the rows at once, as it is not known yet how long they take
        self._wake = wake
        self._ends = ends
        self._readers: dict[str, Reader] = {}
        self._turns: deque[str] = deque()
        self._waiting: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._positions: dict[str, JsonLike] = {}
        self._finished: set[str] = set()
        self.read_from: JsonLike = None
        """The position of the split that was read last, before that."""
        self._last = False
        self._drained = False
        self._asked = False
        self._asked_at = 0.0
        self.assigned = 0
        """The number of times that it was told of splits."""
        self.bad = 0
        """The number of records that were left out because they do not fit."""
        self.why = ""
        """The last of these records, and its fault."""
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
        self.assigned += 1
        self._last = self._last or last
        self._asked = False
        for split in splits:
            if split not in self._positions and split not in self._finished:
                self._open(split, None)

    def wants_split(self) -> bool:
        """True if the driver should be asked for a split now; only once, until it has answered."""
        wants = self._source.on_demand and not (self._readers or self._last or self._drained or self._asked)
        if wants:
            self._asked, self._asked_at = True, means.monotonic()
        return wants

    @property
    def is_caught_up(self) -> bool:
        """True if nothing more is known to be there, now that `read` has given nothing."""
        if self._source.on_demand and not (self._readers or self._last or self._drained):
            return self._asked and means.monotonic() - self._asked_at >= _ANSWER
        return all(reader.is_caught_up for reader in self._readers.values() if isinstance(reader, ReadAhead))

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits that are being read."""
        return tuple(self._readers)

    @property
    def ended(self) -> bool:
        """True if nothing will ever be read any more."""
        return self._drained or (self._last and not self._readers)

    def drain(self) -> None:
        """Read nothing more; the splits stay where they are."""
        self._drained = True

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, most: int) -> tuple[str, pa.RecordBatch] | None:
        """Return the next rows, at most `most`, with the split that they are of; None if there are none now.

        What was read ahead before may be more.

        Splits take turns. `SourceError` and whatever else a reader raises goes through, with a note on the split.
        """
        self._asked_for = min(most, self._most)
        for _ in range(len(self._turns)):
            split = self._turns[0]
            self._turns.rotate(-1)
            if split in self._waiting and self._waiting[split] > means.monotonic():
                continue
            batch = self._read(split)
            if batch is not None:
                return split, batch
        return None

    @property
    def next_in(self) -> float:
        """Return in how many seconds reading may give something, 0 or less if it may now; `NEVER` if `wake` tells."""
        if self.ended or not self._turns:
            return NEVER
        return min(self._waiting.get(split, 0.0) for split in self._turns) - means.monotonic()

    @property
    def lag(self) -> float:
        """Return for how many seconds the longest overdue split has waited to be read; 0 if none is read any more."""
        if self.ended:
            return 0.0
        overdue = [at for at in self._waiting.values() if at != NEVER]
        return max(0.0, means.monotonic() - min(overdue)) if overdue else 0.0

    @property
    def waits_for(self) -> str:
        """Return what a split waits for, if something is wrong; empty if not."""
        return next((f"{why} (split {split!r})" for split, why in sorted(self._troubles.items())), "")

    def positions(self, instead: Mapping[str, JsonLike] = NO_ENDS) -> tuple[SplitPosition, ...]:
        """Return how far each split was read, this source's part of a cut, or the position given `instead`."""
        read = {split: Json.of({_AT: position}) for split, position in self._positions.items()}
        read.update(dict.fromkeys(self._finished, NULL))
        read.update((split, Json.of({_AT: position})) for split, position in instead.items())
        return tuple(SplitPosition(split, position) for split, position in sorted(read.items()))

    def woken(self) -> None:
        """Look at all readers again, as one that was waited for has something."""
        self._waiting = {split: at for split, at in self._waiting.items() if at != NEVER}

    def close(self) -> None:
        """Close all readers, whatever one of them raises, and raise that in the end."""
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
            reader: Reader = ReadAhead(name, lambda: self._source.open(context), self._asked_for, self._wake)
        else:
            reader = self._source.open(context)
        self._readers[split] = reader
        self._turns.append(split)

    def _read(self, split: str) -> pa.RecordBatch | None:
        try:
            reading = self._readers[split].read(self._asked_for)
        except BaseException as error:
            error.add_note(f"while reading split {split!r} of {self._uid} from position {self._positions[split]!r}")
            raise
        self._troubles.pop(split, None)
        match reading:
            case Batch(rows, position, bad, why):
                self._waiting.pop(split, None)
                self.read_from = self._positions[split]
                self._positions[split] = position
                self.bad += bad
                self.why = why or self.why
                return rows
            case Later(at, why):
                # By the steady clock: one of the day that is put back would keep the split waiting for as long.
                self._waiting[split] = means.monotonic() + at - means.wall()
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


def at_its_beginning(split: str) -> SplitPosition:
    """Return the position of a split of which nothing was read."""
    return SplitPosition(split, Json.of({_AT: None}))


def read_to(position: Json) -> JsonLike:
    """Return how far a split was read, as its source said it in a cut; raise `WrongPosition` if it is no position."""
    value = position.value()
    if not isinstance(value, Mapping) or _AT not in value:
        raise WrongPosition(f"{position.text[:100]} is no position of a source, as an epoch has it")
    return value[_AT]
