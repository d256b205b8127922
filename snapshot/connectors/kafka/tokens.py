"""The memory of a Kafka broker about committed transactions, and the facts in a committable that it can be asked by.

Invariant: a transaction is in the token of its writer if, and only if, it was committed there, as no other
writer has that token, though it may name its transactions alike; a token that may have expired is never taken for one
that was not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from snapshot.connectors.staging.payloads import NONCE, PLACE, PayloadFields
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import TransactionId
from snapshot.tree.frozen_json import JsonLike

_PREFIX: Final = "epochcut/"
SHORTEST_MEMORY: Final = 60.0
"""Seconds for which any broker remembers a token: the least that can be configured."""
_SURE: Final = 0.9
"""The part of that time in which clocks that differ do no harm."""


@dataclass(frozen=True, slots=True)
class About:
    """The content of a transaction's committable beside its rows.

    `producer` is the transactional id with which it is committed. Between `first` and the transaction itself there is
    none of its writer that has rows. `sealed_at` is in milliseconds, by the clock of its worker. `writer` was drawn
    when its writer was opened, `bootstrap` are the brokers that the sink was given.
    """

    topic: str
    producer: str
    first: int
    sealed_at: int
    writer: str
    bootstrap: str

    @property
    def place(self) -> dict[str, JsonLike]:
        """Return the topic and the brokers it is at."""
        return {"bootstrap": self.bootstrap, "topic": self.topic}

    def json(self) -> dict[str, JsonLike]:
        """Return what goes into the payload."""
        return {
            PLACE: self.place, "producer": self.producer, "first": self.first, "sealed_at": self.sealed_at,
            "writer": self.writer,
        }  # fmt: skip

    @classmethod
    def read(cls, transaction: TransactionId, place: Mapping[str, JsonLike], fields: PayloadFields) -> About:
        """Read what `json` gave, for a place that was checked; the transactional id follows from the transaction."""
        fields.number("rows", 1)
        producer = fields.same("producer", producer_of(transaction))
        first = fields.number("first", 0, parse_transaction_id(transaction).n)
        about = fields.number("sealed_at"), fields.text("writer", NONCE)
        return cls(str(place["topic"]), producer, first, *about, str(place["bootstrap"]))


def producer_of(transaction: TransactionId) -> str:
    """Return the transactional id for what a partition of a sink has sealed, the same in every attempt."""
    name = parse_transaction_id(transaction)
    return f"{_PREFIX}{transaction.rpartition('/')[0]}/{name.partition}"


def group_of(transaction: TransactionId, writer: str) -> str:
    """Return the consumer group whose committed offset is the token of the transaction's writer.

    A writer is a partition in an attempt, and what was drawn for it: a job whose tree was put back from an older copy
    has attempts of the same numbers again.
    """
    return f"{_PREFIX}{transaction.rpartition('-')[0]}/{writer}"


def may_be_of_one_cluster(bootstrap: str, other: str) -> bool:
    """True if two lists of brokers may name the same cluster: they share a broker, or one of them is not known."""
    one, two = ({broker.strip().rpartition("://")[2] for broker in list.split(",")} for list in (bootstrap, other))
    return not bootstrap or not other or not one.isdisjoint(two)


def may_be_forgotten(sealed_at: int, now: int, kept: float) -> bool:
    """True if a transaction's token may have expired, if tokens are kept for `kept` seconds after their commit."""
    return now - sealed_at > kept * _SURE * 1000
