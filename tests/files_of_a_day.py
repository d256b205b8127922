"""A day of `ToFiles` in minutes: a writer and its commits, real files, and a clock that is set on from epoch to epoch.

Invariant: the process dies as often as it is told, anywhere between two rows; what no complete epoch names is
gone then from the job's tree. Run it as a program: `python -m tests.files_of_a_day --hours 24 --roll-every 10m`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet

from snapshot.connectors.files.sink import ToFiles
from snapshot.connectors.files.writer import FilePlace, FileWriter
from snapshot.epochs.transaction_events import (
    Begin,
    Commit,
    CommitAnswered,
    Committable,
    EpochCompleted,
    Prepare,
    Prepared,
    Seal,
    SinkCut,
    SinkReady,
    TransactionInstruction,
)
from snapshot.epochs.transactions import Transactions
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Sealed, SinkContext
from snapshot.testing.sinks import DONE, SinkEnvironment, attempt
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Epoch, Generation, Partition, Uid

JOB, UID, HERE = JobId("a-day"), Uid("files"), Partition(0)
SCHEMA = pa.schema({"n": pa.int64(), "user": pa.string()})


class _Dies(Exception):
    """The process is gone."""


@dataclass
class Day:
    """One partition's day. `kills` are its deaths in each thousand of epochs."""

    folder: Path
    rows_per_second: int = 200
    roll_every: str = "10m"
    kills: float = 1.0
    seed: int = 0
    deaths: int = 0
    latest: int = 0
    """The longest that a row waited until it was seen, in milliseconds."""
    most_pieces: int = 0
    """Pieces that an epoch named, at most."""
    _now: int = 0
    _next: int = 0
    _complete: Epoch | None = None
    _carries: tuple[Committable[CommitPayload], ...] = ()
    _position: int = 0
    _seen: int = 0
    _environment: SinkEnvironment = field(default_factory=SinkEnvironment)

    def run(self, seconds: int) -> None:
        """Let so many seconds go by, and drain the job."""
        self._chance = Random(self.seed)
        self._attempt = 0
        self._start()
        while self._now < 1000 * seconds:
            self._now += 1000
            try:
                self._second()
            except _Dies:
                self.deaths += 1
                self._start()
        self.kills = 0.0
        self._writer.no_more_rows()
        self._epoch()

    def _second(self) -> None:
        due = self._now // 1000 * self.rows_per_second
        while self._next < due:
            last = min(self._next + self.rows_per_second, due)
            numbers = range(self._next, last)
            users = [f"user-{number % 1000}" for number in numbers]
            self._writer.write(Rows(pa.RecordBatch.from_pydict({"n": list(numbers), "user": users}, SCHEMA)))
            self._next = last
            self._may_die()
        self._epoch()

    def _start(self) -> None:
        self._attempt += 1
        self._sealed: dict[TransactionId, Sealed] = {}
        self._number = self._complete.number if self._complete else 0
        self._next = self._position
        sink = ToFiles(str(self.folder), roll_every=self.roll_every)
        sink.recover(JOB, UID, attempt(self._attempt), [one.transaction for one in self._carries])
        context = SinkContext(
            JOB, UID, SCHEMA, attempt(self._attempt), HERE, self._environment, self._environment.deliver
        )
        place = FilePlace(sink.uri, False, "parquet", ())
        self._writer = FileWriter(place, sink.roll_bytes, sink.roll_every_ms, context, lambda: self._now)
        if held := [one.payload for one in self._carries if one.payload.held]:
            self._writer.take_over(held)
        self._machine: Transactions[CommitPayload] = Transactions(
            JOB, UID, attempt(self._attempt), HERE,
            restored=[one for one in self._carries if not one.payload.held], restored_epoch=self._complete,
        )  # fmt: skip
        kills, self.kills = self.kills, 0.0
        self._follow(self._machine.begin())
        self.kills = kills

    def _epoch(self) -> None:
        self._number += 1
        self._follow(self._machine.handle(SinkCut(Epoch(Generation(1), self._number))))

    def _follow(self, instructions: Sequence[TransactionInstruction[CommitPayload]]) -> None:
        for instruction in instructions:
            match instruction:
                case Begin(transaction):
                    self._writer.begin(transaction)
                case Seal(transaction):
                    self._sealed[transaction] = self._writer.seal()
                    self._may_die()
                case Prepare(transaction):
                    payload = self._sealed.pop(transaction).prepare()
                    self._may_die()
                    held = payload is not None and payload.held
                    self._follow(self._machine.handle(Prepared(transaction, payload, held)))
                case SinkReady(epoch, committables):
                    self._complete_epoch(epoch, committables)
                    self._may_die()
                    self._follow(self._machine.handle(EpochCompleted(epoch)))
                case Commit(committable):
                    answer = self._writer.commit(committable.transaction, committable.payload)
                    assert answer.outcome in DONE, answer
                    self._may_die()
                    self.latest = max(self.latest, self._now - self._seen)
                    self._seen = self._now
                    self._follow(self._machine.handle(CommitAnswered(committable.transaction, answer.outcome)))
                case _:
                    pass

    def _complete_epoch(self, epoch: Epoch, committables: tuple[Committable[CommitPayload], ...]) -> None:
        self._complete, self._carries, self._position = epoch, committables, self._next
        named = {file for one in committables for file in one.payload.staged}
        self.most_pieces = max(self.most_pieces, len(named))
        for file in self._environment.stored.keys() - named:
            del self._environment.stored[file]

    def _may_die(self) -> None:
        if self._chance.random() < self.kills / 4000:
            raise _Dies

    def sizes(self) -> list[int]:
        """The sizes of the files that readers see."""
        return sorted(path.stat().st_size for path in self.folder.glob("part-*"))

    def lost_and_twice(self, seconds: int) -> tuple[int, int]:
        """How many rows are missing, and how many are there too often."""
        seen: Counter[int] = Counter()
        for path in self.folder.glob("part-*"):
            seen.update(pyarrow.parquet.read_table(path, columns=["n"])["n"].to_pylist())
        expected = seconds * self.rows_per_second
        return len(set(range(expected)) - seen.keys()), seen.total() - len(seen)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.files_of_a_day", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--rate", type=int, default=200, help="rows per second (%(default)s)")
    parser.add_argument("--roll-every", default="10m")
    parser.add_argument("--kills", type=float, default=1.0, help="in a thousand epochs, about (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    seconds = int(given.hours * 3600)
    with TemporaryDirectory() as scratch:
        day = Day(Path(scratch) / "out", given.rate, given.roll_every, given.kills, given.seed)
        day.run(seconds)
        sizes, (lost, twice) = day.sizes(), day.lost_and_twice(seconds)
    print(
        f"{given.hours:g} hours at {given.rate} rows/s, an epoch each second, roll_every={given.roll_every}: "
        f"{len(sizes)} files of {sizes[0]:,} to {sizes[-1]:,} bytes, median {sizes[len(sizes) // 2]:,}; "
        f"{day.deaths} deaths, {lost} rows lost, {twice} twice; an epoch named {day.most_pieces} pieces at most"
    )
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
