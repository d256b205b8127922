"""The producer of one transactional id, from the moment it has taken it over: its transactions, and their tokens.

The token of a writer (a partition of a sink in one attempt) is the committed offset of a consumer group of its own,
whose metadata names the transactions that are committed. It is sent with the transaction of the records, so it is there
if and only if they are; one request reads it, whatever was committed before; and brokers forget old ones by themselves.

Invariant: a token is read when every other producer of the transactional id is fenced, and what that had open is
aborted or committed. Until another producer fences this one, no other can write such a token, so it is read once.

No record is dropped in silence: the sink looks at `Undelivered` before it says that all is well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from snapshot.connectors.kafka.sink_client import REACH, KafkaClients, meaning, told_apart, words
from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.connectors.staging.committed import Committed
from snapshot.epochs.token_commit import TargetAnswer

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
        """Note a record that was not delivered; called by the producer."""
        self.note(error, message.key(), message.value())

    def note(self, error: KafkaError, key: bytes | None, value: bytes | None) -> None:
        """Note a record that was not delivered, or not even taken."""
        size = len(key or b"") + len(value or b"")
        if size > self._size and not (self.reason and _is_given_up(error)):
            self._size = size
            self.answer = meaning(error)
            shown = "no key" if key is None else f"the key {key[:100].decode(errors='replace')!r}"
            self.reason = f"the record with {shown} and {size} bytes was not delivered: {words(error)}"


def _is_given_up(error: KafkaError) -> bool:
    """True if a record was dropped only because its transaction was given up for another error."""
    from confluent_kafka import KafkaError as Codes

    return error.code() in (Codes._PURGE_QUEUE, Codes._PURGE_INFLIGHT)


def produce(producer: Producer, topic: str, records: pa.RecordBatch, undelivered: Undelivered) -> None:
    """Give records to a producer, waiting while it has too many; stop early if one was not delivered."""
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


if TYPE_CHECKING:
    from confluent_kafka import Producer, TopicPartition

_ANSWER: Final = 2 * REACH
"""Seconds until a call that has `REACH` seconds is given up."""
_ABORT: Final = 2.0
"""Seconds to tell the broker that a transaction is given up; it finds out by itself later."""


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """The place of a writer's token: the committed offset of this group for the first partition of the topic."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class _Token:
    """The committed transaction, and the group as a producer names it."""

    committed: Committed
    group: object


class Slot:
    """Made by taking over the transactional id: from then on no other producer of it can commit. `TargetError` if it
    cannot be taken over. After any other error it is of no more use than to be closed.
    """

    def __init__(self, clients: KafkaClients, id: str, timeout: float) -> None:
        self.id = id
        self._clients = clients
        self._timeout = timeout
        self._undelivered = Undelivered()
        self._tokens: dict[TokenPlace, _Token] = {}
        self._is_open = False
        with told_apart(f"the transactional id {id!r} could not be taken over"):
            self._producer: Producer = clients.producer(id, timeout, self._undelivered)
            self._producer.init_transactions(REACH)

    def committed(self, place: TokenPlace) -> Committed:
        """Return the transactions that the token names as committed."""
        return self._token(place).committed

    def commit(self, batches: Iterable[pa.RecordBatch], place: TokenPlace, committed: Committed) -> None:
        """Write the records and the new token in one transaction, and commit it."""
        from confluent_kafka import TopicPartition

        group = self._token(place).group
        with told_apart(f"a transaction of {self.id!r} on topic {place.topic!r} was not committed"):
            self._producer.begin_transaction()
            self._is_open = True
            for records in batches:
                produce(self._producer, place.topic, records, self._undelivered)
                self._check()
            token = TopicPartition(place.topic, 0, committed.ranges[-1][1], str(committed))
            self._send_token(token, group)
            self._producer.flush(self._timeout)
            self._check()
            self._producer.commit_transaction(self._timeout)
            self._is_open = False
        self._tokens[place] = _Token(committed, group)

    def close(self) -> None:
        """Abort what is open, so that readers do not wait until the broker does."""
        from confluent_kafka import KafkaException

        self._producer.purge()
        if self._is_open:
            with suppress(KafkaException):  # somebody else has taken over, or the broker is out of reach
                self._producer.abort_transaction(_ABORT)

    def _send_token(self, token: TopicPartition, group: object) -> None:
        """Send the token in a thread, as the client may wait for ever for the group's broker if that was away.

        A thread that takes too long is left behind with the producer, and `TargetError` raised. It commits nothing, and
        the next process to take over the transactional id aborts what it has open.
        """
        sent: Future[None] = Future()

        def send() -> None:
            try:
                self._producer.send_offsets_to_transaction([token], group, REACH)
            except BaseException as error:  # whatever it is, it is raised where one waits for the answer
                sent.set_exception(error)
            else:
                sent.set_result(None)

        threading.Thread(target=send, name=f"token of {self.id}", daemon=True).start()
        try:
            sent.result(_ANSWER)
        except TimeoutError:
            reason = (
                f"the client has not sent the commit token of {self.id!r} in {_ANSWER:g} s; its producer is given up"
            )
            raise TargetError(TargetAnswer.UNKNOWN, reason) from None

    def _check(self) -> None:
        if self._undelivered.reason is not None:
            raise TargetError(self._undelivered.answer, self._undelivered.reason)

    def _token(self, place: TokenPlace) -> _Token:
        if place not in self._tokens:
            with told_apart(f"the commit token in the consumer group {place.group!r} could not be read"):
                self._tokens[place] = self._read(place)
        return self._tokens[place]

    def _read(self, place: TokenPlace) -> _Token:
        from confluent_kafka import KafkaException, TopicPartition

        consumer = self._clients.consumer(place.group)
        try:
            [found] = consumer.committed([TopicPartition(place.topic, 0)], timeout=REACH)
            if found.error is not None:
                raise KafkaException(found.error)
            group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        if found.offset < 0:
            return _Token(Committed(), group)
        try:
            return _Token(Committed.parse(found.metadata or ""), group)
        except ValueError as error:
            reason = (
                f"the consumer group {place.group!r} is for commit tokens, but it has offsets that this sink did not "
                f"commit: {error}"
            )
            raise TargetError(TargetAnswer.REFUSED, reason) from error
