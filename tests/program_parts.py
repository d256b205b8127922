"""A source and a sink that do nothing, for programs that are only looked at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from snapshot import Stream
from snapshot.ids import JobId, TransactionId
from snapshot.program.plan import EventTime
from snapshot.program.sink import Abilities, SinkContext, SinkWriter
from snapshot.program.source import Reader, SplitContext
from statebackend.columns import SchemaLike, schema_of
from statebackend.ids import Incarnation, Uid


@dataclass(frozen=True)
class Nothing:
    """A source of no rows."""

    schema: pa.Schema
    problems: Sequence[str] = ()
    bounded: bool = True
    blocking: bool = False
    on_demand: bool = False
    discover_every: float | None = None

    def check(self) -> Sequence[str]:
        return self.problems

    def discover(self, parallelism: int) -> Sequence[str]:
        return []

    def open(self, context: SplitContext) -> Reader:
        raise NotImplementedError


@dataclass(frozen=True)
class Nowhere:
    """A sink that takes rows which have all the columns that it wants."""

    wants: Sequence[str] = ()
    exactly_once: bool = True
    held: object = field(default=None)
    abilities: Abilities = field(default_factory=lambda: Abilities(keeps_prepared=True))
    amiss: Sequence[str] = ()

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        return self.amiss

    def check(self, schema: pa.Schema) -> Sequence[str]:
        return [f"the rows have no column {name!r}" for name in self.wants if name not in schema.names]

    def open(self, context: SinkContext) -> SinkWriter:
        raise NotImplementedError

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        raise NotImplementedError


CLICKS = {"user": str, "cents": int, "at": pa.timestamp("ms")}
"""The rows of most of the programs in tests."""


def clicks(uid: str = "clicks", *, schema: SchemaLike = CLICKS, timed: bool = False) -> Stream:
    """A stream of clicks."""
    return Stream.read(Nothing(schema_of(schema)), uid=uid, event_time=EventTime("at", "5s") if timed else None)
