"""Events appear in a stream when their epoch is complete, each once, whatever dies: against a real Pravega."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from snapshot.connectors.pravega.sink import ToPravega
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SinkEnvironment, SinkTrial
from tests.servers.pravega import SCOPE, PravegaServer


def trial(server: PravegaServer, sink: ToPravega) -> SinkTrial:
    def visible(_: SinkEnvironment) -> Sequence[str]:
        return [json.loads(event)["row"] for event in server.events(sink.stream)]

    return SinkTrial(sink, visible, elsewhere=["another-stream", "tcp://127.0.0.1:1", "epochcut-commits-others-0"])


@pytest.fixture(scope="session")
def stream(pravega_server: PravegaServer) -> str:
    return pravega_server.make_stream()


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], pravega_server: PravegaServer, stream: str) -> None:
    at = pravega_server.controller
    bad = [
        ToPravega(at, SCOPE, "nowhere"),
        ToPravega(at, "nowhere", "nowhere"),
        ToPravega(at, SCOPE, stream, transaction_timeout=1e6),
        ToPravega("tcp://127.0.0.1:1", SCOPE, stream),
    ]
    check(replace(trial(pravega_server, ToPravega(at, SCOPE, stream, key="row")), bad=bad))


def test_any_order_of_events_and_crashes_shows_each_row_once(pravega_server: PravegaServer, stream: str) -> None:
    machine = sink_machine(trial(pravega_server, ToPravega(pravega_server.controller, SCOPE, stream, key="row")))
    few = settings(max_examples=3, stateful_step_count=12, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=few)
