"""The example from Kafka to Kafka as a person runs it, with a broker of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
def test_balances_are_exact_though_a_worker_and_the_broker_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.kafka_to_kafka", "--payments", "6000", "--rate", "1000"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    begin, worker, broker, end = done.stdout.splitlines()
    assert begin.startswith("6,000 payments to 200 accounts")
    assert worker.startswith("killed worker ")
    assert broker.startswith("killed the broker, and started it again")
    assert end == "6,000 balances expected, 6,000 in the topic: 0 lost, 0 twice or wrong"
