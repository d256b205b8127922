"""Reading one partition of a topic from an exact offset, by a consumer of its own.

Invariant: a position is the offset of the record that comes next, and how many of its rows are done; what was
skipped because it was aborted, compacted away or a control record is behind it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from snapshot.connectors.kafka.formats import BadRecord, RecordDecoder
from snapshot.connectors.kafka.source_client import Client, KafkaSplit, place, words
from snapshot.program.source import (
    Batch,
    Exhausted,
    Later,
    Reading,
    SourceError,
    SourceVanished,
    WrongPosition,
    WrongRecord,
)
from snapshot.tree.frozen_json import JsonLike

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

OnGap: TypeAlias = Literal["fail", "skip"]

_WAIT: Final = 0.2
"""Seconds for which a read waits for the first record, so many times if it is not known that there is none."""
_WAITS: Final = 10
_ASK_AGAIN: Final = 5.0
"""Seconds between two questions whether a broker that had trouble answers again."""
_SHOWN: Final = 200
"""Bytes of a value that an error shows."""


class KafkaReader:
    """One split. `position` is where to go on; None at the beginning."""

    def __init__(
        self, client: Client, decoding: RecordDecoder, split: KafkaSplit, position: JsonLike, on_gap: OnGap
    ) -> None:
        self._client = client
        self._decoding = decoding
        self._split = split
        self._on_gap = on_gap
        self._next, self._skip = begin(client.where, split, position)
        self._records: list[Message] = []
        self._decoded = decoding.decoded([])
        self._done = 0  # rows of what is decoded
        self._told = False  # of those records of it that were left out
        self._at_end = False
        self._ask_at = 0.0
        self._assign()

    def read(self, most: int) -> Reading:
        """Return the next rows; waits a little if there are none."""
        if self._done >= self._decoded.rows.num_rows:
            before = self._next
            if not self._is_over:
                self._fetch(most)
            if self._next == before:
                return Exhausted() if self._is_over else Later(time.time(), self._trouble())
        rows = self._decoded.rows.slice(self._done, most)
        self._done += rows.num_rows
        if self._told or self._done < self._decoded.rows.num_rows:
            return Batch(rows, self._position())
        self._told = True
        why = f"{self._client.where}, {self._split.of}: {self._decoded.why}" if self._decoded.bad else ""
        return Batch(rows, self._position(), self._decoded.bad, why)

    def close(self) -> None:
        """Close the consumer."""
        self._client.close()

    # --- what comes ---------------------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._split.stop is not None and self._next >= self._split.stop

    def _assign(self) -> None:
        if not self._is_over:
            self._client.consumer.assign([place(self._split.of, self._next)])

    def _fetch(self, most: int) -> None:
        """Take in the next records, if there are any now, and advance past them."""
        first = self._next
        records: list[Message] = []
        for message in self._consumed(most):
            error = message.error()
            if error is not None:
                self._take_error(error, message)
            elif _offset(message) >= self._next:  # what is in hand may come again when the partition is assigned anew
                records.append(message)
                self._next = _offset(message) + 1
                self._at_end = False
        self._client.check()
        if records:
            self._client.trouble = ""
        stop = self._split.stop
        if stop is not None and self._next > stop:
            records = [record for record in records if _offset(record) < stop]
            self._next = stop
        self._decode(records, first)

    def _consumed(self, most: int) -> list[Message]:
        """Return the records that are there at once; else wait for the first one, and add those that come with it."""
        consumer = self._client.consumer
        messages = consumer.consume(most, 0)
        for _ in range(_WAITS):
            if messages:
                break
            messages = consumer.consume(1, _WAIT)
            if messages and most > 1:
                messages += consumer.consume(most - 1, 0)
            if self._at_end or self._client.trouble:
                break
        return messages

    def _decode(self, records: list[Message], first: int) -> None:
        try:
            self._decoded = self._decoding.decoded(records)
        except BadRecord as bad:
            value = bad.record.value()
            shown = "nothing" if value is None else repr(value[:_SHOWN])
            raise WrongRecord(
                f"{self._client.where}: the record at offset {bad.record.offset()} of {self._split.of} does not fit: "
                f"{bad}. Its value is {shown}. Say on_bad='skip' to leave such records out, or on_bad='column' to have "
                f"them with what is wrong in a column 'kafka_error'"
            ) from bad
        self._records = records
        self._told = False
        # The rows that were handed out before are of the record at that very offset, which may come later, or never.
        self._done = self._skip if records and _offset(records[0]) == first else 0
        if records or self._next != first:
            self._skip = 0

    def _position(self) -> JsonLike:
        ends, done = self._decoded.ends, self._done
        if done >= self._decoded.rows.num_rows:
            return {"offset": self._next}
        if ends is None:
            return {"offset": _offset(self._records[done])}
        record = int(np.searchsorted(ends, done, side="right"))
        row = done - (int(ends[record - 1]) if record else 0)
        offset = _offset(self._records[record])
        return {"offset": offset, "row": row} if row else {"offset": offset}

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _take_error(self, error: KafkaError, message: Message) -> None:
        """Handle an error of the consumer; `SourceError` for one that does not pass by itself."""
        from confluent_kafka import KafkaError

        match error.code():
            case KafkaError._PARTITION_EOF:
                self._client.trouble = ""
                self._at_end = True
                self._next = max(self._next, _offset(message))
            case KafkaError._AUTO_OFFSET_RESET:
                self._gap(error)
            case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
                raise SourceVanished(
                    f"{self._client.where}: the brokers have no {self._split.of} any more: {words(error)}. If its "
                    f"topic was deleted, give the source a new uid"
                )
            case code if error.retriable() or code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                self._client.note(error)
            case _:
                raise SourceError(f"{self._client.where}: {self._split.of} cannot be read: {words(error)}")

    def _gap(self, error: KafkaError) -> None:
        """Go on after a gap in the offsets if `on_gap` is "skip", else raise `SourceError`.

        Raises it as well if the partition ends before the offset. Reads on from the same offset if it exists after all,
        or if the brokers do not answer just now.
        """
        found = self._client.ends(self._split.of)
        if found is None:
            self._client.note(error)
            self._assign()
            return
        earliest, latest = found
        if earliest <= self._next <= latest:  # it was asked for while the partition moved to another broker
            self._assign()
        elif self._next > latest:
            raise SourceError(
                f"{self._client.where}: the next record of {self._split.of} is at offset {self._next}, and the "
                f"partition ends at {latest}: its topic was made again under the same name, or its brokers have lost "
                f"what they had. Give the source a new uid to read it from its beginning"
            )
        elif self._on_gap == "skip":
            self._next, self._skip = earliest, 0
            self._assign()
        else:
            raise SourceError(
                f"{self._client.where}: the next record of {self._split.of} is at offset {self._next}, and the first "
                f"that is still there is at {earliest}: what is between was deleted for its age or size before it was "
                f"read. Say on_gap='skip' to go on without it, and give the topic a longer retention"
            )

    def _trouble(self) -> str:
        """Return what hinders the client, asking the brokers again now and then; empty if only records are awaited."""
        now = time.monotonic()
        if self._client.trouble and now >= self._ask_at:
            if self._client.ends(self._split.of) is not None:
                self._client.trouble = ""
            self._ask_at = now + _ASK_AGAIN
        return self._client.trouble


def begin(where: str, split: KafkaSplit, position: JsonLike) -> tuple[int, int]:
    """Return the offset of the record that comes next, and how many of its rows are done."""
    match position:
        case None:
            return split.start, 0
        case Mapping():
            offset, row = position.get("offset"), position.get("row", 0)
            if isinstance(offset, int) and isinstance(row, int):
                return offset, row
        case _:
            pass
    raise WrongPosition(f"{where}: {position!r} is no position in a partition of Kafka; give the source a new uid")


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
