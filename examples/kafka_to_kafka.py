"""Payments from one topic of Kafka become balances in another, while a worker is killed and the broker is restarted.

Whoever writes the payments does so in transactions, and aborts some of them; the job reads what was committed, keeps a
balance for each account, and commits its output epoch by epoch. At the end the output topic is read by a consumer that
knows nothing of the job, and compared with the truth: the balance after each payment, once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

import recovery
from recovery import WorkerJoined
from snapshot import Kafka, KeyedProcess, ProcessContext, Program, Row, Stream, ToKafka, ValueState

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer
    from confluent_kafka.admin import AdminClient

    from tests.servers.kafka import KafkaServer

PARTITIONS, STANDBYS = 2, 1
TOPIC_PARTITIONS: Final = 4
ACCOUNTS: Final = 200
AT_ONCE: Final = 100
"""Payments in a transaction of whoever writes them."""
EPOCHS: Final = 2
"""So many are complete before a worker is killed."""
PATIENCE: Final = 300.0
QUIET: Final[Mapping[str, str | int]] = {"log_level": 0}
PAYMENT: Final = pa.schema([("payment", pa.int64()), ("account", pa.string()), ("cents", pa.int64())])


class Balance(KeyedProcess):
    """Gives out the balance of an account after each of its payments."""

    output: ClassVar = {"account": str, "payment": int, "balance": int}
    balance = ValueState(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.balance.set(self.balance.get() + event.cents)
        ctx.emit((event.account, event.payment, self.balance.get()))


@dataclass(frozen=True, slots=True)
class Topics:
    """Where the brokers are, and what is read and written there."""

    bootstrap: str
    payments: str
    balances: str


def program(topics: Topics) -> Program:
    payments = Kafka(topics.bootstrap, topics.payments, "json", PAYMENT)
    balances = ToKafka(topics.bootstrap, topics.balances, key="account")
    return (
        Stream.read(payments, uid="payments")
        .key_by("account")
        .process(Balance, uid="balance")
        .write(balances, uid="balances")
    )


def payment(number: int) -> dict[str, object]:
    """Payments by their numbers."""
    return {
        "payment": number,
        "account": f"account-{number * number % ACCOUNTS}",
        "cents": number * 7919 % 10_007 - 5000,
    }


def truth(payments: int) -> Counter[str]:
    """What must be in the output topic: an account's payments are in one partition, and so in their order."""
    balances: defaultdict[object, int] = defaultdict(int)
    expected: Counter[str] = Counter()
    for number in range(payments):
        row = payment(number)
        balances[row["account"]] += int(str(row["cents"]))
        expected[f"{row['account']} {number} {balances[row['account']]}"] += 1
    return expected


# --- whoever writes the payments --------------------------------------------------------------------------------------


def pay(topics: Topics, payments: int, rate: int) -> None:
    """Write all payments, so many a second, in transactions; before every third one write some that never were."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": topics.bootstrap, "transactional.id": topics.payments, **QUIET}
    producer = Producer({**settings, "linger.ms": 5})
    producer.init_transactions(PATIENCE)
    began = time.monotonic()
    for first in range(0, payments, AT_ONCE):
        some = [payment(number) for number in range(first, min(first + AT_ONCE, payments))]
        time.sleep(max(0.0, began + first / rate - time.monotonic()))
        if first // AT_ONCE % 3 == 0:
            attempt(producer, topics.payments, [{**row, "cents": 1} for row in some], commit=False)
        while not attempt(producer, topics.payments, some, commit=True):
            pass


def attempt(producer: Producer, topic: str, rows: Sequence[Mapping[str, object]], *, commit: bool) -> bool:
    """One transaction; whether it was committed."""
    from confluent_kafka import KafkaException

    producer.begin_transaction()
    for row in rows:
        producer.produce(topic, json.dumps(row).encode(), str(row["account"]).encode())
    while True:
        try:
            if commit:
                producer.commit_transaction(PATIENCE)
            else:
                producer.flush(PATIENCE)
                producer.abort_transaction(PATIENCE)
        except KafkaException as error:
            commit = commit and not error.args[0].txn_requires_abort()
            if not (error.args[0].retriable() or error.args[0].txn_requires_abort()):
                raise
        else:
            return commit


# --- whoever reads the balances ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """A consumer that begins at the beginning and is given committed records alone."""

    topics: Topics
    found: Counter[str] = field(default_factory=Counter)
    ended: set[int | None] = field(default_factory=set)

    def read(self) -> Iterator[int]:
        """Read on for a moment, again and again; each time how many records there were so far."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {
            "bootstrap.servers": self.topics.bootstrap,
            "group.id": f"{self.topics.balances}-{token_hex(4)}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
        with Consumer(settings) as consumer:
            consumer.assign([TopicPartition(self.topics.balances, number, 0) for number in range(TOPIC_PARTITIONS)])
            while True:
                for message in consumer.consume(1000, 0.1):
                    self._take(message)
                yield self.found.total()

    def _take(self, message: Message) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            row = json.loads(message.value() or b"{}")
            self.found[f"{row['account']} {row['payment']} {row['balance']}"] += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self.ended.add(message.partition())


