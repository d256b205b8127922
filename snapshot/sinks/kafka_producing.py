"""Giving records to a producer of Kafka, and what is known of those that were not delivered.

What always holds: no record is dropped in silence; whoever produces looks at `Undelivered` before it says that all is
well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from snapshot.sinks.kafka_client import meaning, words
from snapshot.token_commit import TargetAnswer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_ROWS_AT_ONCE: Final = 4096
"""Rows between two looks at what became of the records before."""
_FULL: Final = 0.05
"""Seconds to wait when the producer's queue is full."""


class Undelivered:
    """Hears of records that were not delivered, and remembers the largest, which is the likeliest cause."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why, and which record; None as long as all is well."""
        self.answer = TargetAnswer.UNKNOWN
        self._size = -1

    def __call__(self, error: KafkaError, message: Message) -> None:
        """A record was not delivered."""
        self.note(error, message.key(), message.value())

    def note(self, error: KafkaError, key: bytes | None, value: bytes | None) -> None:
        """A record was not delivered, or not even taken."""
        size = len(key or b"") + len(value or b"")
        if size > self._size and not (self.reason and _is_given_up(error)):
            self._size = size
            self.answer = meaning(error)
            shown = "no key" if key is None else f"the key {key[:100].decode(errors='replace')!r}"
            self.reason = f"the record with {shown} and {size} bytes was not delivered: {words(error)}"


def _is_given_up(error: KafkaError) -> bool:
    """Whether a record was only dropped because the transaction was given up for another."""
    from confluent_kafka import KafkaError as Codes

    return error.code() in (Codes._PURGE_QUEUE, Codes._PURGE_INFLIGHT)


def produce(producer: Producer, topic: str, records: pa.RecordBatch, undelivered: Undelivered) -> None:
    """Give records to a producer; waits while it has too many. Stops early when one was not delivered."""
    from confluent_kafka import KafkaException

    names = records.schema.names
    columns = [records.column(place).to_pylist() for place in range(records.num_columns)]
    for number, row in enumerate(zip(*columns, strict=True)):
        if number % _ROWS_AT_ONCE == 0:
            producer.poll(0)
        record = dict(zip(names, row, strict=True))
        try:
            _produce(producer, topic, record, undelivered)
        except KafkaException as error:
            undelivered.note(error.args[0], record["key"], record["value"])
        if undelivered.reason is not None:
            return


def _produce(producer: Producer, topic: str, record: dict[str, Any], undelivered: Undelivered) -> None:
    while undelivered.reason is None:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(_FULL)
        else:
            return
