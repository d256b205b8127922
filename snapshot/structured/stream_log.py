"""The log between a query of Spark's and a stream program: every micro-batch once, readable again from any place.

Invariant: batch n is a blob that is created only if absent and names the parts that count; parts are whole before it
is there and never change. Batches follow each other without a gap, all from one query. So an attempt at a task that
failed, was repeated or came too late adds nothing, and a batch has the same rows in the same order whenever it is read.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from os import getpid
from secrets import token_hex
from typing import Final

import pyarrow as pa

from statebackend.errors import JobError, StoreError
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobNotFound, BlobStore, UnknownOutcome, exists

_IDENTITY: Final = "log.json"
_FIRST: Final = "first.json"
_QUERY: Final = "query.json"
_BATCHES: Final = "batches"
_PARTS: Final = "parts"
_OLDEST: Final = "oldest"
"""The folder of notes of which batch is the oldest; a crash may leave more than one, or none that is true."""
_PART_BYTES: Final = 4 << 20
"""Size from which a task begins another part; parts are what splits share among themselves."""
_TRIES: Final = 3


class WrongLog(JobError):
    """A log that is not of this query or program; the message says whose it is, and what to do."""


class DamagedLog(StoreError):
    """A blob of a log that cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one attempt at a task has written."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The parts of a batch that count, in the order of Spark's partitions.

    `query` is empty for a batch without tasks. `covers` tells apart what the batch was made of, by Spark's own note of
    it; it is empty if the query is `unchecked`. `at` is the time of its commit, in milliseconds.
    """

    query: str
    covers: str
    at: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The log as it bears on one batch: whose it is, whether it has the batch, and the numbers of all batches."""

    query: str
    there: LoggedBatch | None
    batches: range


def fault_of(number: int, batch: LoggedBatch, seen: Seen) -> str:
    """Return why this batch may not be added; empty if it may, or is there already."""
    if seen.query and batch.query and seen.query != batch.query:
        return (
            f"it has the batches of query {seen.query}, and this is query {batch.query}. Give each query a log of its "
            "own; a query that begins with a new checkpoint is another query"
        )
    if seen.there is not None:
        if seen.there.covers and batch.covers and seen.there.covers != batch.covers:
            return (
                f"its batch {number} covers other input than batch {number} of the query has now, so the query's "
                "checkpoint was wound back or replaced. Put the checkpoint back, or begin a new log"
            )
        return ""
    if len(seen.batches) and number != seen.batches.stop:
        return (
            f"its newest batch is {seen.batches.stop - 1}, and the query commits batch {number}: the rows between were "
            "written elsewhere, or the checkpoint was put back. Put the checkpoint back, or begin a new log"
        )
    return ""