def written(topics: Topics) -> Counter[str]:
    """All that is committed in the output topic."""
    reading = Reading(topics)
    give_up = time.monotonic() + PATIENCE
    for _ in reading.read():
        if len(reading.ended) == TOPIC_PARTITIONS:
            return reading.found
        if time.monotonic() > give_up:
            raise TimeoutError(f"{topics.balances} could not be read to its end")
    raise AssertionError("a consumer reads on and on")


# --- what happens to the job ------------------------------------------------------------------------------------------


def watch(run: recovery.Run, topics: Topics, payments: int, broker: KafkaServer | None) -> bool:
    """Wait until the output is there; a worker is killed after a third of it, and the broker restarted after two
    thirds. Whether all of that happened.
    """
    killed, restarted = False, broker is None
    give_up = time.monotonic() + PATIENCE
    for seen in Reading(topics).read():
        if not killed and seen >= payments // 3 and len(run.status().epochs) >= EPOCHS:
            kill_a_worker(run)
            killed = True
        if not restarted and killed and seen >= payments * 2 // 3 and broker is not None:
            restart(broker)
            restarted = True
        if seen >= payments:
            return killed and restarted
        if time.monotonic() > give_up:
            print(f"only {seen:,} of {payments:,} balances have come")
            return False
    raise AssertionError("a consumer reads on and on")


def kill_a_worker(run: recovery.Run) -> None:
    """SIGKILL to the process that has partition 0: it has no chance to say anything."""
    worker = next(worker for worker, partition in run.status().workers.items() if partition == 0)
    pid = next(event.pid for event in run.events if isinstance(event, WorkerJoined) and event.worker == worker)
    os.kill(pid, signal.SIGKILL)
    print(f"killed worker {worker} (process {pid}), which had partition 0", flush=True)


def restart(broker: KafkaServer) -> None:
    began = time.monotonic()
    broker.kill()
    broker.start()
    print(f"killed the broker, and started it again: it was away for {time.monotonic() - began:.1f} s", flush=True)


def demonstrate(folder: Path, topics: Topics, payments: int, rate: int, broker: KafkaServer | None) -> bool:
    """Run the job under all this; whether the output is exact."""
    print(f"{payments:,} payments to {ACCOUNTS} accounts, {rate:,} a second, on {PARTITIONS} partitions", flush=True)
    paying = threading.Thread(target=pay, args=(topics, payments, rate), daemon=True)
    with recovery.run(
        program(topics),
        checkpoints=folder / "checkpoints",
        job="balances",
        every="500ms",
        parallelism=PARTITIONS,
        scheme=recovery.Passive(standbys=STANDBYS),
        local=folder / "local",
        progress=False,
    ) as run:
        run.savepoint()  # from here on it runs, and has an epoch to go back to
        paying.start()
        happened = watch(run, topics, payments, broker)
        run.drain()
    if not happened:
        print("the payments were over before everything had happened: give more --payments")
        return False
    return compare(truth(payments), written(topics))


def compare(expected: Counter[str], found: Counter[str]) -> bool:
    lost, twice = (expected - found).total(), (found - expected).total()
    print(
        f"{expected.total():,} balances expected, {found.total():,} in the topic: {lost} lost, {twice} twice or wrong"
    )
    return not lost and not twice


# --- the command line -------------------------------------------------------------------------------------------------


@contextmanager
def made_topics(bootstrap: str) -> Iterator[Topics]:
    """Two topics with names that nobody else uses; they are deleted in the end."""
    from confluent_kafka.admin import (
        AdminClient,
        NewTopic,  # pyright: ignore[reportPrivateImportUsage]
    )

    topics = Topics(bootstrap, f"payments-{token_hex(4)}", f"balances-{token_hex(4)}")
    admin: AdminClient = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    names = [topics.payments, topics.balances]
    for made in admin.create_topics([NewTopic(name, TOPIC_PARTITIONS) for name in names]).values():
        made.result(PATIENCE)
    try:
        yield topics
    finally:
        for deleted in admin.delete_topics(names).values():
            deleted.result(PATIENCE)


@contextmanager
def brokers(bootstrap: str | None, folder: Path) -> Iterator[tuple[str, KafkaServer | None]]:
    """Those at an address, or one of our own that may be restarted."""
    if bootstrap is not None:
        yield bootstrap, None
        return
    from tests.servers.kafka import running_kafka

    folder.mkdir()
    with running_kafka(folder) as server:
        yield server.bootstrap, server


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.kafka_to_kafka",
        description=__doc__,
        epilog="example: python -m examples.kafka_to_kafka --brokers localhost:9092",
    )
    parser.add_argument(
        "--brokers",
        metavar="HOST:PORT",
        help="brokers to use, which are not restarted; without, one of the tests' is started (`make test-servers` "
        "fetches it)",
    )
    parser.add_argument("--payments", type=int, default=20_000, help="how many (%(default)s)")
    parser.add_argument("--rate", type=int, default=1500, help="payments per second (%(default)s)")
    given = parser.parse_args(arguments)
    if given.payments < 1 or given.rate < 1:
        parser.error("there must be a payment, and one per second")
    with (
        TemporaryDirectory() as scratch,
        brokers(given.brokers, Path(scratch) / "broker") as (bootstrap, broker),
        made_topics(bootstrap) as topics,
    ):
        exact = demonstrate(Path(scratch), topics, given.payments, given.rate, broker)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
