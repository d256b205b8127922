"""Clients of Kafka as the sink makes them, and what their errors mean for a commit.

Invariant: an error that is not known to be a refusal is no outcome; nothing that a client says holds a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.epochs.token_commit import TargetAnswer
from statebackend.readable import readable_logger

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

Setting: TypeAlias = "str | int | float | bool"

REACH: Final = 10.0
"""Seconds in which a broker answers, or cannot be reached."""
OURS: Final = frozenset(
    {"bootstrap.servers", "transactional.id", "transaction.timeout.ms", "enable.idempotence", "group.id"}
    | {"acks", "request.required.acks", "delivery.report.only.error", "isolation.level"}
)
"""Settings that the sink makes itself."""
LARGEST_RECORD: Final = 1_000_000
"""Bytes of the largest record that a producer takes, unless an option says otherwise."""
_DEFAULTS: Final[Mapping[str, Setting]] = {"reconnect.backoff.ms": 10, "log_level": 4}
_OF_PRODUCERS: Final[Mapping[str, Setting]] = {
    "partitioner": "murmur2_random",  # a key is in the partition in which clients of the JVM put it
    "queue.buffering.max.kbytes": 64 << 10,
    "delivery.report.only.error": True,
}
_MINUTES: Final = "offsets.retention.minutes"
_LOG: Final = readable_logger("epochcut.kafka")  # a broker may say anything
_LOG.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Makes clients of one cluster."""

    bootstrap: str
    options: Mapping[str, Setting] = field(repr=False)

    def producer(
        self, transactional_id: str, timeout: float, failed: Callable[[KafkaError, Message], None]
    ) -> Producer:
        """Make a producer of transactions, which the server aborts after `timeout` seconds.

        `failed` hears of every record that was not delivered.
        """
        ours = {"transactional.id": transactional_id, "transaction.timeout.ms": int(timeout * 1000)}
        return self._producer({**ours, "on_delivery": failed})

    def plain_producer(self, failed: Callable[[KafkaError, Message], None]) -> Producer:
        """Make a producer that repeats no record by itself and has no transactions."""
        return self._producer({"enable.idempotence": True, "on_delivery": failed})

    def _producer(self, settings: Mapping[str, object]) -> Producer:
        from confluent_kafka import Producer

        return Producer({**_OF_PRODUCERS, **self._settings(), **settings}, logger=_LOG)

    def consumer(self, group: str) -> Consumer:
        """Make a consumer that can read what a group has committed; it reads nothing else and commits nothing."""
        from confluent_kafka import Consumer

        ours = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        return Consumer({**self._settings(), **ours}, logger=_LOG)

    def admin(self, heard: Callable[[KafkaError], None]) -> AdminClient:
        """Make a client for questions and for making topics; `heard` is told why brokers cannot be reached."""
        from confluent_kafka.admin import AdminClient

        settings: dict[str, Any] = {**self._settings(), "error_cb": heard}  # its stubs know no callbacks
        return AdminClient(settings, logger=_LOG)

    def offsets_kept(self) -> float:
        """Return for how many seconds the brokers keep a group's committed offsets.

        Raises `KafkaException` if they do not say.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        admin = self.admin(lambda _: None)
        found: list[float] = []
        for broker in admin.list_topics(timeout=REACH).brokers:
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            settings = admin.describe_configs([resource], request_timeout=REACH)[resource].result(timeout=2 * REACH)
            entry = settings.get(_MINUTES)
            if entry is None or entry.value is None:
                raise KafkaException(KafkaError(KafkaError._NOENT, f"broker {broker} names no {_MINUTES}"))
            found.append(float(entry.value) * 60)
        if not found:
            raise KafkaException(KafkaError(KafkaError._NOENT, f"no broker is known that could name {_MINUTES}"))
        return min(found)

    def _settings(self) -> dict[str, object]:
        return {**_DEFAULTS, **self.options, "bootstrap.servers": self.bootstrap}


def largest_record(options: Mapping[str, Setting]) -> int:
    """Return the size in bytes of the largest record that a producer with these options takes."""
    given = str(options.get("message.max.bytes", ""))
    return int(given) if given.isdecimal() else LARGEST_RECORD  # what is no number, the client refuses by itself


@contextmanager
def told_apart(what: str) -> Iterator[None]:
    """Turn errors of Kafka in the block into `TargetError`, which says what was to be done."""
    from confluent_kafka import KafkaException

    try:
        yield
    except (KafkaException, SystemError) as error:
        # The latter if a delivery is reported while the client is about to raise the former.
        cause = error.__cause__ if isinstance(error, SystemError) else error
        if not isinstance(cause, KafkaException):
            raise
        raise TargetError(meaning(cause.args[0]), f"{what}: {words(cause.args[0])}") from error


def meaning(error: KafkaError) -> TargetAnswer:
    """Return what an error means for a commit: fenced, refused, or unknown."""
    if error.code() in _fenced():
        return TargetAnswer.FENCED
    return TargetAnswer.REFUSED if error.code() in _refused() else TargetAnswer.UNKNOWN


def words(error: KafkaError) -> str:
    """Format an error for people."""
    return f"{error.str()} ({error.name()})"


@cache
def _fenced() -> frozenset[int]:
    from confluent_kafka import KafkaError

    return frozenset(
        {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
        | {KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.CONCURRENT_TRANSACTIONS}
    )


@cache
def _refused() -> frozenset[int]:
    from confluent_kafka import KafkaError

    not_allowed = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    not_taken = {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError._INVALID_ARG,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
    return frozenset(not_allowed | not_taken)
