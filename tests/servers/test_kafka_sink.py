"""Records appear in a topic when their epoch is complete, each once, whatever dies: against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from snapshot.sinks.kafka_sink import ToKafka
from snapshot.testing.sinks import CHECKS, SinkTrial, Surroundings
from tests.servers.kafka import KafkaServer

pytestmark = pytest.mark.servers


def trial(server: KafkaServer, sink: ToKafka) -> SinkTrial:
    def visible(_: Surroundings) -> Sequence[str]:
        return [json.loads(record.value or b"{}")["row"] for record in server.records(sink.topic)]

    return SinkTrial(sink, visible)


@pytest.fixture(scope="session")
def topic(kafka_server: KafkaServer) -> str:
    return kafka_server.make_topic(2)


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], kafka_server: KafkaServer, topic: str) -> None:
    check(trial(kafka_server, ToKafka(kafka_server.bootstrap, topic, key="row")))