class StreamLog:
    """A log in a store of its own, to be opened anew for each use: what it remembers may be replaced by another log."""

    def __init__(self, uri: str, store: BlobStore) -> None:
        self._uri = uri
        self._store = store
        self._known: dict[str, bytes] = {}  # blobs that are made once, and never change

    @property
    def identity(self) -> str:
        """Return what tells this log apart from another one at the same place; draw it if there is none."""
        return _text(self._once(_IDENTITY, {"log": token_hex(8)}), "log", _IDENTITY)

    @property
    def first(self) -> int | None:
        """Return the number of the batch with which the log began; None if it has not begun."""
        data = self._read_once(_FIRST)
        return None if data is None else int(_text(data, "first", _FIRST))

    # --- writing ------------------------------------------------------------------------------------------------------

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `WrongLog` if the log's rows have other columns."""
        if (known := self._known_query()) is not None and not known[1].equals(schema):
            raise WrongLog(
                f"{self._named()}: its rows have {_words(known[1])}, and these have {_words(schema)}. {_NEW}"
            )

    def write(self, batch: int, partition: int, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> tuple[Part, ...]:
        """Write the rows of one attempt at a task. They count if `add` names them, else nothing reads them."""
        attempt, parts, waiting, size = token_hex(8), list[Part](), list[pa.RecordBatch](), 0
        for one in rows:
            if one.num_rows:
                waiting.append(one.cast(schema))
                size += one.nbytes
            if size >= _PART_BYTES:
                parts.append(self._part(batch, f"{partition:05}-{attempt}-{len(parts):05}", schema, waiting))
                waiting, size = [], 0
        if waiting:
            parts.append(self._part(batch, f"{partition:05}-{attempt}-{len(parts):05}", schema, waiting))
        return tuple(parts)

    def add(self, number: int, batch: LoggedBatch, schema: pa.Schema) -> LoggedBatch:
        """Add a batch unless it is there; return the one that counts.

        Raises `WrongLog` if it does not belong here, and what the store raises. Then, and after a crash, it may be
        called again.
        """
        query = ""
        if batch.query:
            own = {"query": batch.query, "schema": b64encode(schema.serialize().to_pybytes()).decode()}
            query = _text(self._once(_QUERY, own), "query", _QUERY)
            self.check_schema(schema)
        there = self.batch(number)
        follows = there is not None or (number > 0 and self.batch(number - 1) is not None)
        batches = range(number - 1, number) if follows and there is None else self.batches()
        if fault := fault_of(number, batch, Seen(query, there, batches)):
            raise WrongLog(f"{self._named()}: {fault}")
        self._once(_FIRST, {"first": str(number)})
        return there or self._decided(number, batch)

    def forget_before(self, time: int, newest: int) -> int:
        """Delete the batches that are older, but for the newest one; return how many they were.

        A crash inside leaves parts of the batch that went last; the next call deletes them. No folder is listed but
        those of batches that go, as there may be millions.
        """
        there = range(self.first or 0, newest)
        oldest = there.start + bisect_left(there, True, key=lambda number: self.batch(number) is not None)
        if oldest > there.start:
            self._forget_parts(oldest - 1)
        for number in range(oldest, newest):
            found = self.batch(number)
            if found is not None and found.at >= time:
                newest = number
                break
            self._store.delete(_path(number))
            self._forget_parts(number)
        if newest > oldest:
            self._note_oldest(newest)
        return newest - oldest

    def _note_oldest(self, number: int) -> None:
        former = self._store.list(_OLDEST)
        self._store.create(f"{_OLDEST}/{number:020}", b"")
        for blob in former:
            self._store.delete(blob.path)

    def _forget_parts(self, number: int) -> None:
        for blob in self._store.list(f"{_PARTS}/{number:020}"):
            self._store.delete(blob.path)

    # --- reading ------------------------------------------------------------------------------------------------------

    def batch(self, number: int) -> LoggedBatch | None:
        """Return a batch; None if it is not there yet, or no longer."""
        try:
            return _batch_of(self._store.read(_path(number)), _path(number))
        except BlobNotFound:
            return None

    def batches(self) -> range:
        """Return the numbers of the batches that are there.

        As there may be millions, it asks for some, and lists all only if the oldest one that is noted is not there.
        """
        noted = [int(blob.path.rpartition("/")[2]) for blob in self._store.list(_OLDEST)]
        oldest = max(noted, default=self.first or 0)
        if not self._has(oldest):
            numbers = [_number(blob.path) for blob in self._store.list(_BATCHES)]
            return range(min(numbers), max(numbers) + 1) if numbers else range(0)
        step = 1
        while self._has(oldest + step):
            step *= 2
        newer = range(oldest + step // 2 + 1, oldest + step)
        return range(oldest, newer.start + bisect_left(newer, True, key=lambda number: not self._has(number)))

    def _has(self, number: int) -> bool:
        return exists(self._store, _path(number))

    def rows(self, part: Part, schema: pa.Schema) -> pa.RecordBatch:
        """Read a part; raise `BlobNotFound` if it is no longer there."""
        data = self._store.read(part.path)
        try:
            with pa.ipc.open_stream(data) as reader:
                table = reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise DamagedLog(f"{self._named()}: {part.path} is damaged: {error}") from error
        if not table.schema.equals(schema):
            raise WrongLog(
                f"{self._named()}: its rows have {_words(table.schema)}, and the program reads {_words(schema)}"
            )
        if table.num_rows != part.rows:
            raise DamagedLog(f"{self._named()}: {part.path} has {table.num_rows} rows, and had {part.rows} once")
        [batch] = table.combine_chunks().to_batches()
        return batch

    def _decided(self, number: int, batch: LoggedBatch) -> LoggedBatch:
        """Create the batch; of several creators, which all have the same rows, one wins."""
        data = json.dumps({"version": 1, **_json_of(batch)}).encode()
        for _ in range(_TRIES):
            with suppress(UnknownOutcome):
                self._store.create(_path(number), data)
            if (found := self.batch(number)) is not None:
                return found
        raise UnknownOutcome(f"{self._named()}: it is unknown whether batch {number} was added")

    def _named(self) -> str:
        return f"the log at {self._uri}"

    def _known_query(self) -> tuple[str, pa.Schema] | None:
        data = self._read_once(_QUERY)
        if data is None:
            return None
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(_text(data, "schema", _QUERY), validate=True)))
        except (pa.ArrowException, ValueError, OSError) as error:
            raise DamagedLog(f"{self._named()}: {_QUERY} is damaged: {error}") from error
        return _text(data, "query", _QUERY), schema

    def _part(self, batch: int, name: str, schema: pa.Schema, rows: list[pa.RecordBatch]) -> Part:
        path = f"{_PARTS}/{batch:020}/{name}.arrow"
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, schema) as writer:
            for one in rows:
                writer.write_batch(one)
        self._store.write(path, stream.getvalue().to_pybytes())
        return Part(path, sum(one.num_rows for one in rows))

    def _once(self, path: str, values: Mapping[str, object]) -> bytes:
        """Return the blob at a path; make it with these values if it is absent. Of several creators one wins."""
        data = json.dumps({"version": 1, **values}).encode()
        for _ in range(_TRIES):
            if (found := self._read_once(path)) is not None:
                return found
            with suppress(UnknownOutcome):
                self._store.create(path, data)
        raise UnknownOutcome(f"{self._named()}: it is unknown whether {path} was made")

    def _read_once(self, path: str) -> bytes | None:
        if path not in self._known:
            try:
                self._known[path] = self._store.read(path)
            except BlobNotFound:
                return None
        return self._known[path]


