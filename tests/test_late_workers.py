"""Processes that were taken for lost and wake up: what they say is refused, that is told, and they are sent away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.events import EpochCompleted, PeerRefused, WorkerLost
from snapshot.host.protocol.messages import Failed, FailureKind, HasCommitted, Leave
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.test_driver_mishaps import heard
from tests.test_driver_runs import FIRST, completed, of_kind, start


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


def test_what_a_process_says_after_it_was_taken_for_lost_is_refused(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, cluster, heartbeat="50ms", lost_after="2s")
    completed(cluster, 1)
    hung = cluster.worker_of(1)
    lost = heard(run, lambda event: isinstance(event, WorkerLost))
    refused = heard(run, lambda event: isinstance(event, PeerRefused) and event.peer == hung.name)
    monkeypatch.setattr(hung, "_obey", lambda message: None)  # it hears, and does not stir
    hung.fall_silent()
    assert lost.wait(PATIENCE)
    assert [event.worker for event in of_kind(run, WorkerLost)] == [hung.name]
    hung.say(HasCommitted(FIRST, Partition(1), Epoch(Generation(1), 999)))
    hung.say(Failed(FIRST, Partition(1), FailureKind.UNUSABLE, "as a zombie says"))
    assert refused.wait(PATIENCE)
    cluster.wait_for(lambda: True if any(isinstance(one, Leave) for one in hung.received) else None)
    hung.die()
    done = len(of_kind(run, EpochCompleted))
    cluster.wait_for(lambda: True if len(of_kind(run, EpochCompleted)) > done + 1 else None)
    run.stop()
    reasons = [event.reason for event in of_kind(run, PeerRefused) if event.peer == hung.name]
    assert any(reason.startswith("HasCommitted of 1.1: it was taken for lost") for reason in reasons)
    assert any(reason.startswith("Failed of 1.1") for reason in reasons)
    assert run.status().incarnation == Incarnation(Generation(1), Attempt(2))
