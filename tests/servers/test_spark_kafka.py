"""A program that Spark's own source for Kafka feeds gives what it gives with ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import kafka_to_kafka
from examples.kafka_to_kafka import TOPIC_PARTITIONS, Topics
from tests.servers.kafka import KafkaServer

ROOT = Path(__file__).parent.parent.parent
PAYMENTS = 3_000


@pytest.mark.timeout(600)
def test_balances_of_payments_that_come_through_spark_are_the_truth(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topics = Topics(kafka_server.bootstrap, *(kafka_server.make_topic(TOPIC_PARTITIONS) for _ in range(2)))
    kafka_to_kafka.pay(topics, PAYMENTS, 10**9)
    done = subprocess.run(
        [sys.executable, "-m", "tests.servers.spark_kafka_job", topics.bootstrap, topics.payments, topics.balances,
         str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert kafka_to_kafka.written(topics) == kafka_to_kafka.truth(PAYMENTS)
