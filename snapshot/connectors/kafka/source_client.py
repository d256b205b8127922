"""A source's connection to Kafka: settings, errors in words, names of splits, and questions about topics.

Invariant: a consumer is given its partitions and joins no group, so nothing is ever taken from it or given to
it; it commits nothing, as how far it has read is in the job's epochs. What a split's rows depend on is in its name, so
that it means the same rows for ever, also when "latest" or the time of a start would be another offset by now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from re import Pattern
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from snapshot.program.source import SourceError, SourceVanished

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import TopicPartition as Place

_NAME = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d+) from (?P<start>\d+)(?: to (?P<stop>\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class KafkaSplit:
    """The records of a partition from offset `start` on, those before offset `stop` if it ends."""

    of: TopicPartition
    start: int
    stop: int | None = None

    @property
    def name(self) -> str:
        """Return the split's name as the job knows it."""
        return f"{self.of} from {self.start}" + ("" if self.stop is None else f" to {self.stop}")


def split_of(name: str) -> KafkaSplit | None:
    """Return the split with this name; None if it is not the name of a split of Kafka."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    stop = None if match["stop"] is None else int(match["stop"])
    return KafkaSplit(TopicPartition(match["topic"], int(match["partition"])), int(match["start"]), stop)


Options: TypeAlias = "Mapping[str, str | int | float | bool]"
Topics: TypeAlias = "str | Sequence[str] | Pattern[str]"
Answer = TypeVar("Answer")

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that ask for the end and the beginning of a partition, in place of a time."""

