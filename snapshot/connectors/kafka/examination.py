"""Looking at a Kafka cluster before anything starts: can it be reached, is the topic there, may we commit.

Invariant: nothing is written to the topic; a topic is made only if that was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from snapshot.connectors.kafka.sink_client import REACH, KafkaClients, words
from snapshot.connectors.kafka.slot import Slot, TokenPlace
from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.epochs.token_commit import TargetAnswer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

_CONNECT: Final = 5.0
"""Seconds to reach a broker at first."""
_PAUSE: Final = 0.2
"""Seconds until something that may pass is tried again."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The needs of a sink in a cluster. `create` is the number of partitions of a topic that it may make."""

    topic: str
    create: int | None
    transaction_timeout: float | None
    """None if it has no transactions."""
    asks_for_retention: bool


def examined(clients: KafkaClients, expected: Expectation, id: str) -> Iterator[str]:
    """Yield why the cluster does not meet the expectation, in sentences; make the topic if it may.

    `id` begins the names of a transactional id and a group to try with.
    """
    from confluent_kafka import KafkaException

    heard: list[KafkaError] = []
    try:
        admin = clients.admin(heard.append)
    except (KafkaException, ValueError, TypeError) as error:
        yield f"Kafka's client refuses its options: {error.args[0]}"
        return
    try:
        found = admin.list_topics(timeout=_CONNECT).topics.get(expected.topic)
    except KafkaException as error:
        admin.poll(0)  # lets it say what has gone wrong
        yield f"Kafka at {clients.bootstrap} cannot be reached: {_cause(error.args[0], heard)}"
        return
    if found is None or found.error is not None:
        if expected.create is None:
            yield f"Kafka at {clients.bootstrap} has no topic {expected.topic!r}, or hides it; make it, or give create"
            return
        yield from _make(admin, expected.topic, expected.create)
    yield from _transactions(clients, expected, id)


def _cause(error: KafkaError, heard: Sequence[KafkaError]) -> str:
    """Return the last error of a single broker, of which "all brokers are down" is a consequence; else that error."""
    from confluent_kafka import KafkaError as Codes

    causes = [one for one in heard if one.code() != Codes._ALL_BROKERS_DOWN]
    return words(causes[-1] if causes else error)


def _make(admin: AdminClient, name: str, partitions: int) -> Iterator[str]:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1)
    try:
        admin.create_topics([topic], operation_timeout=REACH)[name].result(timeout=2 * REACH)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            yield f"topic {name!r} could not be made: {words(error.args[0])}"


def _transactions(clients: KafkaClients, expected: Expectation, id: str) -> Iterator[str]:
    """Try the steps of a commit, without records; a cluster that was never used needs some seconds for it."""
    if expected.transaction_timeout is None:
        return
    give_up = time.monotonic() + REACH
    while (problem := _tried(clients, expected.transaction_timeout, TokenPlace(f"{id}/examine", expected.topic))) and (
        problem.answer is not TargetAnswer.REFUSED and time.monotonic() < give_up
    ):
        time.sleep(_PAUSE)
    if problem is not None:
        yield f"Kafka at {clients.bootstrap} allows no commits here: {problem}"
    elif expected.asks_for_retention:
        yield from _retention(clients)


def _tried(clients: KafkaClients, timeout: float, place: TokenPlace) -> TargetError | None:
    try:
        slot = Slot(clients, place.group, timeout)
        try:
            slot.committed(place)
        finally:
            slot.close()
    except TargetError as error:
        return error
    return None


def _retention(clients: KafkaClients) -> Iterator[str]:
    from confluent_kafka import KafkaException

    try:
        clients.offsets_kept()
    except KafkaException as error:
        yield (
            f"Kafka at {clients.bootstrap} does not say how long it keeps committed offsets ({words(error.args[0])}): "
            f"give tokens_kept, the seconds in its offsets.retention.minutes"
        )