_NEW: Final = "Begin a new log, and give the source of the program a new uid"


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema with nulls allowed everywhere: what Spark says of them changes with how a query is planned."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(declared: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(declared):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in declared])
    if types.is_list(declared):
        return pa.list_(pa.field("element", _plain(declared.value_type)))
    if types.is_map(declared):
        return pa.map_(_plain(declared.key_type), pa.field("value", _plain(declared.item_type)))
    return declared


def open_log(uri: str) -> StreamLog:
    """Open the log at a place; its folder is made if it is absent."""
    return StreamLog(uri, _store(uri, getpid()))


@lru_cache(maxsize=64)
def _store(uri: str, process: int) -> BlobStore:  # noqa: ARG001 (a store is not for processes that are forked later)
    return open_store(uri)


def _path(number: int) -> str:
    return f"{_BATCHES}/{number:020}.json"


def _number(path: str) -> int:
    name = path.removeprefix(f"{_BATCHES}/").removesuffix(".json")
    if not name.isdecimal():
        raise DamagedLog(f"{path} is no batch of a log: the folder was changed from outside; remove what is foreign")
    return int(name)


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _json_of(batch: LoggedBatch) -> dict[str, object]:
    parts = [[part.path, part.rows] for part in batch.parts]
    return {"query": batch.query, "covers": batch.covers, "at": batch.at, "parts": parts}


def _batch_of(data: bytes, path: str) -> LoggedBatch:
    match _parsed(data, path):
        case {"query": str(query), "covers": str(covers), "at": int(at), "parts": [*parts]}:
            return LoggedBatch(query, covers, at, tuple(_parts_of(parts, path)))
        case _:
            raise DamagedLog(f"{path} of the log is damaged: {data[:100]!r}")


def _parts_of(parts: Iterable[object], path: str) -> Iterator[Part]:
    for part in parts:
        match part:
            case [str(place), int(rows)] if place.startswith(f"{_PARTS}/"):
                yield Part(place, rows)
            case _:
                raise DamagedLog(f"{path} of the log is damaged: it names {part!r:.100} as a part")


def _text(data: bytes, name: str, path: str) -> str:
    match _parsed(data, path).get(name):
        case str(text):
            return text
        case _:
            raise DamagedLog(f"{path} of the log is damaged: {data[:100]!r}")


def _parsed(data: bytes, path: str) -> Mapping[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedLog(f"{path} of the log is damaged: {error}") from error
    match found:
        case {"version": 1, **values}:
            return {str(name): value for name, value in values.items()}
        case {"version": int(version)}:
            raise DamagedLog(f"{path} of the log has version {version}, and this package knows version 1")
        case _:
            raise DamagedLog(f"{path} of the log is damaged: {data[:100]!r}")