OURS: Final = frozenset(
    ("bootstrap.servers", "group.id", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof")
)
"""Settings that are not the program's to give."""

_PATIENCE: Final = 15.0
"""Seconds for which the driver asks brokers that do not answer."""
_ASK: Final = 1.0
_PAUSE: Final = 0.1
_QUEUED: Final = 16 << 10
"""Kilobytes that are read ahead of one partition."""
_FULL: Final = 10
"""Milliseconds until it is looked again whether there is room for more; by default it would be a second."""


def settings(bootstrap: str, group: str | None, options: Options) -> dict[str, object]:
    """Return the settings of a consumer; `options` override those chosen here, except `OURS`."""
    return {
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": _QUEUED,
        "queued.min.messages": 1_000_000,  # so that the size alone counts
        "fetch.queue.backoff.ms": _FULL,
        "log_level": 0,  # what matters is told by errors, and not on the standard error output
        **options,
        "bootstrap.servers": bootstrap,
        "group.id": group or "epochcut",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def settings_problem(made_of: Mapping[str, object]) -> str | None:
    """Return the client library's objection to the settings, None if it has none; connects to nothing."""
    from confluent_kafka import Consumer, KafkaException

    try:
        Consumer(dict(made_of)).close()
    except (KafkaException, TypeError, ValueError) as error:
        return words(error.args[0]) if isinstance(error, KafkaException) else str(error)
    return None


def words(error: object) -> str:
    """Format an error of the library for people."""
    from confluent_kafka import KafkaError

    return f"{error.str()} ({error.name()})" if isinstance(error, KafkaError) else str(error)


def is_among(topics: Topics, name: str) -> bool:
    """True if a program that names these topics reads the one of this name.

    A pattern has to match the whole name; topics of Kafka's own, whose names begin with two underscores, never match.
    """
    if isinstance(topics, Pattern):
        return topics.fullmatch(name) is not None and not name.startswith("__")
    return name == topics if isinstance(topics, str) else name in topics


class Client:
    """A consumer, and what it has said of its connections. The caller closes it."""

    def __init__(self, where: str, made_of: Mapping[str, object]) -> None:
        from confluent_kafka import Consumer, KafkaException

        self.where = where
        """The beginning of errors."""
        self.trouble = ""
        """The present hindrance, which may pass; the next answer clears it."""
        self._refusal: KafkaError | None = None
        self._bootstrap = str(made_of["bootstrap.servers"])
        try:
            self.consumer: Consumer = Consumer({**made_of, "error_cb": self._heard})
        except KafkaException as error:
            raise SourceError(f"{where}: Kafka's client refuses its settings: {words(error.args[0])}") from error

    def check(self) -> None:
        """Raise `SourceError` if the brokers refuse this client, as waiting would not help."""
        if self._refusal is not None:
            raise SourceError(
                f"{self.where}: the brokers at {self._bootstrap} refuse this client: {words(self._refusal)}; check the "
                f"credentials and the security settings in `options`"
            )

    def note(self, error: KafkaError) -> None:
        """Remember an error that may pass."""
        self.trouble = f"the brokers at {self._bootstrap}: {words(error)}"

    def ends(self, of: TopicPartition) -> tuple[int, int] | None:
        """Return a partition's first offset and the one after its last; None if its broker does not answer just now."""
        from confluent_kafka import KafkaException

        try:
            found = self.consumer.get_watermark_offsets(place(of), timeout=_ASK, cached=False)
        except KafkaException:
            return None
        return found[0], found[1]

    def close(self) -> None:
        """Close the connection."""
        self.consumer.close()

    def _heard(self, error: KafkaError) -> None:
        if error.code() in _refusals():
            self._refusal = error
        self.note(error)


class Cluster:
    """Questions of the driver. Whatever is not answered within seconds is a `SourceError`."""

    def __init__(self, where: str, made_of: Mapping[str, object]) -> None:
        self._client = Client(where, made_of)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def partitions(self, topics: Topics) -> list[TopicPartition]:
        """Return all partitions that the topics have, in order; `SourceVanished` if a named topic does not exist."""
        if isinstance(topics, Pattern):
            everything = self._ask("the topics", lambda: self._client.consumer.list_topics(timeout=_ASK)).topics
            names = [name for name in everything if is_among(topics, name)]
        else:
            names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
        return [of for name in sorted(names) for of in self._partitions(name)]

    def offsets(self, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
        """Return, for each partition, the offset of the first record at or after a time in milliseconds since 1970.

        It is the end of the partition if there is no such record. `EARLIEST` asks for the first offset, `LATEST` for
        the end. Ends are those that a reader gets to: before the first transaction that is open.
        """
        asked = [place(of, at) for of in partitions]
        if not asked:
            return {}
        answers = self._ask("offsets", lambda: self._client.consumer.offsets_for_times(asked, timeout=_ASK))
        found = {TopicPartition(answer.topic, answer.partition): self._offset(answer) for answer in answers}
        none_later = [of for of, offset in found.items() if offset < 0]
        return {**found, **self.offsets(none_later, LATEST)} if none_later and at != LATEST else found

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the consumer group's committed offsets, for the partitions that have one."""
        asked = [place(of) for of in partitions]
        answers = self._ask("committed offsets", lambda: self._client.consumer.committed(asked, timeout=_ASK))
        found = {TopicPartition(answer.topic, answer.partition): self._offset(answer) for answer in answers}
        return {of: offset for of, offset in found.items() if offset >= 0}

    def _partitions(self, topic: str) -> list[TopicPartition]:
        from confluent_kafka import KafkaError, KafkaException

        def look() -> Collection[int]:
            found = self._client.consumer.list_topics(topic, timeout=_ASK).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return list(found.partitions)

        try:
            return [TopicPartition(topic, number) for number in sorted(self._ask(f"topic {topic!r}", look))]
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceError(
                    f"{self._client.where}: the partitions of topic {topic!r} cannot be looked up: "
                    f"{words(error.args[0])}"
                ) from error
            raise SourceVanished(
                f"{self._client.where}: the brokers have no topic {topic!r}; make it, or check its name"
            ) from error

    def _offset(self, answer: Place) -> int:
        if answer.error is not None:
            raise SourceError(
                f"{self._client.where}: the offset of {answer.topic}/{answer.partition} at which to begin cannot be "
                f"looked up: {words(answer.error)}"
            )
        return int(answer.offset)

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer:
        """Ask the brokers until they answer; `SourceError` if they do not in time.

        Raises `KafkaException` for an answer that will be the same again.
        """
        from confluent_kafka import KafkaException

        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                return question()
            except KafkaException as error:
                problem = error.args[0]
                if problem.code() in _final():
                    raise
            self._client.consumer.poll(0)  # lets it say what has gone wrong
            self._client.check()
            if time.monotonic() >= give_up:
                raise SourceError(
                    f"{self._client.where}: Kafka cannot be asked for {what}; start the brokers, or check the address. "
                    f"What was heard last: {self._client.trouble or words(problem)}"
                )
            time.sleep(_PAUSE)


def place(of: TopicPartition, offset: int = 0) -> Place:
    """Convert a partition, with an offset, to the client library's type."""
    from confluent_kafka import TopicPartition as Place

    return Place(of.topic, of.partition, offset)


@cache
def _refusals() -> frozenset[int]:
    """Return the errors of a connection that will be the same with the next one."""
    from confluent_kafka import KafkaError

    return frozenset((KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED))


@cache
def _final() -> frozenset[int]:
    """Return the errors that will be the same again."""
    from confluent_kafka import KafkaError

    return frozenset(
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,
        )
    )
