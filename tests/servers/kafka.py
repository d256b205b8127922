"""A real Kafka broker for tests: one node, KRaft, on free ports of the loopback interface, all it keeps in one folder.

Invariant: a broker that was killed starts again with the same port and what it had stored.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers.ports import free_ports

JARS = Path(__file__).parents[2] / ".servers" / "kafka"
_PATIENCE = 60.0
_START = 240.0
"""Seconds in which a broker comes up, on a machine that has much else to do."""
_JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A broker that was killed may register again when its session is over.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "200",
    "controller.quorum.election.timeout.ms": "100",
    "controller.quorum.election.backoff.max.ms": "100",
    "log.retention.ms": "-1",  # tests say when their records were written, and some say years ago
    "log.cleaner.dedupe.buffer.size": str(2 << 20),
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a consumer has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, str | bytes | None]]
    timestamp: int | None


class KafkaServer:
    """A broker that may be killed and started again with the same port and data. `settings` are of the broker."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = {**_SETTINGS, **(settings or {}), "log.dirs": str(folder / "data")}
        self._process: subprocess.Popen[bytes] | None = None
        self._has_served = False
        self.log = folder / "kafka-server.log"
        self.bootstrap = ""
        self.client_settings: dict[str, str | int] = {"log_level": 0, "reconnect.backoff.max.ms": 200}
        """What tests give to their own clients beside the address: silence, and quick attempts to connect again."""

    def start(self) -> None:
        """Start, and return when requests are served."""
        if not JARS.is_dir():
            raise FileNotFoundError(f"{JARS} is not there; `make test-servers` fetches the jars of Kafka")
        for _ in range(3):
            if not self._has_served:  # until then another process may be quicker to take the ports
                self._format()
            if self._serves():
                self._has_served = True
                return
        raise RuntimeError(f"the Kafka broker does not start:\n{self.end_of_log()}")

    def _format(self) -> None:
        broker, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        addresses = {
            "listeners": f"BROKER://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"BROKER://{self.bootstrap}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }
        lines = (f"{name}={value}\n" for name, value in {**addresses, **self._settings}.items())
        self._properties.write_text("".join(lines))
        command = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
        with self.log.open("ab") as log:
            cluster = ["--cluster-id", "epochcut-tests-cluster", "--config", str(self._properties)]
            subprocess.run([*self._java, *command, *cluster], check=True, stdout=log, stderr=log, timeout=_PATIENCE)

    def _serves(self) -> bool:
        with self.log.open("ab") as log:
            command = [*self._java, "kafka.Kafka", str(self._properties)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        give_up = time.monotonic() + _START
        admin = self.admin()
        while self._process.poll() is None and time.monotonic() < give_up:
            try:
                found = admin.list_topics(timeout=1)
                partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
                if found.brokers and all(one.leader >= 0 for one in partitions):
                    return True
            except KafkaException:
                pass
            time.sleep(0.05)
        self.kill()
        return False

    def kill(self) -> None:
        """Kill it without warning, and return when it is dead."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def admin(self) -> AdminClient:
        """A client that makes topics and describes things."""
        return AdminClient({"bootstrap.servers": self.bootstrap, **self.client_settings})

    def make_topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic that nobody else uses, and return its name."""
        name = f"topic-{token_hex(8)}"
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()  # its end would be that of the request
        admin.create_topics([topic])[name].result(timeout=_PATIENCE)
        return name

    def records(self, topic: str, *, decided: bool = True) -> Sequence[Record]:
        """What is committed in a topic now, as somebody reads it who knows nothing of its writers: partition by
        partition, in order.

        With `decided`, open transactions are waited for: a broker says that it commits one a moment before readers get
        it. Without, this is what a reader gets at once.
        """
        with self._consumer("read_committed") as consumer:
            partitions = consumer.list_topics(topic, timeout=_PATIENCE).topics[topic].partitions
            ends = self.ends(topic, partitions) if decided else dict.fromkeys(partitions, 0)
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            found: list[Record] = []
            reached: dict[int, int] = {}
            give_up = time.monotonic() + _PATIENCE
            while any(reached.get(number, -1) < end for number, end in ends.items()):
                if time.monotonic() > give_up:
                    raise TimeoutError(f"{topic} could not be read to its end: {reached} of {ends}")
                for message in consumer.consume(1000, timeout=0.2):
                    _take(message, found, reached)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def ends(self, topic: str, partitions: Iterable[int], level: str = "read_uncommitted") -> dict[int, int]:
        """Where readers get to in partitions, in offsets."""
        with self._consumer(level) as consumer:
            return {number: _end(consumer, TopicPartition(topic, number)) for number in partitions}

    def _consumer(self, level: str) -> Consumer:
        group = {"group.id": f"reader-{token_hex(8)}", "enable.auto.commit": False}
        reading = {"isolation.level": level, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        pace = {"fetch.wait.max.ms": 10, "reconnect.backoff.ms": 10}
        return Consumer({"bootstrap.servers": self.bootstrap, **group, **reading, **pace, **self.client_settings})

    def end_of_log(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _java(self) -> Sequence[str]:
        return [*_JAVA, "-cp", f"{JARS}/*"]


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Asked again as long as the broker has not found out that it leads a partition that was just made."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            offsets = consumer.get_watermark_offsets(partition, timeout=20, cached=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > give_up:
                raise
            time.sleep(0.05)
        else:
            assert offsets is not None
            return int(offsets[1])


def _take(message: Message, found: list[Record], reached: dict[int, int]) -> None:
    error, partition, offset = message.error(), message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    if error is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        reached[partition] = offset
        return
    kind, timestamp = message.timestamp()
    headers = message.headers() or []
    assert isinstance(headers, list)
    found.append(
        Record(
            partition,
            offset,
            message.key(),
            message.value(),
            headers,
            None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        )
    )


@contextmanager
def running_kafka(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[KafkaServer]:
    """Run a broker with all it keeps in the folder, for as long as the context lasts."""
    server = KafkaServer(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
